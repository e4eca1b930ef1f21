"""The options of `run`, `export` and `validate`, which take a file and say how it went."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from estimator.communication.measuring import World
from estimator.profiling.setting import Framework
from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import HOOK, Option, Options, ProgressHook
from planner.shared.options.values import NATURAL, RATE, SECONDS

RunDevice = Literal["auto", "cpu", "cuda"]
RowGrouping = Literal["source", "device", "parallel", "model_size"]


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """How a plan is really trained. `world`: this process is one rank of it."""

    command: ClassVar[str] = "run"

    file: Annotated[Path, Option(help="a plan file, as `cellplan plan -o` writes it", metavar="PLAN")] = field(
        kw_only=False
    )
    backend: Annotated[Framework, Option(help="(default: %(default)s)")] = "torch"
    device: Annotated[RunDevice, Option(help="GPUs if there are enough")] = "auto"
    steps: Annotated[int, Option(help="measured iterations (default: 5)", metavar="N")] = 5
    warm_up: Annotated[int, Option(help="iterations before those (default: 1)", metavar="N", values=NATURAL)] = 1
    seed: Annotated[int, Option(help="of weights and random data (default: 0)", values=NATURAL)] = 0
    learning_rate: Annotated[float, Option(help="(default: %(default)s)", metavar="RATE", values=RATE)] = 1e-3
    data: Annotated[Path | None, Option(help="tokens, .npy or raw (default: random samples)", metavar="FILE")] = None
    data_dtype: Annotated[str, Option(help="of a raw file (default: %(default)s)", metavar="DTYPE")] = "uint16"
    threads: Annotated[int, Option(help="of a worker on a CPU (default: 1)", metavar="N")] = 1
    pin: Annotated[bool, Option(help="give each worker cores of its own (default: yes)")] = True
    timeout: Annotated[
        float,
        Option(help="give up when no rank gets on for so long (default: 300)", metavar="SECONDS", values=SECONDS),
    ] = 300.0
    profile: Annotated[bool, Option(help="first measure on one device what the estimate lacks")] = False
    learn: Annotated[bool, Option(help="put what was measured into the profile store")] = False
    trace: Annotated[Path | None, Option(help="write traces for Perfetto: FILE and two beside it", metavar="FILE")] = (
        None
    )
    store: StoreIfAny = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)
    world: Annotated[World | None, HOOK] = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Options):
    """A plan file, and the tool that it is written for."""

    command: ClassVar[str] = "export"

    plan: Annotated[Path, Option(help="the plan file", metavar="PLAN")] = field(kw_only=False)
    to: Annotated[str, Option(help="the tool (`--list` shows all)", metavar="FORMAT")]
    script: Annotated[str | None, Option(help="the training script that the launcher is to start", metavar="FILE")] = (
        None
    )
    nearest: Annotated[bool, Option(help="where the tool cannot run the plan, export the nearest that it can")] = False
    output: Annotated[
        Path | None,
        Option(help="the file to write, or a folder (where there are several)", metavar="PATH", short="-o"),
    ] = None
    store: StoreIfAny = None


@dataclass(frozen=True, kw_only=True)
class ValidateOptions(Options):
    """A table of measured runs, and the picture that is drawn of it."""

    command: ClassVar[str] = "validate"

    path: Annotated[Path, Option(help="measured runs, one a row", metavar="RUNS.csv")] = field(kw_only=False)
    group: Annotated[
        RowGrouping | None,
        Option(help="the one grouping to print, and to colour by (default: all of them)"),
    ] = None
    plot: Annotated[Path | None, Option(help="measured against estimated, as .svg or .png", metavar="FILE")] = None
    store: StoreIfAny = None
    progress: ProgressHook = field(default=None, compare=False, repr=False)
