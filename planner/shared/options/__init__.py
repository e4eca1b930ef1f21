"""The options of `estimate` and `plan`, each declared once: its type, its default and what it means.

The Python interface takes them as keywords, the command line makes its options from them (`planner.cli.options`), and
`with_defaults` fills in what nobody said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict, get_args, get_type_hints

from estimator.cells.cell import Formula, Method
from estimator.cells.job import MicroBatchRule
from estimator.cells.stage_places import Partition
from estimator.pricing.recipe import GradDType, OffloadPart, OptimizerName, Overlap, ScheduleName, ZeroStage
from estimator.profiling.setting import Framework
from profiles.vocabulary import AttentionKernel, DType

Objective = Literal["time", "cost", "energy"]
Group = Literal["job", "space", "software", "cells", "plan", "training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What is said of an option beside its name and type. `choices` where the type does not tell them."""

    help: str
    default: Any = None
    metavar: str | None = None
    group: Group = "job"
    choices: tuple[str, ...] = ()


class SharedOptions(TypedDict, total=False):
    """What `estimate` and `plan` take alike."""

    devices: Annotated[int | None, Option(help="devices of the cluster to use (default: all)", metavar="N")]
    global_batch: Annotated[int | None, Option(help="samples per iteration", metavar="N")]
    micro_batch: Annotated[int | None, Option(help="samples per rank and micro-batch", metavar="N")]
    micro_batches: Annotated[
        int | MicroBatchRule,
        Option(
            help="micro-batches an iteration, or crius (4 per stage), fit (more where those do not fit; default), best",
            default="fit",
            metavar="N|RULE",
        ),
    ]
    seq_len: Annotated[int | None, Option(help="tokens per sample (default: the model's)", metavar="N")]
    dtype: Annotated[DType, Option(help="compute type (default: %(default)s)", default="bf16")]
    zero: Annotated[
        ZeroStage | None,
        Option(help="what is sharded: 1 optimizer, 2 gradients, 3 weights (FSDP) (default: 0; open for Cells)"),
    ]
    attention: Annotated[
        AttentionKernel | None, Option(help="(default: flash where the device has it, else math)", default=None)
    ]
    sequence_parallel: Annotated[bool, Option(help="sequence parallelism where tp > 1", default=False)]
    profiles: Annotated[
        Framework | None, Option(help="whose measured layer times count (default: torch's, else JAX's)", default=None)
    ]
    stages: Annotated[tuple[int, ...] | None, Option(help="stage counts, such as 1,2,4", metavar="LIST", group="cells")]
    partition: Annotated[Partition, Option(help="(default: %(default)s)", default="exact", group="cells")]
    formula: Annotated[Formula, Option(help="(default: %(default)s)", default="cellplan", group="cells")]
    assembly: Annotated[Method, Option(help="(default: %(default)s)", default="exact", group="cells")]


class JobOptions(SharedOptions, total=False):
    """What `plan` takes besides model and cluster: the options of Cells."""

    optimizer: Annotated[OptimizerName, Option(help="(default: %(default)s)", default="adamw")]
    schedule: Annotated[ScheduleName, Option(help="(default: %(default)s)", default="1f1b")]
    recompute: Annotated[str, Option(help="auto: only where needed to fit (default)", default="auto")]


