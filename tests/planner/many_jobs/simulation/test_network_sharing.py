"""Jobs that meet on a fabric: what they take alone and beside each other, and a simulation of them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.network.connections import playing_of
from estimator.network.fabric import Fabric, fabric_of
from estimator.network.player.play import Settings as PlayerSettings
from estimator.network.player.play import play
from planner.many_jobs.jobs.records import Job, Pool, Workload, grant
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.fcfs import Fcfs
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.iteration_times import iteration_times
from planner.many_jobs.simulation.network_sharing import SharedFabric
from planner.many_jobs.simulation.network_traffic import between_nodes, seats_of
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.seat_prices import SeatPrices, seat_truth
from planner.many_jobs.simulation.settings import CheckpointFile, Seated, Settings
from planner.many_jobs.simulation.tables import jobs_csv
from profiles.errors import InputError
from profiles.records import replace
from profiles.routing import Routing
from tests.network_examples import cluster_of
from tests.scheduling_examples import make_job

GPT = Workload(model="gpt2-1.3b", global_batch=16)
THIN = {"kind": "clos2", "leaves": 2, "spines": 1}
"""One cable between each of two leaves and the spine above them."""
WIDE = {"kind": "clos2", "leaves": 2, "spines": 4, "cables": 4}
"""As many cables up as down."""
STEADY = PlayerSettings(jitter=0.0)


class Site:
    """Four nodes of eight under two leaves, and who shares what there."""

    def __init__(self, topology: dict[str, Any], *, spray: bool = False) -> None:
        self.cluster = cluster_of(topology, 4)
        self.cells = EstimatedCells(cluster=self.cluster, pools=pools_of(self.cluster))
        ((self.name, self.pool),) = self.cells.pools.items()
        self.prices = SeatPrices(self.cells)
        routing = Routing(kind="spray") if spray else None
        self.sharing = self.shared(fabric_of(self.cluster, routing=routing))

    def shared(self, fabric: Fabric) -> SharedFabric:
        return SharedFabric(self.prices, fabric, player=STEADY)

    def seated(self, id_: str, pieces: Pieces, stages: int = 1) -> Seated:
        job = replace(make_job(id_, pool=self.name, devices=sum(mask.bit_count() for _, mask in pieces)), workload=GPT)
        own, placement = grant(self.name, job.devices, stages), {self.name: pieces}
        return Seated(job=job, grant=own, placement=placement, uses=self.sharing.uses(job, own, placement))


@pytest.fixture(scope="module")
def thin() -> Site:
    return Site(THIN)


@pytest.fixture(scope="module")
def wide() -> Site:
    return Site(WIDE, spray=True)


ACROSS, BESIDE, INSIDE = ((0, 255), (2, 255)), ((1, 255), (3, 255)), ((0, 255), (1, 255))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("pieces", [ACROSS, INSIDE, ((0, 0b1111), (3, 0b1111))])
def test_alone_a_job_takes_what_the_estimate_says(wide: Site, pieces: Pieces, stages: int) -> None:
    """Where the fabric holds nothing back and packets are sprayed."""
    one = wide.seated("one", pieces, stages)
    key = wide.prices.key(GPT, one.grant, one.placement)
    assert key is not None
    assert wide.sharing.iterations_s([one])[0] == pytest.approx(wide.prices.at(key, 1.0, one.placement), rel=0.01)


def test_two_equal_jobs_on_a_cable_are_one_on_half_of_it(thin: Site) -> None:
    """Both send at the same time, always: each has half of every cable above the leaves."""
    one, other = thin.seated("one", ACROSS), thin.seated("other", BESIDE)
    assert one.uses.keys() & other.uses.keys()
    alone_s, other_s = (thin.sharing.iterations_s([each])[0] for each in (one, other))
    together_s = thin.sharing.iterations_s([one, other])
    assert alone_s == pytest.approx(other_s, rel=1e-9)
    assert together_s[0] == pytest.approx(together_s[1], rel=1e-9)
    fabric = thin.sharing.fabric
    above = (fabric.links.ends >= fabric.links.nodes).all(axis=1)
    halved = replace(fabric.links, bytes_per_s=np.where(above, fabric.links.bytes_per_s / 2, fabric.links.bytes_per_s))
    half_s = thin.shared(replace(fabric, links=halved)).iterations_s([one])[0]
    assert half_s > 1.05 * alone_s
    assert together_s[0] == pytest.approx(half_s, rel=1e-6)


def test_who_asks_and_in_which_order_changes_nothing(thin: Site) -> None:
    jobs = [thin.seated("a", ACROSS), thin.seated("b", BESIDE)]
    renamed = [thin.seated("y", ACROSS), thin.seated("x", BESIDE)]
    said = thin.sharing.iterations_s(jobs)
    assert list(thin.sharing.iterations_s(jobs[::-1])) == list(said)[::-1]
    assert thin.sharing.iterations_s(renamed) == said
    fresh = SharedFabric(SeatPrices(thin.cells), thin.sharing.fabric, player=STEADY)
    assert fresh.iterations_s(jobs) == pytest.approx(said, rel=1e-12)


def test_jobs_under_different_leaves_share_nothing(thin: Site) -> None:
    one, other = thin.seated("one", INSIDE), thin.seated("other", ((2, 255), (3, 255)))
    assert one.uses
    assert not one.uses.keys() & other.uses.keys()
    assert thin.seated("small", ((0, 0b11),)).uses == {}


@settings(max_examples=30, deadline=None)
@given(
    masks=st.dictionaries(st.integers(0, 3), st.integers(1, 255), min_size=2, max_size=4),
    stages=st.sampled_from([1, 2]),
)
def test_every_rank_sits_on_a_device_of_its_own(thin: Site, masks: dict[int, int], stages: int) -> None:
    """Of the job's own, each once; ranks that stand on one node sit on one."""
    pieces = tuple(masks.items())
    devices = sum(mask.bit_count() for mask in masks.values())
    own, placement = grant(thin.name, devices, stages), {thin.name: pieces}
    key = thin.prices.key(GPT, own, placement)
    if key is None:
        return
    setup = thin.prices.seated(key, placement)
    seats = seats_of(setup, thin.prices.pools[thin.name], pieces)
    held = {(node, index) for node, mask in masks.items() for index in range(8) if mask >> index & 1}
    assert {(seat.node, seat.device) for seat in seats} == held
    assert len(seats) == devices
    assert [seat.node for seat in seats] == [slot.node for stage in setup.stages for slot in stage.slots]


