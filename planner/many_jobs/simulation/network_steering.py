"""A network policy in a simulation: whenever a job comes to the fabric or leaves it, the policy decides for all that
are there, and the jobs are played on the paths and at the levels that it gave them.

What is in force is kept: the policy sees it as `now`, other paths or another level for a job that stays are a change,
and a change costs the job `change_s`, in which it stands still while its connections are opened anew.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from estimator.network.fabric import Fabric
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Settings as PlayerSettings
from estimator.network.player.play import play
from estimator.network.steps import Playing
from estimator.network.wires import Integers
from planner.contention.playing import playing_under
from planner.contention.policies.records import Choice, Contender, Decision, NetworkPolicy, View
from planner.contention.viewing import contender_of
from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.network_choice import NetworkSteering
from planner.many_jobs.simulation.network_sharing import (
    MOST_STATES,
    SharedFabric,
    Standing,
    each_of,
    grant_of,
    ways_needed,
)
from planner.many_jobs.simulation.network_traffic import fewer_steps, seats_of
from planner.many_jobs.simulation.network_turns import contender_in_turns
from planner.many_jobs.simulation.seat_prices import SeatPrices
from planner.many_jobs.simulation.settings import Placement, Seated, Steered
from profiles.errors import InputError
from profiles.records import dataclass, replace

ALONE = "alone"
"""What a job is called where it is asked about without others: the answer is that of all jobs like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """What a policy has said of a job: of each connection its path; the job's level, and those of axes; the period to
    which its iterations are held."""

    paths: tuple[Choice, ...]
    level: int
    axis_levels: tuple[tuple[str, int], ...] = ()
    period_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _InForce:
    """Whose seats it is for, too: a job that sits elsewhere begins anew."""

    standing: Standing
    stated: Stated


