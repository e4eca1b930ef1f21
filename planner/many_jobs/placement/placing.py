"""`place`: over which sites a job runs, on which devices, under which plan, and what else could be done.

Sites are chosen by `planner.many_jobs.sites.choosing`, devices given by the buddy allocator, the plan is made on these
devices by `planner.many_jobs.sites.tpa`. The plan's figures are the estimator's; the links are the cluster file's, or
measured ones.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

from estimator.frontends.load import load_any_model
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from models_zoo.layers import TracedLayer
from planner.many_jobs.placement.candidates import equal_choices
from planner.many_jobs.placement.free_now import cluster_now, occupancy_of
from planner.many_jobs.placement.ground import Ground, devices_of, plan_on, sites_of
from planner.many_jobs.placement.later import PlacedPlan
from planner.many_jobs.placement.pods import granted_in, plan_in_pods, seated_in, wishes_of
from planner.many_jobs.placement.shortage import explain_no_plan
from planner.many_jobs.sites.choosing import DEFAULT, place_on_sites
from planner.many_jobs.sites.current_links import Route, routes_between, with_topology
from planner.many_jobs.sites.exact import MOST_SITES
from planner.many_jobs.sites.link_measurements import LinkNow, links_now, load_measurements, save_measurements
from planner.many_jobs.sites.monitor import LinkMeasurement
from planner.many_jobs.sites.records import Demand, NoSites, Share, SitePlacement
from planner.many_jobs.sites.state import table_of_cluster
from planner.many_jobs.sites.topology import Topology
from planner.many_jobs.sites.tpa import Across
from planner.one_job.explicit.whole import prices_of
from planner.one_job.planning.whole_training import with_prices
from planner.one_job.search.mixed.space import pricing_of
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.search.varied import with_cluster
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.placing import PlanInPods
from planner.shared.inputs import open_existing, place_of
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.place import PlaceOptions
from planner.shared.plan import Plan
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass
from profiles.store import ProfileStore

NO_LINK_BYTES_PER_S = 1e18
"""A link that takes no time: what the iteration would be without the sites' distance is asked with it."""


@dataclass(frozen=True, kw_only=True)
class PlacedJob:
    """A job's sites and devices with its plan. `tried`: seconds of an iteration on other choices that were as good
    (None: no plan fits). `between_s` is what of an iteration would go if links between sites took
    no time. `routes` are ways over other sites between those chosen. `in_pods` is how the plan sits in the pods of its
    sites, where these have any, `price` what prices plans there."""

    ground: Ground
    placement: SitePlacement
    slots: tuple[DeviceSlot, ...]
    across: Across
    tried: Mapping[tuple[Share, ...], float | None]
    between_s: float
    routes: tuple[Route, ...]
    timing: Mapping[str, float]
    price: Evaluate
    in_pods: PlanInPods | None = None

    @cached_property
    def plan(self) -> Plan:
        """As the plan file has it, what was assumed of sites and links among its assumptions."""
        plan = self.across.plan
        return replace(plan, assumptions=(*plan.assumptions, *self._assumed()))

    @property
    def placed_plan(self) -> PlacedPlan:
        """The plan where it was placed, as what comes later is told of it."""
        best = self.across.best
        return PlacedPlan(
            setup=best.setup,
            evaluation=best.evaluation,
            in_pods=self.in_pods,
            evaluate=self.price,
            occupancy=self.ground.occupancy,
        )

    @property
    def sites_used(self) -> tuple[str, ...]:
        """Those on which the plan puts ranks."""
        return tuple(dict.fromkeys(device.site for device in self.plan.devices))

    @property
    def idle(self) -> tuple[DeviceSlot, ...]:
        """Devices that were granted and that the plan leaves idle."""
        used = {(device.site, device.node, device.index) for device in self.plan.devices}
        return tuple(slot for slot in self.slots if (slot.site, slot.node, slot.index) not in used)

    def _assumed(self) -> list[str]:
        assumed = [
            f"{route.sites[0]} and {route.sites[-1]} have no link of their own: joined over"
            f" {', '.join(route.sites[1:-1])} at {route.bandwidth_bytes_per_s / 1e9:.3g} GB/s"
            for route in self.routes
        ]
        for link in self.ground.links:
            if link.basis != "file" and set(link.between) <= set(sites_of(self.slots)):
                what = (
                    f"measured: {link.bandwidth_bytes_per_s / 1e9:.3g} GB/s" if link.bandwidth_bytes_per_s else "down"
                )
                assumed.append(f"the link of {' and '.join(link.between)} is {what}")
        return assumed


def place_model(options: PlaceOptions) -> PlacedJob:
    """Return the sites, the devices and the plan of a job.

    Raise InputError for wrong input, NothingFits where the sites cannot give the devices or no plan fits on them; it
    says the smallest change that would help.
    """
    started = time.perf_counter()
    with open_existing(options.store) as opened:
        ground = read_ground(options, store=opened)
    wishes_of(options)  # What is wrong with them is told before the work.
    read_s = time.perf_counter() - started
    placement, slots = choose_devices(ground, options.sites_method)
    equal = equal_choices(ground, placement) if options.sites_method == DEFAULT else (placement,)
    chosen_s = time.perf_counter() - started
    placement, slots, across, tried = _fastest(ground, equal, options, slots)
    planned_s = time.perf_counter() - started
    price = partial(evaluate, pricing=pricing_of(ground.request.spaces))
    in_pods = plan_in_pods(across.best.setup, price, options)
    if in_pods is not None:
        across, slots = seated_in(across, in_pods), granted_in(in_pods, slots)
    return PlacedJob(
        ground=ground,
        placement=placement,
        slots=slots,
        across=across,
        tried=tried,
        between_s=between_sites_s(ground.request, across),
        routes=routes_between(ground.cluster, sites_of(slots)),
        timing={
            "read_s": read_s,
            "choose_s": chosen_s - read_s,
            "plan_s": planned_s - chosen_s,
            "pods_s": time.perf_counter() - started - planned_s,
        },
        in_pods=in_pods,
        price=price,
    )


