"""What an iteration takes on the devices that a job got, and beside the jobs that share its nodes' NICs and uplinks.

A job's plan is its Cell's. The estimator prices it on the job's own seats, in the best order of the ranks that
`planner.many_jobs.placement.machines.seating` finds; seats of one shape are priced once, and kept with the Cells.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from estimator.cells.cell import CellEstimate
from estimator.pricing.company import Company
from estimator.pricing.evaluate import break_down, evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.parts import PricedSetup, company_of, price_setup
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.many_jobs.jobs.records import Grant, Job, Workload
from planner.many_jobs.placement.machines.choices import choice_of
from planner.many_jobs.placement.machines.occupied import Machine
from planner.many_jobs.placement.machines.seating import ranks_of, reseat, seat
from planner.many_jobs.placers.records import Available
from planner.many_jobs.scheduling.cell_book import EstimatedCells, SeatKey
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.seat_shapes import PartLevel, PoolSeats, Shape, seats_of_pools, takes_of
from planner.many_jobs.simulation.settings import Placement, Seated, Truth
from planner.many_jobs.simulation.sharing import SharedAmounts
from planner.many_jobs.simulation.truth import cells_truth
from profiles.cluster import Cluster, DeviceSlot, map_groups
from profiles.records import replace
from profiles.vocabulary import Infeasible, LinkTable

THINNED = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0)
"""By so much thinner NICs and uplinks an iteration is priced, and between two of these by the straight line."""
HARDLY_ANY = (64.0, 128.0)
"""With NICs thinned by so much what is sent over them is all that counts: nothing hides the difference."""
MOST_KEPT = 2_000
"""Evaluations after which a pricing's cache is begun anew."""
MOST_STANDING = 1_000
"""Of so many shapes is kept what their price rests on however thin the network."""
KILO = 1000


