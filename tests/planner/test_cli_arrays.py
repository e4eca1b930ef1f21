"""numpy as commands load it: without threads, which the environment does not show afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LOADS = """
import os, sys
from planner.cli.arrays import load_numpy
load_numpy()
print("numpy" in sys.modules, os.environ.get("OPENBLAS_NUM_THREADS"), len(os.listdir("/proc/self/task")))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux shows them")
@pytest.mark.parametrize("threads", [None, "1"])
def test_numpy_is_loaded_with_one_thread_and_the_environment_left_as_it_was(threads: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    if threads is not None:
        environment["OPENBLAS_NUM_THREADS"] = threads
    printed = subprocess.run([sys.executable, "-c", LOADS], env=environment, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == ["True", str(threads), "1"]
