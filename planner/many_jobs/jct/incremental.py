"""What is known of a job when it is submitted, one job at a time: for a simulator, and as the oracle of `features`.

The same figures as `features.job_features`, from plain queues: a job's duration enters when it has finished, never
before, so nothing of the future can.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from itertools import islice

from planner.many_jobs.jct.groups import (
    AGED,
    AGED_WINDOWS,
    COUNTED_NUMBERS,
    COUNTED_S,
    DECAYED,
    DECAYS_S,
    LAST,
    LONG,
    LONG_S,
    LONGEST_DECAYS,
    RECENT,
    SHORT_S,
    SUBMITTED,
    feature_names,
    groups_of,
)
from planner.many_jobs.jct.intervals import INTERVAL_S
from profiles.records import dataclass

NAN = math.nan
Test = Callable[[bool, float], bool]


@dataclass(slots=True)
class _Job:
    submit_s: float
    start_s: float
    keys: tuple[Hashable, ...]
    finish_s: float = math.inf
    duration_s: float = NAN
    interval: float = NAN

    def seen(self, now_s: float) -> tuple[bool, float]:
        """Whether it has finished, and how long it ran, or has run so far."""
        done = self.finish_s <= now_s
        return done, self.duration_s if done else max(now_s - self.start_s, 0.0)


@dataclass(slots=True)
class _Group:
    """Jobs of a group: the last submitted, the last finished, and counts. `aged` hold, for each of AGED, jobs that are
    not yet old enough and whether those that are had ended by the bound."""

    submitted: deque[_Job] = field(default_factory=lambda: deque(maxlen=DECAYED))
    finished: deque[_Job] = field(default_factory=lambda: deque(maxlen=LONG))
    young: tuple[deque[_Job], ...] = field(default_factory=lambda: tuple(deque() for _ in AGED))
    old: tuple[deque[bool], ...] = field(default_factory=lambda: tuple(deque(maxlen=max(AGED_WINDOWS)) for _ in AGED))
    within: tuple[deque[float], ...] = field(default_factory=lambda: tuple(deque() for _ in COUNTED_S))
    running: int = 0
    running_submit_s: float = 0.0


class History:
    """The jobs so far. `columns` are those of the trace (`groups.columns_of`), `cap` that of the intervals.

    Call `submitted` in order of time, `started` where a job waits, `finished` when its time has come; a job that ends
    at the instant of a submission is to be reported before it.
    """

    def __init__(self, columns: Sequence[str], cap: int) -> None:
        self.names = feature_names(columns)
        self._numbers = tuple(name for name in COUNTED_NUMBERS if name in columns)
        self._names = groups_of(columns)
        self._columns, self._cap = frozenset({*columns, "gpus"}), cap
        self._groups: tuple[dict[Hashable, _Group], ...] = tuple({} for _ in self._names)
        self._jobs: dict[str, _Job] = {}

    def submitted(
        self,
        id_: str,
        now_s: float,
        *,
        numbers: Mapping[str, float],
        words: Mapping[str, str],
        waits: bool = False,
    ) -> list[float]:
        """A job arrives: its features. `numbers` hold `gpus`; with `waits` its running is counted from `started`."""
        values: dict[str, Hashable] = {**numbers, **words}
        keys = tuple(tuple(_key(values.get(name)) for name in names if name in self._columns) for names in self._names)
        row = [numbers.get(name, NAN) for name in self._numbers]
        job = _Job(submit_s=now_s, start_s=math.inf if waits else now_s, keys=keys)
        for groups, key in zip(self._groups, keys, strict=True):
            group = groups.setdefault(key, _Group())
            row += _features(group, now_s, self._cap)
            _add(group, job)
        self._jobs[id_] = job
        return row

    def started(self, id_: str, now_s: float) -> None:
        """A job that waited begins to run."""
        self._jobs[id_].start_s = now_s

    def finished(self, id_: str, now_s: float, duration_s: float) -> None:
        """A job ends, having run `duration_s`."""
        job = self._jobs.pop(id_)
        job.finish_s, job.duration_s = now_s, duration_s
        job.interval = min(max(math.ceil(duration_s / INTERVAL_S), 1), self._cap)
        for groups, key in zip(self._groups, job.keys, strict=True):
            group = groups[key]
            group.finished.append(job)
            group.running -= 1
            group.running_submit_s -= job.submit_s


def _key(value: Hashable) -> Hashable:
    """A value that equals itself: NaN is one group too."""
    return "nan" if isinstance(value, float) and math.isnan(value) else value


def _add(group: _Group, job: _Job) -> None:
    group.submitted.append(job)
    for young in group.young:
        young.append(job)
    for within in group.within:
        within.append(job.submit_s)
    group.running += 1
    group.running_submit_s += job.submit_s


def _features(group: _Group, now_s: float, cap: int) -> list[float]:
    """In the order of `groups.STATS`."""
    newest = [(job, *job.seen(now_s)) for job in reversed(group.submitted)]
    return [
        *_finished(group, now_s, cap),
        *_submitted([(done, age) for _, done, age in newest[:SUBMITTED]]),
        *_aged(group, now_s),
        float(group.running),
        now_s - group.running_submit_s / group.running if group.running else NAN,
        *(now_s - newest[index][0].submit_s if len(newest) > index else NAN for index in (0, 1)),
        *(newest[index][2] if len(newest) > index else NAN for index in (0, 1)),
        float(newest[0][1]) if newest else NAN,
        *_counts(group, now_s),
        *_decayed(newest, cap),
    ]


def _finished(group: _Group, now_s: float, cap: int) -> list[float]:
    jobs = list(islice(reversed(group.finished), LAST))
    values = [job.interval for job in jobs]
    logs = [math.log10(max(job.duration_s, 1.0)) for job in jobs[:2]]
    return [
        _quantile(values[:RECENT], 0.5),
        _mean(values[:RECENT]),
        *(_quantile(values, share) for share in (0.25, 0.5, 0.75)),
        _mean(values),
        *(_mean([value <= bound for value in values]) for bound in (1, 2)),
        _mean([value >= cap for value in values]),
        *(logs[index] if len(logs) > index else NAN for index in (0, 1)),
        _mean([job.interval for job in group.finished]),
        *(now_s - jobs[index].finish_s if len(jobs) > index else NAN for index in (0, LAST - 1)),
    ]


def _submitted(seen: list[tuple[bool, float]]) -> list[float]:
    return [
        _mean([not done for done, _ in seen]),
        *(_mean([age <= bound for done, age in seen if age > bound or done]) for bound in SHORT_S),
        _mean([age > LONG_S for done, age in seen if age > LONG_S or done]),
    ]


def _aged(group: _Group, now_s: float) -> list[float]:
    shares = []
    for (_, age_s, bound_s), young, old in zip(AGED, group.young, group.old, strict=True):
        while young and young[0].submit_s <= now_s - age_s:
            job = young.popleft()
            old.append(job.finish_s > job.submit_s + bound_s)
        newest = list(reversed(old))
        shares += [_mean(newest[:window]) for window in AGED_WINDOWS]
    return shares


def _counts(group: _Group, now_s: float) -> list[float]:
    counts = []
    for within_s, times in zip(COUNTED_S, group.within, strict=True):
        while times and times[0] < now_s - within_s:
            times.popleft()
        counts.append(float(len(times)))
    return counts


def _decayed(newest: list[tuple[_Job, bool, float]], cap: int) -> list[float]:
    bound = (cap - 1) * INTERVAL_S
    stats = []
    for decay_s in DECAYS_S:
        sums = [0.0] * 6
        for job, done, age in newest:
            weight = math.exp(-min((newest[0][0].submit_s - job.submit_s) / decay_s, LONGEST_DECAYS))
            if done or age > bound:
                sums[0] += weight * (job.interval if done else cap)
                sums[1] += weight
            if done or age > INTERVAL_S:
                sums[2] += weight * (done and age <= INTERVAL_S)
                sums[3] += weight
            sums[4] += weight * (done and age <= bound)
            sums[5] += weight * (min(age, bound) + 1.0) / 1e4
        stats += [sums[index] / sums[index + 1] if sums[index + 1] > 0 else NAN for index in (0, 2, 4)]
    return stats


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else NAN


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(math.floor(share * len(values)), len(values) - 1)] if values else NAN
