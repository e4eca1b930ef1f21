"""The closed form of collectives and their flows agree where nothing hashes two connections onto one cable."""

from __future__ import annotations

import pytest

from bench.network.closed_form import WITHIN, _worst, places
from estimator.network.fabric import fabric_of

PLACES = {place.name: place for place in places(128)}


@pytest.mark.parametrize("name", PLACES)
def test_closed_form_and_flows_agree(name: str) -> None:
    """Oversubscribed pods too, which a ring in the order of the nodes leaves once. Not: hashes, and trees between two
    boxes."""
    place = PLACES[name]
    found = _worst(place.cluster, fabric_of(place.cluster), 128, 1e9)
    assert {op for op, _, _ in found} >= {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    apart = {(op, algorithm, boxes) for (op, algorithm, boxes), row in found.items() if row[0] > WITHIN}
    if not place.why:
        assert apart <= {("all_reduce", "tree", "2")}


def test_a_ring_is_slowed_by_a_hash_alone() -> None:
    place = PLACES["clos2, ecmp"]
    off, _, closed_s, at_flow_s = _worst(place.cluster, fabric_of(place.cluster), 64, 1e9)["all_reduce", "ring", "more"]
    assert off > WITHIN
    assert at_flow_s > closed_s