class SeatPrices:
    """Prices plans of Cells on the seats that jobs got on one cluster of a single site. Its caches are its only state;
    what it prices it keeps in `cells.seats`."""

    def __init__(self, cells: EstimatedCells) -> None:
        self.cells = cells
        self.pools = seats_of_pools(cells.cluster, cells.pools)
        self._setups: dict[tuple[Workload, str, int, int], Setup] = {}
        self._seated: dict[SeatKey, Setup] = {}
        self._thinner: dict[float, Cluster] = {1.0: cells.cluster}
        self._pricings: dict[tuple[str, float], Pricing] = {}
        self._standing: dict[SeatKey, tuple[Setup, Company | None]] = {}
        self._slots: dict[tuple[str, int, int], DeviceSlot] = {}
        self._evaluated = 0

    def time_s(self, workload: Workload, grant: Grant, placement: Placement) -> float | None:
        """Return the seconds of an iteration on these seats while nobody else uses the network; None where the Cell
        does not fit. What was logged runs as logged, and what sits on one node, all of whose devices are one island,
        as the Cell does."""
        key = self.key(workload, grant, placement)
        return self._cell_s(workload, grant) if key is None else self.at(key, 1.0, placement)

    def _cell_s(self, workload: Workload, grant: Grant) -> float | None:
        pool, devices = grant.parts[0]
        options = self.cells.options(workload, pool, devices)
        return next((option.iteration_time_s for option in options if grant.stages in (None, option.stages)), None)

    def key(self, workload: Workload, grant: Grant, placement: Placement) -> SeatKey | None:
        """Return what the seats' price is kept under; None where it is the Cell's."""
        pool, devices = grant.parts[0]
        pieces, seats = placement[pool], self.pools[pool]
        if workload.logged_devices is not None or (len(pieces) == 1 and seats.group.island_size >= seats.group.devices):
            return None
        options = self.cells.options(workload, pool, devices)
        option = next((option for option in options if grant.stages in (None, option.stages)), None)
        return None if option is None else (workload, pool, devices, option.stages, seats.shape(pieces)[0])

    def at(self, key: SeatKey, thinned: float, placement: Placement) -> float:
        """Return the seconds of an iteration with NICs and uplinks thinner by `thinned`, at least 1."""
        times = self.cells.seats.get(key)
        if times is None:
            times = self.cells.seats[key] = {}
        if thinned in times:
            return times[thinned]
        above = min(bisect_left(THINNED, thinned), len(THINNED) - 1)
        high = THINNED[above]
        if thinned in HARDLY_ANY or thinned == high:
            seconds = times[thinned] = self._price(key, thinned, placement)
            return seconds
        low = THINNED[above - 1]
        low_s = times[low] if low in times else self.at(key, low, placement)
        high_s = times[high] if high in times else self.at(key, high, placement)
        return low_s + (high_s - low_s) * (thinned - low) / (high - low)

    def sending(self, key: SeatKey, placement: Placement) -> float:
        """Return the share of an iteration in which the job's busiest NICs send, hidden behind compute or not."""
        less, more = HARDLY_ANY
        sent_s = (self.at(key, more, placement) - self.at(key, less, placement)) / (more - less)
        return min(1.0, max(0.0, sent_s / self.at(key, 1.0, placement)))

    def seated(self, key: SeatKey, placement: Placement) -> Setup:
        """Return the plan on devices of the job's own nodes that stand for its own (`PoolSeats.devices_in_order`)."""
        pool = self.pools[key[1]]
        nodes = pool.shape(placement[pool.name])[1]
        if key not in self._seated:
            self._seated[key] = self._seat(key, pool, nodes)
        return self._there(self._seated[key], pool, nodes, 1.0)

    def parts(self, setup: Setup, pool: str) -> PricedSetup:
        """Return what the price of such a plan is put together from, while nobody else uses the network."""
        priced = price_setup(setup, self._pricing(self.pools[pool], 1.0))
        assert isinstance(priced, PricedSetup), f"a Cell that was priced: {priced}"
        return priced

    def _price(self, key: SeatKey, thinned: float, placement: Placement) -> float:
        if key not in self._standing:
            if len(self._standing) >= MOST_STANDING:
                self._standing.clear()
            setup = self.seated(key, placement)
            self._standing[key] = setup, company_of(setup)
        setup, company = self._standing[key]
        there = replace(setup, cluster=self._thinned(thinned))
        priced = price_setup(there, self._pricing(self.pools[key[1]], thinned), company=company)
        assert isinstance(priced, PricedSetup), f"a Cell that was priced: {priced}"
        return break_down(priced).total_s

    def _seat(self, key: SeatKey, pool: PoolSeats, nodes: tuple[int, ...]) -> Setup:
        """The Cell's plan with each rank on a device of the shape, whose nodes are called 0, 1, ..., in the best order
        that is found, the Cell's own among them where it has this shape. Nothing tells the orders of a single group of
        replicas or of shards apart."""
        workload, _, devices, stages, shape = key
        setup = self._setup(workload, pool.name, devices, stages)
        if ranks_of(setup) != devices:
            raise ValueError(f"a Cell of {ranks_of(setup)} ranks on {devices} devices")
        blocks = [pool.slots(place, take) for place, take in enumerate(takes_of(shape))]
        in_turn = reseat(setup, [slot for block in blocks for slot in block])
        if len(setup.stages) == 1 and 1 in (setup.stages[0].dp, setup.stages[0].tp):
            return in_turn
        choice = choice_of([(_machine(pool, block), len(block)) for block in blocks])

        def priced(tried: Setup) -> Evaluation | Infeasible:
            return self._evaluate(tried, pool, nodes, 1.0)

        seated = seat(setup, choice, priced)
        best = in_turn if seated is None else seated.setup
        own = _as_the_cell(setup, pool, shape)
        outcome = None if own is None else priced(own)
        if own is None or not isinstance(outcome, Evaluation):
            return best
        return best if seated is not None and seated.time_s <= outcome.iteration_time_s else own

    def _setup(self, workload: Workload, pool: str, devices: int, stages: int) -> Setup:
        key = (workload, pool, devices, stages)
        if key not in self._setups:
            estimate = self.cells.estimate(*key)
            assert isinstance(estimate, CellEstimate), f"a Cell that fits: {estimate}"
            self._setups[key] = estimate.setup
        return self._setups[key]

    def _evaluate(
        self, setup: Setup, pool: PoolSeats, nodes: tuple[int, ...], thinned: float
    ) -> Evaluation | Infeasible:
        """The plan with the nodes that it calls 0, 1, ... being these of the pool."""
        return evaluate(self._there(setup, pool, nodes, thinned), self._pricing(pool, thinned))

    def _there(self, setup: Setup, pool: PoolSeats, nodes: tuple[int, ...], thinned: float) -> Setup:
        there = [self._slot(slot, pool.nodes[nodes[slot.node]]) for stage in setup.stages for slot in stage.slots]
        return reseat(setup, there, self._thinned(thinned))

    def _thinned(self, by: float) -> Cluster:
        if by not in self._thinner:
            self._thinner[by] = thinner(self.cells.cluster, by)
        return self._thinner[by]

    def _slot(self, like: DeviceSlot, node: int) -> DeviceSlot:
        """The device of `like`'s number on this node of its site, made once."""
        key = (like.site, node, like.index)
        slot = self._slots.get(key)
        if slot is None:
            slot = self._slots[key] = replace(like, node=node)
        return slot

    def _pricing(self, pool: PoolSeats, thinned: float) -> Pricing:
        self._evaluated += 1
        if self._evaluated % MOST_KEPT == 0:
            self._pricings.clear()
        key = (pool.group.device.name, thinned)
        if key not in self._pricings:
            hardware = self.cells.hardware(pool.name, 1)
            over_nodes = {pool.group.nic_link.name, pool.site.fabric_link.name}
            tables = tuple(
                _slowed(table, thinned) if table.link in over_nodes else table for table in hardware.link_tables
            )
            self._pricings[key] = Pricing(lookup=hardware.lookup, link_tables=tables)
        return self._pricings[key]


