"""The boosters' distribution and those of simple rules as one: who is followed is learned from jobs as they run.

An expert gives each job a distribution over intervals: the boosters, the training jobs' shares, and the hazards of each
group over each window (`hazards`). The mixture is the mean by weights p exp(-rate x loss so far) (exponential weights,
Vovk 1990; Cesa-Bianchi and Lugosi, "Prediction, learning, and games", 2006, chapters 2 and 3), its point the one of
least expected loss under that mean.

An expert's loss on a job is the ranked probability score: the mean over thresholds h of (P(longer than h) - truth)^2,
weighted so that a threshold counts for what lies between it and the one before in the scale of the loss asked for. It
is 0 to 1 and proper, and it falls due piece by piece: what a job loses at a threshold is known when the job runs beyond
it, so weights turn while the first long jobs of a new habit still run, and jobs that end soon have no more say for
being known first.

**Bound.** As a function of the mixture's weights the score is exp-concave for rates up to 1/2 (each square is, and
their weighted mean by Cauchy and Schwarz). So with such a rate, nothing forgotten and no delay, the mixture's sum of
scores exceeds no expert's by more than ln(1/p) / rate, for every sequence of jobs. Habits drift and losses come late,
so sums that forget and higher rates do better; no one rate and memory does everywhere, so the weights are the mean over
RATES and MEMORIES, and by convexity the mixture loses no more than its members do on average.

Training plays this through on the last jobs of its window, predicted by boosters that did not see them; predicting goes
on from there with jobs submitted after the window. Nothing is used before the submission of the job that is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from planner.many_jobs.jct.hazards import Hazards, Steps, hazard_names, steps_of, thresholds_told
from planner.many_jobs.jct.intervals import LOSSES, point_of
from planner.many_jobs.jct.jobs import Floats, Ints
from planner.many_jobs.jct.prepared import Prepared
from planner.shared.options.jct import Loss
from profiles.records import dataclass

RULES_WORTH = 4500.0
"""The boosters begin with the weight jobs / (jobs + this), where `jobs` are those they were fitted on."""
CONSTANT = 0.1
"""The share of the rest that the training jobs' shares begin with; the hazards of groups share what is left alike."""
RATES = (1.0, 4.0, 16.0)
"""Of a score of 1."""
MEMORIES = (0.9, 0.95, 0.98, 0.99, 1.0)
"""What is left of the sum of losses with each further job that is submitted."""
LEARNED = 2000
"""Jobs before the first predicted one that are learned from, at most."""
MOST_CELLS = 8_000_000
"""Probabilities that are held at a time."""

Points = Mapping[Loss, Floats]
Lost = Mapping[Loss, Floats]
"""The sums of losses, forgotten by each of MEMORIES (a row), of each expert (a column)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """The shares of each interval among the training jobs, where the weights begin, and the sums of losses at the end
    of training: for each of LOSSES, for each of MEMORIES, of each expert, in the order of `expert_names`."""

    shares: tuple[float, ...]
    begin: tuple[float, ...]
    lost: tuple[tuple[tuple[float, ...], ...], ...]


def expert_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return who is mixed in a trace with these columns: the boosters, the constant, the hazards of groups."""
    return ("boosters", "constant", *hazard_names(columns))


def begin_weights(columns: tuple[str, ...], jobs: int) -> tuple[float, ...]:
    """Return the weights to begin with, of boosters that were fitted on so many jobs and of the rules."""
    boosters, rules = jobs / (jobs + RULES_WORTH), len(expert_names(columns)) - 2
    rest = 1.0 - boosters
    return (boosters, rest * CONSTANT, *([rest * (1.0 - CONSTANT) / rules] * rules))


def nothing_lost(begin: Sequence[float]) -> dict[Loss, Floats]:
    """Return the sums of losses before the first job."""
    return {loss: np.zeros((len(MEMORIES), len(begin))) for loss in LOSSES}


def threshold_weights(cap: int, loss: Loss) -> Floats:
    """Return how much each of `thresholds_told` counts in the score for a loss: the part of the scale (k, its square
    or its logarithm) that lies between it and the one before. They sum to 1."""
    steps = thresholds_told(cap)
    ends, begins = steps + 1.0, np.concatenate([[1.0], steps[:-1] + 1.0])
    if loss == "squared":
        widths = ends**2 - begins**2
    elif loss == "absolute":
        widths = ends - begins
    else:
        widths = np.log(ends / begins)
    return np.asarray(widths / widths.sum())


def pieces(beyond: Floats, steps: Steps, weights: Floats) -> Floats:
    """Return what each of `steps` adds to the score of each expert (a column), where `beyond` is each expert's chance
    of each job (`steps.row`) to run longer than each threshold."""
    ended = weights * beyond**2
    after = np.flip(np.cumsum(np.flip(ended, axis=-1), axis=-1), axis=-1)
    passed = weights * (1.0 - beyond) ** 2
    at = (slice(None), steps.row, steps.threshold)
    return np.asarray(np.where(steps.ended, after[at], passed[at]).T)