def _fastest(
    ground: Ground, equal: Sequence[SitePlacement], options: PlaceOptions, slots: tuple[DeviceSlot, ...]
) -> tuple[SitePlacement, tuple[DeviceSlot, ...], Across, dict[tuple[Share, ...], float | None]]:
    """The choice with the fastest plan, of equal ones the first by name, and what an iteration takes on each of them;
    NothingFits where no plan fits on any."""
    planned = []
    tried: dict[tuple[Share, ...], float | None] = {}
    for choice in equal:
        granted = devices_of(ground, choice.sites)
        across = plan_on(ground, granted, all_sites=options.all_sites)
        tried[choice.sites] = None if across is None else across.best.time_s
        if across is not None:
            planned.append((choice, granted, across))
    if not planned:
        raise NothingFits(explain_no_plan(ground, slots, options))
    best = min(planned, key=lambda candidate: (candidate[2].best.time_s, [share.site for share in candidate[0].sites]))
    return *best, tried


def read_ground(options: PlaceOptions, *, store: ProfileStore | None) -> Ground:
    """Return what the job is placed on. Raise NothingFits where the free devices are too few or too far apart."""
    loaded = load_any_model(options.model, options.user_code)
    if any(isinstance(layer, TracedLayer) for layer in loaded.layers):
        raise InputError(
            where="place", key="MODEL", found="a traced module", expected="a model of the zoo, or a config.json"
        )
    base = place_of(options.cluster, loaded, options, store=store)
    occupancy = occupancy_of(base, options)
    assert options.devices is not None, "without a plan the options have it"
    place = cluster_now(base, options, occupancy, options.devices)
    table, filed = table_of_cluster(place), table_of_cluster(place).topology
    topology, links = _links(filed, options)
    demand = Demand(
        devices=options.devices,
        types=_known_types(options.types, place),
        local=options.local,
        one_type=options.one_type,
    )
    table = table.with_topology(topology)
    placed = place_on_sites(table, demand)
    if isinstance(placed, NoSites):
        raise NothingFits(f"{place.text}: {placed.infeasible.reason}", result=placed)
    request = read_search(replace(options, schedule=("1f1b",)), store=store, model=loaded, place=place)
    request = with_prices(request, prices_of(options))
    request = replace(request, assumptions=(*off_defaults_sentence(options), *request.assumptions))
    if topology is not filed:
        request = with_cluster(request, with_topology(request.cluster, topology))
    return Ground(request=request, demand=demand, table=table, filed=filed, links=links, occupancy=occupancy)


def choose_devices(ground: Ground, method: str) -> tuple[SitePlacement, tuple[DeviceSlot, ...]]:
    """The sites by a method, and the devices that they give. NothingFits where the method finds none."""
    if method == "exact" and sum(count > 0 for count in ground.table.total) > MOST_SITES:
        asked = f"exact, of {sum(count > 0 for count in ground.table.total)} sites with free devices"
        raise InputError(where="place", key="--method", found=asked, expected=f"at most {MOST_SITES} such sites")
    placement = place_on_sites(ground.table, ground.demand, method=method)
    if isinstance(placement, NoSites):
        raise NothingFits(f"{ground.cluster.text}: {placement.infeasible.reason}", result=placement)
    return placement, devices_of(ground, placement.sites)


def between_sites_s(request: SearchRequest, across: Across) -> float:
    """Seconds by which an iteration is longer than if links between sites had no limit and no latency."""
    setup = across.best.setup
    if len({slot.site for stage in setup.stages for slot in stage.slots}) == 1:
        return 0.0
    links = tuple(
        replace(link, bandwidth_bytes_per_s=NO_LINK_BYTES_PER_S, latency_s=0.0) for link in setup.cluster.site_links
    )
    near = evaluate(replace(setup, cluster=replace(setup.cluster, site_links=links)), pricing_of(request.spaces))
    if not isinstance(near, Evaluation):
        raise RuntimeError(f"a plan that can be had cannot with faster links: {near.reason}")
    return max(0.0, across.best.time_s - near.iteration_time_s)


def _links(filed: Topology, options: PlaceOptions) -> tuple[Topology, tuple[LinkNow, ...]]:
    """The links as measured; with `links` and new measurements, the state is written."""
    now_s = time.time() if options.now is None else options.now
    measured: list[LinkMeasurement] = []
    if options.links is not None and (options.links.exists() or not options.comm):
        measured += load_measurements(options.links, filed.names)
    for path in options.comm:
        measured += load_measurements(path, filed.names)
    measured = list(dict.fromkeys(measured))
    topology, links = links_now(filed, measured, now_s=now_s, half_life_s=options.half_life)
    if options.links is not None and options.comm:
        save_measurements(options.links, measured, now_s=now_s, half_life_s=options.half_life)
    return topology, links


def _known_types(types: Sequence[str], cluster: Cluster) -> tuple[str, ...]:
    for name in types:
        if name not in cluster.device_types:
            expected = f"some of {', '.join(cluster.device_types)}"
            raise InputError(where="place", key="--types", found=name, expected=expected)
    return tuple(types)
