"""Counters by priority held against plans whose shares are known by arithmetic, and counters that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.network.connections import Model
from estimator.network.fabric import Fabric, Nccl, fabric_of
from planner.contention.emitting.counters import PERFQUERY, read_counters
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import default_map
from planner.contention.emitting.queue_pairs import price_queue_pairs
from planner.contention.emitting.verifying import describe_verified, sent_by_node, verify
from planner.contention.jobs_file import PlacedJob, read_jobs
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.records import replace
from profiles.routing import HashName

DATA = Path(__file__).parents[3] / "data" / "contention"
BEFORE, AFTER = DATA / "ethtool_before.txt", DATA / "ethtool_after.txt"

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{count: 4, device: h100, names: "gpu[1-4]"}]
    fabric: {link: roce400, topology: {kind: clos2, leaves: 2, spines: 2, cables: 2}}
"""
JOBS = """schema: cellplan.jobs/1
jobs:
  - {id: gpt, hosts: "gpu[1,3]", gpus: 0-3, traffic: {compute_s: 0.2, bytes: 6.0e+9, flops: 1.0e+15}}
  - {id: bert, hosts: "gpu[1,3]", gpus: 4-7, traffic: {compute_s: 0.2, bytes: 2.0e+9, flops: 1.0e+15}}
"""
THREE = default_map(3)
"""Priorities 5, 4, 3."""
PLANNED = (
    PlannedJob(id="gpt", hosts=("gpu1", "gpu3"), level=0),
    PlannedJob(id="bert", hosts=("gpu1", "gpu3"), level=2),
)


def _cluster(tmp_path: Path) -> Cluster:
    path = tmp_path / "c.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return load_cluster(str(path))


def _jobs(tmp_path: Path, cluster: Cluster, text: str = JOBS) -> tuple[PlacedJob, ...]:
    path = tmp_path / "jobs.yaml"
    path.write_text(text, encoding="utf-8")
    return read_jobs(path, cluster)


def test_what_was_sent_between_two_readings_of_a_nic() -> None:
    assert read_counters([BEFORE, AFTER]) == {("", 0): 20_000, ("", 3): 0, ("", 5): 9_000_000_000}


def test_a_file_may_be_said_to_be_of_a_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(DATA)
    asked = [Path("gpu1=ethtool_before.txt"), Path("gpu1=ethtool_after.txt")]
    assert read_counters(asked)["gpu1", 5] == 9_000_000_000
    with pytest.raises(InputError, match="1 NICs before and 0 after of gpu1"):
        read_counters([asked[0], Path("gpu2=ethtool_after.txt")])
    with pytest.raises(InputError, match=r"none\.txt"):
        read_counters([Path("gpu1=none.txt")])


