"""Which devices a Cell's stages take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from estimator.cells.stage_places import place_stages
from estimator.cells.stages import StageSplit
from profiles.cluster import Cluster, DeviceSlot, SiteLink
from profiles.cluster_file import load_cluster


def placed(cluster: Cluster, *devices: int) -> list[tuple[DeviceSlot, ...]]:
    bounds = tuple((i, i + 1) for i in range(len(devices)))
    places = place_stages(StageSplit(bounds=bounds, devices=devices), cluster.slots, 1)
    return [place.slots for place in places]


def two_sites() -> Cluster:
    (site,) = load_cluster("a100-80gb:1x4").sites
    sites = (replace(site, name="north"), replace(site, name="south"))
    wan = SiteLink(between=("north", "south"), bandwidth_bytes_per_s=1e9, latency_s=5e-3)
    return Cluster(text="two sites", sites=sites, site_links=(wan,))


def crossings(groups: Sequence[Sequence[DeviceSlot]]) -> int:
    return sum(a.site != b.site for a, b in pairwise(slot for group in groups for slot in group))


def test_larger_stages_choose_first() -> None:
    groups = placed(load_cluster("a100-80gb:2x4"), 2, 4, 2)
    assert [sorted({slot.node for slot in group}) for group in groups] == [[1], [0], [1]]


@pytest.mark.parametrize("devices", [(2, 4, 2), (1, 3, 1, 3), (1, 2, 1, 4), (2, 2, 4), (1, 6, 1)])
def test_the_pipeline_passes_from_site_to_site_once(devices: tuple[int, ...]) -> None:
    groups = placed(two_sites(), *devices)
    assert crossings(groups) == 1
    assert [len(group) for group in groups] == list(devices)
    assert len({slot for group in groups for slot in group}) == sum(devices)
