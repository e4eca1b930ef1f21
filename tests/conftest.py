"""One thread for all tests: their tensors are tiny, and more threads only wait for each other."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
