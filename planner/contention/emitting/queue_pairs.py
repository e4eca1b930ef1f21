"""What more queue pairs for each connection would do for stock NCCL, whose ports hashes choose: played, not promised.

NCCL_IB_QPS_PER_CONNECTION opens so many queue pairs for a connection, each with a port of its own, and
NCCL_IB_SPLIT_DATA_ON_QPS cuts every message up among them in place of taking turns. More of them spread a connection
over more ways, evenly only by chance: each pair of settings is played under several draws of the switches' hashes and
of where NICs begin to number queue pairs, out of which ports follow: under another seed of a linear hash alone those
who met meet again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from estimator.network.connections import Model, connection_seed, steps_of, transfer_of
from estimator.network.fabric import Fabric, Nccl
from estimator.network.player.packing import pack
from estimator.network.player.play import Settings, play
from estimator.network.steps import Playing, Transfer
from estimator.network.traffic import Exchange
from planner.contention.emitting.planned import PlannedJob, SeatedJob
from profiles.records import dataclass, replace

COUNTS = (1, 2, 4, 8)
"""Queue pairs for a connection that are tried. Beyond 8, NICs' memory of them begins to cost what ways gain."""
PAIRS = tuple((count, split) for count in COUNTS for split in ((False, True) if count > 1 else (False,)))
SEEDS = 5
MOST_EVENTS = 30_000
"""Of jobs that links join; a rate that is not steady by then is taken as it is, as policies' rehearsals do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPair:
    """One pair of settings: `work_share` is the work done a second, of what all jobs do who meet nobody, in the mean of
    the draws; `range` from the least to the most of them."""

    queue_pairs: int
    split_data: bool
    work_share: float
    range: tuple[float, float]

    @property
    def variables(self) -> tuple[tuple[str, str], ...]:
        """As NCCL reads them."""
        return (
            ("NCCL_IB_QPS_PER_CONNECTION", str(self.queue_pairs)),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", str(int(self.split_data))),
        )


def price_queue_pairs(
    jobs: Sequence[SeatedJob],
    planned: Sequence[PlannedJob],
    fabric: Fabric,
    *,
    model: Model = "collective",
    seeds: int = SEEDS,
) -> tuple[PricedPair, ...]:
    """Return every pair of settings for all jobs together, at the planned levels and with ports as stock NCCL has them,
    the best first; of equal ones that of fewer queue pairs, messages whole. Where all flows of a collective wait for
    each other (`model`), it makes no difference whether messages are cut up: such pairs are played once.

    Raise NoWayError for nodes that no way joins.
    """
    priced: list[PricedPair] = []
    for count, split in PAIRS:
        if split and model == "collective":
            priced.append(replace(priced[-1], split_data=True))
            continue
        nccl = Nccl(queue_pairs=count, split_data=split)
        shares = [work_share(jobs, planned, fabric, nccl, draw, model=model) for draw in range(seeds)]
        spread = (min(shares), max(shares))
        mean = float(np.mean(shares))
        priced.append(PricedPair(queue_pairs=count, split_data=split, work_share=mean, range=spread))
    return tuple(sorted(priced, key=lambda each: (-round(each.work_share, 6), each.queue_pairs, each.split_data)))


def work_share(
    jobs: Sequence[SeatedJob],
    planned: Sequence[PlannedJob],
    fabric: Fabric,
    nccl: Nccl,
    draw: int,
    *,
    model: Model = "collective",
) -> float:
    """Return the work done a second, of what it is without others (Crux, eq. 1; where nobody says a job's work, its
    compute on its devices), with such queue pairs, under a draw of hashes and ports. Draw 0 is the fabric's own."""
    by_id = {job.id: job for job in planned}
    here = replace(fabric, routing=replace(fabric.routing, seed=fabric.routing.seed + draw), nccl=nccl)
    packed = [pack(_playing(job, by_id.get(job.id), here, draw, model)) for job in jobs]
    settings = Settings(jitter=0.0, most_events=MOST_EVENTS)
    played = play(packed, here.links.bytes_per_s, settings=settings, names=[job.id for job in jobs])
    work = [job.flops for job in jobs if job.flops is not None]
    if len(work) < len(jobs):
        work = [own.compute_s * len(job.seats) for job, own in zip(jobs, packed, strict=True)]
    done = sum(each / result.seconds for each, result in zip(work, played.jobs, strict=True))
    alone = sum(each / own.lasts_s for each, own in zip(work, packed, strict=True))
    return float(done / alone)


def _playing(job: SeatedJob, planned: PlannedJob | None, fabric: Fabric, draw: int, model: Model) -> Playing:
    own: Mapping[str, int] = dict(planned.axis_levels) if planned else {}
    last = planned.last_level if planned else None
    seed = job.port_seed + (draw << 32)  # Far from any job's own.

    def transfer(exchange: Exchange, connections: int) -> Transfer:
        made = transfer_of(exchange, job.seats, fabric, model=model, seed=connection_seed(seed, connections))
        return replace(made, level=own.get(exchange.axis))

    return Playing(steps=steps_of(job.traffic, transfer), level=last or 0, weight=job.weight)
