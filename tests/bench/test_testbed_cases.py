"""The testbed's plans fit their clusters, its probes cover what they send, and one of them runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bench.testbed.__main__ import prepare, run_cluster, scaled
from bench.testbed.cases import CLUSTERS, Case, Probe, Stage, cases, load_bench_model, make_setup, stage_parameters
from bench.testbed.pods import case_of, probes_on_pods
from bench.testbed.running import Row, estimate, make_tables, print_rows
from models_zoo.layers import Layer
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import LayerTime, Shard


def look_up(_layer: Layer, shard: Shard) -> LayerTime:
    return LayerTime(
        forward_s=1e-3 * shard.micro_batch_per_rank / shard.tp,
        backward_s=2e-3 * shard.micro_batch_per_rank / shard.tp,
        optimizer_s=1e-4,
        provenance="measured",
    )


def cluster_of(case: Case) -> Cluster:
    return load_cluster(str(CLUSTERS / f"{case.cluster}.yaml"))


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case.cluster} {case.name}")
def test_a_case_fills_its_cluster_and_is_probed_whole(case: Case) -> None:
    """Every worker has a rank; each group that communicates is probed at the size it sends."""
    cluster = cluster_of(case)
    prepared = prepare(case, cluster, look_up)
    assert prepared.program.ranks == len(cluster.free_slots)
    probed = {(probe.op, frozenset(members)) for probe in prepared.probes for members in probe.groups}
    for stage, run in zip(prepared.setup.stages, prepared.program.stages, strict=True):
        ops: Sequence[str] = ("reduce_scatter", "all_gather") if case.zero else ("all_reduce",)
        for tp in range(stage.tp):
            group = frozenset(run.rank_at(dp, tp) for dp in range(stage.dp))
            assert stage.dp == 1 or all((op, group) in probed for op in ops)
        size = 4 * stage_parameters(prepared.setup, stage)
        assert stage.dp == 1 or any(probe.bytes == size for probe in prepared.probes)
    for one, other in zip(prepared.program.stages, prepared.program.stages[1:], strict=False):
        assert any(op == "send_recv" and members & {*one.ranks} and members & {*other.ranks} for op, members in probed)
    for probe in prepared.probes:
        assert max(Counter(rank for members in probe.groups for rank in members).values()) == 1


def test_tables_of_the_probes_decide_the_estimate() -> None:
    """Links twice as slow by the probes cost what they carry; the sleeps stay."""
    case = next(case for case in cases() if case.name == "pp2 dp2")
    cluster = cluster_of(case)
    prepared = prepare(case, cluster, look_up)

    def estimated(slowness: float) -> float:
        probed = {
            number: {rank: [slowness * probe.bytes / 1e9 + 1e-4] * 3 for group in probe.groups for rank in group}
            for number, probe in enumerate(prepared.probes)
        }
        tables = make_tables(prepared, cluster, probed)
        assert {table.op for table in tables} == {"all_reduce", "send_recv"}
        return estimate(prepared.setup, look_up, tables).iteration_time_s

    assert estimated(2.0) > estimated(1.0) > 8 * 1e-3 * 3 * 2


def test_a_slow_link_does_not_slow_the_tables_of_others() -> None:
    """Groups that are probed at once have a table each, by their own ranks' times."""
    case = next(case for case in cases() if case.name == "pp4 dp2")
    cluster = cluster_of(case)
    prepared = prepare(case, cluster, look_up)

    def seconds_by_link(slow_rank: int | None) -> dict[str, float]:
        probed = {
            number: {rank: [1e-2 if rank == slow_rank else 1e-3] for group in probe.groups for rank in group}
            for number, probe in enumerate(prepared.probes)
        }
        tables = make_tables(prepared, cluster, probed)
        return {f"{table.op} {table.link}": table.points[0][1] for table in tables}

    usual, slowed = seconds_by_link(None), seconds_by_link(0)
    changed = {name for name in usual if slowed[name] != usual[name]}
    assert changed
    assert changed < usual.keys()


def test_on_pods_messages_are_probed_on_a_pair_inside_one_pod() -> None:
    """Nodes 0 to 3 are a pod; the third of these messages is between two."""
    case = case_of("pp4 dp2")
    cluster = load_cluster(str(CLUSTERS / "three-pods.yaml"))
    setup = make_setup(case, load_bench_model(), cluster)
    sums = [Probe(op="all_reduce", bytes=8, groups=((first, first + 1),)) for first in (0, 2)]
    messages = [Probe(op="send_recv", bytes=size, groups=((2, 4), (1, 3))) for size in (7, 10)]
    probes = list(probes_on_pods([*sums, *messages, replace(messages[0], groups=((3, 5),))], setup))
    assert probes[:2] == [replace(message, groups=((1, 3),)) for message in messages]
    assert probes[2:] == [Probe(op="all_reduce", bytes=8, groups=((0, 1), (2, 3)))]
    assert not list(probes_on_pods([replace(messages[0], groups=((3, 5),))], setup))


def test_scaling_touches_the_links_between_sites_alone() -> None:
    cluster = load_cluster(str(CLUSTERS / "two-sites.yaml"))
    slower = scaled(cluster, 0.5)
    assert [link.bandwidth_bytes_per_s for link in slower.site_links] == [
        link.bandwidth_bytes_per_s / 2 for link in cluster.site_links
    ]
    assert slower.sites == cluster.sites


def test_a_plan_of_four_workers_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Emulated, or on the plain loopback device where that is all there is: at least as long as the sleeps."""
    case = Case(
        name="pp2 dp2", cluster="two-sites", stages=(Stage(layers=8, dp=2), Stage(layers=8, dp=2)), micro_batch=4
    )
    (row,) = run_cluster("two-sites", [case], look_up, scale=0.25, steps=2, repeats=1)
    setup = make_setup(case, load_bench_model(), cluster_of(case))
    slept_s = (setup.micro_batches + 1) * 8 * 2 * 3e-3
    assert slept_s <= row.measured_s < 60
    assert row.workers == 4
    print_rows([row])
    assert "| two-sites | pp2 dp2 | 4 |" in capsys.readouterr().out


def test_errors_are_relative_to_what_was_measured() -> None:
    row = Row(case="", cluster="", workers=2, measured_s=2.0, median_s=2.1, tables_s=1.9, file_s=2.5)
    assert row.error == pytest.approx(-0.05)
    assert row.file_error == pytest.approx(0.25)
