"""Jobs on a network, each alone and all together: what they lose, to whom, where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.connections import Model, playing_of
from estimator.network.fabric import Fabric
from estimator.network.missing_ways import NoWayError
from estimator.network.player.compiling import will_compile
from estimator.network.player.packing import Floats, Packed, pack
from estimator.network.player.play import Happening, Played, Settings, mean_bytes_per_s, play
from planner.contention.jobs_file import PlacedJob
from planner.contention.slowing import FEW, Slower, Told, slowers_of
from profiles.errors import NothingFits
from profiles.records import dataclass, replace

UNSTABLE = 0.05
"""What moves by more of its time within twice the jitter is called unstable."""
NEARBY = ((0, 0), (1, 1), (2, 0), (2, 1))
"""How many times the jitter, and by which seed, beside the first run."""
LOG_ROWS = 20_000
FEW_LINKS = 200
"""So many links on the ways of all their connections together are few."""


@dataclass(frozen=True, kw_only=True, eq=False)
class JobContention:
    """What becomes of a job: seconds of an iteration `alone_s` and now, in the mean of all runs and from the least to
    the most; `unstable`: it moves by more than 5% as compute varies by up to twice the jitter. `steady`: it settled in
    every run. `intensity` is the work of an iteration over the longest that its bytes take on a link (Crux, eq. 2)."""

    job: PlacedJob
    compute_s: float
    alone_s: float
    seconds: float
    range_s: tuple[float, float]
    unstable: bool
    steady: bool
    slowed_by: tuple[Slower, ...]
    sent_bytes: float
    intensity: float | None

    @property
    def busy(self) -> float:
        """The share of its time in which it computes."""
        return min(1.0, self.compute_s / self.seconds)

    @property
    def exposed_s(self) -> float:
        """What an iteration takes beyond its compute."""
        return max(0.0, self.seconds - self.compute_s)


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkContention:
    """A link: the share of what it carries that is used in the mean, and the jobs that send over it."""

    link: int
    busy: float
    jobs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Contention:
    """All jobs, the links that two or more of them use in some run (the fullest first), what every link carries in the
    mean of all runs, what happened first in the first run, and the jobs in arrays on the fabric of that run. Of many
    jobs so many `short_plays`, one without each job that meets others, say who slows whom; 0 where they are few."""

    jobs: tuple[JobContention, ...]
    links: tuple[LinkContention, ...]
    carried_bytes_per_s: Floats
    happened: tuple[Happening, ...]
    packed: tuple[Packed, ...]
    fabric: Fabric
    short_plays: int


def contend(
    jobs: Sequence[PlacedJob],
    fabric: Fabric,
    *,
    seeds: int = 1,
    jitter: float = 0.01,
    model: Model = "collective",
    told: Told | None = None,
) -> Contention:
    """Return what becomes of `jobs` on a fabric, with `seeds` hashes one after the other from the fabric's own. `told`
    hears how far it is.

    Raises NothingFits for a job whose nodes no way joins, with the link that lacks.
    """
    names, runs = [job.id for job in jobs], []
    packed = on_fabric(jobs, fabric, model)
    how = Settings(jitter=jitter, compiled=None if _are_many(packed) else False)
    if told is not None and how.compiled is None and will_compile():
        told(0, seeds, "the player compiled, once, for some 20 s")
    for seed in range(seeds):
        if told is not None:
            told(seed, seeds, "jobs played as they are")
        here = fabric if seed == 0 else _hashed_by(fabric, seed)
        on_here = packed if seed == 0 else on_fabric(jobs, here, model)
        settings = replace(how, seed=seed, log_rows=0 if seed else LOG_ROWS)
        runs.append((on_here, play(on_here, here.links.bytes_per_s, settings=settings, names=names)))
    rates = fabric.links.bytes_per_s
    alone = [[play([job], rates, settings=replace(how, jitter=0)).jobs[0].seconds for job in on] for on, _ in runs]
    return _contention(
        jobs,
        packed,
        fabric,
        runs=runs,
        alone_s=[float(np.mean([of_run[number] for of_run in alone])) for number in range(len(jobs))],
        how=how,
        told=told,
    )


def contend_as(
    jobs: Sequence[PlacedJob],
    packed: Sequence[Packed],
    fabric: Fabric,
    *,
    alone_s: Sequence[float],
    jitter: float = 0.01,
    told: Told | None = None,
) -> Contention:
    """Return what becomes of `jobs` that are played as `packed` says, on other paths or levels than theirs, each of
    which takes `alone_s` alone; `range_s` is of runs in which compute varies by up to twice the jitter."""
    how = Settings(jitter=jitter, compiled=None if _are_many(packed) else False)
    names = [job.id for job in jobs]
    run = play(packed, fabric.links.bytes_per_s, settings=replace(how, log_rows=LOG_ROWS), names=names)
    return _contention(jobs, packed, fabric, runs=[(packed, run)], alone_s=alone_s, how=how, told=told, widely=True)


def _are_many(packed: Sequence[Packed]) -> bool:
    """Whether plain Python would take longer than loading compiled code, which takes a second."""
    return len(packed) > FEW or sum(len(job.entry_link) for job in packed) > FEW_LINKS


def _contention(
    jobs: Sequence[PlacedJob],
    packed: Sequence[Packed],
    fabric: Fabric,
    *,
    runs: Sequence[tuple[Sequence[Packed], Played]],
    alone_s: Sequence[float],
    how: Settings,
    told: Told | None,
    widely: bool = False,
) -> Contention:
    """What runs say together, each with the jobs on its ways; of `packed` the first. `widely`: ranges are of the runs
    nearby, too."""
    rates, names = fabric.links.bytes_per_s, [job.id for job in jobs]
    played = [run for _, run in runs]
    nearby: list[Played] = []
    for factor, seed in NEARBY:
        if told is not None:
            told(len(nearby), len(NEARBY), "jobs played as compute varies")
        settings = replace(how, jitter=how.jitter * factor, seed=seed)
        nearby.append(play(packed, rates, settings=settings, names=names))
    slowers, short_plays = slowers_of(packed, played[0], rates, names, how, told)
    described = tuple(
        _job(
            job,
            packed[number],
            fabric,
            alone_s=alone_s[number],
            runs=played,
            nearby=[played[0], *nearby],
            number=number,
            slowed_by=slowers[number],
        )
        for number, job in enumerate(jobs)
    )
    if widely:
        seconds = [[run.jobs[number].seconds for run in (*played, *nearby)] for number in range(len(jobs))]
        described = tuple(
            replace(job, range_s=(min(its), max(its))) for job, its in zip(described, seconds, strict=True)
        )
    carried = [mean_bytes_per_s(on, [job.seconds for job in run.jobs], len(rates)) for on, run in runs]
    carried_bytes_per_s: Floats = np.mean(carried, axis=0)
    return Contention(
        jobs=described,
        links=_links([on for on, _ in runs], rates, carried_bytes_per_s),
        carried_bytes_per_s=carried_bytes_per_s,
        happened=played[0].log,
        packed=tuple(packed),
        fabric=fabric,
        short_plays=short_plays,
    )


def on_fabric(jobs: Sequence[PlacedJob], fabric: Fabric, model: Model) -> list[Packed]:
    """Return the jobs as a player takes them. Raise NothingFits for one that cannot communicate."""
    packed = []
    for job in jobs:
        try:
            playing = playing_of(job.traffic, job.seats, fabric, model=model, level=job.level, seed=job.port_seed)
        except NoWayError as error:
            raise NothingFits(f"job {job.id} cannot communicate: {error}") from None
        packed.append(pack(replace(playing, weight=job.weight)))
    return packed


def _hashed_by(fabric: Fabric, seed: int) -> Fabric:
    return replace(fabric, routing=replace(fabric.routing, seed=fabric.routing.seed + seed))


def _job(
    job: PlacedJob,
    packed: Packed,
    fabric: Fabric,
    *,
    alone_s: float,
    runs: Sequence[Played],
    nearby: Sequence[Played],
    number: int,
    slowed_by: tuple[Slower, ...],
) -> JobContention:
    seconds = [run.jobs[number].seconds for run in runs]
    moved = [run.jobs[number].seconds for run in nearby]
    rates = fabric.links.bytes_per_s[packed.links]
    longest_s = float((packed.iteration_bytes / rates).max()) if len(packed.links) else 0.0
    return JobContention(
        job=job,
        compute_s=packed.compute_s,
        alone_s=alone_s,
        seconds=float(np.mean(seconds)),
        range_s=(min(seconds), max(seconds)),
        unstable=bool(max(moved) > min(moved) * (1 + UNSTABLE)),
        steady=all(run.jobs[number].steady for run in runs),
        slowed_by=slowed_by,
        sent_bytes=float(packed.iteration_bytes[np.isin(packed.links, fabric.links.ports)].sum()),
        intensity=job.flops / longest_s if job.flops is not None and longest_s > 0 else None,
    )


def _links(runs: Sequence[Sequence[Packed]], rates: Floats, carried: Floats) -> tuple[LinkContention, ...]:
    """The links that two jobs or more send over in a run, and who does so in any."""
    members: dict[int, set[int]] = {}
    for packed in runs:
        users = np.zeros(len(rates), dtype=np.int64)
        for job in packed:
            users[job.links] += 1
        for number, job in enumerate(packed):
            for link in job.links[users[job.links] > 1].tolist():
                members.setdefault(link, set()).add(number)
    links = [
        LinkContention(link=link, busy=float(carried[link] / rates[link]), jobs=tuple(sorted(jobs)))
        for link, jobs in members.items()
    ]
    return tuple(sorted(links, key=lambda each: (-each.busy, each.link)))
