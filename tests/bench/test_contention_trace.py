"""Figures 23 and 24: moments of a trace, the fabrics, and what is played there."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.contention.fabrics import FABRICS, fabric_with_seed
from bench.contention.figure_23 import Trace, run_policy, tables
from bench.contention.figure_24 import draw, series, table, thirds
from bench.contention.stand_ins import SHARES, contender
from bench.contention.trace_moments import Cluster, Moment, moments, most_of
from bench.network.sitting import Stay
from estimator.network.fabric import Seat
from planner.contention.policies.bound import bound_flops_per_s
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.rehearsals import Rehearsals

DATA = Path(__file__).parents[3] / "shared" / "data"


def stay(job: str, start_s: float, end_s: float, *nodes: int, devices: int = 8) -> Stay:
    seats = tuple(Seat(node=node, device=device) for node in nodes for device in range(devices))
    return Stay(job=job, gpus=len(seats), start_s=start_s, end_s=end_s, seats=seats)


def test_moments_are_what_is_between_changes_of_those_that_send() -> None:
    sending = [stay("a", 0, 10, 0, 1), stay("b", 4, 6, 2, 3), stay("c", 9, 40, 4, 5)]
    alone = stay("d", 5, 7, 7)
    found = list(moments(sending, [*sending, alone], (2, 20)))
    assert [(each.seconds, each.jobs) for each in found] == [
        (2, (0,)),
        (2, (0, 1)),
        (3, (0,)),
        (1, (0, 2)),
        (10, (2,)),
    ]
    # One GPU-node of eight for one of two seconds, then one of three.
    assert [each.silent for each in found] == pytest.approx([0, 4, 8 / 3, 0, 0])


def test_the_moments_of_most_device_seconds_are_covered_in_their_order() -> None:
    every = [Moment(seconds=seconds, jobs=jobs, silent=0.0) for seconds, jobs in ((1, (0,)), (5, (1,)), (2, (0, 1)))]
    chosen, covered = most_of(every, [1, 3], 0.9)
    assert [each.seconds for each in chosen] == [5, 2]
    assert covered == pytest.approx(23 / 24)
    assert most_of(every, [1, 3], 1.0)[0] == tuple(every)


@pytest.mark.parametrize("name", list(FABRICS))
def test_fabrics_have_the_stated_switches(name: str) -> None:
    if name == "lingjun" and not (DATA / "traces/lingjun_topo.csv").exists():
        pytest.skip("no lingjun_topo.csv beside the checkout")
    cluster = FABRICS[name](DATA)
    links = fabric_with_seed(name, cluster, 1).links
    (group,) = cluster.sites[0].nodes
    switches = len(links.names) - links.nodes
    hosts, expected = {
        "clos": (346, 173 + 16),
        "thin-clos": (352, 44 + 16),
        "double-sided": (258, 6 + 12 + 32),
        "lingjun": (847, 119 + 24 + 32),
        "rail": (256, 4 * 8 + 16),
        "spray": (352, 44 + 16),
    }[name]
    assert (group.count, switches) == (hosts, expected)


@pytest.fixture(scope="module")
def crowded() -> Cluster:
    """Three jobs whose hosts alternate below four leaves of the thin Clos."""
    cluster = FABRICS["thin-clos"](DATA)
    fabric = fabric_with_seed("thin-clos", cluster, 0)
    stays = (stay("a", 0, 9, 0, 8, 16, 24), stay("b", 0, 9, 1, 9, 17, 25), stay("c", 2, 9, 2, 10, 18, 26))
    made = [contender(each, fabric, 3) for each in stays]
    return Cluster(
        fabric=fabric,
        stays=stays,
        contenders=tuple(each for each, _ in made),
        compute_s=tuple(seconds for _, seconds in made),
        moments=tuple(moments(stays, stays, (0, 9))),
        covered=1.0,
    )


def test_what_is_played_is_what_policies_rehearse(crowded: Cluster) -> None:
    trace = Trace(crowded)
    for moment in crowded.moments:
        view = trace.view(moment)
        decision = make_network_policy("crux").decide(view)
        rates = Rehearsals(view).iterations_per_s(decision.paths, decision.levels)
        assert trace.seconds(moment, decision) == pytest.approx([1 / rate for rate in rates], rel=0.02)


def test_no_policy_passes_the_bound_and_paths_bring_something(crowded: Cluster) -> None:
    trace = Trace(crowded)
    bound = [bound_flops_per_s(trace.view(moment)) for moment in crowded.moments]
    ran = {name: run_policy(trace, name) for name in ("ecmp", "crux", "tacclstar", "sincronia")}
    for each in ran.values():
        assert all(work <= most * (1 + 1e-6) for work, most in zip(each["work"], bound, strict=True))
    assert sum(ran["crux"]["work"]) > sum(ran["ecmp"]["work"]) * 1.02
    assert ran["ecmp"]["changes"] == 0


def test_tables_say_what_the_rows_do() -> None:
    def row(seed: int, crux: float) -> dict[str, object]:
        ran = {"of_bound": 0.9, "lowest_loses": None, "decide_mean_s": 0.01, "decide_p99_s": 0.02, "cpu_s": 1.0}
        return {
            "fabric": "clos",
            "placement": "random",
            "seed": seed,
            "jobs": 3,
            "moments": 4,
            "covered": 1.0,
            "bound": 0.99,
            "bound_s": 1.0,
            "policies": {
                "ecmp": ran | {"busy": 0.5, "work": 0.5},
                "cassini": ran | {"busy": 0.5, "work": 0.4},
                "crux": ran | {"busy": crux, "work": crux},
            },
        }

    lines = list(tables([row(0, 0.6), row(1, 0.7)]))
    assert any(line.startswith("| crux | 65.0% ± 63.5 | +30.0% ± 127.1 |") for line in lines)
    assert any("| - | - | +30.0% ± 127.1 | +13 to +23% | - | - |" in line for line in lines)


def test_links_by_intensity_sum_to_what_is_carried(crowded: Cluster) -> None:
    trace = Trace(crowded)
    assert sorted(thirds(crowded, trace)) == [0, 1, 2]
    drawn = {name: list(draw(crowded, name)) for name in ("crux-pa", "crux")}
    for moment, before, after in zip(crowded.moments, drawn["crux-pa"], drawn["crux"], strict=True):
        assert before.seconds == moment.seconds
        assert (before.idle > 0).all()
        assert after.used.sum() >= before.used.sum() * (1 - 1e-9)
    assert len(list(table(drawn))) == 4
    assert len(list(series(drawn))) == 1 + 2 * len(crowded.moments)


def test_shares_of_stand_ins_leave_no_size_without_a_model() -> None:
    assert len(SHARES) == 11
    assert all(sum(weights[size] for _, weights in SHARES.values()) > 0 for size in range(3))
