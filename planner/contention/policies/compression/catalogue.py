"""The compressions by name. A new one is a function in this folder and a line here."""

from __future__ import annotations

from collections.abc import Callable

from planner.contention.policies.compression.algorithm_1 import algorithm_1_levels
from planner.contention.policies.compression.by_rank import sincronia_levels, varys_levels
from planner.contention.policies.compression.dag import ContentionDag
from planner.contention.policies.compression.exact import exact_levels

COMPRESSIONS: dict[str, Callable[[ContentionDag, int], tuple[int, ...]]] = {
    "algorithm-1": algorithm_1_levels,
    "equal-parts": varys_levels,
    "exact": exact_levels,
    "first-alone": sincronia_levels,
}
"""Name: what gives each job of a contention DAG one of so many levels, 0 first."""