def test_one_text_may_have_both_times_of_several_hosts(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    times = [(BEFORE, "gpu1"), (BEFORE, "gpu1"), (AFTER, "gpu1"), (BEFORE, "gpu1"), (BEFORE, "gpu2"), (AFTER, "gpu2")]
    rows = [f"{host}: {line}" for text, host in times for line in text.read_text(encoding="utf-8").splitlines()]
    path.write_text("\n".join(rows), encoding="utf-8")
    sent = read_counters([path])
    assert (sent["gpu1", 5], sent["gpu2", 5], sent["gpu1", 0]) == (9_000_000_000, 9_000_000_000, 20_000)
    bare = tmp_path / "bare"
    bare.write_text("tx_prio3_bytes: 5\ntx_prio3_bytes: 8\n", encoding="utf-8")
    assert read_counters([bare]) == {("", 3): 3}


def test_where_nothing_counts_what_is_sent_what_is_received_counts(tmp_path: Path) -> None:
    path = tmp_path / "counters"
    path.write_text("rx_prio3_bytes: 5\nrx_prio3_bytes: 8\n", encoding="utf-8")
    assert read_counters([path]) == {("", 3): 3}


def test_counters_by_service_level_are_of_four_bytes(tmp_path: Path) -> None:
    before, after = DATA / "perfquery_before.txt", DATA / "perfquery_after.txt"
    sent = read_counters([before, after], PERFQUERY)
    assert {key: count for key, count in sent.items() if count} == {("", 0): 4 * 120, ("", 3): 4 * 250_000_000}
    both = tmp_path / "both"
    lines = [f"gpu1: {line}" for path in (before, after) for line in path.read_text(encoding="utf-8").splitlines()]
    both.write_text("\n".join(lines), encoding="utf-8")
    assert read_counters([both], PERFQUERY)["gpu1", 3] == 10**9
    with pytest.raises(InputError, match="XmtDataSL0: found 1020 before and 900 after"):
        read_counters([after, before], PERFQUERY)
    full = tmp_path / "full"
    full.write_text("XmtDataSL3:.....7\nXmtDataSL3:.....4294967295\n", encoding="utf-8")
    with pytest.raises(InputError, match="XmtDataSL3: found 4294967295, expected less than 4294967295"):
        read_counters([full], PERFQUERY)
    table = tmp_path / "table.csv"
    table.write_text("host,priority,bytes\ngpu1,15,7\n", encoding="utf-8")
    assert read_counters([table], PERFQUERY) == {("gpu1", 15): 7}
    with pytest.raises(InputError, match="0 to 7"):
        read_counters([table])
    with pytest.raises(InputError, match="no counter by service level"):
        read_counters([BEFORE, AFTER], PERFQUERY)


def test_a_table_says_what_was_sent_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "counters.csv"
    path.write_text("host,priority,bytes\ngpu1,5,100\ngpu1,5,20\n,3,7\n", encoding="utf-8")
    assert read_counters([path]) == {("gpu1", 5): 120, ("", 3): 7}
    with pytest.raises(InputError, match="meanwhile"):
        read_counters([path, path])


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", None, "no counter by priority"),
        ("rx_packets: 5\n", None, "no counter by priority"),
        ("tx_prio3_bytes: 5\n", None, "1 readings"),
        ("tx_prio9_bytes: 5\ntx_prio9_bytes: 6\n", None, "expected 0 to 7"),
        ("tx_prio3_bytes: 5\ntx_prio3_bytes: 4\n", None, "5 before and 4 after"),
        ("tx_prio3_bytes: 5\ntx_prio3_bytes: 5\n", None, "stood still"),
        ("gpu1: tx_prio3_bytes: 5\n", "gpu2: tx_prio3_bytes: 5\n", "1 NICs before and 0 after of gpu1"),
        ("host,priority,bytes\ngpu1,8,5\n", None, "priority: found '8'"),
        ("host,priority,bytes\ngpu1,3,-5\n", None, "bytes: found '-5'"),
        ("host,priority,bytes\ngpu1,3\n", None, "found 2 cells"),
        ("host,priority,bytes\n", None, "stood still"),
    ],
)
def test_what_is_no_counter_is_refused(tmp_path: Path, before: str, after: str | None, said: str) -> None:
    paths = []
    for name, text in (("before", before), ("after", after)):
        if text is not None:
            paths.append(tmp_path / name)
            paths[-1].write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        read_counters(paths)


def test_more_than_two_times_are_refused() -> None:
    for paths in ([], [BEFORE, AFTER, AFTER]):
        with pytest.raises(InputError, match="one or two"):
            read_counters(paths)


