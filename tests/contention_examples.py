"""Jobs on links of 1 byte/s, for tests of network policies."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from estimator.network.steps import Mover, Playing, Step, Transfer
from planner.contention.policies.loads import steps_on
from planner.contention.policies.records import Contender, Decision, View


def contender(
    name: str,
    *,
    compute_s: float,
    wire_s: float,
    begins_s: float | None = None,
    flops: float = 1.0,
    devices: int = 1,
    paths: Sequence[Sequence[int]] = ((0,),),
    own_level: int = 0,
    now: int = 0,
) -> Contender:
    """A job of one connection, whose bytes take `wire_s`; unsaid: from the end of its compute on."""
    begins_s = compute_s if begins_s is None else begins_s
    mover = Mover(way=((0, 1.0),), seconds=wire_s)
    steps = (Step(compute_s=compute_s, begins_s=begins_s, transfers=(Transfer(movers=(mover,)),)),)
    return Contender(
        id=name,
        devices=devices,
        flops=flops,
        alone_s=max(compute_s, begins_s + wire_s),
        steps=steps,
        paths=(tuple(tuple((link, 1.0) for link in path) for path in paths),),
        now=(now,),
        own_level=own_level,
    )


def view_of(jobs: Sequence[Contender], levels: int | None = None, links: int | None = None) -> View:
    """The jobs on links of 1 byte/s, as many as they name."""
    named = [link for job in jobs for options in job.paths for path in options for link, _ in path]
    return View(jobs=tuple(jobs), bytes_per_s=(1.0,) * (links or max(named, default=-1) + 1), levels=levels)


def playings(view: View, decision: Decision) -> list[Playing]:
    """The jobs with the links and levels of a decision."""
    return [
        Playing(steps=steps_on(job, paths), level=level or 0, starts_s=offset_s, weight=job.weight)
        for job, paths, level, offset_s in zip(
            view.jobs, decision.paths, decision.levels, decision.offsets_s, strict=True
        )
    ]


def random_view(rng: Random, jobs: int = 5, levels: int = 3) -> View:
    """Jobs that go up from one of three leaves, over one of two spines, and down to another leaf: 12 links."""
    made = []
    for number in range(jobs):
        up, down = rng.sample(range(3), 2)
        compute_s = rng.uniform(0.5, 2.0)
        made.append(
            contender(
                f"job{number}",
                compute_s=compute_s,
                wire_s=rng.uniform(0.2, 1.5),
                begins_s=compute_s * rng.choice((0.3, 0.6, 1.0)),
                flops=rng.uniform(1.0, 30.0),
                devices=rng.choice((8, 16, 32)),
                paths=[(2 * up + spine, 6 + 2 * down + spine) for spine in range(2)],
                own_level=rng.randrange(4),
                now=rng.randrange(2),
            )
        )
    return view_of(made, levels=levels, links=12)
