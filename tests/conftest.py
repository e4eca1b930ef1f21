"""One thread for all tests: their tensors are tiny, and more threads only wait for each other. No test sees or touches
the store of whoever runs it. No example has a deadline: the machine may be busy. No test leaves a process."""

import gc
import itertools
import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

import tests.jax_flags  # noqa: F401  (how JAX is to start, before anything starts it)
from bench.killed.processes import TOKEN, processes_with
from tests.processes import new_token, wait_until
from tests.seeds import ALL_SEEDS, Place, examples, places, summary

os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test asks the Hugging Face Hub, or reads the models of whoever runs it.
os.environ["HF_HUB_OFFLINE"], os.environ["HF_HUB_CACHE"] = "1", os.devnull

ENDING_S = 60.0
"""What was told to end may take so long on a busy machine."""

_STORES = itertools.count()
ASKED = pytest.StashKey[set[Place]]()
"""Where the workers of this run asked for seeds."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-seeds", action="store_true", help="compare the oracles on every seed (make test-all)")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ASKED] = set()
    if config.getoption("--all-seeds"):
        os.environ[ALL_SEEDS] = "1"
    # `make test` draws the same examples every time, so that it fails for a change and not by chance; `make test-all`
    # draws afresh.
    if not config.getoption("--all-seeds"):
        _draw_no_constants_of_ours()
    settings.register_profile(
        "no deadline", deadline=None, max_examples=examples(100), derandomize=not config.getoption("--all-seeds")
    )
    settings.load_profile("no deadline")


def _draw_no_constants_of_ours() -> None:
    """Have hypothesis draw without the numbers and texts of this repository's modules: those that are imported by then
    count, which differs from worker to worker and with what each happened to run before."""
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = lambda: providers._local_constants


def pytest_sessionfinish(session: pytest.Session) -> None:
    session.config.stash[ASKED].update(places())
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["seeds"] = places()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """A worker of pytest-xdist says where it asked for seeds."""
    told = getattr(node, "workeroutput", {}).get("seeds", ())
    asked: set[Place] = node.config.stash[ASKED]  # type: ignore[attr-defined]
    asked.update(tuple(place) for place in told)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    asked = config.stash[ASKED]
    if asked:
        terminalreporter.write_line(f"seeds: {summary(asked)}")


def pytest_collection_finish() -> None:
    # What was collected stays to the end: no search for garbage need look at it again.
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _no_process_stays() -> Iterator[None]:
    """What a test starts, directly or not, has a token in its environment, by which it is found at the end."""
    token = f"cellplan-session-{secrets.token_hex(8)}"
    os.environ["CELLPLAN_TEST_SESSION"] = token
    yield
    if not Path("/proc/self/environ").exists():
        return
    deadline = time.monotonic() + ENDING_S
    while (left := _left(token)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, f"tests have left processes: {left}"


def _left(token: str) -> list[str]:
    """The tracker of multiprocessing ends with this process, of which it is a part."""
    return [command for command in processes_with(token).values() if "multiprocessing.resource_tracker" not in command]


@pytest.fixture(autouse=True)
def _no_store_of_the_user(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name of its own for each test, without a folder: to make one takes longer than many a test."""
    store = tmp_path_factory.getbasetemp() / f"no-store-{next(_STORES)}.sqlite"
    monkeypatch.setenv("CELLPLAN_STORE", str(store))


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """In the environment of all processes that a test starts, of which it must leave none."""
    mark = new_token()
    monkeypatch.setenv(TOKEN, mark)
    yield mark
    wait_until(lambda: not processes_with(mark), lambda: f"processes were left behind: {processes_with(mark)}")