def test_a_ring_sends_twice_its_bytes_less_a_ranks_part_from_each_node(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    gpt, bert = _jobs(tmp_path, cluster)
    assert sent_by_node(gpt, fabric_of(cluster)) == pytest.approx({(0, "dp"): 10.5e9, (2, "dp"): 10.5e9})
    assert sent_by_node(bert, fabric_of(cluster)) == pytest.approx({(0, "dp"): 3.5e9, (2, "dp"): 3.5e9})


def test_exchanges_beside_others_and_repeated_spans_all_count(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    gpt, _ = _jobs(tmp_path, cluster)
    (span,) = gpt.traffic.spans
    (exchange,) = span.exchanges
    beside = replace(exchange, axis="pp", times=3)
    twice = replace(span, exchanges=(replace(exchange, beside=(beside,), times=2),), times=5)
    job = replace(gpt, traffic=replace(gpt.traffic, spans=(span, twice)))
    sent = sent_by_node(job, fabric_of(cluster))
    assert sent[0, "dp"] == pytest.approx(11 * 10.5e9)
    assert sent[0, "pp"] == pytest.approx(30 * 10.5e9)


SECONDS = {"gpt": 0.4, "bert": 0.4}


def test_counters_as_planned_agree_and_others_are_named(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    fabric, jobs = fabric_of(cluster), _jobs(tmp_path, cluster)
    good = verify({("gpu1", 5): 7_400, ("gpu1", 3): 2_500, ("gpu1", 0): 100}, jobs, PLANNED, SECONDS, THREE, fabric)
    assert [(share.priority, share.planned, share.verdict) for share in good] == [
        (5, 0.75, "as planned"),
        (3, 0.25, "as planned"),
        (0, 0.0, "as planned"),
    ]
    assert describe_verified(good)["agrees"] is True
    unset = verify({("gpu1", 0): 10_000}, jobs, PLANNED, SECONDS, THREE, fabric)
    assert [(share.priority, share.verdict) for share in unset] == [(5, "missing"), (3, "missing"), (0, "not planned")]
    assert describe_verified(unset)["agrees"] is False
    small = {"gpt": 0.4, "bert": 0.4 * 20}
    gone = verify({("gpu1", 5): 10_000}, jobs, PLANNED, small, THREE, fabric)
    assert [(share.priority, share.verdict) for share in gone] == [(5, "as planned"), (3, "missing")]
    half = verify({("gpu1", 5): 5_000, ("gpu1", 3): 5_000}, jobs, PLANNED, SECONDS, THREE, fabric)
    assert [share.verdict for share in half] == ["less", "more"]


def test_shares_go_by_bytes_a_second_and_by_axis(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    fabric, jobs = fabric_of(cluster), _jobs(tmp_path, cluster)
    slow = verify({("", 5): 1}, jobs, PLANNED, {"gpt": 1.2, "bert": 0.4}, THREE, fabric)
    assert [share.planned for share in slow] == [0.5, 0.5]
    by_axis = (replace(PLANNED[0], level=None, axis_levels=(("dp", 1),)), replace(PLANNED[1], level=None))
    shares = verify({("", 4): 3, ("", 3): 1}, jobs, by_axis, SECONDS, THREE, fabric)
    assert [(share.priority, share.planned, share.verdict) for share in shares] == [
        (4, 0.75, "as planned"),
        (3, 0.25, "as planned"),
    ]


def test_a_host_without_a_job_or_outside_the_cluster_is_refused(tmp_path: Path) -> None:
    cluster = _cluster(tmp_path)
    fabric, jobs = fabric_of(cluster), _jobs(tmp_path, cluster)
    for host in ("gpu2", "gpu9"):
        with pytest.raises(InputError, match=f"{host}, expected a host"):
            verify({(host, 5): 1}, jobs, PLANNED, SECONDS, THREE, fabric)


def _priced(tmp_path: Path, fabric: Fabric, model: Model) -> list[tuple[int, bool, float]]:
    wider = JOBS.replace('bert, hosts: "gpu[1,3]"', 'bert, hosts: "gpu[1-4]"').replace("2.0e+9", "4.0e+9")
    jobs = _jobs(tmp_path, _cluster(tmp_path), wider)
    return [
        (pair.queue_pairs, pair.split_data, pair.work_share)
        for pair in price_queue_pairs(jobs, PLANNED, fabric, model=model)
    ]


@pytest.mark.parametrize("model", ["flow", "collective"])
def test_queue_pairs_are_priced_as_they_play_and_the_best_comes_first(tmp_path: Path, model: Model) -> None:
    fabric = fabric_of(_cluster(tmp_path))
    priced = _priced(tmp_path, fabric, model)
    assert len(priced) == 7
    assert [share for _, _, share in priced] == sorted((share for _, _, share in priced), reverse=True)
    assert priced == _priced(tmp_path, fabric, model)
    by_pair = {(count, split): share for count, split, share in priced}
    assert by_pair[8, False] > by_pair[1, False]
    apart = max(abs(by_pair[count, True] - by_pair[count, False]) for count in (2, 4, 8))
    assert apart > 1e-4 if model == "flow" else apart == 0
    assert all(0 < share <= 1.001 for share in by_pair.values())


def test_where_ways_do_not_matter_one_queue_pair_is_best(tmp_path: Path) -> None:
    fabric = fabric_of(_cluster(tmp_path))
    wide = replace(fabric, links=replace(fabric.links, bytes_per_s=fabric.links.bytes_per_s * 1000), nccl=Nccl())
    priced = _priced(tmp_path, wide, "flow")
    assert priced[0][:2] == (1, False)


@pytest.mark.parametrize("hashed", ["crc16", "toeplitz"])
def test_chance_is_drawn_whatever_the_hash(tmp_path: Path, hashed: HashName) -> None:
    fabric = fabric_of(_cluster(tmp_path))
    fabric = replace(fabric, routing=replace(fabric.routing, hash=hashed))
    jobs = _jobs(tmp_path, _cluster(tmp_path))
    one = next(pair for pair in price_queue_pairs(jobs, PLANNED, fabric) if pair.queue_pairs == 1)
    assert one.range[0] < one.work_share < one.range[1], "of a linear hash seeds alone part nobody who met"
    (first,) = {pair.range for pair in price_queue_pairs(jobs, PLANNED, fabric, seeds=1) if pair.queue_pairs == 1}
    assert first[0] == first[1]
    assert one.range[0] <= first[0] <= one.range[1]
