"""One thread for all tests: their tensors are tiny, and more threads only wait for each other. No test sees or touches
the store of whoever runs it. No example has a deadline: the machine may be busy."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

import tests.jax_flags  # noqa: F401  (how JAX is to start, before anything starts it)

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def _no_store_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLPLAN_STORE", str(tmp_path / "no-store.sqlite"))
