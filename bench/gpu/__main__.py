"""What one GPU can do, in one run of under ten minutes: operators, layers of the zoo, whole training steps.

    python -m bench.gpu --out DIR [--framework both] [--seconds 540] [--device cuda:0]

from the root of the repository, with torch, JAX or both; cellplan need not be installed, nor anything be reached over
the network. DIR then holds `gpu.profiles.json` and `log.txt`. The file is a profile file: its profiles are the layers,
of each framework under its own software; its `bench` has every operator's time, rate and share of the catalogue's peak,
and whole iterations with our estimates beside them. It is written while the run goes on: one that is killed leaves what
it has. What the time did not allow and what failed stands in it too.

    cellplan profiles import DIR/gpu.profiles.json

takes the layers into the profile store, and `cellplan estimate` rests on them from then on. `--tiny` runs all of it on
next to nothing, on a CPU in seconds.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from bench.gpu.case import FRAMEWORKS, Framework
from bench.gpu.record import FILE, Log, sections_begun
from bench.gpu.worker import DONE, SECTIONS
from estimator.host.children import child_processes

TORCH_SHARE = 0.65
"""Of the time, where both frameworks run."""
LAST_S = 5.0
"""Kept for writing the last file."""
KILLED_AFTER_S = 15.0
"""So long after its end a worker that still runs is killed."""
PROBE_S = 60.0
RESTART_S = 15.0
"""With less time left, no new worker takes the place of one that died."""

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    "PYTHONUNBUFFERED": "1",
    # Else JAX takes three quarters of the memory at once, and never more.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
    "TF_CPP_MIN_LOG_LEVEL": "2",
}
ON_CPU = {"JAX_PLATFORMS": "cpu"}
QUICK_TO_COMPILE = "--xla_backend_optimization_level=0"
"""XLA's flags for a tiny run on a CPU, of which no figure counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What was asked for."""

    out: Path
    device: str
    tiny: bool
    log: Log

    def command(self, framework: Framework, *arguments: str) -> list[str]:
        tiny = ("--tiny",) if self.tiny else ()
        worker = (sys.executable, "-m", "bench.gpu.worker", "--framework", framework, "--device", self.device)
        return [*worker, *tiny, *arguments]

    def environment(self) -> Mapping[str, str]:
        found = {**os.environ, **ENVIRONMENT}
        if self.device == "cpu":
            found |= ON_CPU
            if self.tiny:
                found["XLA_FLAGS"] = f"{found.get('XLA_FLAGS', '')} {QUICK_TO_COMPILE}".strip()
        return found


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the run came to its end, in time or not; 1 where no framework can be used at all; 130 interrupted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--framework", choices=(*FRAMEWORKS, "both"), default="both", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=540.0, help="how long it may take (default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="cpu, cuda:0, ... (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few, to see that all of it runs")
    args = parser.parse_args(argv)
    end_s = monotonic() + args.seconds - (0 if args.tiny else LAST_S)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / FILE).unlink(missing_ok=True)
    order = Order(out=args.out, device=args.device, tiny=args.tiny, log=Log(args.out / "log.txt"))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return measure(order, FRAMEWORKS if args.framework == "both" else (args.framework,), end_s)
    except KeyboardInterrupt:
        order.log.write("interrupted")
        return 130
    finally:
        order.log.close()


def measure(order: Order, frameworks: Sequence[Framework], end_s: float) -> int:
    """Each framework that can be used in turn; what one does not need of its time is the next one's."""
    first, *others = frameworks
    usable = [first, *(framework for framework in others if can_be_used(order, framework, end_s))]
    for number, framework in enumerate(usable):
        share = TORCH_SHARE if number + 1 < len(usable) else 1.0
        start_s = monotonic()
        run_framework(order, framework, start_s + share * (end_s - start_s))
    if not any(sections_begun(order.out / FILE, framework) for framework in usable):
        order.log.write("failed: no framework can be used")
        return 1
    return 0


def can_be_used(order: Order, framework: Framework, end_s: float) -> bool:
    """Whether it is installed and has the device; a worker that only starts says so."""
    limit_s = monotonic() + min(PROBE_S, max(1.0, end_s - monotonic()))
    return run_worker(order, framework, order.command(framework), limit_s) == DONE


def run_framework(order: Order, framework: Framework, end_s: float) -> None:
    """A worker for all sections; where it dies, another for those that it had not begun."""
    left: tuple[str, ...] = SECTIONS
    while True:
        order.log.write(f"{framework}: {', '.join(left)}, {end_s - monotonic():.0f} s")
        arguments = ("--out", str(order.out.resolve()), "--end", repr(end_s), "--sections", *left)
        status = run_worker(order, framework, order.command(framework, *arguments), end_s + KILLED_AFTER_S)
        if status == DONE:
            return
        begun = sections_begun(order.out / FILE, framework)
        remaining = tuple(name for name in left if name not in begun)
        order.log.write(f"failed: the worker of {framework} ended with status {status}")
        if not remaining or remaining == left or end_s - monotonic() < RESTART_S:
            return
        left = remaining


def run_worker(order: Order, framework: Framework, command: Sequence[str], limit_s: float) -> int | None:
    """Its exit status; None where it still ran at `limit_s` and was killed. What it prints goes into the log."""
    with child_processes() as children:
        worker = children.start(
            command,
            cwd=ROOT,
            env=order.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        reader = threading.Thread(target=copy_lines, args=(worker, framework, order.log), daemon=True)
        reader.start()
        try:
            return worker.wait(timeout=max(0.0, limit_s - monotonic()))
        except subprocess.TimeoutExpired:
            order.log.write(f"failed: the worker of {framework} was killed at its deadline")
            return None
        finally:
            kill_group(worker)
            reader.join(timeout=5.0)


def copy_lines(worker: subprocess.Popen[str], framework: Framework, log: Log) -> None:
    """Until the worker, and whatever it started, has closed its output."""
    assert worker.stdout is not None
    with worker.stdout as lines:
        for line in lines:
            log.write(f"{framework}: {line.rstrip()}")


def kill_group(worker: subprocess.Popen[str]) -> None:
    """The worker and the compilers that it has started."""
    with suppress(OSError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


if __name__ == "__main__":
    raise SystemExit(main())
