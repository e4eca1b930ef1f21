"""Jobs that take turns on the same devices: who is with whom, what is counted of it, how long a round takes.

Jobs whose grants have one name of turns are a group. It holds its devices once, from its first job to its last. All of
a group make one iteration in a round (`planner.many_jobs.scheduling.interleaving`), and each is said to hold an equal
part of the devices. What a decision may do to groups says `planner.many_jobs.simulation.turns`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from planner.many_jobs.jobs.records import Grant, Job, Use
from planner.many_jobs.scheduling.interleaving import interleaved_s
from planner.many_jobs.simulation.states import ActiveJob
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsTaken:
    """How much of a run jobs took turns: how many jobs ever did, the device-hours of devices on which several did, of
    all that were held, and the most jobs that did on the same devices."""

    jobs: int
    device_hours: float
    share_of_held: float
    most_jobs: int


class Turns:
    """The groups by name, each in order of its jobs' numbers; those that have `changed` since speeds were last set; and
    what is counted of them up to `since_s`."""

    __slots__ = ("changed", "device_s", "groups", "most_jobs", "shared", "sharers", "since_s")

    def __init__(self) -> None:
        self.groups: dict[str, list[ActiveJob]] = {}
        self.changed: set[str] = set()
        self.sharers: set[int] = set()
        self.most_jobs = self.shared = 0
        self.device_s = self.since_s = 0.0

    def mates(self, state: ActiveJob) -> Sequence[ActiveJob]:
        """Return who has the job's devices, the job among them; it alone where they are its own."""
        return self.groups.get(turns_of(state), (state,))

    def enter(self, state: ActiveJob, name: str) -> None:
        """The job, which is placed, takes its turns from now on."""
        self.groups[name] = sorted([*self.groups.get(name, ()), state], key=lambda member: member.index)
        self.changed.add(name)

    def leave(self, state: ActiveJob) -> bool:
        """It takes none any more; return whether its devices come free: nobody else has them."""
        name = turns_of(state)
        if not name:
            return True
        self.groups[name].remove(state)
        self.changed.add(name)
        if not self.groups[name]:
            del self.groups[name]
        return name not in self.groups

    def count(self, now_s: float) -> None:
        """Count up to now, and go on with the groups as they are."""
        self.device_s += self.shared * (now_s - self.since_s)
        self.since_s = now_s
        several = [group for group in self.groups.values() if len(group) > 1]
        self.shared = sum(devices_of_grant(group[0]) for group in several)
        self.most_jobs = max(self.most_jobs, *map(len, several)) if several else self.most_jobs
        self.sharers.update(member.index for group in several for member in group)

    def counted(self) -> dict[str, Any]:
        """Return what is counted, as values of JSON."""
        return {
            "jobs": sorted(self.sharers),
            "most_jobs": self.most_jobs,
            "devices": self.shared,
            "device_s": self.device_s,
            "since_s": self.since_s,
        }

    def restore(self, counted: Mapping[str, Any] | None) -> None:
        """Go on from what was counted (None: nothing), with the groups as they are."""
        self.changed.clear()
        if counted is not None:
            self.sharers, self.most_jobs = set(counted["jobs"]), counted["most_jobs"]
            self.shared, self.device_s, self.since_s = counted["devices"], counted["device_s"], counted["since_s"]

    def taken(self, now_s: float, held_s: float) -> TurnsTaken | None:
        """Return what came of it by now, when so many device-seconds were held; None where no two jobs took turns."""
        if not self.sharers:
            return None
        device_s = self.device_s + self.shared * (now_s - self.since_s)
        share = device_s / held_s if held_s > 0 else 0.0
        return TurnsTaken(
            jobs=len(self.sharers), device_hours=device_s / 3600, share_of_held=share, most_jobs=self.most_jobs
        )


def turns_of(state: ActiveJob) -> str:
    """Return the name of the turns that a job takes; none while it waits or has devices of its own."""
    return "" if state.grant is None else state.grant.turns


def interleaved(
    use: Callable[[Job, Grant], Use | None], members: Sequence[ActiveJob], seconds: Sequence[float]
) -> float:
    """Return the seconds of a round of jobs that take turns, each of which would take so long where it sits without the
    others of its group. What it computes is what its Cell does, wherever it sits."""
    if len(members) == 1:
        return seconds[0]
    uses = []
    for member, alone_s in zip(members, seconds, strict=True):
        need = use(member.job, grant_of(member))
        assert need is not None, f"{member.job.id} takes turns with others, and nobody knows what it needs"
        uses.append(replace(need, iteration_s=max(alone_s, need.compute_s)))
    return interleaved_s(uses)


def grant_of(state: ActiveJob) -> Grant:
    """Return the grant of a job that runs."""
    assert state.grant is not None
    return state.grant


def devices_of_grant(state: ActiveJob) -> int:
    """Return the devices that a job was granted; none while it waits."""
    return 0 if state.grant is None else state.grant.devices
