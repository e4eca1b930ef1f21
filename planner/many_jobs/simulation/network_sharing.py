"""Jobs that meet on a site's fabric: every link that their connections pass is shared max-min fairly, over time.

The jobs of a component are played beside each other (`estimator.network.player`) until the rate of each is steady; with
one job alone that says what it takes by itself, with whatever of its own connections meet each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from zlib import crc32

from estimator.cells.cell import CellEstimate
from estimator.network.connections import playing_of
from estimator.network.fabric import Fabric
from estimator.network.missing_ways import NoWayError
from estimator.network.player.packing import Packed, pack
from estimator.network.player.play import Settings as PlayerSettings
from estimator.network.player.play import play
from estimator.network.steps import Playing
from estimator.network.traffic import Traffic
from estimator.pricing.evaluate import evaluate_priced
from estimator.pricing.recipe import Setup
from estimator.traffic.of_plan import traffic_of
from planner.many_jobs.jobs.records import Grant, Job, Workload
from planner.many_jobs.scheduling.cell_book import SeatKey
from planner.many_jobs.scheduling.cell_use import computing_s
from planner.many_jobs.simulation.network_traffic import between_nodes, seats_of, work_of
from planner.many_jobs.simulation.network_turns import Member, steps_in_turns
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.seat_prices import SeatPrices
from planner.many_jobs.simulation.settings import Placement, Seated, Work
from planner.one_job.explicit.figures import count_setup_flops
from profiles.errors import NothingFits
from profiles.records import dataclass, replace

MOST_STATES = 4096
"""Components whose rates are kept."""

Standing = tuple[Workload, str, Pieces, int | None, tuple["Standing", ...]]
"""All that a job's part of the network depends on: what it trains, on which devices, in how many stages; and how those
stand who take turns with it there."""


def grant_of(standing: Standing) -> tuple[Grant, Placement]:
    """Return the grant and the placement of a job that stands so."""
    _, pool, pieces, stages, _ = standing
    devices = sum(mask.bit_count() for _, mask in pieces)
    return Grant(parts=((pool, devices),), stages=stages), {pool: pieces}


def each_of(standing: Standing) -> tuple[Standing, ...]:
    """Return how each of those stands who take turns, by itself."""
    return ((*standing[:4], ()), *standing[4])


@contextmanager
def ways_needed(pieces: Pieces) -> Iterator[None]:
    """Raise NothingFits, with the nodes, where no way joins those that a job sits on."""
    try:
        yield
    except NoWayError as error:
        nodes = ", ".join(str(node) for node, _ in pieces)
        raise NothingFits(f"a job on nodes {nodes} cannot communicate: {error}") from None


@dataclass(frozen=True, kw_only=True)
class _Sent:
    """What a plan sends in an iteration, and what it computes: `compute_s` of it the devices of the stage that limits
    it."""

    traffic: Traffic
    work: Work
    compute_s: float


class SharedFabric:
    """`planner.many_jobs.simulation.settings.Sharing` of the links of one site's fabric.

    Rates depend on what each job of a component trains and where it sits, not on who it is or when it came; each state
    of a component is played once. `seed` is that of hashes (the fabric's own seed is the guess that it stands beside)
    and of the jitter of compute times.
    """

    def __init__(
        self, prices: SeatPrices, fabric: Fabric, *, seed: int = 0, player: PlayerSettings | None = None
    ) -> None:
        self.prices, self.fabric, self.seed = prices, fabric, seed
        self.player = player or PlayerSettings(seed=seed)
        self._by_seats: dict[SeatKey, _Sent] = {}
        self._by_cell: dict[tuple[Workload, str, int, int], _Sent] = {}
        self._packed = lru_cache(maxsize=MOST_STATES)(self._pack)
        self._uses = lru_cache(maxsize=MOST_STATES)(self._links_of)
        self._rates = lru_cache(maxsize=MOST_STATES)(self._play)

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """The links that the job's connections pass, by name."""
        standing = self._standing(job, grant, placement)
        return {} if standing is None else self._uses(standing)

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        """Seconds of an iteration of each, at the rates at which they get steady."""
        standings = [self.standing_of(each) for each in together]
        order = sorted(range(len(together)), key=lambda number: repr(standings[number]))
        known = tuple(standing for number in order if (standing := standings[number]) is not None)
        assert len(known) == len(together), "jobs that send nothing share nothing"
        seconds = dict(zip(order, self._rates(known), strict=True))
        return [seconds[number] for number in range(len(together))]

    def uses_in_turns(self, mates: Sequence[Seated]) -> Mapping[str, int]:
        """As `planner.many_jobs.simulation.settings.SharedInTurns`."""
        standing = self.standing_of(replace(mates[0], mates=tuple(mates[1:])))
        return {} if standing is None else self.links_of(standing)

    def links_of(self, standing: Standing) -> Mapping[str, int]:
        """Return the links that the connections of a job, or of those who take turns, pass, by name."""
        return self._uses(standing)

    def standing_of(self, seated: Seated) -> Standing | None:
        """Return what the part of the network of a job, or of those who take turns, depends on; None where they send
        nothing from node to node."""
        own = self._standing(seated.job, seated.grant, seated.placement)
        if own is None:
            return None
        others = (self._standing(mate.job, mate.grant, mate.placement) for mate in seated.mates)
        mates = sorted((own, *(mate for mate in others if mate is not None)), key=repr)
        return (*mates[0][:4], tuple(mates[1:]))

    def work(self, job: Job, grant: Grant, placement: Placement) -> Work | None:
        """What an iteration computes; None of a job that has no model."""
        sent = self._sent(job.workload, grant, placement)
        return None if sent is None else sent.work

    def _standing(self, job: Job, grant: Grant, placement: Placement) -> Standing | None:
        """What the job's part of the network depends on; None where it sends nothing from node to node."""
        if len(grant.parts) != 1 or job.workload.logged_devices is not None:
            return None
        pool = grant.parts[0][0]
        return None if len(placement[pool]) == 1 else (job.workload, pool, placement[pool], grant.stages, ())

    def _sent(self, workload: Workload, grant: Grant, placement: Placement) -> _Sent | None:
        """What the job sends and computes; None of one of which nothing is known but its time."""
        key = self.prices.key(workload, grant, placement)
        if key is not None:
            if key not in self._by_seats:
                self._by_seats[key] = self._of(self.prices.seated(key, placement), key[1])
            return self._by_seats[key]
        pool, devices = grant.parts[0]
        options = self.prices.cells.options(workload, pool, devices)
        option = next((option for option in options if grant.stages in (None, option.stages)), None)
        if workload.logged_devices is not None or option is None:
            return None
        cell = (workload, pool, devices, option.stages)
        if cell not in self._by_cell:
            estimate = self.prices.cells.estimate(*cell)
            assert isinstance(estimate, CellEstimate), f"a Cell that fits: {estimate}"
            self._by_cell[cell] = self._of(estimate.setup, pool)
        return self._by_cell[cell]

    def _of(self, setup: Setup, pool: str) -> _Sent:
        parts, flops = self.prices.parts(setup, pool), float(count_setup_flops(setup).model)
        evaluation = evaluate_priced(parts)
        work = work_of(setup, evaluation, flops)
        return _Sent(traffic=traffic_of(parts, flops), work=work, compute_s=computing_s(evaluation.breakdown))

    def _pack(self, standing: Standing) -> Packed | None:
        """The job, or those who take turns, as the player takes it; None where it sends nothing."""
        playing = self._playing(standing)
        return None if playing is None else pack(playing)

    def _playing(self, standing: Standing) -> Playing | None:
        if not standing[4]:
            return self._playing_alone(standing)
        members = []
        for turn, own in enumerate(each_of(standing)):
            alone, compute_s = self._playing_alone(own, turn), self.compute_s(own)
            if alone is not None:
                members.append(Member(steps=alone.steps, compute_s=compute_s))
        return Playing(steps=steps_in_turns(members)) if members else None

    def _playing_alone(self, standing: Standing, turn: int = 0) -> Playing | None:
        """The job by itself; `turn` is its number among those that take turns on its devices."""
        workload, pool, pieces, *_ = standing
        grant, placement = grant_of(standing)
        key, sent = self.prices.key(workload, grant, placement), self._sent(workload, grant, placement)
        if key is None or sent is None:
            return None
        seats = seats_of(self.prices.seated(key, placement), self.prices.pools[pool], pieces)
        with ways_needed(pieces):
            playing = playing_of(sent.traffic, seats, self.fabric, seed=self.port_seed(standing, turn))
        return between_nodes(playing)

    def port_seed(self, standing: Standing, turn: int = 0) -> int:
        """Return the seed of a job's source ports. Jobs that share a NIC have other queue pairs on it, whoever they
        are, and so have those that take turns on its devices."""
        _, pool, pieces, *_ = standing
        return crc32(repr((self.seed, pool, pieces, turn) if turn else (self.seed, pool, pieces)).encode())

    def compute_s(self, standing: Standing) -> float:
        """Return the seconds of an iteration that a job's devices compute, those of the stage that limits it; 0 of one
        that has no model."""
        sent = self._sent(standing[0], *grant_of(standing))
        return 0.0 if sent is None else sent.compute_s

    def _links_of(self, standing: Standing) -> Mapping[str, int]:
        packed = self._packed(standing)
        return {} if packed is None else {f"link {link}": 1 for link in packed.links.tolist()}

    def _play(self, standings: tuple[Standing, ...]) -> tuple[float, ...]:
        packed = [job for standing in standings if (job := self._packed(standing)) is not None]
        names = [repr(standing[1:3]) for standing in standings]
        played = play(packed, self.fabric.links.bytes_per_s, settings=self.player, names=names)
        return tuple(job.seconds for job in played.jobs)
