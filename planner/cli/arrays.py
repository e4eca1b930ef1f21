"""numpy as a command needs it that prices plans."""

from __future__ import annotations

import os
import sys
from importlib import import_module

_THREADS = "OPENBLAS_NUM_THREADS"


def load_numpy() -> None:
    """Import numpy with one thread of its linear algebra, unless the environment says how many.

    Prices multiply small matrices alone: starting a thread a core took half of what importing numpy takes. What the
    command starts itself (workers, the user's own code) finds the environment as it was.
    """
    if "numpy" in sys.modules:
        return
    unsaid = _THREADS not in os.environ
    if unsaid:
        os.environ[_THREADS] = "1"
    try:
        import_module("numpy")
    finally:
        if unsaid:
            del os.environ[_THREADS]