class PlanOptions(TypedDict, total=False):
    """What makes an estimate that of one explicit plan, and what it alone has. None: derived, and said how."""

    tp: Annotated[int | None, Option(help="tensor-parallel ranks", metavar="N", group="plan")]
    pp: Annotated[int | None, Option(help="pipeline stages", metavar="N", group="plan")]
    dp: Annotated[int | None, Option(help="data-parallel replicas (default: what is left)", metavar="N", group="plan")]
    cp: Annotated[int | None, Option(help="context-parallel ranks", metavar="N", group="plan")]
    ep: Annotated[int | None, Option(help="ranks that share a layer's experts", metavar="N", group="plan")]
    etp: Annotated[int | None, Option(help="ranks that share each expert's matrices", metavar="N", group="plan")]
    vpp: Annotated[int | None, Option(help="chunks of layers per stage (interleaved)", metavar="N", group="plan")]
    hsdp: Annotated[
        tuple[int, int] | None,
        Option(help="shard over so many ranks, with so many replicas", metavar="SHARDxREPLICATE", group="plan"),
    ]
    feature: Annotated[
        tuple[str, ...],
        Option(
            help="in place of what the software is declared to do (all of it: cellplan hardware show NAME)",
            default=(),
            metavar="NAME=VALUE",
            group="plan",
        ),
    ]
    grad_dtype: Annotated[GradDType | None, Option(help="type of gradients (default: the software's)", group="plan")]
    offload: Annotated[
        tuple[OffloadPart, ...], Option(help="held in host memory", default=(), metavar="PARTS", group="plan")
    ]
    vocab_pad: Annotated[
        int | None, Option(help="pad the vocabulary to a multiple of this times tp", metavar="N", group="plan")
    ]
    freeze: Annotated[
        tuple[int, int] | None, Option(help="layers that do not learn", metavar="FIRST:END", group="plan")
    ]
    lora: Annotated[
        int | None, Option(help="adapters of this rank learn, all else is frozen", metavar="RANK", group="plan")
    ]
    overlap: Annotated[
        tuple[Overlap, ...] | None,
        Option(
            help="communication beside compute: dp, tp, p2p, none (default: the software's)",
            metavar="LIST",
            group="plan",
        ),
    ]
    moe_capacity: Annotated[
        float | None, Option(help="capacity factor of experts (default: dropless)", metavar="F", group="plan")
    ]
    moe_imbalance: Annotated[
        float, Option(help="the fullest expert rank's tokens over the mean", default=1.0, metavar="F", group="plan")
    ]
    software: Annotated[
        str | None, Option(help="training framework, whose declared features count", metavar="NAME", group="plan")
    ]
    train_tokens: Annotated[
        float | None, Option(help="tokens of the whole training, such as 1.4T", metavar="N", group="training")
    ]
    failure_rate: Annotated[
        float, Option(help="failures per device and day", default=0.0, metavar="F", group="training")
    ]
    checkpoint_time: Annotated[
        float,
        Option(help="seconds that saving a checkpoint stops training", default=0.0, metavar="S", group="training"),
    ]
    restart_time: Annotated[
        float, Option(help="seconds from a failure to training again", default=0.0, metavar="S", group="training")
    ]


class EstimateOptions(SharedOptions, PlanOptions, total=False):
    """What `estimate` takes besides model and cluster: the options of Cells, or those of one explicit plan."""

    optimizer: Annotated[OptimizerName, Option(help="(default: %(default)s)", default="adamw")]
    schedule: Annotated[ScheduleName, Option(help="(default: %(default)s)", default="1f1b")]
    recompute: Annotated[
        str,
        Option(
            help="auto (only where needed to fit; default), none, selective, full, or full:LAYERS of each stage",
            default="auto",
            metavar="RULE",
        ),
    ]


Search = Literal["exact", "cells", "crius"]
Tool = Literal["megatron", "torchtitan", "deepspeed"]
Freedom = Literal["tp-across-islands", "split-everything", "modelled"]


