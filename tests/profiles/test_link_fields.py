"""What a link says of its protocols and topology survives the cluster file, and mistakes in it are named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from profiles.cluster_description import describe_cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.hardware import load_link


def test_all_fields_of_a_link_survive_the_cluster_file(tmp_path: Path) -> None:
    cluster = load_cluster("a100-80gb:2x8")
    link = replace(
        load_link("nvswitch4"),
        name="mine",
        quick_latency_s=1e-6,
        share_by_ranks=((2, 0.25), (4, 0.5)),
        torus_dimensions=2,
    )
    (site,) = cluster.sites
    site = replace(site, nodes=(replace(site.nodes[0], island_link=link),))
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(describe_cluster(replace(cluster, sites=(site,)))), encoding="utf-8")
    assert load_cluster(str(file)).sites == (site,)


@pytest.mark.parametrize(
    ("key", "value"),
    [("quick_efficiency", 1.5), ("in_network_efficiency", 0), ("share_by_ranks", [[2]]), ("torus_dimensions", 0)],
)
def test_a_mistake_in_a_link_is_named(key: str, value: object, tmp_path: Path) -> None:
    described = describe_cluster(load_cluster("a100-80gb:2x8"))
    described["sites"][0]["nodes"][0]["island"]["link"] = {
        "bandwidth_bytes_per_s": 1e9,
        "latency_s": 1e-6,
        key: value,
    }
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(described), encoding="utf-8")
    with pytest.raises(InputError, match=key):
        load_cluster(str(file))
