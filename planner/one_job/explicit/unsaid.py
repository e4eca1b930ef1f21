"""What is taken of a choice that nobody made: the first setup that fits, and how much wider that makes the interval."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from estimator.pricing.interval import widened
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.software import overruled
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

Evaluate = Callable[[Setup], Evaluation | Infeasible]

MATTERS = 0.05
"""From which share of the iteration's time on a choice that nobody made widens the interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """The setup that is taken of several, and its figures, with the interval as wide as the choice makes it.
    `sentences` say what the next one would take, where that matters."""

    setup: Setup
    evaluation: Evaluation
    sentences: tuple[str, ...]


def take_first_that_fits(setups: Sequence[Setup], evaluate: Evaluate, *, slack: float = 0.0) -> Taken | Infeasible:
    """Return the first of `setups` that fits, or the last one; Infeasible where one that is tried cannot be evaluated.

    What needs `slack` more than a device's memory still counts as fitting: of a run that is known to have run.

    The setup after it is what would be taken had this one not fitted: where its time is off by more than 5%, the
    interval reaches as much further. ValueError without setups.
    """
    last: Taken | None = None
    for number, setup in enumerate(setups):
        evaluation = evaluate(setup)
        if isinstance(evaluation, Infeasible):
            return evaluation
        if evaluation.out_of_memory is None or _lacks(evaluation) <= slack:
            return _with_next(setup, evaluation, setups[number + 1 :], evaluate)
        last = Taken(setup=setup, evaluation=evaluation, sentences=())
    if last is None:
        raise ValueError("take_first_that_fits: no setups; expected at least one")
    return last


def _lacks(evaluation: Evaluation) -> float:
    """The share of a device's memory that the fullest rank needs beyond it."""
    return max(rank.needed_bytes / evaluation.device_memory_bytes[rank.stage] for rank in evaluation.memory) - 1


def _with_next(setup: Setup, evaluation: Evaluation, rest: Sequence[Setup], evaluate: Evaluate) -> Taken:
    other = evaluate(rest[0]) if rest else None
    if not isinstance(other, Evaluation):
        return Taken(setup=setup, evaluation=evaluation, sentences=())
    ratio = other.iteration_time_s / evaluation.iteration_time_s
    if abs(ratio - 1) <= MATTERS:
        return Taken(setup=setup, evaluation=evaluation, sentences=())
    sentence = _sentence(_difference(setup, rest[0]), ratio)
    wider = replace(evaluation, interval_90_s=widened(evaluation.interval_90_s, ratio))
    return Taken(setup=setup, evaluation=wider, sentences=(sentence,))


def widened_by_habits(taken: Taken, often: Sequence[str], evaluate: Evaluate) -> Taken:
    """Return `taken` with its interval as wide as what users of its software `often` have otherwise, features as
    NAME=VALUE, makes it: each where the time with it is off by more than 5%."""
    recipe, interval_s, sentences = taken.setup.recipe, taken.evaluation.interval_90_s, list(taken.sentences)
    for feature in often:
        software = overruled(recipe.software, (feature,))
        if software == recipe.software:
            continue
        other = evaluate(replace(taken.setup, recipe=replace(recipe, software=software)))
        if not isinstance(other, Evaluation):
            continue
        ratio = other.iteration_time_s / taken.evaluation.iteration_time_s
        if abs(ratio - 1) > MATTERS:
            sentences.append(_sentence(f"{feature} (--feature), as many run {software.name},", ratio))
            interval_s = widened(interval_s, ratio)
    return replace(taken, evaluation=replace(taken.evaluation, interval_90_s=interval_s), sentences=tuple(sentences))


def widened_by_larger_batches(taken: Taken, larger: Sequence[int], evaluate: Evaluate) -> Taken:
    """Return `taken` with its interval reaching down to the fastest of `larger` micro-batches (samples per rank) that
    fits where it is by more than 5% faster: a team that has the memory takes it."""
    setup, usual_s = taken.setup, taken.evaluation.iteration_time_s
    if taken.evaluation.out_of_memory is not None:
        return taken
    times_s = {}
    for samples in larger:
        if samples <= setup.samples_per_rank(setup.stages[0]):
            continue
        other = evaluate(replace(setup, micro_batch=samples * setup.stages[0].dp))
        if isinstance(other, Evaluation) and other.out_of_memory is None:
            times_s[samples] = other.iteration_time_s
    fastest = min(times_s, key=lambda samples: times_s[samples], default=None)
    if fastest is None or times_s[fastest] >= usual_s * (1 - MATTERS):
        return taken
    ratio = times_s[fastest] / usual_s
    interval_s = widened(taken.evaluation.interval_90_s, ratio)
    sentence = _sentence(f"a micro-batch of {fastest} (--micro-batch), which fits,", ratio)
    return replace(
        taken,
        evaluation=replace(taken.evaluation, interval_90_s=interval_s),
        sentences=(*taken.sentences, sentence),
    )


def _sentence(choice: str, ratio: float) -> str:
    change = f"{abs(ratio - 1):.0%} {'longer' if ratio > 1 else 'less'}"
    return f"with {choice} it would take {change}: the interval is as much wider"


def _difference(setup: Setup, other: Setup) -> str:
    """What the other setup has instead, in words."""
    stage = other.stages[0]
    kind, samples = stage.recompute, other.samples_per_rank(stage)
    parts = []
    if samples != setup.samples_per_rank(setup.stages[0]):
        parts.append(f"a micro-batch of {samples} (--micro-batch)")
    if (kind, stage.recompute_layers) != (setup.stages[0].recompute, setup.stages[0].recompute_layers):
        layers = "" if stage.recompute_layers is None else f":{stage.recompute_layers}"
        parts.append(f"recomputation {kind}{layers} (--recompute)")
    if stage.zero != setup.stages[0].zero:
        parts.append(f"ZeRO {stage.zero} (--zero)")
    return " and ".join(parts)
