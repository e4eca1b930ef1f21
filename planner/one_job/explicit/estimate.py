"""The estimate of one explicit plan: evaluated, recorded as a plan, and described as values that `json.dumps` takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from estimator.pricing.outcome import Evaluation, RankMemory
from estimator.pricing.recipe import Setup
from estimator.pricing.training import Training
from planner.one_job.explicit.effects import Effect, assumption_effects
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import ExplicitRequest, refuse_infeasible
from planner.one_job.explicit.unsaid import (
    Evaluate,
    take_first_that_fits,
    widened_by_habits,
    widened_by_larger_batches,
)
from planner.one_job.explicit.whole import describe_training, train_setup
from planner.shared.options.whole import WholeTrainingOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_values
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

PARTS = {
    "weight": "weights",
    "gradient": "gradients",
    "optimizer": "optimizer state",
    "activation": "activations",
    "temporary": "temporary tensors",
    "communication": "communication buffers",
    "reserve": "reserve",
}
"""The parts of a rank's memory in their order, and their names in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimated:
    """A plan with what it is estimated to take. `shortfall` None: it fits; `effects` are the assumptions that move it
    most."""

    plan: Plan
    evaluation: Evaluation
    training: Training | None
    shortfall: str | None
    effects: tuple[Effect, ...] = ()


def estimate_explicit(
    request: ExplicitRequest, *, whole: WholeTrainingOptions | None = None, evaluate: Evaluate | None = None
) -> Estimated:
    """Return the first of the request's setups that fits, or the last one. Raise InputError where one cannot be
    evaluated at all.

    `evaluate` None: with nothing measured.
    """
    evaluate = evaluate or evaluate_with_store
    first_fitting = take_first_that_fits(request.setups, evaluate)
    if isinstance(first_fitting, Infeasible):
        refuse_infeasible(first_fitting)
    taken = widened_by_larger_batches(first_fitting, request.larger, evaluate)
    taken = widened_by_habits(taken, request.often, evaluate)
    setup, evaluation = taken.setup, taken.evaluation
    assumptions = (*request.assumptions, *_taken_because(request, setup), *taken.sentences)
    return Estimated(
        plan=record_plan(setup, evaluation, reference=request.reference, assumptions=assumptions),
        evaluation=evaluation,
        training=train_setup(setup, evaluation, whole),
        shortfall=_shortfall(setup, evaluation),
        effects=assumption_effects(setup, evaluation, assumptions, evaluate),
    )


def _taken_because(request: ExplicitRequest, setup: Setup) -> list[str]:
    """Why this one of the request's setups, where there are several."""
    first, sentences = request.setups[0], []
    if len(request.setups) == 1:
        return []
    samples = setup.samples_per_rank(setup.stages[0])
    if samples != first.samples_per_rank(first.stages[0]):
        sentences.append(f"micro-batch of {samples} instead: more does not fit (--micro-batch)")
    if setup.stages[0].zero != first.stages[0].zero:
        sentences.append(f"ZeRO {setup.stages[0].zero} instead: less does not fit (--zero)")
    kind, usual = setup.stages[0].recompute, first.stages[0].recompute
    why = {"none": "none is needed to fit", "selective": "none does not fit", "full": "less does not fit"}[kind]
    if kind == usual != "none":
        why = f"what {setup.recipe.software.name} does by itself"
    return [*sentences, f"recomputation {kind}: {why} (--recompute)"]


def largest_part(rank: RankMemory) -> str:
    """The part of a rank's memory that takes most."""
    return max(PARTS, key=lambda part: getattr(rank, f"{part}_bytes"))


def _shortfall(setup: Setup, evaluation: Evaluation) -> str | None:
    """Which rank lacks how much memory, and for what; None where all fit."""
    rank = evaluation.out_of_memory
    if rank is None:
        return None
    first = sum(len(stage.slots) for stage in setup.stages[: rank.stage])
    last = first + len(setup.stages[rank.stage].slots) - 1
    capacity = evaluation.device_memory_bytes[rank.stage]
    part = largest_part(rank)
    gib = 2**30
    return (
        f"stage {rank.stage} (ranks {first} to {last}) lacks {(rank.needed_bytes - capacity) / gib:.1f} GiB:"
        f" {rank.needed_bytes / gib:.1f} GiB on a device of {capacity / gib:.1f} GiB,"
        f" {getattr(rank, f'{part}_bytes') / gib:.1f} GiB of it {PARTS[part]}"
    )


def describe_estimated(estimated: Estimated) -> dict[str, Any]:
    """Return what `estimate` prints with `--json` for an explicit plan: the plan as in the file, and its estimate."""
    plan, evaluation = estimated.plan, estimated.evaluation
    value = plan_to_values(plan)
    short = evaluation.out_of_memory
    return {
        "plan": value,
        "estimate": {
            "fits": short is None,
            "reason": estimated.shortfall,
            "lacking_bytes": None if short is None else _lacking(evaluation, short),
            **value["estimate"],
            "memory": [_describe_rank(plan, evaluation, rank) for rank in evaluation.memory],
            "training": None if estimated.training is None else describe_training(estimated.training),
            "guesses": describe_guesses(plan, evaluation),
            "assumptions": list(plan.assumptions),
            "assumption_effects": [asdict(effect) for effect in estimated.effects],
        },
    }


def describe_guesses(plan: Plan, evaluation: Evaluation) -> list[dict[str, Any]]:
    """Return what an evaluation of a plan took without a measurement near it, the heaviest first: what, its seconds and
    its share of an iteration, and what measures it."""
    return [
        asdict(guess)
        | {
            "remedy": guess.remedy.replace("MODEL", plan.model.reference),
            "share": guess.seconds / evaluation.iteration_time_s,
        }
        for guess in evaluation.guesses
    ]


def _lacking(evaluation: Evaluation, rank: RankMemory) -> int:
    return max(0, rank.needed_bytes - evaluation.device_memory_bytes[rank.stage])


def _describe_rank(plan: Plan, evaluation: Evaluation, rank: RankMemory) -> dict[str, Any]:
    """Memory of a stage's ranks, which are alike."""
    return {
        "stage": rank.stage,
        "ranks": list(plan.stages[rank.stage].ranks),
        "device": plan.stages[rank.stage].device,
        **{f"{part}_bytes": getattr(rank, f"{part}_bytes") for part in PARTS},
        "peak_bytes": rank.peak_bytes,
        "needed_bytes": rank.needed_bytes,
        "device_memory_bytes": evaluation.device_memory_bytes[rank.stage],
        "lacking_bytes": _lacking(evaluation, rank),
        "largest_part": largest_part(rank),
    }
