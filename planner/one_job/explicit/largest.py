"""The longest sequence, the largest micro-batch, the largest model of a family that fits under an explicit plan."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, TypeVar

from models_zoo.catalogue import load_model, model_names
from planner.one_job.explicit.batch import refuse
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.request import ExplicitRequest, read_explicit
from planner.one_job.explicit.unsaid import Evaluate, take_first_that_fits
from planner.shared.inputs import open_existing
from planner.shared.options.common import LargestOf
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_file import save_plan
from planner.shared.training_software import parameters_of
from profiles.errors import InputError, NothingFits
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible

O = TypeVar("O")  # noqa: E741

STEP_TOKENS = 1024
"""Lengths are multiples of so many tokens, which degrees of parallelism divide; of short ones, of an eighth."""
SIZE_WORD = re.compile(r"\d+(\.\d+)?[bmt]|\d+x\d+b|tiny|mini|small|base|large|lite|air|xl", re.ASCII)
UNITS: dict[LargestOf, str] = {"seq-len": "tokens a sample", "micro-batch": "samples a rank", "model": "parameters"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """What is the largest that fits. `value` in `unit` (of a model its name, in `name`; None: not even the smallest
    fits), `asked` what stands there without the question, `step` what lengths are multiples of; `next_value` is the
    next larger candidate, which does not fit, and `next_reason` why; `tried` candidates were looked at."""

    of: LargestOf
    unit: str
    value: int | None
    name: str | None = None
    asked: int
    asked_fits: bool
    step: int | None = None
    next_value: int | None
    next_name: str | None = None
    next_reason: str | None
    tried: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that `json.dumps` takes."""
        return asdict(self)


def last_holding(candidates: Sequence[object], start: int, holds: Callable[[int], bool]) -> int:
    """Return the last place of `candidates` that `holds`, -1 where none does; `holds` must be true of all places before
    one of which it is true. It is asked of `start` first, then ever further from there, then in between.

    >>> last_holding(range(1, 1000), 3, lambda place: place < 700)
    699
    """
    low, high = -1, len(candidates)
    place, step = min(max(0, start), high - 1), 1
    while high - low > 1:
        if holds(place):
            low = place
            place = low + step if high == len(candidates) else (low + high) // 2
        else:
            high = place
            place = high - step if low == -1 else (low + high) // 2
        step *= 2
        if not low < place < high:
            place = (low + high) // 2
    return low


def largest_number(
    of: LargestOf,
    candidates: Sequence[int],
    asked: int,
    why_not: Callable[[O], str | None],
    options_with: Callable[[int], O],
    *,
    fits_surely: Callable[[O], bool] | None = None,
) -> tuple[Largest, O | None]:
    """Return the largest of `candidates` of whose options `why_not` says nothing, and these options (None where there
    is none), by bisection: what fits at a size fits at every smaller one.

    `fits_surely` answers sooner: where it is true, `why_not` says nothing. It is asked first; `why_not` has the last
    word, on the candidate after the last of which it is true.
    """
    reasons: dict[int, str | None] = {}
    sure: dict[int, bool] = {}

    def fits(place: int) -> bool:
        number = candidates[place]
        if number not in reasons and not sure.get(number):
            reasons[number] = why_not(options_with(number))
        return sure.get(number, False) or reasons[number] is None

    def fits_at_once(place: int) -> bool:
        assert fits_surely is not None, "asked where it is there"
        number = candidates[place]
        sure[number] = fits_surely(options_with(number))
        return sure[number]

    place = last_holding(candidates, bisect_right(candidates, asked) - 1, fits_at_once if fits_surely else fits)
    if place + 1 < len(candidates) and fits(place + 1):
        place = last_holding(candidates, place + 1, fits)
    after = candidates[place + 1] if place + 1 < len(candidates) else None
    asked_fits = place >= 0 and asked <= candidates[place]
    if asked_fits and asked not in candidates:
        asked_fits = why_not(options_with(asked)) is None
    return Largest(
        of=of,
        unit=UNITS[of],
        value=candidates[place] if place >= 0 else None,
        asked=asked,
        asked_fits=asked_fits,
        step=candidates.step if isinstance(candidates, range) else None,
        next_value=after,
        next_reason=None if after is None else reasons[after],
        tried=len(reasons | sure),
    ), options_with(candidates[place]) if place >= 0 else None


def length_candidates(asked: int, divisor: int = 1) -> range:
    """Return the lengths that are looked at: multiples of a step that `divisor` divides."""
    step = STEP_TOKENS
    while step > 1 and step > asked // 8:
        step //= 2
    step = math.lcm(step, divisor)
    return range(step, LIMITS.tokens.most + 1, step)


def family_of(name: str) -> tuple[str, ...]:
    """Return the models of the catalogue whose names differ from `name` in the size alone, the smallest first; raise
    InputError for a model that is not of the catalogue.

    >>> family_of("llama3-8b")
    ('llama3-8b', 'llama3-70b', 'llama3-405b')
    """
    if name not in model_names():
        refuse("--largest", f"the family of {name}", "a model of the catalogue (cellplan models list)")
    alike = [other for other in model_names() if _family(other) == _family(name)]
    return tuple(sorted(alike, key=lambda other: parameters_of(load_model(other))))


