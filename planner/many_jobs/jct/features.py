"""What is known of each job when it is submitted, for a whole trace at once.

Nothing here looks past a job's submission: of other jobs it takes those before it in the trace, of these the durations
of such as have finished (submit + queue + duration <= this job's submission), and of the others no more than that they
are there and how long they have run. `incremental` does the same one job at a time, and a test holds both together.
A job that took no time is not known to have finished to those submitted in the same instant.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

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
    columns_of,
    feature_names,
    group_codes,
    groups_of,
)
from planner.many_jobs.jct.intervals import INTERVAL_S, interval_of
from planner.many_jobs.jct.jobs import Floats, Ints, Jobs
from profiles.records import dataclass

Matrix = NDArray[np.float32]
CHUNK = 8192
"""Rows at a time, where a row has much to look back to."""


@dataclass(frozen=True, kw_only=True)
class _Group:
    """A grouping of the trace, sorted. `by_submit` holds the jobs group by group in order of submission, `by_finish` in
    order of finish; `first` is where each job's group begins in both, `place` where the job stands in `by_submit`, and
    `known` where in `by_finish` those end that have finished when it is submitted."""

    by_submit: Ints
    by_finish: Ints
    first: Ints
    place: Ints
    known: Ints
    base: Ints
    submit_keys: Ints


@dataclass(frozen=True, kw_only=True)
class _Trace:
    """The trace as all groupings need it: ranks make times comparable as integers."""

    jobs: Jobs
    cap: int
    interval: Floats
    log_duration: Floats
    duration: Floats
    start: Floats
    finish: Floats
    times: Floats
    submit_rank: Ints
    finish_rank: Ints


def job_features(jobs: Jobs, cap: int, columns: Sequence[str] | None = None) -> Matrix:
    """Return what is known of each job when it is submitted: a row a job, a column for each of `feature_names`, NaN
    where nothing is known. `columns` are those of the trace that a model was trained on (default: this trace's own);
    one that this trace lacks is unknown for all jobs."""
    trace = _rank(jobs, cap)
    if columns is None:
        columns = columns_of(jobs)
    unknown = np.full(len(jobs), np.nan)
    held = {"gpus": jobs.gpus, **jobs.numbers}
    numbers = [held.get(name, unknown) for name in COUNTED_NUMBERS if name in columns]
    features = np.empty((len(jobs), len(feature_names(columns))), np.float32)
    for index, column in enumerate(numbers):
        features[:, index] = column
    place = len(numbers)
    for group in groups_of(columns):
        sorted_group = _sort(trace, group_codes(jobs, [name for name in group if name in columns]))
        for stats in (_finished, _submitted, _aged, _running, _gaps, _counts, _decayed):
            for column in stats(trace, sorted_group):
                features[:, place] = column
                place += 1
    return features


def _rank(jobs: Jobs, cap: int) -> _Trace:
    finish = jobs.seen_finish_s
    times, ranks = np.unique(np.concatenate([jobs.submit_s, finish]), return_inverse=True)
    return _Trace(
        jobs=jobs,
        cap=cap,
        interval=np.nan_to_num(interval_of(jobs.duration_s, cap)),
        log_duration=np.log10(np.maximum(np.nan_to_num(jobs.duration_s), 1.0)),
        duration=np.nan_to_num(jobs.duration_s),
        start=jobs.start_s,
        finish=finish,
        times=times,
        submit_rank=ranks[: len(jobs)],
        finish_rank=ranks[len(jobs) :],
    )


def _sort(trace: _Trace, codes: Ints) -> _Group:
    base = codes * (len(trace.times) + 1)
    by_submit = np.argsort(codes, kind="stable")
    by_finish = np.argsort(base + trace.finish_rank, kind="stable")
    place = np.empty(len(codes), np.int64)
    place[by_submit] = np.arange(len(codes))
    return _Group(
        by_submit=by_submit,
        by_finish=by_finish,
        first=np.searchsorted(codes[by_submit], codes),
        place=place,
        known=np.searchsorted((base + trace.finish_rank)[by_finish], base + trace.submit_rank, side="right"),
        base=base,
        submit_keys=(base + trace.submit_rank)[by_submit],
    )


def _back(order: Ints, end: Ints, first: Ints, count: int) -> tuple[Ints, NDArray[np.bool_]]:
    """The last `count` jobs of `order` before `end`, newest first, and which of them there are."""
    index = end[:, None] - 1 - np.arange(count)
    held = index >= first[:, None]
    return order[np.maximum(index, 0)], held


def _finished(trace: _Trace, group: _Group) -> list[Floats]:
    """Intervals of the last finished: median and mean of few; quartiles, mean and shares of interval 1, up to 2 and the
    cap of the last 31; logarithms (base 10, seconds) of the last two; mean of many; seconds since the last and since
    the 31st finish."""
    last, held = _back(group.by_finish, group.known, group.first, LAST)
    values = np.where(held, trace.interval[last], np.nan)
    count = held.sum(axis=1)
    stats = [_quantile(values[:, :RECENT], 0.5), _mean(values[:, :RECENT])]
    stats += [_quantile(values, share) for share in (0.25, 0.5, 0.75)]
    stats.append(_mean(values))
    stats += [_share(np.sum(values <= bound, axis=1), count) for bound in (1, 2)]
    stats.append(_share(np.sum(values >= trace.cap, axis=1), count))
    stats += [np.where(held[:, index], trace.log_duration[last[:, index]], np.nan) for index in (0, 1)]
    total = np.concatenate([[0.0], np.cumsum(trace.interval[group.by_finish])])
    start = np.maximum(group.first, group.known - LONG)
    stats.append(_share(total[group.known] - total[start], group.known - start))
    since = trace.jobs.submit_s[:, None] - trace.finish[last[:, [0, LAST - 1]]]
    return [*stats, *np.where(held[:, [0, LAST - 1]], since, np.nan).T]


def _submitted(trace: _Trace, group: _Group) -> list[Floats]:
    """Of the last 24 submitted: the share that has not finished; and of those of which it is known, the share that
    finished within 600 s, within 3,600 s, and that ran longer than 14,400 s."""
    last, held = _back(group.by_submit, group.place, group.first, SUBMITTED)
    done, age = _ages(trace, last)
    shares = [_share((held & ~done).sum(axis=1), held.sum(axis=1))]
    for bound in SHORT_S:
        within, beyond = (held & done & (age <= bound)).sum(axis=1), (held & (age > bound)).sum(axis=1)
        shares.append(_share(within, within + beyond))
    within, beyond = (held & done & (age <= LONG_S)).sum(axis=1), (held & (age > LONG_S)).sum(axis=1)
    return [*shares, _share(beyond, within + beyond)]


def _ages(trace: _Trace, last: Ints, part: slice = slice(None)) -> tuple[NDArray[np.bool_], Floats]:
    """Of jobs submitted before those of `part`: whether each has finished, and its duration, or how long it has run so
    far."""
    now = trace.jobs.submit_s[part, None]
    done = trace.finish[last] <= now
    return done, np.where(done, trace.duration[last], np.maximum(now - trace.start[last], 0.0))


def _aged(trace: _Trace, group: _Group) -> list[Floats]:
    """Of the last so many submitted at least that long ago, the share that had not finished the bound after that."""
    shares = []
    for _, age, bound in AGED:
        rank = np.searchsorted(trace.times, trace.jobs.submit_s - age, side="right") - 1
        end = np.maximum(np.searchsorted(group.submit_keys, group.base + rank, side="right"), group.first)
        ran_on = trace.finish > trace.jobs.submit_s + bound
        total = np.concatenate([[0.0], np.cumsum(ran_on[group.by_submit])])
        for window in AGED_WINDOWS:
            start = np.maximum(group.first, end - window)
            shares.append(_share(total[end] - total[start], end - start))
    return shares


def _running(trace: _Trace, group: _Group) -> list[Floats]:
    """How many have been submitted and not finished, and their mean age since submission."""
    count = (group.place - group.first) - (group.known - group.first)
    submitted = _sums_ms(trace.jobs.submit_s, group.by_submit)
    finished = _sums_ms(trace.jobs.submit_s, group.by_finish)
    held = (submitted[group.place] - submitted[group.first]) - (finished[group.known] - finished[group.first])
    since_first = trace.jobs.submit_s - trace.jobs.submit_s[0]
    return [count.astype(np.float64), np.where(count > 0, since_first - _share(held, count) / 1e3, np.nan)]


def _sums_ms(times_s: Floats, order: Ints) -> Ints:
    """Running sums in whole milliseconds since the first: exact, so that what comes later in `order` cannot show."""
    since_first = np.rint((times_s - times_s[0]) * 1e3).astype(np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(since_first[order])])


def _gaps(trace: _Trace, group: _Group) -> list[Floats]:
    """Seconds since the previous two submissions; how long these ran, or have run; whether the previous one is done."""
    last, held = _back(group.by_submit, group.place, group.first, 2)
    done, age = _ages(trace, last)
    gap = trace.jobs.submit_s[:, None] - trace.jobs.submit_s[last]
    stats = [np.where(held, figure, np.nan) for figure in (gap, age, done)]
    return [*stats[0].T, *stats[1].T, stats[2][:, 0]]


def _counts(trace: _Trace, group: _Group) -> list[Floats]:
    """Jobs submitted before this one within the last so many seconds."""
    counts = []
    for within in COUNTED_S:
        rank = np.searchsorted(trace.times, trace.jobs.submit_s - within, side="left")
        start = np.searchsorted(group.submit_keys, group.base + rank, side="left")
        counts.append((group.place - start).astype(np.float64))
    return counts


def _decayed(trace: _Trace, group: _Group) -> list[Floats]:
    """Of the last 128 submitted, weighted by how near their submission is to the newest's, for each decay: the mean
    interval of those of which it is known (finished, or at the cap already); of those that ran beyond 600 s or
    finished, the share that finished within; and how many finished for 10,000 s of running (1 s more for each job, so
    that there is some), both up to the beginning of the cap's interval."""
    rows = len(trace.jobs)
    stats = np.empty((3 * len(DECAYS_S), rows))
    for begin in range(0, rows, CHUNK):
        part = slice(begin, min(begin + CHUNK, rows))
        stats[:, part] = _decayed_part(trace, group, part)
    return list(stats)


def _decayed_part(trace: _Trace, group: _Group, part: slice) -> list[Matrix]:
    last, held = _back(group.by_submit, group.place[part], group.first[part], DECAYED)
    bound = (trace.cap - 1) * INTERVAL_S
    submit_s = trace.jobs.submit_s[last]
    older = np.maximum(submit_s[:, :1] - submit_s, 0.0).astype(np.float32)
    done, age = _ages(trace, last, part)
    settled, exposed = held & (done | (age > bound)), held & (done | (age > INTERVAL_S))
    done &= held
    pairs = [
        tuple(figure.astype(np.float32) for figure in pair)
        for pair in (
            (np.where(done, trace.interval[last], trace.cap) * settled, settled),
            (done & (age <= INTERVAL_S), exposed),
            (done & (age <= bound), (np.minimum(age, bound) + 1.0) * held / 1e4),
        )
    ]
    stats = []
    for decay in DECAYS_S:
        weight = np.exp(np.maximum(older * np.float32(-1.0 / decay), np.float32(-LONGEST_DECAYS)))
        for top, bottom in pairs:
            above, below = (np.einsum("ij,ij->i", weight, figure) for figure in (top, bottom))
            stats.append(np.where(below > 0, above / np.where(below > 0, below, 1.0), np.nan).astype(np.float32))
    return stats


def _share(part: NDArray[np.generic], whole: Ints) -> Floats:
    """part / whole, NaN where that is empty."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)


def _mean(values: Floats) -> Floats:
    held = ~np.isnan(values)
    return _share(np.where(held, values, 0.0).sum(axis=1), held.sum(axis=1))


def _quantile(values: Floats, share: float) -> Floats:
    """The lower empirical quantile of each row's numbers; NaN of none."""
    count = (~np.isnan(values)).sum(axis=1)
    place = np.clip(np.floor(share * count).astype(np.int64), 0, np.maximum(count - 1, 0))
    return np.asarray(np.sort(values, axis=1)[np.arange(len(values)), place])
