"""How much memory a run takes, measured: the allocator's peak on a GPU, growth of the resident set on a host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from estimator.host.memory import resident_peak_bytes, start_resident_peak


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
    before = start_resident_peak()
    yield lambda: max(0, resident_peak_bytes() - before)
