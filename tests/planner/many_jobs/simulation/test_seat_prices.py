"""What seats cost: beside all orders of the ranks, on nodes that are alike, and while jobs share NICs and uplinks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice, permutations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from estimator.cells.cell import CellEstimate
from estimator.communication.phases import Algorithm
from estimator.communication.rank_order import least_across
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from planner.many_jobs.jobs.records import AS_LOGGED, Decision, Grant, Job, Stateless, View, Workload, grant, grant_on
from planner.many_jobs.placement.machines.seating import reseat
from planner.many_jobs.placers.catalogue import make_placer
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.scheduling.cell_book import EstimatedCells, pools_of
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.iteration_times import iteration_times, price_notes
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.seat_costs import leaving
from planner.many_jobs.simulation.seat_prices import SeatPrices, SharedNetwork, seat_truth
from planner.many_jobs.simulation.seat_shapes import takes_of, uplinks_of_pools
from planner.many_jobs.simulation.settings import CheckpointFile, Settings
from planner.many_jobs.simulation.tables import jobs_csv, last_seats
from planner.many_jobs.traces.assign import count_parameters
from planner.shared.options.simulate import PlacementCost
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from tests.scheduling_examples import make_job

POOL = "a100-80gb"
GPT = Workload(model="gpt2-1.3b", global_batch=48)
BERT = Workload(model="bert-1.3b", global_batch=24)
LEAVES = "[{name: leaf, oversubscription: 2, hop_latency_s: 5.0e-7, parts: [{nodes: 2, count: 4}]},"
TREE = LEAVES + " {name: pod, parts: [{parts: 2, count: 2}]}]"


def make_cluster(folder: Path, *, nodes: int = 8, devices: int = 4, nics: int = 1, tree: bool = False) -> Cluster:
    """Equal nodes with a NIC for all devices; `tree`: pairs under leaves, pairs of these under pods."""
    path = folder / "cluster.yaml"
    levels = f", levels: {TREE}" if tree else ""
    path.write_text(
        "schema: cellplan.cluster/1\nsites:\n- name: here\n  nodes:\n"
        f"  - {{device: {POOL}, devices: {devices}, count: {nodes}, nics: {{count: {nics}, link: ib-hdr200}}}}\n"
        f"  fabric: {{link: ib-hdr200{levels}}}\n"
    )
    return load_cluster(str(path))


def make_book(folder: Path, **given: Any) -> EstimatedCells:
    cluster = make_cluster(folder, **given)
    return EstimatedCells(cluster=cluster, pools=pools_of(cluster))


def pieces_of(counts: dict[int, int]) -> Pieces:
    return tuple((node, (1 << count) - 1) for node, count in counts.items())


def alike(rng: Random, nodes: int) -> list[int]:
    """The nodes of the tree in another order that is one to it."""
    pods = [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    rng.shuffle(pods)
    for pod in pods:
        rng.shuffle(pod)
        for leaf in pod:
            rng.shuffle(leaf)
    return [node for pod in pods for leaf in pod for node in leaf][:nodes]


@pytest.fixture(scope="module", params=[False, True], ids=["flat", "tree"])
def book(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> EstimatedCells:
    return make_book(tmp_path_factory.mktemp("cluster"), tree=request.param)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_which_of_equal_nodes_changes_nothing(book: EstimatedCells, data: st.DataObject) -> None:
    """The price, what is used of the network, and the price beside others: to the digit, by books that know nothing of
    each other."""
    counts = {node: data.draw(st.integers(0, 4)) for node in range(8)}
    counts = {node: count for node, count in counts.items() if count} or {0: 1}
    devices = sum(counts.values())
    stages = data.draw(st.sampled_from([None, 1, 2]))
    option = next((o for o in book.options(GPT, POOL, devices) if stages in (None, o.stages)), None)
    if option is None:
        return
    to = alike(Random(data.draw(st.integers(0, 1000))), 8)
    shift = data.draw(st.integers(0, 1))
    told = []
    for moved in (False, True):
        pieces = pieces_of({to[node] if moved else node: count for node, count in counts.items()})
        if moved:
            pieces = tuple((node, mask << (shift if mask < 8 else 0)) for node, mask in pieces[::-1])
        fresh = EstimatedCells(cluster=book.cluster, pools=book.pools)
        prices, placement, own = SeatPrices(fresh), {POOL: pieces}, grant(POOL, devices, option.stages)
        shared, job = SharedNetwork(prices), make_job("one", pool=POOL, devices=devices)
        job = Job(**{name: getattr(job, name) for name in job.__slots__} | {"workload": GPT})
        uses = shared.uses(job, own, placement)
        beside = {name: 3 * amount for name, amount in uses.items()}
        slowed = shared.iteration_s(job, own, placement, beside) if uses else None
        told.append((prices.time_s(GPT, own, placement), sorted(uses.values()), slowed))
    assert told[0] == told[1]


@pytest.mark.parametrize("counts", [{0: 1, 1: 1}, {0: 3, 1: 1}, {0: 2, 2: 2}, {0: 2, 1: 2, 5: 2}, {0: 1, 1: 2, 2: 3}])
@pytest.mark.parametrize("stages", [1, 2])
def test_no_order_of_the_ranks_is_better_and_node_by_node_no_better(
    book: EstimatedCells, counts: dict[int, int], stages: int
) -> None:
    devices = sum(counts.values())
    estimate = book.estimate(GPT, POOL, devices, stages)
    assert isinstance(estimate, CellEstimate)
    own = SeatPrices(book).time_s(GPT, grant(POOL, devices, stages), {POOL: pieces_of(counts)})
    slots = [slot for slot in book.cluster.slots if slot.index < counts.get(slot.node, 0)]
    times: list[float] = []
    for order in islice(permutations(slots), None if devices <= 4 else 1):
        outcome = evaluate(reseat(estimate.setup, order))
        assert isinstance(outcome, Evaluation)
        times.append(outcome.iteration_time_s)
    assert own is not None
    assert own <= times[0] * (1 + 1e-9)
    if devices <= 4:
        assert own == pytest.approx(min(times), rel=2e-4)


def test_on_whole_nodes_it_is_the_cell(book: EstimatedCells) -> None:
    prices = SeatPrices(book)
    for devices, counts in ((4, {3: 4}), (2, {5: 2}), (8, {2: 4, 3: 4}), (16, {0: 4, 1: 4, 2: 4, 3: 4})):
        for option in book.options(GPT, POOL, devices):
            own = prices.time_s(GPT, grant(POOL, devices, option.stages), {POOL: pieces_of(counts)})
            assert own == (option.iteration_time_s if devices <= 4 else pytest.approx(option.iteration_time_s))


def test_scattering_costs_and_thinner_networks_cost_more(book: EstimatedCells) -> None:
    prices, own = SeatPrices(book), grant(POOL, 8, 1)
    whole, scattered = {POOL: pieces_of({0: 4, 1: 4})}, {POOL: pieces_of(dict.fromkeys(range(0, 8), 1))}
    whole_s, scattered_s = (prices.time_s(GPT, own, placement) for placement in (whole, scattered))
    assert whole_s is not None
    assert scattered_s is not None
    assert whole_s <= scattered_s
    key = prices.key(GPT, own, scattered)
    assert key is not None
    times = [prices.at(key, thinned, scattered) for thinned in (1.0, 1.2, 1.5, 2.0, 2.7, 5.0, 40.0, 100.0)]
    assert times == sorted(times)
    assert times[0] < times[3]
    assert 0 < prices.sending(key, scattered) <= 1


class Placed(Stateless):
    """Each job gets the nodes that a table says as soon as it comes."""

    name = "placed"

    def __init__(self, nodes: dict[str, dict[int, int]]) -> None:
        self.nodes = nodes

    def decide(self, view: View) -> Decision:
        return Decision(grants={id_: grant_on(POOL, tuple(self.nodes[id_].items())) for id_ in view.waiting})


def run_placed(book: EstimatedCells, where: dict[str, dict[int, int]], *jobs: Job, **more: object) -> Result:
    times = iteration_times("estimate", book)
    told = Settings(truth=times.truth, sharing=times.sharing, **more)  # type: ignore[arg-type]
    return simulate(jobs, book.pools, book, Placed(where), settings=told)


def on_pool(name: str, devices: int, *, at_s: float = 0.0, iterations: float = 100.0) -> Job:
    job = make_job(
        name, submit_s=at_s, pool=POOL, devices=devices, iterations=iterations, model=GPT.model, global_batch=48
    )
    assert job.workload == GPT
    return job


def test_two_jobs_on_the_nics_of_two_nodes(tmp_path: Path) -> None:
    """Each has half of both nodes. The second comes when the first is half done: until the first ends both go at the
    pace of NICs thinner by 1 + the share of its iteration in which the other sends, then the second alone."""
    book = make_book(tmp_path)
    where = {"first": {0: 2, 1: 2}, "second": {0: 2, 1: 2}, "beside": {2: 4}}
    prices, placement = SeatPrices(book), {POOL: pieces_of({0: 2, 1: 2})}
    key = prices.key(GPT, grant(POOL, 4), placement)
    assert key is not None
    alone_s, sends = prices.at(key, 1.0, placement), prices.sending(key, placement)
    assert 0.02 < sends < 1
    beside_s = prices.at(key, 1 + sends, placement)
    assert beside_s > alone_s * 1.01
    jobs = (on_pool("first", 4), on_pool("second", 4, at_s=50 * alone_s), on_pool("beside", 4))
    result = run_placed(book, where, *jobs)
    ends_s = {job.id: result.table.end_s[number] for number, job in enumerate(result.jobs)}
    cell = book.best(GPT, POOL, 4)
    assert cell is not None
    assert ends_s["beside"] == pytest.approx(100 * cell.iteration_time_s)
    assert ends_s["first"] == pytest.approx(50 * alone_s + 50 * beside_s, rel=1e-4)
    left = 100 - 50
    assert ends_s["second"] == pytest.approx(ends_s["first"] + left * alone_s, rel=1e-4)
    assert result.summary.violations == 0
    cost_s = {job.id: result.table.seats_cost_s[number] for number, job in enumerate(result.jobs)}
    ran_s = {job.id: ends_s[job.id] - job.submit_s for job in result.jobs}
    for name in ("first", "second", "beside"):
        assert cost_s[name] == pytest.approx(ran_s[name] - 100 * cell.iteration_time_s, abs=1e-6)
    assert cost_s["beside"] == pytest.approx(0, abs=1e-9)


def test_a_row_of_a_job_says_where_it_sat_last(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    result = run_placed(book, {"first": {5: 1, 1: 2}}, on_pool("first", 3), slices=True)
    head, row = jobs_csv(result).splitlines()
    assert row.split(",")[head.split(",").index("seats")] == f"{POOL}:5x1 {POOL}:1x2"
    assert last_seats(run_placed(book, {"first": {5: 1, 1: 2}}, on_pool("first", 3))) == {}


def test_jobs_whose_nics_do_not_meet_do_not_slow_each_other(tmp_path: Path) -> None:
    """With a NIC for each device two halves of a node have two NICs each."""
    book = make_book(tmp_path, nics=4)
    where = {"first": {0: 2, 1: 2}, "second": {0: 2, 1: 2}}
    both = run_placed(book, where, on_pool("first", 4), on_pool("second", 4))
    alone = run_placed(book, where, on_pool("first", 4))
    assert both.table.end_s[0] == both.table.end_s[1] == alone.table.end_s[0]


def test_uplinks_are_shared_and_what_is_below_them_is_not(tmp_path: Path) -> None:
    book = make_book(tmp_path, tree=True)
    across, inside = {"first": {0: 4, 2: 4}, "second": {1: 4, 3: 4}}, {"first": {0: 4, 1: 4}, "second": {2: 4, 3: 4}}
    for where, meet in ((across, True), (inside, False)):
        both = run_placed(book, where, on_pool("first", 8), on_pool("second", 8))
        alone = run_placed(book, where, on_pool("first", 8))
        assert (both.table.end_s[0] > alone.table.end_s[0] * 1.001) == meet


def test_load_of_uplinks_by_hand(tmp_path: Path) -> None:
    """A ring over two leaves of two pods goes up twice out of each: 2 x 7 / 8 of the gradients in an iteration. Uplinks
    of a leaf carry what a NIC does, half of its two nodes' NICs; those of a pod as much as four NICs."""
    book = make_book(tmp_path, tree=True)
    uplinks = uplinks_of_pools(book.cluster, book.pools)
    nic = SeatPrices(book).pools[POOL].nics_bytes_per_s
    assert [level.uplink_bytes_per_s for level in uplinks[POOL]] == [(nic,) * 4, (4 * nic,) * 2]
    result = run_placed(book, {"first": {0: 4, 7: 4}}, on_pool("first", 8), uplinks=uplinks)
    sent = 100 * 2 * 7 / 8 * 2 * count_parameters(GPT.model) / result.table.end_s[0]
    assert result.summary.uplinks_load_peak == pytest.approx(sent / nic)
    assert result.summary.uplinks_load_mean == pytest.approx(4 * sent / (12 * nic))
    inside = run_placed(book, {"first": {0: 4, 1: 4}}, on_pool("first", 8), uplinks=uplinks)
    assert (inside.summary.uplinks_load_mean, inside.summary.uplinks_load_peak) == (0.0, 0.0)
    assert run_placed(book, {"first": {0: 4, 1: 4}}, on_pool("first", 8)).summary.uplinks_load_mean is None


