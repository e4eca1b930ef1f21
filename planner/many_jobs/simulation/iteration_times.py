"""What says how long iterations take: Cells, plans over sites, or plans on the seats that jobs got."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.many_jobs.jobs.records import Job
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from planner.many_jobs.simulation.settings import Sharing, Truth
from planner.shared.options.simulate import PlacementCost
from profiles.cluster import SiteLink
from profiles.errors import InputError
from profiles.records import dataclass

if TYPE_CHECKING:
    from planner.many_jobs.simulation.network_choice import NetworkSteering
    from planner.many_jobs.simulation.seat_prices import SeatPrices


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationTimes:
    """Fields of `planner.many_jobs.simulation.settings.Settings`; the defaults are the Cells' own times."""

    truth: Truth | None = None
    seat_times: Truth | None = None
    sharing: Sharing | None = None
    site_links: tuple[SiteLink, ...] = ()


def iteration_times(
    placement_cost: PlacementCost,
    cells: EstimatedCells,
    network: str = "none",
    seed: int = 0,
    steering: NetworkSteering | None = None,
) -> IterationTimes:
    """Return who says it on the Cells' cluster; `seed` is that of a network's hashes and jitter, `steering` the policy
    that decides on it.

    Raises:
        InputError: seats are to be priced on several sites, over which plans have prices of their own.
    """
    cluster = cells.cluster
    if placement_cost == "estimate" or network != "none":
        from planner.many_jobs.simulation.seat_prices import SeatPrices, SharedNetwork, seat_truth

        if len(cluster.sites) > 1:
            key, found = ("--network", network) if network != "none" else ("--placement-cost", placement_cost)
            expected = "none: plans over several sites are priced by their planners"
            raise InputError(where="simulate", key=key, found=found, expected=expected)
        seats = SeatPrices(cells)
        truth = seat_truth(seats)
        sharing = SharedNetwork(seats) if network == "none" else _shared_fabric(seats, seed, steering)
        return IterationTimes(truth=truth, seat_times=truth, sharing=sharing)
    if len(cluster.sites) == 1:
        return IterationTimes()
    from planner.many_jobs.simulation.site_prices import SharedLinks, SitePrices, site_truth

    prices = SitePrices(cluster)
    return IterationTimes(
        truth=site_truth(prices, cells), sharing=SharedLinks(prices=prices), site_links=cluster.site_links
    )


def _shared_fabric(seats: SeatPrices, seed: int, steering: NetworkSteering | None) -> Sharing:
    from estimator.network.fabric import fabric_of
    from planner.many_jobs.simulation.network_sharing import SharedFabric

    fabric = fabric_of(seats.cells.cluster)
    if steering is None:
        return SharedFabric(seats, fabric, seed=seed)
    from planner.many_jobs.simulation.network_steering import SteeredFabric

    return SteeredFabric(seats, fabric, steering=steering, seed=seed)


def price_notes(
    placement_cost: PlacementCost,
    jobs: Sequence[Job],
    network: str = "none",
    steering: NetworkSteering | None = None,
) -> tuple[str, ...]:
    """Return what is said of a run in which seats have a price."""
    if placement_cost == "none" and network == "none":
        return ()
    if network == "none":
        told = (
            "an iteration takes what the estimator says of the Cell's plan on the job's own devices; jobs on several"
            " nodes slow each other on NICs and uplinks by what each sends there in the mean, as they come and go: all"
            " modelled"
        )
    else:
        told = (
            "an iteration takes what the estimator says of the Cell's plan on the job's own devices, beside the jobs"
            " whose connections pass links that its own do: shared max-min fairly"
            + ("" if steering is None else " inside a level")
            + ", played until rates are steady; ways"
            + (" by the fabric's own rule" if steering is None else " where no policy chooses by the fabric's own rule")
            + ", source ports by the seed: all modelled"
        )
    notes = [told]
    if steering is not None:
        notes.append(steering.note)
    logged = sum(job.workload.logged_devices is not None for job in jobs)
    if logged:
        notes.append(
            f"{logged} of {len(jobs)} jobs have no model: they take as long as logged wherever they sit, and send"
            " nothing"
        )
    return tuple(notes)
