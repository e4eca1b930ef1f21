"""One framework's part of the run, in a process of its own, which `python -m bench.gpu` starts."""

from __future__ import annotations

import argparse
import faulthandler
import platform
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench.gpu.backend import BACKENDS, Backend
from bench.gpu.case import FRAMEWORKS, Framework
from bench.gpu.machine import ask_nvidia_smi
from bench.gpu.record import FILE, Deadline, DeviceLostError, Log, OutOfTime, ResultFile, describe_error

SECTIONS = ("operators", "layers", "steps")
UNTIL: dict[Framework, dict[str, float]] = {
    "torch": {"operators": 0.36, "layers": 0.66, "steps": 0.92},
    "jax": {"operators": 0.32, "layers": 0.64, "steps": 0.95},
}
"""Shares of the time at which a section gives way to the next; the operators get what is left in the end."""
OVERRUN_S = 30.0
"""So long after its end a section that hangs ends the process, and a new one goes on with the next section."""

DONE, FAILED, DEVICE_LOST = 0, 1, 4
"""Exit status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every section is told."""

    framework: Framework
    backend: Backend
    file: ResultFile
    log: Log
    device: str
    tiny: bool
    start_s: float
    end_s: float

    def until(self, share: float) -> Deadline:
        return Deadline(at_s=self.start_s + share * (self.end_s - self.start_s))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=FRAMEWORKS, required=True)
    parser.add_argument("--device", required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--end", type=float, default=0.0, help="the moment on the monotonic clock at which it ends")
    parser.add_argument("--sections", nargs="*", default=SECTIONS)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args(argv)
    log = Log()
    try:
        backend = BACKENDS[args.framework](args.device)
        if args.out is None:
            log.write(f"{args.framework} can be used: {describe(backend, args.device)}")
            return DONE
        provenance = describe(backend, args.device)
        file = ResultFile(args.out / FILE, framework=args.framework, provenance=provenance)
    except Exception as error:
        log.write(f"{args.framework} cannot be used: {describe_error(error)}")
        return FAILED
    log.write(str(provenance))
    run = Run(
        framework=args.framework,
        backend=backend,
        file=file,
        log=log,
        device=args.device,
        tiny=args.tiny,
        start_s=monotonic(),
        end_s=args.end,
    )
    return measure_in_time(run, args.sections)


def describe(backend: Backend, device: str) -> dict[str, Any]:
    """Where and with what it runs; a version that nobody can tell stops nothing."""
    found = {"device": device, "python": platform.python_version(), "hardware": backend.identity().hardware}
    try:
        found |= backend.describe()
    except Exception as error:
        found |= {"unknown": describe_error(error)}
    return found | {"nvidia_smi_at_start": ask_nvidia_smi(device)}


def measure_in_time(run: Run, sections: Sequence[str]) -> int:
    """`measure_all` until the run's end; the file is written whatever ends it."""
    try:
        with alarm(run.end_s - monotonic()):
            measure_all(run, sections)
    except OutOfTime:
        status, words = DONE, "stopped: its time is over"
    except DeviceLostError as error:
        status, words = DEVICE_LOST, f"failed: the device: {error}"
    else:
        status, words = DONE, "done"
    run.file.save()
    run.log.write(words)
    return status


def measure_all(run: Run, sections: Sequence[str]) -> None:
    """The sections, one behind the other, each until its share of the time is over."""
    later: list[Callable[[], None]] = []

    # A section is imported where it begins, so that one that lacks a package does not stop the others.
    def operators() -> None:
        from bench.gpu.cases import planned_cases
        from bench.gpu.operators import run_cases

        cases = planned_cases(run.framework, tiny=run.tiny, on_gpu=run.device != "cpu")
        section = run.file.begin("operators", [case.label for case in cases])

        def measure(deadline: Deadline) -> None:
            run_cases(cases, section, deadline, backend=run.backend, log=run.log)
            counts = f"{len(section.rows)} rows, {len(section.failures)} failed, {len(cases) - section.done} left"
            run.log.write(f"operators: {counts}")

        later.append(lambda: measure(run.until(1.0)))
        measure(run.until(UNTIL[run.framework]["operators"]))

    def layers() -> None:
        from bench.gpu.layers import measure_layers
        from bench.gpu.workloads import wanted_shards

        wanted = list(wanted_shards(run.framework, tiny=run.tiny))
        deadline = run.until(UNTIL[run.framework]["layers"])
        measure_layers(wanted, run.file, deadline, backend=run.backend, tiny=run.tiny, log=run.log)

    def steps() -> None:
        from bench.gpu.steps import measure_steps
        from bench.gpu.workloads import steps as planned_steps

        planned, deadline = planned_steps(run.framework, tiny=run.tiny), run.until(UNTIL[run.framework]["steps"])
        measure_steps(planned, run.file, deadline, backend=run.backend, tiny=run.tiny, log=run.log)

    known = {"operators": operators, "layers": layers, "steps": steps}
    for name in sections:
        run_section(run, name, known[name], run.until(UNTIL[run.framework][name]))
    for resume in later:
        run_section(run, "remaining operators", resume, run.until(1.0))


def run_section(run: Run, name: str, section: Callable[[], None], deadline: Deadline) -> None:
    """Notes a failure, but for that of the device, and goes on. One that hangs ends the process."""
    with watchdog(max(0.0, deadline.left_s) + OVERRUN_S):
        try:
            section()
        except DeviceLostError:
            raise
        except Exception as error:
            run.log.write(f"failed: {name}: {describe_error(error)}\n{traceback.format_exc()}")
        run.file.save()
    state = ask_nvidia_smi(run.device)
    run.log.write(f"{name} done" + (f": {state}" if state else ""))


@contextmanager
def alarm(seconds: float) -> Iterator[None]:
    """Raises OutOfTime inside after `seconds`, whatever runs then (between two of the interpreter's steps)."""

    def ring(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-3))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def watchdog(seconds: float) -> Iterator[None]:
    """Ends the process with a traceback after `seconds`, even from within a call that never returns."""
    # The descriptor itself: what stands for standard error may be no file.
    faulthandler.dump_traceback_later(seconds, exit=True, file=2)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    raise SystemExit(main())
