"""How much memory a run takes, measured: the allocator's peak on a GPU, growth of the resident set on a host."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

_STATUS = Path("/proc/self/status")


@contextmanager
def peak_growth(device: torch.device) -> Iterator[Callable[[], int]]:
    """Inside, a function that says by how many bytes the peak has passed what was held on entering.

    On a CPU that is resident memory of the process, which counts what its allocator keeps back too.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        held = int(torch.cuda.memory_allocated(device))
        yield lambda: int(torch.cuda.max_memory_allocated(device)) - held
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # Linux: the peak starts anew
    before = _resident_bytes()
    yield lambda: max(0, _peak_bytes() - before)


def _resident_bytes() -> int:
    return _status_bytes("VmRSS") or _peak_bytes()


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    fields = next((line.split() for line in lines if line.startswith(name)), None)
    return int(fields[1]) * 1024 if fields else 0
