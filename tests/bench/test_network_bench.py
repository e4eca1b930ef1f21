"""The closed form of collectives and their flows agree where nothing hashes two connections onto one cable."""

from __future__ import annotations

import pytest

from bench.network.closed_form import WITHIN, _line, _worst, flow_line, places
from estimator.communication.groups import describe_group
from estimator.network.fabric import fabric_of
from estimator.traffic.on_fabric import seats_on
from profiles.cluster_file import load_cluster
from profiles.vocabulary import CollectiveOp

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


@pytest.mark.parametrize(
    ("cluster", "ranks"),
    [
        ("gb200:36x4", 76),
        ("gb200:36x4", 128),
        ("gb200:162x4", 512),  # seven islands of 72, and 8 ranks of an eighth
        ("a100-40gb:4x4", 6),
        ("a100-40gb:4x4", 13),
        ("h100:13x8", 100),
    ],
)
def test_an_exchange_of_uneven_boxes_is_as_slow_as_its_busiest_box(cluster: str, ranks: int) -> None:
    """Each box sends its own bytes over its own NICs: few ranks behind few NICs are not given the fullest one's."""
    place = load_cluster(cluster)
    slots = place.slots[:ranks]
    group = describe_group(place, slots)
    assert len({box.ranks for box in group.boxes}) > 1
    flows = flow_line("all_to_all", "exchange", group, fabric_of(place), seats_on(place, slots))
    assert _line("all_to_all", "exchange", group).seconds(1e9) == pytest.approx(flows.seconds(1e9), rel=1e-6)


@pytest.mark.parametrize("counts", [(4, 3), (4, 3, 2), (8, 1), (5, 3, 3, 2), (2, 8, 2)])
def test_boxes_with_different_numbers_of_nics_have_the_channels_of_the_one_with_fewest(counts: tuple[int, ...]) -> None:
    """As NCCL has it: so rings, and trees of four boxes, take what the closed form says."""
    place = load_cluster("a100-40gb:4x8")
    slots = tuple(slot for slot in place.slots if slot.node < len(counts) and slot.index < counts[slot.node])
    group, seats = describe_group(place, slots), seats_on(place, slots)
    forms: list[tuple[CollectiveOp, str]] = [("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring")]
    forms += [("all_reduce", "tree")] if len(counts) > 3 else []
    for op, algorithm in forms:
        flows = flow_line(op, algorithm, group, fabric_of(place), seats)
        assert flows.seconds(1e9) == pytest.approx(_line(op, algorithm, group).seconds(1e9), rel=1e-6)
