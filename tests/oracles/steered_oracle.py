"""Jobs that run side by side while somebody decides, replayed from what was decided: when each ends, and what stands
still. One event after the other, in seconds; it knows no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Coming:
    """A job: when it comes, its iterations, the devices that it takes at once."""

    submit_s: float
    iterations: float
    devices: int


@dataclass(frozen=True, kw_only=True)
class Told:
    """A decision: seconds of an iteration of each job that is there, and what each was given, by id."""

    seconds: Mapping[str, float]
    given: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """When each job ended, of how many jobs that stayed each decision changed something, device-seconds that stood
    still."""

    ends_s: Mapping[str, float]
    changes: tuple[int, ...]
    standing_device_s: float


def replay(jobs: Mapping[str, Coming], decisions: Sequence[Told], change_s: float) -> Replayed:
    """Each decision is made as a job comes or goes, of those who are there then. Who is given something else than
    before stands still for `change_s` from then on."""
    left = {name: job.iterations for name, job in jobs.items()}
    standing_until_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    now_s, here, told, before = 0.0, set[str](), Told(seconds={}, given={}), dict[str, object]()
    waiting, following = sorted(jobs, key=lambda name: jobs[name].submit_s), iter(decisions)
    changes, stood_s = list[int](), 0.0
    while waiting or here:
        ends = {name: max(now_s, standing_until_s.get(name, 0.0)) + left[name] * told.seconds[name] for name in here}
        next_s = min([*ends.values(), *(jobs[name].submit_s for name in waiting[:1])])
        for name in here:
            from_s = max(now_s, min(standing_until_s.get(name, 0.0), next_s))
            stood_s += (from_s - now_s) * jobs[name].devices
            left[name] -= (next_s - from_s) / told.seconds[name]
        now_s = next_s
        for name in [name for name, end_s in ends.items() if end_s <= next_s]:
            ends_s[name] = now_s
            here.remove(name)
            before.pop(name)
        while waiting and jobs[waiting[0]].submit_s <= now_s:
            here.add(waiting.pop(0))
        if not here:
            continue
        told = next(following)
        assert set(told.seconds) == here, (now_s, set(told.seconds), here)
        changed = [name for name, given in told.given.items() if before.get(name, given) != given]
        standing_until_s |= dict.fromkeys(changed, now_s + change_s)
        before |= told.given
        changes.append(len(changed))
    return Replayed(ends_s=ends_s, changes=tuple(changes), standing_device_s=stood_s)
