"""Which of the boosters and the simple rules to follow, for each loss, by how they did on jobs that have finished.

Rules are constants, the best point of a group's finished jobs, and what its last 31 did. Weights are multiplied by
exp(-rate x loss) for each job whose duration becomes known and pulled back to where they began a little each time (the
fixed-share forecaster of Herbster and Warmuth, "Tracking the best expert", 1998), so that they follow a drift. Training
plays this through on the last jobs of its window, predicted by boosters that did not see them; predicting goes on from
there with jobs submitted after the window. Nothing is used before the submission of the job that is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from planner.many_jobs.jct.groups import LAST, feature_names, group_codes, groups_of
from planner.many_jobs.jct.intervals import INTERVAL_S, LOSSES, best_constant, interval_of, losses_of, point_of
from planner.many_jobs.jct.jobs import Floats, Ints, Jobs
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.jct import Loss
from profiles.records import dataclass

RULES_WORTH = 3000.0
"""The boosters begin with the weight jobs / (jobs + this), where `jobs` are those they were fitted on."""
KINDS = {"constant": 0.3, "group": 0.3, "past": 0.4}
"""How the rest is shared at the beginning among kinds of rules; within a kind alike."""
RATES: dict[Loss, float] = {"squared": 1.0, "absolute": 2.0, "log": 1.0, "within-2x": 1.0}
"""Of losses that are divided by the largest there can be."""
BACK = 0.05
"""The share of the weights that goes back to where they began with each job."""
LEAST_WEIGHT = 0.05
"""What weighs less is left out of the point (not out of the race)."""
LEARNED = 2000
"""Jobs before the first predicted one that are learned from, at most."""
PAST: dict[Loss, tuple[str, ...]] = {
    "squared": (f"mean_{LAST}",),
    "absolute": (f"q50_{LAST}",),
    "log": (f"mean_{LAST}", f"q50_{LAST}"),
    "within-2x": (f"q50_{LAST}",),
}
NEAR = 0.35
"""Points whose logarithms differ by less vote for each other where the loss is whether the truth lies within 2x."""
MOST_CELLS = 4_000_000

Points = Mapping[Loss, Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Where the weights begin, where training left them, and the best constants. All in the order of LOSSES, weights
    then boosters first, and the rules in the order of `rule_names`."""

    constants: tuple[float, ...]
    begin: tuple[tuple[float, ...], ...]
    weights: tuple[tuple[float, ...], ...]


def rule_names(columns: tuple[str, ...], loss: Loss) -> tuple[str, ...]:
    """The rules for a loss in a trace with these columns, as kind and what it is of."""
    groups = ["-".join(group) or "all" for group in groups_of(columns)]
    past = [f"past {group}.{stat}" for stat in PAST[loss] for group in groups]
    return ("constant", *(f"group {group}" for group in groups), *past)


def begin_weights(columns: tuple[str, ...], jobs: int, loss: Loss) -> tuple[float, ...]:
    """The weights of the boosters, fitted on so many jobs, and of the rules."""
    kinds = [name.partition(" ")[0] for name in rule_names(columns, loss)]
    boosters = jobs / (jobs + RULES_WORTH)
    return (boosters, *((1.0 - boosters) * KINDS[kind] / kinds.count(kind) for kind in kinds))


def constants_of(truth: Floats, cap: int) -> tuple[float, ...]:
    """The best constant for each loss."""
    return tuple(best_constant(truth, cap, loss) for loss in LOSSES)


def known_times(jobs: Jobs, cap: int) -> tuple[Floats, Floats]:
    """When each job's interval becomes known (finished, or run into the cap's interval; infinite: never, as with jobs
    that were killed before), and that interval."""
    finish = jobs.seen_finish_s
    capped = np.nextafter(jobs.start_s + (cap - 1) * INTERVAL_S, np.inf)
    early = finish <= capped
    times = np.where(early, np.where(jobs.killed, np.inf, finish), capped)
    return times, np.where(early, np.nan_to_num(interval_of(jobs.duration_s, cap), nan=cap), float(cap))


def rule_points(prepared: Prepared, rows: Ints, constants: tuple[float, ...]) -> Points:
    """What each rule (a row) says of each of `rows` (a column; in order of submission), for each loss."""
    names = feature_names(prepared.columns)
    features = prepared.features
    groups = [_group_points(prepared, rows, group) for group in groups_of(prepared.columns)]
    by_loss = {}
    for loss, constant in zip(LOSSES, constants, strict=True):
        past = [
            features[rows, names.index(name.partition(" ")[2])].astype(np.float64)
            for name in rule_names(prepared.columns, loss)
            if name.startswith("past ")
        ]
        told = np.array([np.full(len(rows), constant), *(points[loss] for points in groups), *past])
        by_loss[loss] = np.where(np.isnan(told), constant, told)
    return by_loss


