"""The options of the commands that measure, and of those that show and move what was measured."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, get_args

from estimator.communication.measuring import Backend, World
from estimator.profiling.setting import Framework
from planner.shared.options.code import CodeOptions
from planner.shared.options.common import ComputeType, MeasuredOptimizer, ModelName, SeqLen, Store
from planner.shared.options.record import HOOK, Option, Options, ProgressHook
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import LAYERS, PATIENCE, SAMPLES
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, CollectiveOp, Recompute

OPS = get_args(CollectiveOp)


@dataclass(frozen=True, kw_only=True)
class ProfileOptions(CodeOptions):
    """Which of a model's layer shards are measured on one device, and how."""

    command: ClassVar[str] = "profile"

    model: ModelName = field(kw_only=False)
    framework: Annotated[Framework | None, Option("that runs the layers (default: torch, or the factory's own)")] = None
    device: Annotated[str, Option("torch's name: cpu, cuda:0, ... (default: %(default)s)")] = "cpu"
    tp: Annotated[tuple[int, ...], Option("tensor-parallel degrees (default: 1)")] = (1,)
    micro_batch: Annotated[tuple[int, ...], Option("samples per rank (default: 1)")] = (1,)
    cluster: Annotated[
        str | None, Option("measure what the Cells on this cluster need, instead of --tp and --micro-batch", "C")
    ] = None
    global_batch: Annotated[int | None, Option("samples per iteration, with --cluster", values=SAMPLES)] = None
    seq_len: SeqLen = None
    dtype: ComputeType = "bf16"
    attention: Annotated[AttentionKernel | None, Option("(default: flash where the device has it)")] = None
    threads: Annotated[int, Option("of a CPU worker (default: 1)")] = 1
    budget: Annotated[float | None, Option("stop in time; what matters most comes first", "SECONDS", PATIENCE)] = None
    stage: Annotated[tuple[int, int] | None, Option("these layers, also as one piece", "FIRST:END", LAYERS)] = None
    compile: Annotated[bool, Option("the stage as one piece through torch.compile")] = False
    optimizer: Annotated[MeasuredOptimizer, Option("(default: %(default)s)")] = "adamw"
    sequence_parallel: Annotated[bool, Option("sequence parallelism where tp > 1")] = False
    recompute: Annotated[Recompute, Option("of activations (default: %(default)s)")] = "none"
    store: Store
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for options that exclude each other."""
        if self.compile and self.stage is None:
            raise self.wrong("compile", found="no --stage", expected="the stage to compile")
        if self.cluster is not None and self.stage is not None:
            raise self.wrong("cluster", found="a --stage too", expected="one of them")
        if self.cluster is None and self.global_batch is not None:
            raise self.wrong("global_batch", found=self.global_batch, expected="--cluster beside it")
        for name in {"tp", "micro_batch", "recompute"} & set(self.changed()) if self.cluster is not None else ():
            expected = "one of them: the Cells on the cluster say what is measured"
            raise self.wrong(name, found=f"--cluster {self.cluster} too", expected=expected)


@dataclass(frozen=True, kw_only=True)
class CommMeasureOptions(Options):
    """Collectives to measure between processes of this machine, or the ranks of `world`."""

    command: ClassVar[str] = "comm measure"

    link: Annotated[str, Option("the link measured (default: %(default)s)", "NAME")] = "loopback"
    backend: Annotated[Backend, Option("xla: JAX (default: %(default)s)")] = "gloo"
    ranks: Annotated[tuple[int, ...], Option("rank counts (default: 2)")] = (2,)
    sizes: Annotated[tuple[int, ...] | None, Option("bytes (default: 4 KiB to 64 MiB)")] = None
    ops: Annotated[tuple[CollectiveOp, ...] | None, Option(f"of {', '.join(OPS)} (default: all)")] = None
    repeats: Annotated[int, Option("per size (default: 20)")] = 20
    busy: Annotated[bool, Option("compute before each call, as a training does")] = False
    timeout: Annotated[float, Option("give up after (default: 120)", "SECONDS", PATIENCE)] = 120.0
    store: Store
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    world: Annotated[World | None, HOOK] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class CommFitOptions(TopologyOptions):
    """Output of nccl-tests to fit a line to, or a level's spread table."""

    command: ClassVar[str] = "comm fit"

    file: Annotated[Path, Option("what all_reduce_perf and its kin printed")] = field(kw_only=False)
    link: Annotated[str, Option("the link measured, such as nvswitch3", "NAME")]
    op: Annotated[CollectiveOp | None, Option("the collective, where the file does not say which")] = None
    spread: Annotated[
        str | None,
        Option(
            "the spread table of this level of --cluster, from runs over 1, 2, ... of its parts; stores none", "LEVEL"
        ),
    ] = None
    cluster: Annotated[str | None, Option("whose nodes the runs name, with --spread", "C")] = None
    store: Store

    def check(self) -> None:
        """Raise InputError for options that need each other."""
        if self.spread is not None and self.cluster is None:
            raise self.wrong("spread", found="no --cluster", expected="the cluster whose nodes the runs name")
        for name in ("cluster", "topology"):
            if self.spread is None and getattr(self, name) is not None:
                raise self.wrong(name, found=getattr(self, name), expected="--spread LEVEL beside it")


@dataclass(frozen=True, kw_only=True)
class CommShowOptions(Options):
    """Link tables to show."""

    command: ClassVar[str] = "comm show"

    link: Annotated[str | None, Option("of this link alone", "NAME")] = None
    size: Annotated[int | None, Option("also the time of that many, by each method", "BYTES")] = None
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesExportOptions(Options):
    """Where all of a store goes."""

    command: ClassVar[str] = "profiles export"

    file: Annotated[Path, Option("the file to write", writes="file")] = field(kw_only=False)
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesImportOptions(Options):
    """What is added to a store."""

    command: ClassVar[str] = "profiles import"

    file: Annotated[Path, Option("the file to read")] = field(kw_only=False)
    replace: Annotated[bool, Option("let the file win over what the store holds already")] = False
    store: Store


@dataclass(frozen=True, kw_only=True)
class ProfilesShowOptions(Options):
    """Which store is shown."""

    command: ClassVar[str] = "profiles show"

    store: Store
