"""The options of `run`, `export` and `validate`, which take a file and say how it went."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from estimator.communication.measuring import World
from estimator.profiling.setting import Framework
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.common import ReportFile, StoreIfAny
from planner.shared.options.record import HOOK, Option, Options, ProgressHook
from planner.shared.options.values import ITERATIONS, NATURAL, NO_OR_SOME_ITERATIONS, PATIENCE, RATE
from profiles.records import dataclass

RunDevice = Literal["auto", "cpu", "cuda"]
RowGrouping = Literal["source", "device", "generation", "parallel", "model_size"]


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """How a plan is really trained. `world`: this process is one rank of it."""

    command: ClassVar[str] = "run"

    file: Annotated[Path, Option("a plan file, as `cellplan plan -o` writes it", "PLAN")] = field(kw_only=False)
    backend: Annotated[Framework, Option("(default: %(default)s)")] = "torch"
    device: Annotated[RunDevice, Option("GPUs if there are enough")] = "auto"
    steps: Annotated[int, Option("measured iterations (default: 5)", values=ITERATIONS)] = 5
    warm_up: Annotated[int, Option("iterations before those (default: 1)", values=NO_OR_SOME_ITERATIONS)] = 1
    seed: Annotated[int, Option("of weights and random data (default: 0)", "SEED", NATURAL)] = 0
    learning_rate: Annotated[float, Option("(default: %(default)s)", "RATE", RATE)] = 1e-3
    data: Annotated[Path | None, Option("tokens, .npy or raw (default: random samples)")] = None
    data_dtype: Annotated[str, Option("of a raw file (default: %(default)s)", "DTYPE")] = "uint16"
    threads: Annotated[int, Option("of a worker on a CPU (default: 1)")] = 1
    pin: Annotated[bool, Option("give each worker cores of its own (default: yes)")] = True
    timeout: Annotated[
        float,
        Option("give up when no rank gets on for so long, a start within 120 s (default: 300)", "SECONDS", PATIENCE),
    ] = 300.0
    profile: Annotated[bool, Option("first measure on one device what the estimate lacks")] = False
    learn: Annotated[bool, Option("put what was measured into the profile store")] = False
    trace: Annotated[Path | None, Option("write traces for Perfetto: FILE and two beside it", writes="file")] = None
    report: ReportFile = None
    store: StoreIfAny = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    world: Annotated[World | None, HOOK] = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for the type of a raw file where none is read."""
        if "data_dtype" in self.changed() and (self.data is None or self.data.suffix == ".npy"):
            stated = "no --data" if self.data is None else f"{self.data}, which says its own"
            raise self.wrong("data_dtype", found=stated, expected="a raw file of tokens")


@dataclass(frozen=True, kw_only=True)
class ExportOptions(CodeOfFileOptions):
    """A plan file, and the tool that it is written for."""

    command: ClassVar[str] = "export"

    plan: Annotated[Path, Option("the plan file", "PLAN")] = field(kw_only=False)
    to: Annotated[str, Option("the tool (`--list` shows all)", "FORMAT")]
    script: Annotated[str | None, Option("the training script that the launcher is to start", "FILE")] = None
    nearest: Annotated[bool, Option("where the tool cannot run the plan, export the nearest that it can")] = False
    network: Annotated[
        Path | None,
        Option("the job's level on its network, as cellplan contention -o writes it: for slurm, kubernetes and ray"),
    ] = None
    job: Annotated[
        str | None, Option("its id in that file (default: the one job, or the one on the plan's hosts)", "ID")
    ] = None
    output: Annotated[
        Path | None,
        Option("the file to write, or a folder (where there are several)", "PATH", short="-o", writes="folder"),
    ] = None
    store: StoreIfAny = None

    def check(self) -> None:
        """Raise InputError for a job without the file that has it."""
        super().check()
        if self.job is not None and self.network is None:
            raise self.wrong("job", found=self.job, expected="--network FILE, whose job it is")


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(Options):
    """A table of measured runs, and the picture that is drawn of it."""

    command: ClassVar[str] = "validate"

    path: Annotated[Path, Option("measured runs, one a row", "RUNS.csv")] = field(kw_only=False)
    group: Annotated[
        RowGrouping | None, Option("the one grouping to print, and to colour by (default: all of them)")
    ] = None
    plot: Annotated[Path | None, Option("measured against estimated, as .svg or .png", writes="file")] = None
    report: ReportFile = None
    store: StoreIfAny = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)