def _group_points(prepared: Prepared, rows: Ints, group: tuple[str, ...]) -> Points:
    """The points of least loss on all jobs of the group that are known at each row's submission; NaN without any."""
    cap, jobs = prepared.cap, prepared.jobs
    codes = group_codes(jobs, [name for name in group if name in prepared.columns])
    times, interval = known_times(jobs, cap)
    order = np.argsort(times, kind="stable")
    code, place = codes[order], interval[order].astype(np.int64) - 1
    ends = np.searchsorted(times[order], jobs.submit_s[rows], side="right")
    counts = np.zeros((int(codes.max(initial=0)) + 1, cap), np.float32)
    points_of: dict[Loss, list[Floats]] = {loss: [] for loss in LOSSES}
    step, at = max(1, MOST_CELLS // cap), 0
    for first in range(0, len(rows), step):
        part = rows[first : first + step]
        masses = np.empty((len(part), cap))
        for index, (row, end) in enumerate(zip(part.tolist(), ends[first : first + step].tolist(), strict=True)):
            if end > at:
                np.add.at(counts, (code[at:end], place[at:end]), 1.0)
                at = end
            masses[index] = counts[codes[row]]
        total = masses.sum(axis=1, keepdims=True)
        masses /= np.maximum(total, 1.0)
        for loss in LOSSES:
            points_of[loss].append(np.where(total[:, 0] > 0, point_of(masses, loss), np.nan))
    return {loss: np.concatenate(parts) if parts else np.zeros(0) for loss, parts in points_of.items()}


def relative_losses(points: Floats, truth: Floats, loss: Loss, cap: int) -> Floats:
    """Return the loss of each point, as a share of the largest there can be: that of one end for the other."""
    largest = float(losses_of(np.array(float(cap)), np.array(1.0), loss))
    return np.asarray(losses_of(points, truth, loss) / (largest or 1.0))


def followed(weights: Floats, begin: Floats, losses: Floats, rate: float) -> Iterator[Floats]:
    """The weights before the first of these losses (an expert a row, a job a column), and after each."""
    yield weights
    for factor in np.exp(-rate * losses.T):
        weights = weights * factor
        weights = (1.0 - BACK) * weights / weights.sum() + BACK * begin
        yield weights


def learn(points: Mapping[Loss, list[Floats]], truth: Floats, begin: Mapping[Loss, Floats], cap: int) -> Points:
    """The weights after jobs that were predicted out of sample; `points` have an expert a row, for each fold."""
    learned = {}
    for loss in LOSSES:
        losses = relative_losses(np.concatenate(points[loss], axis=1), truth, loss, cap)
        for weights in followed(begin[loss], begin[loss], losses, RATES[loss]):
            learned[loss] = weights
    return learned


def learned_rows(prepared: Prepared, rows: Ints, last_submit_s: float) -> Ints:
    """`rows` and the jobs to learn from before them: submitted after the training window, the last LEARNED of them."""
    if not len(rows):
        return rows
    first = max(int(np.searchsorted(prepared.jobs.submit_s, last_submit_s, side="right")), int(rows[0]) - LEARNED)
    return np.union1d(np.arange(first, int(rows[-1])), rows)


def mixed_points(
    mixture: Mixture, prepared: Prepared, rows: Ints, boosters: Points, last_submit_s: float
) -> dict[Loss, Floats]:
    """The mixture's points of `rows` (as `learned_rows` gives them), where the boosters' are `boosters`. Weights move
    with each job whose interval becomes known, if it was submitted after the training window."""
    jobs = prepared.jobs
    rules = rule_points(prepared, rows, mixture.constants)
    times, interval = (column[rows] for column in known_times(jobs, prepared.cap))
    times = np.where(jobs.submit_s[rows] > last_submit_s, times, np.inf)
    order = np.argsort(times, kind="stable")[: int(np.isfinite(times).sum())]
    seen = np.searchsorted(times[order], jobs.submit_s[rows], side="right")
    mixed = {}
    for index, loss in enumerate(LOSSES):
        if loss not in boosters:
            continue
        experts = np.concatenate([boosters[loss][None, :], rules[loss]])
        losses = relative_losses(
            experts[:, order[: seen.max(initial=0)]], interval[order[: seen.max(initial=0)]], loss, prepared.cap
        )
        steps = followed(np.array(mixture.weights[index]), np.array(mixture.begin[index]), losses, RATES[loss])
        weights = np.array(list(steps))[seen].T
        mixed[loss] = combine(experts, weights, loss)
    return mixed


def combine(experts: Floats, weights: Floats, loss: Loss) -> Floats:
    """One point a job from those of the experts (a row each): the mean, for the log loss the geometric one, and for
    within-2x the point that has the most weight near it."""
    weights = np.where(weights < np.minimum(LEAST_WEIGHT, weights.max(axis=0)), 0.0, weights)
    weights = weights / weights.sum(axis=0)
    if loss == "log":
        return np.asarray(np.exp((weights * np.log(np.maximum(experts, 1e-9))).sum(axis=0)))
    if loss != "within-2x":
        return np.asarray((weights * experts).sum(axis=0))
    logs = np.log(experts)
    best, chosen = np.full(experts.shape[1], -1.0), experts[0].copy()
    for point, log, weight in zip(experts, logs, weights, strict=True):
        votes = (weights * (np.abs(logs - log) <= NEAR)).sum(axis=0) + 1e-9 * weight
        better = (votes > best + 1e-12) & (weight > 0)
        best, chosen = np.where(better, votes, best), np.where(better, point, chosen)
    return np.asarray(chosen)
