"""One thread for all tests: their tensors are tiny, and more threads only wait for each other. No test sees or touches
the store of whoever runs it. No example has a deadline: the machine may be busy."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

import tests.jax_flags  # noqa: F401  (how JAX is to start, before anything starts it)
from tests.seeds import ALL_SEEDS

settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-seeds", action="store_true", help="compare the oracles on every seed (make test-all)")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--all-seeds"):
        os.environ[ALL_SEEDS] = "1"


@pytest.fixture(autouse=True)
def _no_store_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLPLAN_STORE", str(tmp_path / "no-store.sqlite"))
