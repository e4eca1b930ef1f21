"""What a job is placed on: the machines by kind, and the job itself, from the options of `place`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from estimator.frontends.load import load_any_model
from estimator.pricing.pricing import Pricing
from models_zoo.layers import TracedLayer
from planner.many_jobs.placement.existing import load_plan_place
from planner.many_jobs.placement.machines.job import JobOnMachines, job_of_plan, job_on
from planner.many_jobs.placement.machines.occupied import Machine, Occupied, read_occupied
from planner.many_jobs.placement.machines.placing import Kind, by_kind
from planner.one_job.explicit.evaluation import pricing_with_store
from planner.one_job.explicit.reading import setup_of_plan
from planner.one_job.explicit.whole import prices_of
from planner.one_job.planning.whole_training import with_prices
from planner.one_job.search.spaces.request import read_search
from planner.one_job.site_pods.free_nodes import level_of_pods
from planner.shared.inputs import place_of
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.place import PlaceOptions
from planner.shared.plan_file import load_plan
from profiles.cluster import Cluster
from profiles.records import dataclass, replace
from profiles.store import ProfileStore

OTHERS = (
    "local", "all_sites", "alpha", "affinity", "distance", "affinity_else", "max_spread", "comm", "links", "spares",
    "measure_affinity", "method",
)  # fmt: skip
"""Options that are asked of sites and pods: with one of them these place the job."""


@dataclass(frozen=True, kw_only=True)
class MachinesGround:
    """What a job is placed on: the machines by kind, as they are now. `text` is what the user called the job."""

    state: Occupied
    job: JobOnMachines
    kinds: Mapping[Kind, tuple[Machine, ...]]
    text: str


def read_machines(options: PlaceOptions, store: ProfileStore | None) -> MachinesGround | None:
    """Return the machines that the job of `options` is placed on GPU by GPU; None where it is placed by sites and pods:
    nobody said what is held, the cluster has several sites or too few devices of any type, the options ask something
    of sites and pods, or the job fits on whole machines and moves are not asked for.

    Raise InputError for wrong input.
    """
    if (options.free is None and options.running is None) or set(options.changed()) & set(OTHERS):
        return None
    return _of_model(options, store) if options.plan is None else _of_plan(options, options.plan, store)


def _of_model(options: PlaceOptions, store: ProfileStore | None) -> MachinesGround | None:
    model = load_any_model(options.model, options.user_code)
    if any(isinstance(layer, TracedLayer) for layer in model.layers):
        return None
    assert options.devices is not None, "without a plan the options have it"
    base = place_of(options.cluster, model, options, store=store)
    read = _read_kinds(base, options, options.devices, options.types, whole_is_of_pods=True)
    if read is None:
        return None
    state, kinds = read
    # Rooms for one type at a time, none of them cut by what is free: ways choose that.
    request = read_search(replace(options, schedule=("1f1b",)), store=store, model=model, place=state.cluster)
    request = with_prices(request, prices_of(options))
    request = replace(request, assumptions=(*off_defaults_sentence(options), *request.assumptions, *state.notes))
    return MachinesGround(state=state, job=job_on(request, options.devices), kinds=kinds, text=options.model)


def _of_plan(options: PlaceOptions, path: Path, store: ProfileStore | None) -> MachinesGround | None:
    """A plan of one device type; of whole machines, where these are free, it is for pods to place."""
    plan = load_plan(path)
    types = tuple(dict.fromkeys(device.device for device in plan.devices))
    if len(types) > 1:
        return None
    model, base = load_plan_place(plan, options, store, str(path))
    has_pods = any(level_of_pods(site.network) is not None for site in base.sites)
    read = _read_kinds(base, options, len(plan.devices), types, whole_is_of_pods=has_pods)
    if read is None:
        return None
    state, kinds = read
    machines = next(iter(kinds.values()))
    slots = [slot for machine in machines for slot in machine.idle().slots(machine.size)]
    setup = setup_of_plan(plan, model, state.cluster, tuple(slots[: len(plan.devices)]), where=str(path))
    pricing = pricing_with_store(setup, store=store) or Pricing()
    said = (*plan.assumptions, *state.notes)
    job = job_of_plan(setup, pricing, reference=plan.model.reference, assumptions=tuple(dict.fromkeys(said)))
    return MachinesGround(state=state, job=job, kinds=kinds, text=str(path))


def _read_kinds(
    base: Cluster, options: PlaceOptions, devices: int, types: Sequence[str], *, whole_is_of_pods: bool
) -> tuple[Occupied, Mapping[Kind, tuple[Machine, ...]]] | None:
    """The machines, and by kind those that are many enough; None where sites and pods place the job."""
    if len(base.sites) > 1 or (options.free is None and not _has_names(base)):
        return None
    state = read_occupied(base, options)
    kinds = {
        kind: machines
        for kind, machines in by_kind(state.machines, types).items()
        if len(machines) * machines[0].size >= devices
    }
    if not kinds:
        return None
    if whole_is_of_pods:
        if options.move is None and any(_fits_whole(ones, devices) for ones in kinds.values()):
            return None
        if options.reserve and all(devices % machines[0].size == 0 for machines in kinds.values()):
            return None  # Whole nodes: as sites and pods have them.
    return state, kinds


def _has_names(cluster: Cluster) -> bool:
    return all(site.network.hosts for site in cluster.sites)


def _fits_whole(machines: Sequence[Machine], devices: int) -> bool:
    """Whether idle machines hold the job and none is cut: what is free is then told by whole machines alone."""
    idle = sum(machine.is_idle for machine in machines)
    return not devices % machines[0].size and devices <= idle * machines[0].size
