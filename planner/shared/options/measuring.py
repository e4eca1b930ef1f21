"""The options of the commands that measure, and of those that show and move what was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, get_args

from estimator.communication.measuring import Backend, World
from estimator.profiling.setting import Framework
from planner.shared.options.common import ComputeType, MeasuredOptimizer, ModelName, SeqLen, Store
from planner.shared.options.record import HOOK, Option, Options, ProgressHook
from planner.shared.options.values import LAYERS, POSITIVE_INT, SECONDS, list_of, words_of
from profiles.vocabulary import AttentionKernel, CollectiveOp, Recompute

COUNTS = list_of(POSITIVE_INT, rising=True)
OPS = get_args(CollectiveOp)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(Options):
    """Which of a model's layer shards are measured on one device, and how."""

    command: ClassVar[str] = "profile"

    model: ModelName = field(kw_only=False)
    framework: Annotated[
        Framework | None, Option(help="that runs the layers (default: torch, or the factory's own)")
    ] = None
    device: Annotated[str, Option(help="torch's name: cpu, cuda:0, ... (default: %(default)s)")] = "cpu"
    tp: Annotated[
        tuple[int, ...], Option(help="tensor-parallel degrees (default: 1)", metavar="LIST", values=COUNTS)
    ] = (1,)
    micro_batch: Annotated[
        tuple[int, ...], Option(help="samples per rank (default: 1)", metavar="LIST", values=COUNTS)
    ] = (1,)
    cluster: Annotated[
        str | None,
        Option(help="measure what the Cells on this cluster need, instead of --tp and --micro-batch", metavar="C"),
    ] = None
    global_batch: Annotated[int | None, Option(help="samples per iteration, with --cluster", metavar="N")] = None
    seq_len: SeqLen = None
    dtype: ComputeType = "bf16"
    attention: Annotated[AttentionKernel | None, Option(help="(default: flash where the device has it)")] = None
    threads: Annotated[int, Option(help="of a CPU worker (default: 1)", metavar="N")] = 1
    budget: Annotated[
        float | None,
        Option(help="stop in time; what matters most comes first", metavar="SECONDS", values=SECONDS),
    ] = None
    stage: Annotated[
        tuple[int, int] | None,
        Option(help="these layers, also as one piece", metavar="FIRST:END", values=LAYERS),
    ] = None
    compile: Annotated[bool, Option(help="the stage as one piece through torch.compile")] = False
    optimizer: Annotated[MeasuredOptimizer, Option(help="(default: %(default)s)")] = "adamw"
    sequence_parallel: Annotated[bool, Option(help="sequence parallelism where tp > 1")] = False
    recompute: Annotated[Recompute, Option(help="of activations (default: %(default)s)")] = "none"
    store: Store
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for options that exclude each other."""
        if self.compile and self.stage is None:
            raise self.wrong("compile", found="no --stage", expected="the stage to compile")
        if self.cluster is not None and self.stage is not None:
            raise self.wrong("cluster", found="a --stage too", expected="one of them")


@dataclass(frozen=True, kw_only=True)
class CommMeasureOptions(Options):
    """Collectives to measure between processes of this machine, or the ranks of `world`."""

    command: ClassVar[str] = "comm measure"

    link: Annotated[str, Option(help="the link measured (default: %(default)s)", metavar="NAME")] = "loopback"
    backend: Annotated[Backend, Option(help="xla: JAX (default: %(default)s)")] = "gloo"
    ranks: Annotated[tuple[int, ...], Option(help="rank counts (default: 2)", metavar="LIST", values=COUNTS)] = (2,)
    sizes: Annotated[
        tuple[int, ...] | None, Option(help="bytes (default: 4 KiB to 64 MiB)", metavar="LIST", values=COUNTS)
    ] = None
    ops: Annotated[
        tuple[CollectiveOp, ...] | None,
        Option(help=f"of {', '.join(OPS)} (default: all)", metavar="LIST", values=words_of(OPS)),
    ] = None
    repeats: Annotated[int, Option(help="per size (default: 20)", metavar="N")] = 20
    busy: Annotated[bool, Option(help="compute before each call, as a training does")] = False
    timeout: Annotated[float, Option(help="give up after (default: 120)", metavar="SECONDS", values=SECONDS)] = 120.0
    store: Store
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    world: Annotated[World | None, HOOK] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class CommFitOptions(Options):
    """Output of nccl-tests to fit a line to."""

    command: ClassVar[str] = "comm fit"

    file: Annotated[Path, Option(help="what all_reduce_perf and its kin printed", metavar="FILE")] = field(
        kw_only=False
    )
    link: Annotated[str, Option(help="the link measured, such as nvswitch3", metavar="NAME")]
    op: Annotated[CollectiveOp | None, Option(help="the collective, where the file does not say which")] = None
    store: Store


@dataclass(frozen=True, kw_only=True)
class CommShowOptions(Options):
    """Link tables to show."""

    command: ClassVar[str] = "comm show"

    link: Annotated[str | None, Option(help="of this link alone", metavar="NAME")] = None
    size: Annotated[int | None, Option(help="also the time of that many, by each method", metavar="BYTES")] = None
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesExportOptions(Options):
    """Where all of a store goes."""

    command: ClassVar[str] = "profiles export"

    file: Annotated[Path, Option(help="the file to write", metavar="FILE")] = field(kw_only=False)
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesImportOptions(Options):
    """What is added to a store."""

    command: ClassVar[str] = "profiles import"

    file: Annotated[Path, Option(help="the file to read", metavar="FILE")] = field(kw_only=False)
    replace: Annotated[bool, Option(help="let the file win over what the store holds already")] = False
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesShowOptions(Options):
    """Which store is shown."""

    command: ClassVar[str] = "profiles show"

    store: Store
