"""The Cells that a scheduler sees, against the estimator's own, and what is kept from run to run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from estimator.cells.job import cell_recipe
from planner import api
from planner.many_jobs.jobs.records import Pool, Workload
from planner.many_jobs.scheduling.cell_book import EstimatedCells, common_dtype, left_out, pools_of
from planner.many_jobs.scheduling.measured import OPTIMIZER, cells_on
from planner.many_jobs.simulation.run import load_inputs
from planner.shared.options.simulate import TraceOptions
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.store import ProfileStore
from profiles.vocabulary import LinkTable

SITES = """
schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 2, device: a100-80gb, devices: 4}
      - {count: 1, device: a100-80gb, devices: 8, free: 8}
      - {count: 3, device: v100-32gb, devices: 8, free: 17}
  - name: south
    nodes:
      - {count: 1, device: a10, devices: 4, free: 3}
links_between_sites:
  - {between: [north, south], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""


def _book(cluster: str) -> EstimatedCells:
    place = load_cluster(cluster)
    return EstimatedCells(cluster=place, pools=pools_of(place))


def test_pools_are_groups_of_nodes(tmp_path: Path) -> None:
    path = tmp_path / "sites.yaml"
    path.write_text(SITES, encoding="utf-8")
    pools = pools_of(load_cluster(str(path)))
    # Nothing whole is free of the last group.
    assert list(pools) == ["north/a100-80gb#0", "north/a100-80gb#1", "north/v100-32gb"]
    assert [(pool.nodes, pool.devices) for pool in pools.values()] == [(2, 8), (1, 8), (2, 16)]
    assert pools_of(load_cluster("a40:3x2")) == {
        "a40": Pool(name="a40", site="site", device="a40", nodes=3, devices_per_node=2, devices=6)
    }


def test_free_devices_of_no_whole_node_are_said_to_be_left_out(tmp_path: Path) -> None:
    path, trace = tmp_path / "sites.yaml", tmp_path / "t.csv"
    path.write_text(SITES, encoding="utf-8")
    trace.write_text(
        "job_id,submit_time_s,duration_s,gpus,model,global_batch\n0,0,60,1,bert-mini,32\n", encoding="utf-8"
    )
    assert left_out(load_cluster(str(path))) == {("north", "v100-32gb"): 1, ("south", "a10"): 3}
    notes = load_inputs(TraceOptions(trace, cluster=str(path))).notes
    assert "3 free a10 of site south left out: not all of their node is free" in notes
    assert not any("left out" in note for note in load_inputs(TraceOptions(trace, cluster="a40:3x2")).notes)
    path.write_text(
        "schema: cellplan.cluster/1\nsites:\n  - {name: x, nodes: [{count: 1, device: a10, devices: 4, free: 3}]}\n",
        encoding="utf-8",
    )
    with pytest.raises(
        InputError, match=r"sites\.yaml: free: found no node that is wholly free, expected at least one"
    ):
        load_inputs(TraceOptions(trace, cluster=str(path)))


def test_common_dtype() -> None:
    assert common_dtype(load_cluster("a100-80gb:1x8+a10:1x2")) == "bf16"
    assert common_dtype(load_cluster("a100-80gb:1x8+v100-32gb:1x2")) == "fp16"


@pytest.mark.parametrize("devices", [1, 2, 3, 8])
def test_options_are_the_estimators_cells(devices: int) -> None:
    found = _book("a40:4x2").options(Workload(model="bert-large", global_batch=64), "a40", devices)
    cells = api.estimate("bert-large", cluster="a40:4x2", devices=devices, global_batch=64, partition="exact")["cells"]
    powers = {cell["stages"]: cell for cell in cells if cell["stages"] & (cell["stages"] - 1) == 0 and cell["fits"]}
    assert {one.stages for one in found} == set(powers)
    for one in found:
        assert one.iteration_time_s == pytest.approx(powers[one.stages]["iteration_time_s"])
        assert list(one.assembly) == powers[one.stages]["assembly"]
    assert [one.iteration_time_s for one in found] == sorted(one.iteration_time_s for one in found)


def test_what_does_not_fit() -> None:
    book = _book("a10:4x2")
    large = Workload(model="bert-6.7b", global_batch=128, dtype="fp16")
    least = book.least_devices(large, "a10")
    assert least is not None
    assert least > 2
    assert book.best(large, "a10", least) is not None
    assert book.best(large, "a10", least // 2) is None
    assert book.options(large, "a10", 16) == book.options(large, "a10", 0) == ()


def test_data_parallel_belief() -> None:
    book = _book("a100-40gb:4x4")
    small = Workload(model="bert-1.3b", global_batch=128, dtype="fp16")
    large = Workload(model="bert-6.7b", global_batch=1, dtype="fp16")
    # One stage of replicas is one of the Cells: never faster than the best.
    for devices in (1, 2, 4, 8, 16):
        best, believed = book.best(small, "a100-40gb", devices), book.data_parallel_s(small, "a100-40gb", devices)
        assert best is not None
        assert believed is not None
        assert believed >= best.iteration_time_s * (1 - 1e-12)
    # A sample has no replicas, and one device does not hold 6.7 billion parameters: scaled from the smallest Cell.
    least = book.least_devices(large, "a100-40gb")
    assert least is not None
    assert least > 1
    smallest = book.best(large, "a100-40gb", least)
    assert smallest is not None
    assert book.data_parallel_s(large, "a100-40gb", 16) == pytest.approx(smallest.iteration_time_s * least / 16)


def test_kept_for_the_next_run(tmp_path: Path) -> None:
    path, workload = tmp_path / "cells.json", Workload(model="bert-large", global_batch=64)
    first = _book("a40:2x2")
    options = [first.options(workload, "a40", count) for count in (1, 2, 4)]
    belief = first.data_parallel_s(workload, "a40", 4)
    first.save(path)
    second = _book("a40:2x2")
    assert second.load(path)
    assert second._cells == first._cells
    assert [second.options(workload, "a40", count) for count in (1, 2, 4)] == options
    assert second.data_parallel_s(workload, "a40", 4) == belief
    with pytest.raises(InputError, match="found Cells of another cluster"):
        _book("a40:3x2").load(path)
    for broken in ("", "{}", json.dumps({"schema": "cellplan.plan/1"}), path.read_text(encoding="utf-8")[:-40]):
        path.write_text(broken, encoding="utf-8")
        with pytest.raises(InputError, match=r"cells\.json"):
            _book("a40:2x2").load(path)


def test_what_a_store_has_measured_counts(tmp_path: Path) -> None:
    """Over a link whose all-reduce takes a second, replicas of two nodes lose that for each bucket of 40M gradients;
    Cells of the store are kept apart from modelled ones, and layers come from it as well."""
    path, cluster = tmp_path / "store.sqlite", load_cluster("a40:2x1")
    workload = Workload(model="bert-large", global_batch=64)
    link = cluster.sites[0].fabric_link.name
    with ProfileStore(path) as store:
        for op in ("all_reduce", "reduce_scatter", "all_gather"):
            store.put_link_table(
                LinkTable(
                    link=link,
                    op=op,
                    ranks=2,
                    nodes=2,
                    points=((1024, 1.0), (1 << 34, 1.0)),
                    alpha_s=1.0,
                    beta_s_per_byte=0.0,
                    fit_error=0.0,
                    source="made up",
                    backend="nccl",
                )
            )
    modelled, measured = cells_on(cluster, None), cells_on(cluster, path)
    before, after = (book.data_parallel_s(workload, "a40", 2) for book in (modelled, measured))
    assert before is not None
    assert after is not None
    buckets = math.ceil(335e6 / 40e6)
    assert before + (buckets - 1) * 0.9 < after < before + buckets + 0.5
    assert measured.data_parallel_s(workload, "a40", 1) == modelled.data_parallel_s(workload, "a40", 1)
    assert measured.file_in(tmp_path) != modelled.file_in(tmp_path)
    assert cell_recipe(global_batch=1, seq_len=1).optimizer == OPTIMIZER
    with pytest.raises(InputError, match="an existing profile store"):
        cells_on(cluster, tmp_path / "none.sqlite")