class SteeredFabric(SharedFabric):
    """`planner.many_jobs.simulation.settings.Steering` of the links of one site's fabric.

    `steering` says which policy decides, and how it is let (`policy`: this one in its place). Where it would change
    more jobs than it may, the most important ones in its own order are changed, and it decides once more with the
    others as they are.
    """

    def __init__(
        self,
        prices: SeatPrices,
        fabric: Fabric,
        *,
        steering: NetworkSteering,
        policy: NetworkPolicy | None = None,
        seed: int = 0,
        player: PlayerSettings | None = None,
    ) -> None:
        super().__init__(prices, fabric, seed=seed, player=player)
        self.policy, self.levels = policy or steering.policy(), steering.levels
        self.change_s, self.change_at_most = steering.change_s, steering.change_at_most
        self.decisions = self.changes = 0
        self.calls_s = array("d")
        self._bytes_per_s = tuple(fabric.links.bytes_per_s.tolist())
        self._in_force: dict[int, _InForce] = {}
        self._seen = lru_cache(maxsize=MOST_STATES)(self._see)
        self._alone = lru_cache(maxsize=MOST_STATES)(self._play_alone)
        self._on_paths = lru_cache(maxsize=MOST_STATES)(self._pack_on_paths)
        self._together = lru_cache(maxsize=MOST_STATES)(self._play_together)

    @property
    def policy_name(self) -> str:
        """As `Steering`."""
        return self.policy.name

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """The links that the job's connections may pass, whichever path they get."""
        standing = self._standing(job, grant, placement)
        return {} if standing is None else self.links_of(standing)

    def links_of(self, standing: Standing) -> Mapping[str, int]:
        """The same of a job, or of those who take turns."""
        seen = self._seen(standing)
        if seen is None:
            return {}
        return {f"link {link}": 1 for options in seen.paths for path in options for link, _ in path}

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        """Seconds of an iteration of a job that is alone, as the policy has it then."""
        (one,) = together
        standing = self.standing_of(one)
        assert standing is not None, "a job that sends nothing shares nothing"
        return [self._alone(standing, self._own_level(one.job))]

    def steer(self, running: Mapping[int, Seated]) -> Steered:
        """As `Steering`."""
        standings = dict(self._on_network(running))
        self._in_force = {
            number: kept for number, kept in self._in_force.items() if standings.get(number) == kept.standing
        }
        numbers = sorted(standings)
        if not numbers:
            return Steered(seconds={}, pauses_s={})
        view = View(
            jobs=tuple(self._contender(running[number].job, number, standings[number]) for number in numbers),
            bytes_per_s=self._bytes_per_s,
            levels=self.levels,
        )
        decision = self._decide(view, numbers)
        stated = _stated(view, decision)
        changed = self._changed(numbers, decision, stated)
        self.changes += len(changed)
        for number, each in zip(numbers, stated, strict=True):
            self._in_force[number] = _InForce(standing=standings[number], stated=each)
        seconds: dict[int, float] = {}
        parts = [
            (standings[number], each, offset_s)
            for number, each, offset_s in zip(numbers, stated, decision.offsets_s, strict=True)
        ]
        for group in sharing_links([self._on_paths(*part).links for part in parts]):
            # By what the jobs are, not by who they are or when they came.
            members = sorted(group, key=lambda job: (repr(standings[numbers[job]]), numbers[job]))
            its_s = self._together(tuple(parts[job] for job in members))
            seconds |= zip((numbers[job] for job in members), its_s, strict=True)
        return Steered(seconds=seconds, pauses_s=dict.fromkeys(changed, self.change_s) if self.change_s else {})

    def state(self) -> dict[str, Any]:
        """As `Steering`."""
        return {
            "decisions": self.decisions,
            "changes": self.changes,
            "in_force": [
                [number, kept.stated.paths, kept.stated.level, kept.stated.axis_levels, kept.stated.period_s]
                for number, kept in sorted(self._in_force.items())
            ],
        }

    def restore(self, state: Mapping[str, Any], running: Mapping[int, Seated]) -> None:
        """As `Steering`."""
        self.decisions, self.changes = int(state["decisions"]), int(state["changes"])
        standings = dict(self._on_network(running))
        for number, paths, level, axis_levels, period_s in state["in_force"]:
            stated = Stated(
                paths=tuple(paths),
                level=int(level),
                axis_levels=tuple((str(axis), int(its)) for axis, its in axis_levels),
                period_s=period_s,
            )
            seen = self._seen(standings[number])
            if seen is None or len(seen.paths) != len(stated.paths):
                raise ValueError(f"{len(stated.paths)} paths of job number {number}, which has others")
            self._in_force[number] = _InForce(standing=standings[number], stated=stated)

    def _on_network(self, running: Mapping[int, Seated]) -> Iterator[tuple[int, Standing]]:
        for number, seated in running.items():
            standing = self.standing_of(seated)
            if standing is not None and self._seen(standing) is not None:
                yield number, standing

    def _own_level(self, job: Job) -> int:
        """That of its users: a job's priority counts up, levels count down."""
        return max(0, self.levels - 1 - max(0, job.priority))

    def _contender(self, job: Job, number: int, standing: Standing) -> Contender:
        seen, kept = self._seen(standing), self._in_force.get(number)
        assert seen is not None
        if kept is None:
            return seen.as_told(id=job.id, own_level=self._own_level(job), now=seen.now)
        return seen.as_told(id=job.id, own_level=kept.stated.level, now=kept.stated.paths)

    def _decide(self, view: View, numbers: Sequence[int]) -> Decision:
        """What the policy says, of as many jobs as may be changed."""
        decision = self._ask(view)
        most = self.change_at_most
        changed = set(self._changed(numbers, decision, _stated(view, decision)))
        if most is None or len(changed) <= most:
            return decision
        place = {job: rank for rank, job in enumerate(decision.order)}
        in_turn = sorted(
            (job for job, number in enumerate(numbers) if number in changed),
            key=lambda job: (place.get(job, len(numbers)), view.jobs[job].id),
        )
        held = {job for job, number in enumerate(numbers) if number in self._in_force} - set(in_turn[:most])
        jobs = tuple(replace(each, may_change=False) if job in held else each for job, each in enumerate(view.jobs))
        return _held_back(view, self._ask(replace(view, jobs=jobs)), held)

    def _ask(self, view: View) -> Decision:
        began_s = time.perf_counter()
        decision = self.policy.decide(view)
        self.calls_s.append(time.perf_counter() - began_s)
        self.decisions += 1
        if not len(view.jobs) == len(decision.paths) == len(decision.levels) == len(decision.offsets_s):
            found = f"{len(decision.paths)} paths, {len(decision.levels)} levels, {len(decision.offsets_s)} offsets"
            expected = f"one of each for each of {len(view.jobs)} jobs"
            raise InputError(where=f"network policy {self.policy.name}", found=found, expected=expected)
        return decision

    def _changed(self, numbers: Sequence[int], decision: Decision, stated: Sequence[Stated]) -> list[int]:
        """The jobs that were there before and get something else. A period alone needs no connection anew; where nobody
        comes before anybody, as hashes and fair shares have it, no level is set."""
        fair = not decision.order and len({*decision.levels} - {None}) <= 1
        changed = []
        for number, each in zip(numbers, stated, strict=True):
            kept = self._in_force.get(number)
            if kept is None:
                continue
            level = kept.stated.level if fair else each.level
            if replace(kept.stated, period_s=None) != replace(each, period_s=None, level=level):
                changed.append(number)
        return changed

    def _see(self, standing: Standing) -> Contender | None:
        """The job, or those who take turns, as policies see it, on the paths that hashes choose; None where it sends
        nothing."""
        each = each_of(standing)
        seen = [(own, self._see_alone(own, turn)) for turn, own in enumerate(each)]
        known = [(own, contender) for own, contender in seen if contender is not None]
        if not known:
            return None
        contender = known[0][1]
        if len(known) > 1:
            contender = contender_in_turns([its for _, its in known], [self.compute_s(own) for own, _ in known])
        # What no link holds back: the hashed paths of a job may hold each other, others need not.
        return replace(contender, alone_s=pack(Playing(steps=contender.steps)).lasts_s)

    def _see_alone(self, standing: Standing, turn: int) -> Contender | None:
        workload, pool, pieces, *_ = standing
        grant, placement = grant_of(standing)
        key, sent = self.prices.key(workload, grant, placement), self._sent(workload, grant, placement)
        if key is None or sent is None:
            return None
        seats = seats_of(self.prices.seated(key, placement), self.prices.pools[pool], pieces)
        seed, flops = self.port_seed(standing, turn), sent.work.flops
        with ways_needed(pieces):
            seen = contender_of("", sent.traffic, seats, self.fabric, flops=flops, alone_s=1.0, seed=seed).contender
        return replace(seen, steps=fewer_steps(seen.steps)) if seen.paths else None

    def _play_alone(self, standing: Standing, own_level: int) -> float:
        seen = self._seen(standing)
        assert seen is not None
        told = seen.as_told(id=ALONE, own_level=own_level, now=seen.now)
        view = View(jobs=(told,), bytes_per_s=self._bytes_per_s, levels=self.levels)
        (stated,) = _stated(view, self.policy.decide(view))
        return self._together(((standing, stated, 0.0),))[0]

    def _pack_on_paths(self, standing: Standing, stated: Stated, offset_s: float) -> Packed:
        seen = self._seen(standing)
        assert seen is not None
        playing = playing_under(
            seen,
            stated.paths,
            level=stated.level,
            axis_levels=stated.axis_levels,
            offset_s=offset_s,
        )
        return pack(replace(playing, period_s=stated.period_s or 0.0))

    def _play_together(self, parts: tuple[tuple[Standing, Stated, float], ...]) -> tuple[float, ...]:
        packed = [self._on_paths(*part) for part in parts]
        names = [repr(standing[1:3]) for standing, _, _ in parts]
        played = play(packed, self.fabric.links.bytes_per_s, settings=self.player, names=names)
        return tuple(job.seconds for job in played.jobs)


