"""What a plan chooses, and what is taken of it where nobody says: one record for `estimate`, `plan` and `place`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from estimator.cells.rules import MicroBatchRule
from planner.shared.options.record import Option, Options, entries
from planner.shared.options.training import RECOMPUTE, TrainingOptions
from profiles.records import dataclass
from profiles.vocabulary import ZeroStage

OPEN = "open: the fastest that fits"

DEFAULTS: Mapping[str, str] = {
    "global_batch": "the catalogue's, else 4 samples a device, doubled while within 4 Mi tokens; 16 to fine-tune",
    "seq_len": "the model's own",
    "dtype": "the software's",
    "grad_dtype": "the software's",
    "optimizer": "adamw",
    "attention": "flash where the device has it, else math",
    "software": "what most do",
    "feature": "the software's",
    "overlap": "the software's",
    "micro_batch": OPEN,
    "micro_batches": OPEN,
    "recompute": OPEN,
    "zero": OPEN,
    "schedule": "1f1b or interleaved, the faster",
    "sequence_parallel": "on wherever tp > 1 and the tokens divide",
    "offload": "the optimizer's state in host memory where that is fastest",
    "no_offload": "the optimizer's state in host memory where that is fastest",
    "hsdp": "open inside nodes",
}
"""What is taken of each choice that nobody makes, by the name of its option, in `estimate` of one plan, `plan` and
`place`; what `run` trains is all in its file."""

CHOICES = partial(Option, group="what a plan chooses (unsaid: the same in estimate of one plan, plan and place)")
DEGREE = partial(
    Option, group="degrees of parallelism (in estimate any of them, or a software named, makes it one explicit plan)"
)


def unsaid(name: str) -> str:
    """Return what the help says of an option that nobody gives."""
    return f"(default: {DEFAULTS[name]})"


@dataclass(frozen=True, kw_only=True)
class PlanSizes(Options):
    """The degrees of a plan. None: open in `plan` and `place`; in `estimate` 1, for dp what the devices leave, and for
    etp and vpp open."""

    tp: Annotated[int | None, DEGREE("tensor-parallel ranks")] = None
    pp: Annotated[int | None, DEGREE("pipeline stages")] = None
    dp: Annotated[int | None, DEGREE("data-parallel replicas (estimate's default: what is left)")] = None
    cp: Annotated[int | None, DEGREE("context-parallel ranks")] = None
    ep: Annotated[int | None, DEGREE("ranks that share a layer's experts")] = None
    etp: Annotated[int | None, DEGREE("ranks that share each expert's matrices (default: open)")] = None
    vpp: Annotated[int | None, DEGREE("chunks of layers per stage, interleaved (default: open)")] = None


@dataclass(frozen=True, kw_only=True)
class ChoiceOptions(PlanSizes, TrainingOptions):
    """What is fixed of a training, and of the plan. None: as `DEFAULTS` has it."""

    micro_batch: Annotated[int | None, CHOICES(f"samples per rank and micro-batch {unsaid('micro_batch')}")] = None
    micro_batches: Annotated[
        int | MicroBatchRule | None,
        CHOICES(
            f"micro-batches an iteration {unsaid('micro_batches')}; for Cells also a rule: crius (4 per stage), fit"
            " (more where those do not fit), best"
        ),
    ] = None
    recompute: Annotated[
        str,
        CHOICES(f"auto, none, selective, full, or full:LAYERS of each stage {unsaid('recompute')}", "RULE", RECOMPUTE),
    ] = "auto"
    zero: Annotated[
        ZeroStage | None, CHOICES(f"what is sharded: 1 optimizer, 2 gradients, 3 weights (FSDP) {unsaid('zero')}")
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        CHOICES(f"tp ranks share the tokens too: yes, and no tp without it; or no {unsaid('sequence_parallel')}"),
    ] = None


SIZES: tuple[str, ...] = tuple(entries(PlanSizes))


def off_defaults(options: ChoiceOptions) -> tuple[str, ...]:
    """Return what `options` say otherwise than `DEFAULTS`: a phrase each, with what would have been taken."""
    changed = set(options.changed())
    listed = entries(type(options))
    return tuple(
        f"{_said(listed[name].flag, getattr(options, name))} (default: {default})"
        for name, default in DEFAULTS.items()
        if name in changed and name in listed
    )


def off_defaults_sentence(options: ChoiceOptions) -> tuple[str, ...]:
    """Return the sentence that lists what `options` say otherwise than the defaults; nothing where they do not."""
    phrases = off_defaults(options)
    return (f"off the defaults, as you said: {', '.join(phrases)}",) if phrases else ()


def _said(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else flag.replace("--", "--no-", 1)
    joined = {"--hsdp": "x"}.get(flag, ",")
    return f"{flag} {joined.join(map(str, value)) or 'none' if isinstance(value, tuple) else value}"
