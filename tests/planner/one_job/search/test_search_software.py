"""Software whose modules are hooked under ZeRO 3 alone: each stage of ZeRO is searched under the software it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from estimator.pricing.recipe import ZeroStage
from estimator.pricing.software import load_framework
from planner.one_job.search.best import Best, find_best, find_best_parts
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.search.spaces.software import split_by_software
from planner.one_job.search.varied import with_constraints
from planner.shared.options.search import SearchOptions

STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)


def request_of(cluster: str = "a100-80gb:1x4", **options: Any) -> SearchRequest:
    given = SearchOptions("gpt-tiny", cluster=cluster, software="deepspeed", global_batch=16, **options)
    return read_search(given, store=None)


def under(request: SearchRequest, *stages: ZeroStage) -> SearchRequest:
    def narrowed(limits: Constraints) -> Constraints:
        return replace(limits, zero=stages)

    return with_constraints(request, narrowed)


def modules_of(best: Best) -> tuple[str, str]:
    """Of the plan that was found, and of the software under its stage of ZeRO."""
    zero = best.winner.found.state.zero
    return best.winner.setup.recipe.software.modules, load_framework("deepspeed").software_under(zero).modules


def test_a_launch_bound_model_is_slower_under_hooks() -> None:
    """Else the other tests could not tell."""
    request = request_of()
    hooked, plain = find_best(under(request, 3)), find_best(under(request_of(feature=("modules=torch",)), 3))
    assert hooked.winner.found.value > plain.winner.found.value
    assert modules_of(hooked) == ("zero3", "zero3")
    assert plain.winner.setup.recipe.software.modules == "torch"


@pytest.mark.parametrize("cluster", ["a100-80gb:1x4", "a100-80gb:2x2"])
def test_the_best_of_all_stages_is_the_best_of_each(cluster: str) -> None:
    request = request_of(cluster)
    best, alone = find_best(request), [find_best(under(request, zero)) for zero in STAGES]
    assert best.proved
    assert best.winner.found.value == pytest.approx(min(each.winner.found.value for each in alone), rel=1e-12)
    assert best.lower_bound == pytest.approx(best.winner.found.value, rel=1e-9)
    assert [found for found, meant in map(modules_of, (best, *alone)) if found != meant] == []
    together = find_best_parts(request, [under(request, zero) for zero in STAGES])
    assert [each and each.winner.found.value for each in together] == pytest.approx(
        [each.winner.found.value for each in alone], rel=1e-12
    )


def test_parts_of_one_software_share_out_the_stages() -> None:
    (part,) = request_of().spaces
    assert [own.space.constraints.zero for own in split_by_software(part)] == [(0, 1, 2), (3,)]
    (hooked,) = under(request_of(), 3).spaces
    assert [own.evaluator.recipe.software.modules for own in split_by_software(hooked)] == ["zero3"]
    (stated,) = request_of(feature=("modules=torch",)).spaces
    assert split_by_software(stated) == (stated,)
