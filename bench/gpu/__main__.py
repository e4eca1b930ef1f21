"""What one GPU can do, in one run of under ten minutes: operators, layers of the zoo, whole training steps.

    python -m bench.gpu --out DIR [--seconds 540] [--device cuda:0]

from the root of the repository, with torch; cellplan need not be installed, nor anything be reached over the network.
DIR then holds `operators.json` (every operator's time, rate and share of the catalogue's peak), `layers.profiles.json`
(a profile file), `steps.json` (whole iterations, our estimates beside them) and `log.txt`. They are written while the
run goes on: one that is killed leaves what it has. What the time did not allow and what failed stand in them too.

    cellplan profiles import DIR/layers.profiles.json

takes the layers into the profile store, and `cellplan estimate` rests on them from then on. `--tiny` runs all of it on
next to nothing, on a CPU in seconds.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from bench.gpu.record import Deadline, Log, OutOfTime, Run, ask_nvidia_smi, describe_error, describe_machine

OPERATORS_UNTIL, LAYERS_UNTIL, STEPS_UNTIL = 0.36, 0.66, 0.92
"""Shares of the time at which a section gives way to the next; the operators get what is left in the end."""
LAST_S = 5.0
"""Kept for writing the last files."""


def main(argv: Sequence[str] | None = None) -> int:
    """0 when the run came to its end, in time or not; 1 where torch cannot be used at all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--seconds", type=float, default=540.0, help="how long it may take (default: %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="cpu, cuda:0, ... (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="small sizes and few, to see that all of it runs")
    args = parser.parse_args(argv)
    start_s = monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    log = Log(args.out / "log.txt")
    try:
        with tempfile.TemporaryDirectory() as folder, alarm(args.seconds):
            provenance = start_torch(args.device)
            log.write(str(provenance))
            store = Path(folder) / "profiles.sqlite"
            run = Run(out=args.out, store=store, device=args.device, tiny=args.tiny, log=log, provenance=provenance)
            measure_all(run, start_s=start_s, seconds=args.seconds)
    except OutOfTime:
        log.write(f"stopped after {args.seconds:g} s")
    except Exception as error:
        log.write(f"failed: {describe_error(error)}\n{traceback.format_exc()}")
        return 1
    finally:
        log.close()
    return 0


def start_torch(device: str) -> dict[str, object]:
    """Makes `device` torch's current one (of a CPU one core, as the profiler does), and says what it is."""
    import torch

    torch.manual_seed(0)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
    return describe_machine(device)


def measure_all(run: Run, *, start_s: float, seconds: float) -> None:
    """The sections, one behind the other, each until its share of the time is over."""

    def until(share: float) -> Deadline:
        return Deadline(at_s=start_s + min(share * seconds, max(0.0, seconds - (0 if run.tiny else LAST_S))))

    # A section is imported where it begins, so that one that lacks a package does not stop the others.
    def operators() -> None:
        from bench.gpu.operators_torch import measure_operators, start_operators

        file, cases = start_operators(run)
        later.append(lambda: measure_operators(run, until(1.0), file, cases))
        measure_operators(run, until(OPERATORS_UNTIL), file, cases)

    def layers() -> None:
        from bench.gpu.layers_torch import measure_layers

        measure_layers(run, until(LAYERS_UNTIL))

    def steps() -> None:
        from bench.gpu.steps_torch import measure_steps

        measure_steps(run, until(STEPS_UNTIL))

    def remaining_operators() -> None:
        for resume in later:
            resume()

    later: list[Callable[[], None]] = []
    for section in (operators, layers, steps, remaining_operators):
        try:
            section()
        except Exception as error:
            run.log.write(f"failed: {section.__name__}: {describe_error(error)}\n{traceback.format_exc()}")
        if run.device.startswith("cuda"):
            run.log.write(f"{section.__name__} done: {ask_nvidia_smi(run.device)}")


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


if __name__ == "__main__":
    raise SystemExit(main())
