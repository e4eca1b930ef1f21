"""The longest sequence, the largest micro-batch, the largest model of a family for which any plan of the space fits."""

from __future__ import annotations

from dataclasses import replace

from estimator.frontends.load import load_any_model
from planner.one_job.explicit.effects import Effect
from planner.one_job.explicit.largest import Largest, largest_model, largest_number, length_candidates
from planner.one_job.planning.searching import plan_model, read_best
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.space import MOST_SAMPLES, MOST_TOKENS, divisors
from planner.shared.inputs import open_existing, token_count
from planner.shared.options.record import entries
from planner.shared.options.search import LargestOptions, SearchOptions
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass

FEW_FAMILIES = 8
"""That some plan fits shows most often in so many families of plans; that none does takes all of them."""


@dataclass(frozen=True, kw_only=True)
class LargestPlan:
    """The best plan at the largest size that fits, and what the assumptions that move it most are worth."""

    plan: Plan
    largest: Largest
    effects: tuple[Effect, ...] = ()


def find_largest(options: LargestOptions) -> LargestPlan:
    """Return the best plan at the largest sequence, micro-batch or model of the family for which any fits. Raise
    InputError for wrong input, NothingFits, with what the command prints, where not even the smallest fits."""
    plain = SearchOptions(**{name: getattr(options, name) for name in entries(SearchOptions)}, say=options.say)
    if plain.search not in (None, "exact"):
        raise options.wrong("search", found=plain.search, expected="exact: what fits is asked of all plans")
    largest, chosen = {"seq-len": _longest, "micro-batch": _largest_micro_batch, "model": _largest_model}[
        options.largest
    ](plain)
    if chosen is None:
        message = f"{options.model} on {options.cluster}: no {options.largest} fits; {largest.next_reason}"
        raise NothingFits(message, result={"plan": None, "largest": largest.as_dict()})
    planned = plan_model(chosen)
    plan = planned.plan
    if options.output is not None:
        save_plan(plan, options.output)
    return LargestPlan(plan=plan, largest=largest, effects=planned.effects)


def _longest(options: SearchOptions) -> tuple[Largest, SearchOptions | None]:
    """The longest sequence, the global batch held."""
    model = load_any_model(options.model, options.user_code)
    asked = token_count(model, options.seq_len)
    if not asked:
        raise InputError(where="plan", key="--largest", found="seq-len", expected=f"none: {model.name} has no tokens")
    held = replace(options, global_batch=_batch_of(options))
    return largest_number(
        "seq-len",
        length_candidates(asked),
        asked,
        why_none_fits,
        lambda tokens: replace(held, seq_len=tokens),
        fits_surely=some_fits_surely,
    )


def _largest_micro_batch(options: SearchOptions) -> tuple[Largest, SearchOptions | None]:
    """The largest micro-batch of a rank, the global batch held: whether any plan with as many samples or more fits is
    less likely the more they are, whatever plans need."""
    model = load_any_model(options.model, options.user_code)
    tokens, batch = token_count(model, options.seq_len), _batch_of(options)
    most = max(1, MOST_TOKENS // tokens if tokens else MOST_SAMPLES)
    held = replace(options, micro_batch=None, global_batch=batch)
    others = tuple(text for text in options.min if not text.startswith(("micro-batch=", "micro_batch=")))
    return largest_number(
        "micro-batch",
        [samples for samples in divisors(batch) if samples <= most],
        options.micro_batch or 1,
        why_none_fits,
        lambda samples: replace(held, min=(*others, f"micro-batch={samples}")),
        fits_surely=some_fits_surely,
    )


def _largest_model(options: SearchOptions) -> tuple[Largest, SearchOptions | None]:
    return largest_model(options.model, why_none_fits, lambda name: replace(options, model=name))


def _batch_of(options: SearchOptions) -> int:
    """The global batch that the options, or the model, say without the question."""
    if options.global_batch is not None:
        return options.global_batch
    with open_existing(options.store) as opened:
        return read_best(options, store=opened).spaces[0].space.global_batch


def some_fits_surely(options: SearchOptions) -> bool:
    """Return whether a plan that fits is among the first `FEW_FAMILIES` families of the space."""
    return why_none_fits(replace(options, limit=FEW_FAMILIES)) is None


def why_none_fits(options: SearchOptions) -> str | None:
    """Return why no plan of the space fits; None where one does."""
    try:
        plan_model(options, find=find_best)
    except NothingFits as failure:
        return str(failure).partition(": ")[2]
    except InputError as error:
        # More tokens than the model has learned positions.
        return str(error)
    return None