def seat_truth(prices: SeatPrices) -> Truth:
    """Return the truth of jobs on one pool by their seats; where a job has none yet, by its Cell."""
    of_cells = cells_truth(prices.cells)

    def truth(job: Job, grant: Grant, placement: Placement | None) -> float | None:
        if placement is None or len(grant.parts) != 1:
            return of_cells(job, grant, None)
        return prices.time_s(job.workload, grant, placement)

    return truth


class _Use(NamedTuple):
    """What a job uses of one thing: its bytes/s while it sends, and on the mean in whole thousands; what there is, or
    as much as it sends where that is more."""

    name: str
    peak_bytes_per_s: float
    mean_kilobytes_per_s: int
    alone_bytes_per_s: float


class SharedNetwork(SharedAmounts):
    """`planner.many_jobs.simulation.settings.Sharing` of nodes' NICs, and of the uplinks of the network's parts.

    A job on several nodes sends over its own NICs, one for each device as far as they go, for the share of its
    iteration that the estimator says (`SeatPrices.sending`, of the job alone). What others put on a link in the mean
    is in the way of what the job sends there; all that it sends over nodes is slowed by its worst link, as a collective
    goes at the pace of its slowest. A part is left by one node's worth, as in a ring.
    """

    def __init__(self, prices: SeatPrices) -> None:
        self.prices = prices
        self._uses = lru_cache(maxsize=65536)(self._uses_of)

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """The mean kB/s that the job puts on NICs and uplinks, by name."""
        return {use.name: use.mean_kilobytes_per_s for use in self._of(job, grant, placement)[1]}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        """Beside what others put on the same links; `in_use` may tell of more."""
        thinned = 1.0
        key, uses = self._of(job, grant, placement)
        for name, peak, own, alone in uses:
            others = in_use[name] - own
            if others:
                by = (peak + KILO * others) / alone
                if by > thinned:
                    thinned = by
        assert key is not None, "jobs of one node share nothing"
        return self.prices.at(key, thinned, placement)

    def beside_s(self, seated: Seated, in_use: Mapping[str, int]) -> float:
        """As `SharedAmounts`."""
        return self.iteration_s(seated.job, seated.grant, seated.placement, in_use)

    def available(self, pool: str, in_use: Mapping[str, int]) -> Available:
        """Return what others leave of each NIC and uplink in the mean."""
        seats = self.prices.pools[pool]
        nics = [
            max(0.0, seats.nics_bytes_per_s - KILO * in_use.get(_nics(pool, node), 0))
            for node in range(len(seats.nodes))
        ]
        uplinks = [
            (
                level.part_of,
                [
                    max(0.0, there - KILO * in_use.get(_uplinks(level, part), 0))
                    for part, there in enumerate(level.uplink_bytes_per_s)
                ],
            )
            for level in seats.levels
        ]
        return Available(nics_bytes_per_s=nics, uplinks=uplinks)

    def _of(self, job: Job, grant: Grant, placement: Placement) -> tuple[SeatKey | None, tuple[_Use, ...]]:
        """What the price of a job's seats is kept under, and what it uses: nothing on one node."""
        if len(grant.parts) != 1:
            return None, ()
        pool = grant.parts[0][0]
        if len(placement[pool]) == 1:
            return None, ()
        return self._uses(job.workload, pool, placement[pool], grant.stages)

    def _uses_of(
        self, workload: Workload, pool: str, pieces: Pieces, stages: int | None
    ) -> tuple[SeatKey | None, tuple[_Use, ...]]:
        devices = sum(mask.bit_count() for _, mask in pieces)
        grant, placement = Grant(parts=((pool, devices),), stages=stages), {pool: pieces}
        key = self.prices.key(workload, grant, placement)
        sending = 0.0 if key is None else self.prices.sending(key, placement)
        if sending == 0:
            return key, ()
        seats = self.prices.pools[pool]
        nic_bytes_per_s = seats.nics_bytes_per_s / seats.group.nics
        rates = {node: nic_bytes_per_s * min(mask.bit_count(), seats.group.nics) for node, mask in pieces}

        def use(name: str, rate: float, there: float) -> _Use:
            mean = round(sending * rate / KILO)
            return _Use(name=name, peak_bytes_per_s=rate, mean_kilobytes_per_s=mean, alone_bytes_per_s=max(there, rate))

        uses = [use(_nics(pool, node), rate, seats.nics_bytes_per_s) for node, rate in rates.items()]
        for level in seats.levels:
            most: dict[int, float] = {}
            for node, rate in rates.items():
                part = level.part_of[node]
                most[part] = max(rate, most.get(part, 0.0))
            if len(most) == 1:
                break
            uses += [
                use(_uplinks(level, part), rate, level.uplink_bytes_per_s[part])
                for part, rate in most.items()
                if math.isfinite(level.uplink_bytes_per_s[part])
            ]
        return key, tuple(uses)