def mean_weights(begin: Floats, lost: Floats) -> Floats:
    """Return the weights (the last axis is the experts) that these sums of losses, forgotten by each of MEMORIES (the
    axis before), leave of those at the beginning: the mean over MEMORIES and RATES."""
    exponents = np.array(RATES).reshape(-1, *([1] * lost.ndim)) * -(lost - lost.min(axis=-1, keepdims=True))
    weights = begin * np.exp(exponents)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return np.asarray(weights.mean(axis=(0, -2)))


class Race:
    """The experts on `rows` of a trace in order of submission. Jobs that `teaches` marks (a truth value a row of the
    trace) move the weights when what they tell is known; the sums of losses begin with `lost`."""

    def __init__(
        self, prepared: Prepared, rows: Ints, *, teaches: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], lost: Lost
    ) -> None:
        self._prepared, self._rows = prepared, rows
        self._cap = prepared.cap
        steps = steps_of(prepared)
        self._hazards = Hazards(prepared, steps)
        told = np.zeros(len(prepared.jobs), bool)
        told[rows] = True
        steps = steps.of(told & teaches)
        place = np.full(len(prepared.jobs), -1)
        place[rows] = np.arange(len(rows))
        self._due_at = np.searchsorted(prepared.jobs.submit_s[rows], steps.time_s, side="left")
        self._steps = Steps(time_s=steps.time_s, row=place[steps.row], threshold=steps.threshold, ended=steps.ended)
        self.lost = {loss: np.array(sums) for loss, sums in lost.items()}
        experts = next(iter(self.lost.values())).shape[1]
        self._due = {loss: np.zeros((len(rows) + 1, experts)) for loss in self.lost}
        self.stride = max(1, MOST_CELLS // (self._cap * experts))

    def parts(self) -> Iterator[slice]:
        """Return the parts of the rows to be run one after another."""
        rows = len(self._rows)
        return (slice(first, min(first + self.stride, rows)) for first in range(0, rows, self.stride))

    def experts(self, part: slice, boosters: Floats, shares: Floats) -> Floats:
        """Return what each expert says of a part of the rows: probabilities of intervals (the last axis)."""
        rules = self._hazards.masses(self._rows[part])
        return np.concatenate([boosters[None], np.broadcast_to(shares, (1, *boosters.shape)), rules])

    def run(self, part: slice, experts: Floats, begin: Floats) -> dict[Loss, Floats]:
        """Return the mixture's points for a part of the rows, given what `experts` say; the parts are to be run in
        order."""
        self._charge(part, experts)
        points = {}
        for loss, lost in self.lost.items():
            sums = np.empty((experts.shape[1], *lost.shape))
            for number, due in enumerate(self._due[loss][part]):
                lost = lost * np.array(MEMORIES)[:, None] + due
                sums[number] = lost
            self.lost[loss] = lost
            points[loss] = point_of(np.einsum("je,ejk->jk", mean_weights(begin, sums), experts), loss)
        return points

    def due(self, loss: Loss) -> Floats:
        """Return what each expert loses by what is known for the first time when each row is submitted, of the parts
        that were run; the last row is what is known later."""
        return self._due[loss]

    def _charge(self, part: slice, experts: Floats) -> None:
        """Put down what these rows' jobs will have lost, with the first row that is submitted when it is known."""
        first, last, _ = part.indices(len(self._rows))
        chosen = (self._steps.row >= first) & (self._steps.row < last)
        steps = Steps(
            time_s=self._steps.time_s[chosen],
            row=self._steps.row[chosen] - first,
            threshold=self._steps.threshold[chosen],
            ended=self._steps.ended[chosen],
        )
        beyond = 1.0 - np.cumsum(experts, axis=2)[:, :, thresholds_told(self._cap) - 1]
        for loss, due in self._due.items():
            np.add.at(due, self._due_at[chosen], pieces(beyond, steps, threshold_weights(self._cap, loss)))

    def settle(self) -> dict[Loss, Floats]:
        """Return the sums of losses with what became known after the last row."""
        return {loss: lost + self._due[loss][-1] for loss, lost in self.lost.items()}


def learned_rows(prepared: Prepared, rows: Ints, last_submit_s: float) -> Ints:
    """`rows` and the jobs to learn from before them: submitted after the training window, the last LEARNED of them."""
    if not len(rows):
        return rows
    first = max(int(np.searchsorted(prepared.jobs.submit_s, last_submit_s, side="right")), int(rows[0]) - LEARNED)
    return np.union1d(np.arange(first, int(rows[-1])), rows)


def race_after(mixture: Mixture, prepared: Prepared, rows: Ints, last_submit_s: float, losses: Sequence[Loss]) -> Race:
    """Return the race of a trained mixture on `rows` (as `learned_rows` gives them), of which those teach that were
    submitted after the training window."""
    lost = {loss: np.array(sums) for loss, sums in zip(LOSSES, mixture.lost, strict=True) if loss in losses}
    return Race(prepared, rows, teaches=prepared.jobs.submit_s > last_submit_s, lost=lost)
