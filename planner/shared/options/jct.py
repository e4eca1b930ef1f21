"""The options of `jct train`, `jct predict` and `jct evaluate`."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from planner.shared.options.common import ReportFile
from planner.shared.options.record import Option, Options, ProgressHook
from planner.shared.options.values import CLOCK, NATURAL, PARAMETER_SETS, SHARE
from profiles.records import dataclass

Loss = Literal["squared", "absolute", "log", "within-2x"]

_OTHERS = "Philly's, Helios's, Acme's, PAI's, lingjun's, sacct's form"
_A_TRACE = f"a trace: CSV (plain or gzip) in the documented columns, or {_OTHERS}"
Trace = Annotated[Path, Option(_A_TRACE, "TRACE")]
Threads = Annotated[int, Option("default: %(default)s", "THREADS")]


@dataclass(frozen=True, kw_only=True)
class LearningOptions(Options):
    """How a predictor learns. `cap` is the last, open one of the intervals of 600 s."""

    command: ClassVar[str] = "jct"

    cap: Annotated[int, Option("the last, open interval of 10 minutes (default: 24)", "CAP")] = 24
    search: Annotated[int, Option("try N random parameter sets first (default: 0)", values=PARAMETER_SETS)] = 0
    seed: Annotated[int, Option("of all that is drawn (default: %(default)s)", "SEED", NATURAL)] = 0
    threads: Threads = 2
    progress: ProgressHook = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class JctTrainOptions(LearningOptions):
    """A trace to learn from, and the file of what was learned."""

    trace: Trace = field(kw_only=False)
    output: Annotated[Path, Option("the file to write", "MODEL", short="-o", writes="file")]
    until_s: Annotated[float | None, Option("know nothing after this time of the trace's clock", "S", CLOCK)] = None


@dataclass(frozen=True, kw_only=True)
class JctPredictOptions(Options):
    """A predictor, and jobs to predict."""

    command: ClassVar[str] = "jct"

    model: Annotated[Path, Option("a file of `cellplan jct train`", "MODEL")] = field(kw_only=False)
    trace: Annotated[Path, Option(f"{_A_TRACE}; a blank duration is fine", "TRACE")] = field(kw_only=False)
    history: Annotated[tuple[Path, ...], Option("earlier jobs, not predicted", "TRACE", repeated=True)] = ()
    from_s: Annotated[float | None, Option("only jobs submitted from then on", "S", CLOCK)] = None
    loss: Annotated[Loss, Option("what the point is to be best at")] = "squared"
    threads: Threads = 2


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(LearningOptions):
    """How predictors are evaluated: `origins` blocks of equal size make up the last share `tested` of the jobs.
    `network` and `quantiles` set the paper's neural network and quantile boosters beside the model."""

    origins: Annotated[int, Option("times to train at (default: %(default)s)", "ORIGINS")] = 5
    tested: Annotated[
        float, Option("the last share of the jobs, in equal blocks (default: %(default)s)", values=SHARE)
    ] = 0.5
    network: Annotated[bool, Option("a small neural network beside it (torch)")] = False
    quantiles: Annotated[bool, Option("intervals from quantile boosters beside it")] = False


@dataclass(frozen=True, kw_only=True)
class JctEvaluateOptions(EvaluationOptions):
    """A trace to evaluate on."""

    trace: Trace = field(kw_only=False)
    report: ReportFile = None