@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "tree"])
def test_what_leaves_the_parts_is_what_passes_between_them(algorithm: Algorithm) -> None:
    """Parts of one node each: what leaves them all is what is sent between nodes."""
    for counts in ((4, 4), (3, 2, 1), (2, 2, 2, 2), (5, 1)):
        leaves = leaving(algorithm, tuple(enumerate(counts)))
        assert sum(size for _, size in leaves) == pytest.approx(least_across(algorithm, counts))


def test_what_was_logged_runs_as_logged(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    workload = Workload(model=AS_LOGGED, global_batch=4)
    job = Job(**{name: getattr(on_pool("logged", 4), name) for name in Job.__slots__} | {"workload": workload})
    result = run_placed(book, {"logged": {0: 1, 1: 1, 2: 1, 3: 1}}, job)
    assert result.table.end_s[0] == 100.0
    assert "1 of 1 jobs have no model" in price_notes("estimate", (job,))[1]
    assert price_notes("none", (job,)) == ()


def draw_jobs(seed: int, count: int = 30) -> tuple[Job, ...]:
    rng = Random(seed)
    return tuple(
        on_pool(
            str(number), rng.choice((1, 2, 3, 4, 6, 8)), at_s=rng.uniform(0, 400.0), iterations=rng.randint(20, 300)
        )
        for number in range(count)
    )


@pytest.mark.parametrize("policy", ["fcfs", "elasticflow", "crius", "tiresias"])
@pytest.mark.parametrize("name", ["hived", "random"])
def test_failures_growing_and_shrinking_jobs_and_a_checkpoint(
    book: EstimatedCells, tmp_path: Path, policy: str, name: str
) -> None:
    path = tmp_path / "checkpoint"

    def run(keep: CheckpointFile | None = None, stop: Callable[[], bool] | None = None) -> Result:
        times = iteration_times("estimate", book)
        told = Settings(
            truth=times.truth,
            sharing=times.sharing,
            placer=make_placer(name),
            slices=True,
            restart_s=10.0,
            failures=Failures(mtbf_s=3000.0, repair_s=200.0, seed=3),
            checkpoint=keep,
            stop=stop,
            look_every=25,
        )
        return simulate(draw_jobs(5), book.pools, book, make_policy(policy), settings=told)

    whole = run()
    assert whole.summary.violations == 0
    assert whole.summary.finished == 30
    with pytest.raises(KeyboardInterrupt):
        run(CheckpointFile(path=path), lambda: True)
    resumed = run(CheckpointFile(path=path, resume=True))
    assert resumed.summary == whole.summary
    assert resumed.table.end_s == whole.table.end_s
    assert sorted(resumed.slices) == sorted(whole.slices)


def test_prices_are_kept_with_the_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make_book(tmp_path)
    where = {"first": {0: 2, 1: 2}, "second": {0: 2, 1: 2}}
    jobs = (on_pool("first", 4), on_pool("second", 4))
    result = run_placed(first, where, *jobs)
    first.save(tmp_path / "cells.json")
    second = make_book(tmp_path)
    assert second.load(tmp_path / "cells.json")
    assert second.seats == first.seats != {}

    def refuse(*_: object) -> None:
        raise AssertionError("priced again")

    monkeypatch.setattr("planner.many_jobs.simulation.seat_prices.evaluate", refuse)
    assert run_placed(second, where, *jobs).table.end_s == result.table.end_s


def test_several_sites_have_prices_of_their_own(tmp_path: Path) -> None:
    text = make_cluster(tmp_path)
    path = tmp_path / "cluster.yaml"
    site = path.read_text().partition("sites:\n")[2]
    path.write_text(path.read_text() + site.replace("here", "there"))
    cluster = load_cluster(str(path))
    assert len(text.sites) == 1
    with pytest.raises(InputError, match="placement-cost"):
        iteration_times("estimate", EstimatedCells(cluster=cluster, pools=pools_of(cluster)))
    assert iteration_times("none", EstimatedCells(cluster=text, pools=pools_of(text))).truth is None


def test_the_truth_without_a_place_is_the_cell(tmp_path: Path) -> None:
    book = make_book(tmp_path)
    cell = book.best(GPT, POOL, 4)
    assert cell is not None
    job, truth = on_pool("one", 4), seat_truth(SeatPrices(book))
    assert truth(job, grant(POOL, 4), None) == cell.iteration_time_s
    assert truth(job, Grant(parts=((POOL, 4),), stages=3), {POOL: pieces_of({0: 2, 1: 2})}) is None


def test_islands_of_a_node_are_told_apart() -> None:
    cluster = load_cluster("a40:4x4")
    book = EstimatedCells(cluster=cluster, pools=pools_of(cluster))
    (seats,) = SeatPrices(book).pools.values()
    shapes = {seats.shape(((0, mask), (1, 1)))[0] for mask in (0b0011, 0b1100, 0b0101, 0b1010, 0b1001)}
    assert len(shapes) == (2 if seats.group.island_size == 2 else 1)
    for shape in shapes:
        assert sum(map(sum, takes_of(shape))) == 3


def test_titan_keeps_its_constraint_beside_the_jobs_that_run(tmp_path: Path) -> None:
    """Three nodes have two free each, one is idle: a job of four sits on two of the three, and on the idle one where it
    may hardly send anything."""
    book = make_book(tmp_path, nodes=4)
    jobs = (on_pool("held", 2), on_pool("first", 4), on_pool("second", 4, at_s=1.0))
    where = {"held": {2: 2}, "first": {0: 2, 1: 2}}

    class Then(Placed):
        def decide(self, view: View) -> Decision:
            named = {id_: grant_on(POOL, tuple(where[id_].items())) for id_ in view.waiting if id_ in where}
            return Decision(grants=named | {id_: grant(POOL, 4) for id_ in view.waiting if id_ not in where})

    def nodes(share: float, cost: PlacementCost = "estimate") -> list[int]:
        times = iteration_times(cost, book)
        told = Settings(truth=times.truth, sharing=times.sharing, slices=True, placer=make_placer("titan", share=share))
        result = simulate(jobs, book.pools, book, Then(where), settings=told)
        return sorted({node for number, _, node, *_ in result.slices if number == 2})

    assert nodes(0.0) == nodes(100.0) == [0, 1]
    assert nodes(0.02) == [3]
    with pytest.raises(InputError, match=r"share=0\.5 where nobody says"):
        nodes(0.5, "none")
