"""Jobs from rows: what is drawn, what stays as stated, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.scheduling.small_trace import small_trace
from models_zoo.catalogue import load_model, model_names
from planner.many_jobs.jobs.records import Job, Pool, Workload
from planner.many_jobs.traces.assign import CHECKPOINT_BYTES_PER_PARAMETER, assign_workloads, count_parameters
from planner.many_jobs.traces.draws import PURPOSES, draws
from planner.many_jobs.traces.records import Trace, TraceRow, head
from planner.many_jobs.traces.workloads import (
    TABLE_2,
    ModelFamily,
    all_choices,
    fallbacks,
    family_shares,
    pick,
    size_shares,
)
from profiles.errors import InputError, NothingFits
from tests.scheduling_examples import GIB, FakeCells, make_pool, two_pools

FOUR = {
    "a100": make_pool("a100", device="a100-80gb"),
    "a40": make_pool("a40", nodes=8, devices_per_node=2),
    "a10": make_pool("a10", nodes=16, devices_per_node=2),
    "north/a100": make_pool("north/a100", device="a100-40gb", site="north", nodes=1),
}


def row(**changed: Any) -> TraceRow:
    """A row that states nothing, but for what is changed."""
    fields: dict[str, Any] = {"line": 2, "job_id": "0", "submit_time_s": 0.0, "duration_s": 600.0, "gpus": 1}
    return TraceRow(**(fields | changed))


def trace_of(*rows: TraceRow) -> Trace:
    """A trace of these rows, numbered anew."""
    numbered = tuple(replace(one, line=place + 2, job_id=str(place)) for place, one in enumerate(rows))
    return Trace(source="t.csv", format="cellplan", rows=numbered)


def many(count: int = 400, **changed: Any) -> Trace:
    """Equal rows."""
    return trace_of(*[row(**changed)] * count)


def assign(trace: Trace, pools: dict[str, Pool] | None = None, **options: Any) -> tuple[Job, ...]:
    """The jobs of a trace on fake Cells; two parameters a model unless told otherwise."""
    chosen = two_pools() if pools is None else pools
    settings: dict[str, Any] = {"seed": 1, "parameters_of": lambda _: 2, "cells": FakeCells(chosen)} | options
    return assign_workloads(trace, pools=chosen, **settings)


def one(trace_row: TraceRow, pools: dict[str, Pool] | None = None, **options: Any) -> Job:
    """The job of one row."""
    (job,) = assign(trace_of(trace_row), pools, **options)
    return job


def test_table_2_is_the_papers_and_all_of_it_is_in_the_zoo() -> None:
    sizes = {family.name: [load_model(model).published_parameters for model in family.models] for family in TABLE_2}
    assert sizes == {
        "Wide-ResNet": [0.5e9, 1e9, 2e9, 4e9, 6.8e9],
        "BERT": [0.76e9, 1.3e9, 2.6e9, 6.7e9],
        "GShard MoE": [0.69e9, 1.3e9, 2.4e9, 10e9, 27e9],
    }
    assert [family.global_batches for family in TABLE_2] == [(256, 512, 1024), (128, 256, 512), (256, 512, 1024)]


def test_what_a_row_states_stays() -> None:
    stated = row(
        submit_time_s=5.0,
        gpus=4,
        user="ann",
        vc_or_department="lab",
        model="bert-1.3b",
        global_batch=512,
        iterations=77.0,
        device="v100",
        deadline_s=1e6,
        priority=3,
    )
    assert one(stated, deadlines=(1.0, 3.0)) == Job(
        id="0",
        submit_s=5.0,
        pool="v100",
        devices=4,
        workload=Workload(model="bert-1.3b", global_batch=512),
        iterations=77.0,
        duration_s=600.0,
        user="ann",
        virtual_cluster="lab",
        priority=3,
        deadline_s=1e6,
        checkpoint_bytes=28,
    )


def test_a_model_without_a_batch_has_the_zoos() -> None:
    assert one(row(gpus=8, model="bert-1.3b")).workload.global_batch == load_model("bert-1.3b").global_batch
    nameless = next(name for name in model_names() if load_model(name).global_batch is None)
    with pytest.raises(InputError, match=r"line 2: global_batch: found nothing"):
        one(row(gpus=8, model=nameless))


def test_a_batch_without_a_model_stays() -> None:
    jobs = assign(many(gpus=8, global_batch=96))
    assert {job.workload.global_batch for job in jobs} == {96}
    assert len({job.workload.model for job in jobs}) > 5


def test_iterations_without_a_model_stay() -> None:
    assert {job.iterations for job in assign(many(50, iterations=12.0))} == {12.0}


def test_work_is_the_duration_at_the_best_cells_speed() -> None:
    pools = two_pools()
    cells = FakeCells(pools)
    for job in assign(many(gpus=8), pools, cells=cells):
        best = cells.best(job.workload, job.pool, job.devices)
        assert best is not None
        assert job.iterations * best.iteration_time_s == pytest.approx(600.0)


def test_larger_models_on_more_devices() -> None:
    pools = {"a100": make_pool("a100", nodes=32)}
    cells = FakeCells(pools)
    means = []
    for gpus in (1, 4, 16, 64, 256):
        jobs = assign(many(600, gpus=gpus), pools, cells=cells)
        assert all(cells.best(job.workload, job.pool, job.devices) for job in jobs)
        means.append(sum(math.log(cells.size(job.workload)) for job in jobs) / len(jobs))
    assert means == sorted(means)
    assert means[3] - means[0] > 1.0
    assert means[4] == means[3]


def test_sizes_are_drawn_with_the_stated_weights() -> None:
    for devices, sizes in ((1, 5), (4, 4), (8, 5), (64, 5), (512, 4)):
        wanted = (sizes - 1) * min(1.0, math.log2(devices) / 6)
        weights = [2 ** -abs(place - wanted) for place in range(sizes)]
        shares = size_shares(devices, sizes)
        found = [high - low for low, high in zip((0.0, *shares), shares, strict=False)]
        assert found == pytest.approx([weight / sum(weights) for weight in weights])
        assert shares[-1] == 1.0


def test_more_devices_never_make_small_sizes_likelier() -> None:
    for sizes in (1, 4, 5):
        for devices in range(1, 200):
            fewer, more = size_shares(devices, sizes), size_shares(devices + 1, sizes)
            assert all(low >= high - 1e-12 for low, high in zip(fewer, more, strict=True))


def test_families_and_batches_are_drawn_alike() -> None:
    jobs = assign(
        many(6000, gpus=32), {"a100": make_pool("a100")}, cells=FakeCells(sizes=dict.fromkeys(_models(), 0.1))
    )
    families = Counter(family.name for job in jobs for family in TABLE_2 if job.workload.model in family.models)
    assert all(abs(count / 6000 - 1 / 3) < 0.03 for count in families.values())
    batches = Counter(job.workload.global_batch for job in jobs if job.workload.model in TABLE_2[0].models)
    assert sorted(batches) == [256, 512, 1024]
    assert all(abs(count / batches.total() - 1 / 3) < 0.05 for count in batches.values())


def _models() -> list[str]:
    return [model for family in TABLE_2 for model in family.models]


def test_weights_of_families_count() -> None:
    families = (replace(TABLE_2[0], weight=3.0), TABLE_2[1])
    assert family_shares(families) == (0.75, 1.0)
    assert [pick(family_shares(families), number) for number in (0.0, 0.7499, 0.75, 0.9999, 1.0)] == [0, 0, 1, 1, 1]


def test_what_stands_in_is_smaller_first_in_the_family() -> None:
    families = (
        ModelFamily(name="x", models=("x1", "x2"), global_batches=(8, 16)),
        ModelFamily(name="y", models=("y1", "y2", "y3", "y4"), global_batches=(4,)),
    )
    assert list(fallbacks(families, (0, 1, 0))) == [("x2", 8), ("x1", 8), ("y3", 4), ("y2", 4), ("y1", 4)]
    assert list(fallbacks(families, (1, 0, 0))) == [("y1", 4), ("x1", 8)]
    assert list(fallbacks(families, (0, 0, 1))) == [("x1", 16), ("x1", 8), ("y1", 4)]
    assert sorted(all_choices(families)) == sorted(
        [(model, batch) for family in families for model in family.models for batch in family.global_batches]
    )


class BigBatchesAlone(FakeCells):
    """Only the largest BERT with its largest batch fits."""

    def _holds(self, _pool: str, size: float, _devices: int) -> bool:
        return size == 6.7

    def best(self, workload: Workload, pool: str, devices: int) -> Any:
        return super().best(workload, pool, devices) if workload.global_batch == 512 else None


def test_whatever_fits_is_found_at_last() -> None:
    jobs = assign(many(40), cells=BigBatchesAlone())
    assert {job.workload for job in jobs} == {Workload(model="bert-6.7b", global_batch=512)}


def test_pools_are_drawn_by_size_among_those_large_enough() -> None:
    pools = {"a100": make_pool("a100", nodes=3), "v100": make_pool("v100", nodes=1)}
    jobs = assign(many(4000), pools)
    assert abs(sum(job.pool == "a100" for job in jobs) / 4000 - 0.75) < 0.03
    assert {job.pool for job in assign(many(100, gpus=9), pools)} == {"a100"}


def test_pools_are_drawn_among_those_in_which_the_model_fits() -> None:
    pools = two_pools()
    cells = FakeCells(pools, memory_bytes={"v100": GIB, "a100": 300 * GIB})
    assert {job.pool for job in assign(many(100, model="bert-6.7b"), pools, cells=cells)} == {"a100"}
    assert {job.pool for job in assign(many(100, gpus=2), pools, cells=cells)} == {"a100"}


@pytest.mark.parametrize(
    ("device", "found"),
    [
        ("a40", {"a40"}),
        ("A40", {"a40"}),
        ("north/a100", {"north/a100"}),
        ("a100-40gb", {"north/a100"}),
        ("A100 SXM 80GB", {"a100"}),
        ("a100", {"a100"}),
    ],
)
def test_devices_are_found_by_pool_name_device_and_alias(device: str, found: set[str]) -> None:
    assert {job.pool for job in assign(many(100, device=device), FOUR)} == found


def test_a_device_is_found_by_its_beginning_where_nothing_else_has_its_name() -> None:
    pools = {name: pool for name, pool in FOUR.items() if name != "a100"}
    assert {job.pool for job in assign(many(20, device="a100"), pools)} == {"north/a100"}


def test_unknown_devices_are_refused_or_drawn() -> None:
    with pytest.raises(InputError, match=r"t.csv, line 2: device: found 'h100', expected a device of the cluster"):
        one(row(device="h100"))
    assert len({job.pool for job in assign(many(100, device="h100"), unknown_device="draw")}) == 2


@pytest.mark.parametrize(("gpus", "devices"), [(1, 1), (2, 2), (3, 4), (5, 8), (8, 8), (17, 32), (32, 32)])
def test_counts_are_kept_or_rounded_up_to_powers(gpus: int, devices: int) -> None:
    assert one(row(gpus=gpus, device="a100")).devices == gpus
    assert one(row(gpus=gpus, device="a100"), counts="powers").devices == devices


def test_rows_too_large_are_refused_or_clipped() -> None:
    pools = {"a100": make_pool("a100", nodes=3), "v100": make_pool("v100", nodes=1)}
    with pytest.raises(InputError, match=r"t.csv, line 2: gpus: found 64, expected at most the 24 devices"):
        one(row(gpus=64), pools)
    with pytest.raises(InputError, match=r"gpus: found 17 \(a power of two: 32\)"):
        one(row(gpus=17), pools, counts="powers")
    with pytest.raises(InputError, match=r"at most the 8 devices of the largest pool \(v100\)"):
        one(row(gpus=9, device="v100"), pools)
    clipped = one(row(gpus=64), pools, oversize="clip")
    assert (clipped.pool, clipped.devices, clipped.duration_s) == ("a100", 24, 600.0)
    assert one(row(gpus=64), pools, oversize="clip", counts="powers").devices == 16
    assert one(row(gpus=64, device="v100"), pools, oversize="clip").devices == 8


SITES = {
    "a/a100": make_pool("a/a100", device="a100", site="a", nodes=1, devices_per_node=2),
    "b/a100": make_pool("b/a100", device="a100", site="b", nodes=1, devices_per_node=3),
    "c/a100": make_pool("c/a100", device="a100", site="c", nodes=1, devices_per_node=4),
    "c/v100": make_pool("c/v100", device="v100", site="c", nodes=1, devices_per_node=5),
}


def test_rows_too_large_spread_over_pools_of_one_type() -> None:
    cells = FakeCells(SITES)
    jobs = assign(many(1000, gpus=6), SITES, cells=cells, oversize="spread")
    assert {job.devices for job in jobs} == {6}
    found = Counter(job.pool for job in jobs)
    assert set(found) == {"a/a100", "b/a100", "c/a100"}
    assert abs(found["c/a100"] / 1000 - 4 / 9) < 0.06
    for job in jobs[:50]:
        best = cells.best(job.workload, "c/a100", 4)
        assert best is not None
        assert job.iterations * best.iteration_time_s * 4 / 6 == pytest.approx(600.0)
    # A row that some pool has room for is not one of these, unless it names a smaller pool: then on what it asks for.
    assert {job.pool for job in assign(many(100, gpus=5), SITES, oversize="spread", cells=cells)} == {"c/v100"}
    small = one(row(gpus=3, device="a/a100", model="bert-1.3b"), SITES, oversize="spread", cells=cells)
    best = cells.best(small.workload, "c/a100", 2)
    assert best is not None
    assert (small.pool, small.devices) == ("a/a100", 3)
    assert small.iterations * best.iteration_time_s * 2 / 3 == pytest.approx(600.0)
    assert one(row(gpus=5, device="a100"), SITES, oversize="spread", counts="powers", cells=cells).devices == 8


def test_what_does_not_spread_is_refused() -> None:
    cells = FakeCells(SITES)
    with pytest.raises(InputError, match=r"gpus: found 6, .* or --oversize spread \(at most the 9 devices"):
        one(row(gpus=6), SITES, cells=cells)
    with pytest.raises(InputError, match=r"gpus: found 10, expected at most the 9 devices of all pools of one type"):
        one(row(gpus=10), SITES, cells=cells, oversize="spread")
    with pytest.raises(InputError, match="found 6, expected at most the 5 devices of all pools of one type"):
        one(row(gpus=6, device="v100"), SITES, cells=cells, oversize="spread")
    poor = FakeCells(SITES, memory_bytes={"a100": GIB, "c/a100": GIB, "v100": GIB})
    with pytest.raises(NothingFits, match=r"the devices that stand for its 6 over several pools \(4 of c/a100\)"):
        one(row(gpus=6, model="bert-6.7b"), SITES, cells=poor, oversize="spread")


def test_models_that_do_not_fit_are_refused_with_what_they_need() -> None:
    with pytest.raises(
        NothingFits, match=r"t.csv, line 2: job 0: bert-6.7b with a global batch of 256 .*from 2 devices"
    ):
        one(row(model="bert-6.7b", device="a100"))
    cells = FakeCells(memory_bytes={"a100": 1.0, "v100": 1.0})
    with pytest.raises(NothingFits, match="it fits on no number of them"):
        one(row(model="bert-6.7b"), cells=cells)
    with pytest.raises(NothingFits, match="no model of the distribution fits on 1 devices of a100 or v100"):
        one(row(), cells=cells)


def test_deadlines_are_drawn_evenly_where_asked_for() -> None:
    assert {job.deadline_s for job in assign(many(20))} == {None}
    jobs = assign(many(3000, submit_time_s=1000.0, duration_s=100.0), deadlines=(1.0, 3.0))
    factors = [(job.deadline_s - 1000.0) / 100.0 for job in jobs if job.deadline_s is not None]
    assert len(factors) == 3000
    assert 1.0 <= min(factors) < 1.01
    assert 2.99 < max(factors) <= 3.0
    assert abs(sum(factors) / 3000 - 2.0) < 0.05
    for wrong in ((0.0, 1.0), (3.0, 1.0), (1.0, math.inf)):
        with pytest.raises(InputError, match="deadlines"):
            assign(many(1), deadlines=wrong)


def test_drawing_deadlines_changes_nothing_else() -> None:
    plain = assign(many())
    assert tuple(replace(job, deadline_s=None) for job in assign(many(), deadlines=(1.0, 3.0))) == plain


def test_streams_differ_by_purpose_and_seed_and_begin_alike() -> None:
    streams = [draws(seed, purpose, 50) for seed in (0, 1, 2**40) for purpose in PURPOSES]
    assert len({tuple(stream) for stream in streams}) == len(streams)
    assert draws(7, "size", 50)[:20] == draws(7, "size", 20)
    assert all(0.0 <= number < 1.0 for stream in streams for number in stream)


def test_a_stated_model_changes_no_other_row() -> None:
    trace = many(50, gpus=4)
    changed = replace(trace, rows=(*trace.rows[:10], replace(trace.rows[10], model="moe-2.4b"), *trace.rows[11:]))
    plain, other = assign(trace), assign(changed)
    assert plain[:10] + plain[11:] == other[:10] + other[11:]
    assert other[10].workload.model == "moe-2.4b"
    assert other[10].pool == plain[10].pool


def test_the_head_of_a_trace_has_the_same_jobs() -> None:
    trace = small_trace()
    assert assign(head(trace, 20)) == assign(trace)[:20]


@given(seed=st.integers(0, 2**64), gpus=st.lists(st.integers(1, 16), min_size=1, max_size=20))
def test_same_seed_same_jobs_and_all_of_them_fit(seed: int, gpus: list[int]) -> None:
    trace = trace_of(*(row(gpus=count) for count in gpus))
    cells = FakeCells()
    jobs = assign(trace, seed=seed, cells=cells)
    assert jobs == assign(trace, seed=seed)
    for count, job in zip(gpus, jobs, strict=True):
        assert job.devices == count
        assert cells.best(job.workload, job.pool, job.devices) is not None
        assert 0 < job.iterations < math.inf


def test_seeds_matter() -> None:
    assert assign(many(50), seed=1) != assign(many(50), seed=2)


def test_cells_are_asked_once_for_each_workload_pool_and_count() -> None:
    cells = FakeCells()
    assign(many(5000, gpus=4), cells=cells)
    assert cells.asked["best"] <= 2 * sum(len(family.models) * len(family.global_batches) for family in TABLE_2)


def test_checkpoints_are_weights_and_the_state_of_the_optimizer() -> None:
    job = one(row(model="bert-mini", global_batch=32), parameters_of=None)
    assert job.checkpoint_bytes == CHECKPOINT_BYTES_PER_PARAMETER * count_parameters("bert-mini")
    assert CHECKPOINT_BYTES_PER_PARAMETER == 14
    assert count_parameters("bert-2.6b") == pytest.approx(2.6e9, rel=0.03)


def test_the_small_trace_runs_on_two_pools() -> None:
    jobs = assign(small_trace(), deadlines=(1.0, 3.0))
    assert len(jobs) == 60
    assert all(job.deadline_s is not None for job in jobs)


def test_empty_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="cluster"):
        assign(many(1), {}, cells=FakeCells())
    with pytest.raises(InputError, match="distribution"):
        assign(many(1), distribution=())
    with pytest.raises(InputError, match="seed: found -1"):
        assign(many(1), seed=-1)
    wrong: Any
    for wrong in ({"models": ()}, {"global_batches": ()}, {"weight": 0.0}, {"global_batches": (2, 1)}):
        with pytest.raises(ValueError, match="family 'x'"):
            replace(ModelFamily(name="x", models=("a",), global_batches=(1,)), **wrong)
