"""Of plans that are equally fast the safe one: beside all plans of small spaces, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.pricing.headroom import memory_fit
from planner.one_job.planning.preferring import EQUALLY_FAST, find_preferred
from planner.one_job.planning.searching import plan_model, read_best
from planner.one_job.search.best import Best, BestSearch, find_best
from planner.one_job.search.spaces.request import DeviceSpace
from planner.shared.options.search import SearchOptions
from planner.shared.words import SAFE_TAKEN
from profiles.errors import NothingFits


@pytest.mark.parametrize("cluster", ["a100-40gb:1x8", "a10:1x1+t4:1x1"])
def test_a_safe_plan_is_taken_before_one_that_is_hardly_faster(cluster: str) -> None:
    options = SearchOptions("gpt2-1.3b", cluster=cluster)
    request = read_best(options, store=None)
    fastest, preferred = find_best(request), find_preferred(request)
    assert memory_fit(fastest.winner.evaluation).verdict == "tight"
    assert memory_fit(preferred.winner.evaluation).verdict == "safe"
    ratio = preferred.winner.evaluation.iteration_time_s / fastest.winner.evaluation.iteration_time_s
    assert 1 < ratio <= 1 + EQUALLY_FAST
    assert preferred.proved
    assert preferred.plan.provenance.optimality_proved
    fit = preferred.plan.estimate.memory_fit
    assert fit is not None
    assert fit.verdict == "safe"
    # Of the devices that there are, whatever the search took them for.
    assert fit.device_bytes == memory_fit(preferred.winner.evaluation).device_bytes
    said = [sentence for sentence in preferred.plan.assumptions if sentence.startswith(SAFE_TAKEN)]
    assert len(said) == 1
    assert f"would gain {1 - 1 / ratio:.2%}" in said[0]


def test_a_margin_that_is_stated_is_all_that_is_kept() -> None:
    options = SearchOptions("gpt2-1.3b", cluster="a100-40gb:1x8", memory_margin="0")
    assert plan_model(options).plan.stages == find_best(read_best(options, store=None)).plan.stages


@pytest.mark.parametrize(("model", "cluster"), [("llama3.2-1b", "h100:1x8"), ("llama3.2-1b", "a10:1x1+t4:1x1")])
def test_otherwise_the_fastest_is(model: str, cluster: str) -> None:
    request = read_best(SearchOptions(model, cluster=cluster), store=None)
    fastest, preferred = find_best(request), find_preferred(request)
    assert preferred.plan == fastest.plan
    if memory_fit(fastest.winner.evaluation).verdict != "safe":
        margin = plan_model(SearchOptions(model, cluster=cluster, memory_margin="25%"))
        assert margin.best is not None
        assert memory_fit(margin.best.winner.evaluation).verdict == "safe"
        assert margin.plan.estimate.iteration_time_s > (1 + EQUALLY_FAST) * fastest.plan.estimate.iteration_time_s


@pytest.mark.parametrize("cluster", ["a100-40gb:1x4", "a100-40gb:1x3", "a10:1x1+t4:1x1"])
@pytest.mark.parametrize("share", [0.7, 0.4])
def test_going_on_with_less_memory_is_searching_anew(cluster: str, share: float) -> None:
    options = SearchOptions("gpt2-1.3b", cluster=cluster, global_batch=24, seq_len=512)
    request = read_best(options, store=None)

    def with_share(part: DeviceSpace) -> DeviceSpace:
        device_bytes = part.cluster.group_of(part.space.slots[0]).device.memory_bytes
        return replace(part, space=replace(part.space, memory_below=int(share * device_bytes)))

    narrower = replace(request, spaces=tuple(map(with_share, request.spaces)))
    going_on = BestSearch(request, within=1.5)
    below = 1.5 * going_on.find().winner.found.value

    def values(best: Best) -> tuple[float, bool, bool]:
        assert best.lower_bound <= best.winner.found.value * (1 + 1e-12)
        return best.winner.found.value, best.proved, best.plan.provenance.optimality_proved

    try:
        expected = values(find_best(narrower, below=below))
    except NothingFits:
        with pytest.raises(NothingFits):
            going_on.find_with_less(narrower, below)
    else:
        assert values(going_on.find_with_less(narrower, below)) == expected