def _family(name: str) -> str:
    words = name.split("-")
    first = next((place for place, word in enumerate(words) if SIZE_WORD.fullmatch(word)), len(words))
    return "-".join(words[:first])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What is asked of an explicit plan: its options and request as they are without the question."""

    options: EstimateOptions
    request: ExplicitRequest
    store: ProfileStore | None
    evaluate: Evaluate

    def why_not(self, options: EstimateOptions) -> str | None:
        """Why the plan of other options does not fit; None where it does."""
        try:
            request = read_explicit(options, store=self.store)
            taken = take_first_that_fits(request.setups, self.evaluate)
            if isinstance(taken, Infeasible):
                return taken.reason
            short = taken.evaluation.out_of_memory
            if short is None:
                count_setup_flops(taken.setup)
                return None
            capacity = taken.evaluation.device_memory_bytes[short.stage]
            return f"stage {short.stage} lacks {(short.needed_bytes - capacity) / 2**30:.1f} GiB a device"
        except InputError as error:
            # More tokens than learned positions, a model that the degrees do not divide.
            return str(error)


def estimate_largest(options: EstimateOptions) -> dict[str, Any]:
    """Return the estimate of the explicit plan at the largest size that fits, with `largest` besides; write the plan
    where the options say. Raise NothingFits, with `largest` in it, where not even the smallest size fits."""
    assert options.largest is not None, "a question that was asked"
    with open_existing(options.store) as opened:
        plain = replace(options, largest=None)
        if options.largest == "micro-batch":
            plain = replace(plain, micro_batch=None)
        evaluate = partial(evaluate_with_store, store=opened, profiles=options.profiles)
        request = read_explicit(plain, store=opened)
        question = _Question(options=plain, request=request, store=opened, evaluate=evaluate)
        largest, chosen = {"seq-len": _longest, "micro-batch": _largest_micro_batch, "model": _largest_model}[
            options.largest
        ](question, options)
        if chosen is None:
            named = f"{options.model} on {options.cluster}"
            message = f"{named}: no {options.largest} fits under this plan; {largest.next_reason}"
            raise NothingFits(message, result={"plan": None, "estimate": None, "largest": largest.as_dict()})
        estimated = estimate_explicit(read_explicit(chosen, store=opened), whole=options, evaluate=evaluate)
    if options.output is not None:
        save_plan(estimated.plan, options.output)
    return describe_estimated(estimated) | {"largest": largest.as_dict()}


def _longest(question: _Question, _: EstimateOptions) -> tuple[Largest, EstimateOptions | None]:
    """The longest sequence, the global batch held."""
    setup = question.request.setups[0]
    asked = setup.recipe.seq_len
    if not asked:
        refuse("--largest", "seq-len", f"none: {setup.model.name} has no tokens")
    held = question.options
    if not isinstance(held.micro_batches, int):
        held = replace(held, global_batch=setup.recipe.global_batch)
    stage = setup.stages[0]
    return largest_number(
        "seq-len",
        length_candidates(asked, stage.tp * stage.cp),
        asked,
        question.why_not,
        lambda tokens: replace(held, seq_len=tokens),
    )


def _largest_micro_batch(question: _Question, options: EstimateOptions) -> tuple[Largest, EstimateOptions | None]:
    """The largest micro-batch of a rank, the global batch held."""
    setup = question.request.setups[0]
    if isinstance(options.micro_batches, int):
        refuse("--largest", f"micro-batch with --micro-batches {options.micro_batches}", "one of them")
    rounds = len(setup.stages) if len(setup.stages[0].chunks) > 1 else 1
    share = setup.recipe.global_batch // (setup.stages[0].dp * rounds)
    held = replace(question.options, global_batch=setup.recipe.global_batch)
    return largest_number(
        "micro-batch",
        [samples for samples in range(1, share + 1) if share % samples == 0],
        options.micro_batch or setup.samples_per_rank(setup.stages[0]),
        question.why_not,
        lambda samples: replace(held, micro_batch=samples),
    )


def _largest_model(question: _Question, _: EstimateOptions) -> tuple[Largest, EstimateOptions | None]:
    """The largest model of the family, from the largest down."""
    name = question.options.model or ""
    return largest_model(name, question.why_not, lambda other: replace(question.options, model=other))


def largest_model(
    name: str, why_not: Callable[[O], str | None], options_with: Callable[[str], O]
) -> tuple[Largest, O | None]:
    """Return the largest model of the family of `name` of whose options `why_not` says nothing, and these options (None
    where there is none): each is asked, from the largest down."""
    family, after, reason, tried = family_of(name), None, None, 0
    fitting = None
    for other in reversed(family):
        tried += 1
        refusal = why_not(options_with(other))
        if refusal is None:
            fitting = other
            break
        after, reason = other, refusal
    sizes = {other: parameters_of(load_model(other)) for other in family}
    asked_fits = fitting is not None and (sizes[fitting] == sizes[name] or why_not(options_with(name)) is None)
    return Largest(
        of="model",
        unit=UNITS["model"],
        value=None if fitting is None else sizes[fitting],
        name=fitting,
        asked=sizes[name],
        asked_fits=asked_fits,
        next_value=None if after is None else sizes[after],
        next_name=after,
        next_reason=reason,
        tried=tried,
    ), None if fitting is None else options_with(fitting)
