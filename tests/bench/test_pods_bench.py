"""The bench of placements into pods: what it draws, and that its tables hold what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pods import figure_7, figure_14
from bench.pods.__main__ import main
from bench.pods.cases import BUSY, TABLE_1, free_nodes, lingjun, requests_of
from planner.one_job.pods.methods import place_into_pods
from planner.one_job.pods.records import Placement, PodRequest

TOPOLOGY = Path(__file__).resolve().parents[2] / "../shared/data/traces/lingjun_topo.csv"


def test_drawn_clusters_have_the_papers_pods_and_nodes() -> None:
    for setting in TABLE_1:
        free = free_nodes(setting, 0.0, 3)
        assert (len(free), sum(free)) == (setting.pods, setting.nodes)
        assert free == free_nodes(setting, 0.0, 3)
        assert sum(free_nodes(setting, 0.5, 3)) < 0.8 * setting.nodes
    shapes = [next(requests_of(setting, 0.3, 1)) for setting in TABLE_1]
    assert [(request.rows, request.columns) for request in shapes] == [(6, 2), (12, 8), (46, 8)]


@pytest.mark.skipif(not TOPOLOGY.exists(), reason="lingjun's topology file is not here")
def test_lingjuns_pods_are_those_of_its_file() -> None:
    setting = lingjun(TOPOLOGY)
    assert (setting.nodes, sorted(setting.sizes)) == (847, [179, 306, 362])


def test_ours_is_the_least_on_every_drawn_instance() -> None:
    rows = list(figure_7.run(TABLE_1[1], (0.3, 0.7), 2))
    assert [len(row.scores) + row.left_out for row in rows] == [2 * len(BUSY)] * 2
    for row in rows:
        for one in row.scores:
            least = min(score for score, _ in one.by_method.values())
            assert one.by_method["spread", "rows"][0] == pytest.approx(least)
            assert one.proved
        assert min(row.ratios("spread", (*figure_7.PAPERS, *figure_7.PEOPLES), "megatron")) >= 1 - 1e-9


def test_setting_i_leaves_no_room_where_pods_are_equal() -> None:
    request = PodRequest(rows=6, columns=2, free=(6, 6, 6), alpha=0.3)
    for method in ("spread", "arnold", "best-fit", "gpu-packing", "topo-aware"):
        placement = place_into_pods(method, request)
        assert isinstance(placement, Placement)
        assert placement.value == pytest.approx(1.3)


def test_the_tables_have_a_line_for_every_setting_and_alpha() -> None:
    rows = [row for setting in TABLE_1[:2] for row in figure_7.run(setting, (0.3,), 1)]
    lines = [*figure_7.claims(rows), *figure_7.tables(rows)]
    assert sum(line.startswith("| (ii) | 0.3 |") for line in lines) == 3
    assert any("| 1.67 |" in line for line in lines)


def test_an_unknown_experiment_is_refused() -> None:
    with pytest.raises(SystemExit):
        main(["figure-10"])


def test_figure_14_draws_a_busy_cluster_and_predicts_from_the_past() -> None:
    rows = [figure_14.Row(gpus=1 << n % 6, duration_s=600.0 * (1 + n % 40), virtual_cluster="") for n in range(400)]
    jobs, age_s = figure_14.draw_jobs(rows, 0)
    devices = figure_14.NODES * figure_14.SIZE
    held = sum(job.devices for job in jobs if job.id in age_s)
    assert figure_14.BUSY * devices <= held < (figure_14.BUSY + 0.01) * devices
    assert [job.submit_s for job in jobs if job.planned is not None] == [figure_14.ARRIVAL_S]
    assert sum(figure_14.network(0).levels[0].part_of.count(pod) for pod in range(figure_14.PODS)) == figure_14.NODES
    past = figure_14.PastJobs(rows, {jobs[0].id: 12_000.0})
    low_s, high_s = past.interval_s(jobs[0])
    assert 0.0 < low_s <= past.submitted(jobs[0], 0.0) <= high_s <= 12_000.0
