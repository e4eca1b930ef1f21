"""Sites that the order of choosing cannot tell apart: the one with the fastest plan, whatever the file's order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner import api
from profiles.errors import InputError
from tests.planner.many_jobs.placement.place_examples import Link, a100, write_cluster


def used(found: dict[str, Any]) -> set[str]:
    """The sites of the plan's ranks."""
    return {device["site"] for device in found["plan"]["devices"]}


def time_s(found: dict[str, Any]) -> float:
    return float(found["plan"]["estimate"]["iteration_time_s"])


SITES = {
    "slow": ["count: 1, device: a10, devices: 2"],
    "middle": [a100(2), "count: 1, device: a40, devices: 2"],
    "fast": ["count: 1, device: h100, devices: 2"],
}
LINKS: list[Link] = [("slow", "middle", 1e9, 1e-3), ("middle", "fast", 1e9, 1e-3)]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_of_equal_sites_the_fastest(tmp_path: Path, devices: int, backwards: bool) -> None:
    sites = dict(reversed(SITES.items())) if backwards else SITES
    cluster = write_cluster(tmp_path, sites, LINKS)
    found = api.place("gpt2-350m", cluster=cluster, devices=devices, global_batch=8)
    assert used(found) == {"fast"}
    alone = [
        api.place("gpt2-350m", cluster=cluster, devices=devices, global_batch=8, types=(name,))
        for name in ("a10", "a100-80gb", "a40")
    ]
    assert all(time_s(found) < time_s(one) for one in alone)


def test_a_model_that_fits_on_one_of_equal_sites_alone_is_placed_there(tmp_path: Path) -> None:
    """3.6 billion parameters with their optimizer take more than the 24 and 48 GB of the first two."""
    sites = {"a": ["count: 1, device: a10, devices: 1"], "b": ["count: 1, device: a40, devices: 1"], "c": [a100(1)]}
    cluster = write_cluster(tmp_path, sites, [("a", "b", 1e9, 1e-3), ("b", "c", 1e9, 1e-3)])
    found = api.place("megatron-3.6b", cluster=cluster, devices=1, global_batch=4)
    assert used(found) == {"c"}


def test_sites_are_chosen_by_the_link_that_traffic_takes(tmp_path: Path) -> None:
    """a and b have a thin link of their own; the wide way over c is not what their traffic takes, so a and d it is."""
    sites = {"a": [a100(2)], "b": [a100(2)], "c": [a100(1)], "d": [a100(2)]}
    links: list[Link] = [("a", "b", 1e7, 1e-3), ("a", "c", 1e10, 1e-3), ("b", "c", 1e10, 1e-3), ("a", "d", 2e9, 1e-3)]
    cluster = write_cluster(tmp_path, sites, links)
    found = api.place("gpt2-1.3b", cluster=cluster, devices=4, global_batch=16, all_sites=True)
    assert used(found) == {"a", "d"}
    literal = api.place("gpt2-1.3b", cluster=cluster, devices=4, global_batch=16, all_sites=True, method="spin-search")
    assert time_s(found) <= time_s(literal)


def test_half_a_device_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a whole number of at least 1"):
        api.place("gpt2-350m", cluster=write_cluster(tmp_path, SITES, LINKS), devices=2.5)  # type: ignore[call-overload]