def sharing_links(links: Sequence[Integers]) -> list[list[int]]:
    """Return who shares links, by way of others too: jobs by number, from the links of each; everybody is in one
    group."""
    group_of = list(range(len(links)))
    members = {job: [job] for job in group_of}
    user: dict[int, int] = {}
    for job, its in enumerate(links):
        for link in its.tolist():
            one, other = sorted((group_of[job], group_of[user.setdefault(link, job)]))
            if one != other:
                joined = members.pop(other)
                members[one] += joined
                for moved in joined:
                    group_of[moved] = one
    return [sorted(group) for _, group in sorted(members.items())]


def _stated(view: View, decision: Decision) -> list[Stated]:
    """What a decision says of each job; one that needs no level keeps its own."""
    return [
        Stated(
            paths=tuple(paths),
            level=contender.own_level if level is None else level,
            axis_levels=tuple(decision.axis_levels[job]) if decision.axis_levels else (),
            period_s=decision.periods_s[job] if decision.periods_s else None,
        )
        for job, (contender, paths, level) in enumerate(zip(view.jobs, decision.paths, decision.levels, strict=True))
    ]


def _held_back(view: View, decision: Decision, held: set[int]) -> Decision:
    """The decision with these jobs as they are, where the policy did not leave them so."""
    return replace(
        decision,
        paths=tuple(view.jobs[job].now if job in held else paths for job, paths in enumerate(decision.paths)),
        levels=tuple(view.jobs[job].own_level if job in held else level for job, level in enumerate(decision.levels)),
        axis_levels=tuple(() if job in held else its for job, its in enumerate(decision.axis_levels)),
    )