@pytest.mark.parametrize("stages", [1, 2])
def test_fewer_steps_take_the_same_time(thin: Site, stages: int) -> None:
    one = thin.seated("one", ACROSS, stages)
    key = thin.prices.key(GPT, one.grant, one.placement)
    sent = thin.sharing._sent(GPT, one.grant, one.placement)
    assert key is not None
    assert sent is not None
    seats = seats_of(thin.prices.seated(key, one.placement), thin.prices.pools[thin.name], ACROSS)
    whole = playing_of(sent.traffic, seats, thin.sharing.fabric)
    fewer = between_nodes(whole)
    rates = thin.sharing.fabric.links.bytes_per_s
    seconds = [play([each], rates, settings=STEADY) for each in (whole, fewer)]
    assert seconds[0].jobs[0].seconds == pytest.approx(seconds[1].jobs[0].seconds, rel=1e-9)
    assert seconds[0].bytes_per_s == pytest.approx(seconds[1].bytes_per_s, rel=1e-9)
    assert len(fewer.steps) <= len(whole.steps)


def drawn_jobs(pool: Pool, count: int) -> list[Job]:
    rng, now_s, jobs = Random(7), 0.0, []
    for number in range(count):
        now_s += rng.expovariate(1 / 40.0)
        devices = rng.choice((2, 4, 8, 16))
        job = make_job(f"j{number}", submit_s=now_s, pool=pool.name, devices=devices, iterations=rng.randint(50, 200))
        jobs.append(replace(job, workload=GPT))
    return jobs


def run(site: Site, jobs: list[Job], checkpoint: CheckpointFile | None = None, stop: int | None = None) -> Result:
    looks = iter(range(10**9))
    told = Settings(
        truth=seat_truth(site.prices),
        sharing=site.sharing,
        placer=make_placer("random"),
        slices=True,
        look_every=1,
        checkpoint=checkpoint,
        stop=None if stop is None else lambda: next(looks) >= stop,
    )
    return simulate(jobs, site.cells.pools, site.cells, Fcfs(), settings=told)


def test_a_simulation_counts_what_others_cost_and_what_is_computed(thin: Site, tmp_path: Path) -> None:
    jobs = drawn_jobs(thin.pool, 12)
    result = run(thin, jobs)
    summary, table = result.summary, result.table
    assert (summary.finished, summary.violations) == (12, 0)
    assert summary.slowdown_by_others_max is not None
    assert summary.slowdown_by_others_max > 1.05
    work = thin.sharing.work(jobs[0], grant(thin.name, 2), {thin.name: ((0, 3),)})
    assert work is not None
    assert sum(table.flops) == pytest.approx(work.flops * sum(job.iterations for job in jobs))
    assert summary.work_flops_per_s == pytest.approx(sum(table.flops) / summary.simulated_s)
    assert summary.gpu_utilization_mean is not None
    assert 0 < summary.gpu_utilization_mean < summary.utilization_mean
    for number, job in enumerate(result.jobs):
        alone_s = (table.progress_s[number] - table.lost_to_others_s[number]) / job.iterations
        assert 0 < alone_s <= table.progress_s[number] / job.iterations * (1 + 1e-9)
        assert table.contended_s[number] <= table.progress_s[number] * (1 + 1e-9)
    # One that is stopped and goes on comes to the same.
    path, stops = tmp_path / "checkpoint.json", 0
    while True:
        try:
            again = run(Site(THIN), jobs, CheckpointFile(path=path, every_s=1e9, resume=True), stop=5)
        except KeyboardInterrupt:
            stops += 1
            continue
        break
    assert stops > 2
    assert jobs_csv(again) == jobs_csv(result)
    assert again.summary == summary


def test_a_job_without_a_model_shares_nothing(thin: Site) -> None:
    logged = replace(make_job("l", pool=thin.name, devices=16), workload=Workload(model="as logged", global_batch=16))
    own = grant(thin.name, 16)
    assert thin.sharing.uses(logged, own, {thin.name: ACROSS}) == {}
    assert thin.sharing.work(logged, own, {thin.name: ACROSS}) is None


def test_several_sites_are_refused() -> None:
    two = cluster_of(THIN, 4)
    sites = (*two.sites, replace(two.sites[0], name="south"))
    cluster = replace(two, sites=sites)
    cells = EstimatedCells(cluster=cluster, pools=pools_of(cluster))
    with pytest.raises(InputError, match="--network"):
        iteration_times("none", cells, "fair")