def _nics(pool: str, node: int) -> str:
    return f"NICs of {pool} {node}"


def _uplinks(level: PartLevel, part: int) -> str:
    return f"uplinks of {level.name} {part}"


def thinner(cluster: Cluster, by: float) -> Cluster:
    """Return the cluster with NICs, and with them all that is above, of so much fewer bytes/s."""
    thin = map_groups(
        cluster,
        lambda group: replace(
            group, nic_link=replace(group.nic_link, bandwidth_bytes_per_s=group.nic_link.bandwidth_bytes_per_s / by)
        ),
    )
    sites = tuple(
        replace(
            site,
            fabric_link=replace(site.fabric_link, bandwidth_bytes_per_s=site.fabric_link.bandwidth_bytes_per_s / by),
        )
        for site in thin.sites
    )
    return replace(thin, sites=sites)


def _slowed(table: LinkTable, by: float) -> LinkTable:
    """What was measured of a link, on one so much thinner."""
    return replace(
        table,
        points=tuple((size, seconds * by) for size, seconds in table.points),
        alpha_s=table.alpha_s * by,
        beta_s_per_byte=table.beta_s_per_byte * by,
    )


def _as_the_cell(setup: Setup, pool: PoolSeats, shape: Shape) -> Setup | None:
    """A Cell's plan in its own order of the ranks, the nodes of a shape called 0, 1, ...; None where the Cell's own
    devices are of another shape."""
    number = {node: place for place, node in enumerate(pool.nodes)}
    on_node: defaultdict[int, list[DeviceSlot]] = defaultdict(list)
    for stage in setup.stages:
        for slot in stage.slots:
            on_node[number[slot.node]].append(slot)
    own, nodes = pool.shape(tuple((node, sum(1 << slot.index for slot in slots)) for node, slots in on_node.items()))
    if own != shape:
        return None
    there: dict[DeviceSlot, DeviceSlot] = {}
    for place, (node, take) in enumerate(zip(nodes, takes_of(shape), strict=True)):
        on_island = Counter(slot.index // pool.group.island_size for slot in on_node[node])

        def in_turn(slot: DeviceSlot, on_island: Counter[int] = on_island) -> tuple[int, int]:
            return -on_island[slot.index // pool.group.island_size], slot.index

        there.update(zip(sorted(on_node[node], key=in_turn), pool.slots(place, take), strict=True))
    return reseat(setup, [there[slot] for stage in setup.stages for slot in stage.slots])


def _machine(pool: PoolSeats, slots: tuple[DeviceSlot, ...]) -> Machine:
    """The node of these devices, as if no others were there."""
    first = slots[0]
    return Machine(
        site=first.site,
        node=first.node,
        host=str(first.node),
        group=first.group,
        device=first.device,
        size=pool.group.devices,
        island=pool.group.island_size,
        parts=(),
        free=tuple(slot.index for slot in slots),
        jobs={},
    )
