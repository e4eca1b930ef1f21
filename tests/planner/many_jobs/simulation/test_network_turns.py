"""Jobs that take turns on a fabric: a round is played as one job, and decided over as one."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimator.network.fabric import fabric_of
from estimator.network.player.packing import pack
from estimator.network.steps import Mover, Playing, Step, Transfer
from planner.many_jobs.jobs.records import Workload, grant, grant_in_turns
from planner.many_jobs.policies.muri import Muri
from planner.many_jobs.scheduling.cell_use import uses_of_cells
from planner.many_jobs.scheduling.interleaving import interleaved_s
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.iteration_times import iteration_times
from planner.many_jobs.simulation.network_choice import NetworkSteering
from planner.many_jobs.simulation.network_steering import SteeredFabric
from planner.many_jobs.simulation.network_turns import Member, steps_in_turns
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, Seated, Settings
from planner.many_jobs.simulation.tables import jobs_csv
from profiles.records import replace
from tests.planner.many_jobs.simulation.test_network_sharing import ACROSS, BESIDE, STEADY, THIN, WIDE, Site
from tests.scheduling_examples import make_job

pytest.importorskip("scipy")

BERT = Workload(model="bert-1.3b", global_batch=64)


@pytest.fixture(scope="module")
def thin() -> Site:
    return Site(THIN)


@pytest.fixture(scope="module")
def wide() -> Site:
    return Site(WIDE, spray=True)


def in_turns(site: Site, pieces: Pieces, *workloads: Workload) -> Seated:
    """Jobs that train this and take turns on these devices."""
    seats = []
    for number, workload in enumerate(workloads):
        one = site.seated(f"t{number}", pieces)
        job = replace(one.job, workload=workload)
        own = grant_in_turns(site.name, job.devices, "t")
        seats.append(Seated(job=job, grant=own, placement=one.placement, uses={}))
    uses = site.sharing.uses_in_turns(seats)
    return replace(seats[0], uses=uses, mates=tuple(seats[1:]))


def round_alone_s(site: Site, seated: Seated) -> float:
    """What the estimator says: each alone on these seats, and the best order of the slots."""
    use_of, uses = uses_of_cells(site.cells), []
    for each in (replace(seated, mates=()), *seated.mates):
        use = use_of(each.job, grant(site.name, each.job.devices))
        alone_s = site.prices.time_s(each.job.workload, each.grant, each.placement)
        assert use is not None
        assert alone_s is not None
        uses.append(replace(use, iteration_s=max(alone_s, use.compute_s)))
    return interleaved_s(uses)


def test_the_steps_of_a_round_by_hand() -> None:
    """One computes 3 s, hides 1 s of sending and is blocked by 1 s; the other computes 1 s and is blocked by 2 s: while
    the first computes, 1 s and 2 s go over the wire; then the other computes beside 1 s on it."""
    way, other = ((0, 1.0),), ((1, 1.0),)
    first = Step(compute_s=3.0, begins_s=2.0, transfers=(Transfer(movers=(Mover(way=way, seconds=2.0),)),))
    second = Step(compute_s=1.0, begins_s=1.0, transfers=(Transfer(movers=(Mover(way=other, seconds=2.0),)),))
    steps = steps_in_turns([Member(steps=(first,), compute_s=3.0), Member(steps=(second,), compute_s=1.0)])
    assert [(step.compute_s, step.begins_s) for step in steps] == [(3.0, 0.0), (1.0, 0.0)]
    sent = [[(mover.way, mover.seconds) for transfer in step.transfers for mover in transfer.movers] for step in steps]
    assert sent == [[(other, 2.0), (way, 1.0)], [(way, 1.0)]]
    assert pack(Playing(steps=steps)).lasts_s == 4.0


@pytest.mark.parametrize("workloads", [(BERT, BERT), (BERT, Workload(model="gpt2-1.3b", global_batch=16))])
def test_nobody_in_the_way_a_round_is_the_estimate_s(wide: Site, workloads: tuple[Workload, ...]) -> None:
    """The estimator and the player differ by how they price a ring in full, here by less than a hundredth."""
    seated = in_turns(wide, ACROSS, *workloads)
    assert seated.uses
    (round_takes_s,) = wide.sharing.iterations_s([seated])
    assert round_takes_s == pytest.approx(round_alone_s(wide, seated), rel=0.01)


def test_a_round_is_shorter_than_one_after_the_other(wide: Site) -> None:
    seated = in_turns(wide, ACROSS, BERT, BERT)
    (alone_s,) = wide.sharing.iterations_s([in_turns(wide, ACROSS, BERT)])
    (round_takes_s,) = wide.sharing.iterations_s([seated])
    assert alone_s < round_takes_s < 2 * alone_s


def test_others_on_the_cables_slow_a_round(thin: Site) -> None:
    seated, other = in_turns(thin, ACROSS, BERT, BERT), in_turns(thin, BESIDE, BERT)
    together = thin.sharing.iterations_s([seated, other])
    assert together[0] > thin.sharing.iterations_s([seated])[0]
    assert together[1] > thin.sharing.iterations_s([other])[0]


def test_who_comes_first_in_a_group_changes_nothing(thin: Site) -> None:
    gpt = Workload(model="gpt2-1.3b", global_batch=16)
    one, other = in_turns(thin, ACROSS, BERT, gpt), in_turns(thin, ACROSS, gpt, BERT)
    assert thin.sharing.iterations_s([one]) == thin.sharing.iterations_s([other])
    assert one.uses == other.uses


def test_a_network_policy_decides_over_a_group_as_over_one_job(thin: Site) -> None:
    """There is one way between two leaves: whatever is decided, a round takes what it takes on fair shares."""
    steering = NetworkSteering(name="crux")
    steered = SteeredFabric(thin.prices, fabric_of(thin.cluster), steering=steering, player=STEADY)
    seated = in_turns(thin, ACROSS, BERT, BERT)
    uses = steered.uses_in_turns([replace(seated, mates=()), *seated.mates])
    assert set(uses) == set(seated.uses)
    made = steered.steer({3: replace(seated, uses=uses)})
    assert made.seconds[3] == pytest.approx(thin.sharing.iterations_s([seated])[0])


def run(site: Site, network: str, **more: object) -> Result:
    """Five equal jobs that each want all nodes but one, or two of them, under Muri."""
    steering = None if network == "fair" else NetworkSteering(name=network)
    times = iteration_times("none", site.cells, network, 0, steering)
    jobs = [
        replace(make_job(f"j{n}", submit_s=30.0 * n, pool=site.name, devices=devices, iterations=400.0), workload=BERT)
        for n, devices in enumerate((16, 16, 16, 16, 8, 32))
    ]
    told = Settings(
        truth=times.truth,
        sharing=times.sharing,
        uses=uses_of_cells(site.cells),
        restart_s=5.0,
        slices=True,
        **more,  # type: ignore[arg-type]
    )
    return simulate(jobs, site.cells.pools, site.cells, Muri(round_s=60.0), settings=told)


@pytest.mark.parametrize("network", ["fair", "crux"])
def test_muri_on_a_fabric(tmp_path: Path, thin: Site, network: str) -> None:
    """Its groups run there, all work is done, and a run that is stopped goes on as if it had not been."""
    whole = run(thin, network)
    assert whole.summary.violations == 0
    assert whole.summary.finished == 6
    assert whole.turns is not None
    assert 0 < (whole.summary.gpu_utilization_mean or 0) < 1
    stops = 0
    while True:
        looks, stop_after = iter(range(10**9)), 1 + stops % 4
        keep = CheckpointFile(path=tmp_path / "run.json", every_s=1e9, resume=True)
        try:
            again = run(thin, network, look_every=1, checkpoint=keep, stop=lambda: next(looks) >= stop_after)  # noqa: B023
        except KeyboardInterrupt:
            stops += 1
            continue
        break
    assert stops > 1
    assert jobs_csv(again) == jobs_csv(whole)
    assert again.turns == whole.turns
