"""The options of `estimate`: of Cells, or of one explicit plan."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, get_args

from estimator.cells.rules import MicroBatchRule
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.common import ClusterIfAny, Launcher, ModelIfAny, TimelineFile
from planner.shared.options.record import Option, Options
from planner.shared.options.training import JOB, RECOMPUTE, CellOptions, TrainingOptions
from planner.shared.options.values import AMOUNT, LARGE, SHARD_X_REPLICATE, words_of
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import OffloadPart, ScheduleName, ZeroStage

EXPLICIT = partial(
    Option, group="one explicit plan, in place of the Cells (any degree, adapters, or a software named, makes it one)"
)
WHOLE = partial(Option, group="the whole training, of an explicit plan")
FILES = partial(Option, group="the plan as a file")

DEGREES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp", "hsdp")
"""Any of these makes an estimate that of one explicit plan, as software that is named does."""


@dataclass(frozen=True, kw_only=True)
class WholeTrainingOptions(Options):
    """A whole training: tokens, failures of a device a day, seconds of a checkpoint and of a restart."""

    command: ClassVar[str] = "estimate"

    train_tokens: Annotated[float | None, WHOLE("tokens of the whole training, such as 1.4T", "N", LARGE)] = None
    failure_rate: Annotated[float, WHOLE("failures per device and day", "F", AMOUNT)] = 0.0
    checkpoint_time: Annotated[float, WHOLE("seconds that saving a checkpoint stops training", "S", AMOUNT)] = 0.0
    restart_time: Annotated[float, WHOLE("seconds from a failure to training again", "S", AMOUNT)] = 0.0


@dataclass(frozen=True, kw_only=True)
class DegreeOptions(Options):
    """How one explicit plan shares the work. None: derived, and said how."""

    tp: Annotated[int | None, EXPLICIT("tensor-parallel ranks")] = None
    pp: Annotated[int | None, EXPLICIT("pipeline stages")] = None
    dp: Annotated[int | None, EXPLICIT("data-parallel replicas (default: what is left)")] = None
    cp: Annotated[int | None, EXPLICIT("context-parallel ranks")] = None
    ep: Annotated[int | None, EXPLICIT("ranks that share a layer's experts")] = None
    etp: Annotated[int | None, EXPLICIT("ranks that share each expert's matrices")] = None
    vpp: Annotated[int | None, EXPLICIT("chunks of layers per stage (interleaved)")] = None
    hsdp: Annotated[
        tuple[int, int] | None,
        EXPLICIT("shard over so many ranks, with so many replicas", "SHARDxREPLICATE", SHARD_X_REPLICATE),
    ] = None
    offload: Annotated[
        tuple[OffloadPart, ...], EXPLICIT("held in host memory", "PARTS", words_of(get_args(OffloadPart), or_none=True))
    ] = ()


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(WholeTrainingOptions, DegreeOptions, CellOptions, CodeOfFileOptions, TrainingOptions):
    """A model on a cluster: its Cells; or one explicit plan, by its degrees, by a plan file, or as a launcher's present
    settings."""

    model: ModelIfAny = field(default=None, kw_only=False)
    cluster: ClusterIfAny = None
    devices: Annotated[int | None, JOB("devices of the cluster to use (default: all)")] = None
    micro_batch: Annotated[int | None, JOB("samples per rank and micro-batch")] = None
    micro_batches: Annotated[
        int | MicroBatchRule,
        JOB("micro-batches an iteration, or crius (4 per stage), fit (more where those do not fit; default), best"),
    ] = "fit"
    zero: Annotated[
        ZeroStage | None, JOB("what is sharded: 1 optimizer, 2 gradients, 3 weights (FSDP; default: the software's)")
    ] = None
    sequence_parallel: Annotated[bool | None, JOB("sequence parallelism where tp > 1 (default: the software's)")] = None
    schedule: Annotated[ScheduleName | None, JOB("(default: 1f1b; with --vpp interleaved)")] = None
    recompute: Annotated[
        str,
        JOB(
            "auto (only where needed to fit; default), none, selective, full, or full:LAYERS of each stage",
            "RULE",
            RECOMPUTE,
        ),
    ] = "auto"
    plan: Annotated[Path | None, FILES("estimate the plan in this file, in place of MODEL and options")] = None
    output: Annotated[Path | None, FILES("write the explicit plan to this file", short="-o", writes="file")] = None
    timeline: TimelineFile = None
    launcher: Annotated[
        tuple[Launcher, str] | None,
        Option(
            "estimate a launcher's present settings: megatron ARGS or a script, torchtitan FILE.toml, deepspeed"
            " FILE.json (with MODEL), llm-foundry FILE.yaml, nanotron FILE.yaml",
            ("FORMAT", "SETTINGS"),
            flag="--from",
            nargs=2,
        ),
    ] = None

    @property
    def explicit(self) -> bool:
        """Whether one plan is asked for: by a file, by a launcher's settings, by its software, by the part of
        the model that learns, or by a degree of parallelism."""
        named = self.plan is not None or self.launcher is not None or self.software is not None or self.fine_tunes
        return named or any(getattr(self, name) is not None for name in DEGREES)

    def check(self) -> None:
        """Raise InputError for options that contradict each other."""
        super().check()
        if self.code and self.plan is None:
            raise self.wrong("code", found=", ".join(self.code), expected="--plan beside it: MODEL runs as it is")
        if self.launcher is not None and self.plan is not None:
            raise InputError(where="estimate", key="--from", found=f"--plan {self.plan} too", expected="one of them")
        if self.launcher is not None and self.timeline is not None:
            expected = "`estimate --plan PLAN --timeline FILE` of what -o PLAN writes"
            raise self.wrong("timeline", found="--from too", expected=expected)
        if self.timeline is not None and not self.explicit:
            expected = "one plan to draw: --plan, --tp, --pp, --dp or another degree; or `cellplan plan`"
            raise self.wrong("timeline", found="Cells", expected=expected)
        if self.train_tokens is None:
            for name in ("failure_rate", "checkpoint_time", "restart_time"):
                if getattr(self, name):
                    raise self.wrong(name, found=getattr(self, name), expected="--train-tokens beside it")
