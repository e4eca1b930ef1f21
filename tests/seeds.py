"""How many seeds an oracle is compared on: some in `make test`, all that the test names in `make test-all`."""

from __future__ import annotations

import os

ALL_SEEDS = "CELLPLAN_ALL_SEEDS"
SHARE = 4
"""`make test` takes one seed of so many."""


def all_seeds() -> bool:
    """Return whether every seed was asked for (`pytest --all-seeds`)."""
    return bool(os.environ.get(ALL_SEEDS))


def seeds(count: int, *, least: int = 5) -> range:
    """Return the seeds to take of `count`: all of them under `--all-seeds`, else a quarter, but `least`."""
    return range(examples(count, least=least))


def examples(count: int, *, least: int = 5) -> int:
    """Return how many of `count` drawn examples to take: all under `--all-seeds`, else a quarter, but `least`."""
    return count if all_seeds() else min(count, max(least, count // SHARE))