class SearchOptions(TypedDict, total=False):
    """What `plan` takes besides model and cluster: what is fixed of the training, and what of the space is open."""

    devices: Annotated[int | None, Option(help="devices of the cluster to use at most (default: all)", metavar="N")]
    global_batch: Annotated[int | None, Option(help="samples per iteration", metavar="N")]
    micro_batch: Annotated[int | None, Option(help="samples per rank and micro-batch (default: open)", metavar="N")]
    micro_batches: Annotated[
        int | MicroBatchRule | None,
        Option(
            help="micro-batches an iteration (default: open); for Cells also a rule: crius, fit, best",
            default=None,
            metavar="N|RULE",
        ),
    ]
    seq_len: Annotated[int | None, Option(help="tokens per sample (default: the model's)", metavar="N")]
    dtype: Annotated[DType, Option(help="compute type (default: %(default)s)", default="bf16")]
    optimizer: Annotated[OptimizerName, Option(help="(default: %(default)s)", default="adamw")]
    attention: Annotated[
        AttentionKernel | None, Option(help="(default: flash where the device has it, else math)", default=None)
    ]
    profiles: Annotated[
        Framework | None, Option(help="whose measured layer times count (default: torch's, else JAX's)", default=None)
    ]
    search: Annotated[
        Search | None,
        Option(
            help="exact: the best plan, proved (default); cells: the best Cell's best assembly; crius: that Cell tuned"
            " in the halves that its stages favour",
            group="space",
        ),
    ]
    objective: Annotated[Objective, Option(help="what is least (default: %(default)s)", default="time", group="space")]
    schedule: Annotated[
        tuple[ScheduleName, ...] | None,
        Option(help="schedules to choose from (default: 1f1b,interleaved)", metavar="LIST", group="space"),
    ]
    recompute: Annotated[
        str,
        Option(
            help="auto (open; default), none, selective, full, or full:LAYERS of each stage",
            default="auto",
            metavar="RULE",
            group="space",
        ),
    ]
    zero: Annotated[ZeroStage | None, Option(help="what is sharded, 0 to 3 (default: open)", group="space")]
    sequence_parallel: Annotated[
        bool, Option(help="no plan with tp without it (default: with it where it can be)", default=False, group="space")
    ]
    no_offload: Annotated[bool, Option(help="no optimizer state in host memory", default=False, group="space")]
    fix: Annotated[tuple[str, ...], Option(help="such as pp=4", default=(), metavar="NAME=N", group="space")]
    max: Annotated[tuple[str, ...], Option(help="such as tp=8", default=(), metavar="NAME=N", group="space")]
    min: Annotated[tuple[str, ...], Option(help="such as dp=2", default=(), metavar="NAME=N", group="space")]
    tool: Annotated[Tool | None, Option(help="only what this training framework can run", group="space")]
    allow: Annotated[
        tuple[Freedom, ...],
        Option(
            help="widen the space: tp-across-islands, split-everything (all cuts of the layers), modelled (layer times"
            " that nobody measured beside measured ones)",
            default=(),
            metavar="LIST",
            group="space",
        ),
    ]
    limit: Annotated[
        int | None,
        Option(help="stop after so many families of plans, with a gap instead of a proof", metavar="N", group="space"),
    ]
    profile_budget: Annotated[
        float | None,
        Option(
            help="on a cluster local:1xN: really run candidate plans for so many seconds at most, where that can change"
            " which one is best",
            metavar="SECONDS",
            group="space",
        ),
    ]
    free: Annotated[
        str | None,
        Option(
            help="what is free now: output of sinfo, scontrol show node, or kubectl get nodes -o json",
            metavar="FILE",
            group="space",
        ),
    ]
    software: Annotated[
        str | None, Option(help="training framework, whose declared features count", metavar="NAME", group="software")
    ]
    feature: Annotated[
        tuple[str, ...],
        Option(
            help="in place of what the software is declared to do (all of it: cellplan hardware show NAME)",
            default=(),
            metavar="NAME=VALUE",
            group="software",
        ),
    ]
    grad_dtype: Annotated[
        GradDType | None, Option(help="type of gradients (default: the software's)", group="software")
    ]
    vocab_pad: Annotated[
        int | None, Option(help="pad the vocabulary to a multiple of this times tp", metavar="N", group="software")
    ]
    freeze: Annotated[
        tuple[int, int] | None, Option(help="layers that do not learn", metavar="FIRST:END", group="software")
    ]
    lora: Annotated[
        int | None,
        Option(help="adapters of this rank learn, all else is frozen", metavar="RANK", group="software"),
    ]
    overlap: Annotated[
        tuple[Overlap, ...] | None,
        Option(
            help="communication beside compute: dp, tp, p2p, none (default: the software's)",
            metavar="LIST",
            group="software",
        ),
    ]
    moe_capacity: Annotated[
        float | None, Option(help="capacity factor of experts (default: dropless)", metavar="F", group="software")
    ]
    moe_imbalance: Annotated[
        float,
        Option(help="the fullest expert rank's tokens over the mean", default=1.0, metavar="F", group="software"),
    ]
    stages: Annotated[tuple[int, ...] | None, Option(help="stage counts, such as 1,2,4", metavar="LIST", group="cells")]
    partition: Annotated[Partition, Option(help="(default: %(default)s)", default="exact", group="cells")]
    formula: Annotated[Formula, Option(help="(default: %(default)s)", default="cellplan", group="cells")]
    assembly: Annotated[Method, Option(help="(default: %(default)s)", default="exact", group="cells")]


DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "hsdp")
"""Any of these makes an estimate that of one explicit plan."""


def options_of(kind: type[Any]) -> Mapping[str, tuple[Any, Option]]:
    """Type and meaning of each option of one of the classes above, in the order of their groups."""
    hints = get_type_hints(kind, include_extras=True)
    found = {name: get_args(hint) for name, hint in hints.items()}
    return {name: found[name] for group in get_args(Group) for name in found if found[name][1].group == group}


def with_defaults(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """All options of `kind`: those `given`, and the defaults of the others. TypeError for one that it does not have."""
    known = options_of(kind)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(f"unknown option {', '.join(unknown)}; expected some of {', '.join(known)}")
    return {name: given.get(name, option.default) for name, (_, option) in known.items()}


def beyond_default(kind: type[Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the options of `kind` that `given` sets to something else than their default."""
    known = options_of(kind).items()
    return tuple(name for name, (_, option) in known if given.get(name, option.default) != option.default)
