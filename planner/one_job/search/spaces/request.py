"""From the words of a request to the spaces that are searched: one for each type of device that is free."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property, partial

from estimator.bulk.evaluator import BulkEvaluator
from estimator.frontends.load import load_any_model
from estimator.pricing.layer_times import Lookup, nothing_measured
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Overlap, Recipe, Software, ZeroStage
from estimator.pricing.software import Framework as SoftwareFramework
from estimator.pricing.software import hooked_software
from estimator.profiling.lookup import LOCAL_DEVICE, find_origins, lookup_in_store, usable_link_tables
from estimator.profiling.setting import Framework
from models_zoo.model import Model
from planner.one_job.explicit.request import make_recipe
from planner.one_job.search.spaces.assumptions import freedom_assumed, training_assumed
from planner.one_job.search.spaces.constraints import Constraints, tool_of
from planner.one_job.search.spaces.objectives import amount
from planner.one_job.search.spaces.space import Space
from planner.one_job.search.spaces.stated import read_constraints, refuse
from planner.one_job.tools.base.shape import Job, Shape, job_of_recipe
from planner.one_job.tools.base.tool import TrainingTool
from planner.shared.inputs import place_of, token_count, trained_on
from planner.shared.options.search import Objective, SpaceOptions
from planner.shared.software_defaults import usual_global_batch
from planner.shared.training_software import training_software
from profiles.cluster import Cluster, DeviceSlot, NodeGroup, map_groups, most_on_one_node
from profiles.errors import NothingFits
from profiles.limits import LIMITS
from profiles.records import dataclass, replace
from profiles.store import ProfileStore
from profiles.vocabulary import DType, Infeasible, LinkTable


@dataclass(frozen=True, kw_only=True)
class DeviceSpace:
    """The plans on the devices of one type, and who prices them: under all stages of ZeRO but those of `hooked`, whose
    software has modules of another kind (`split_by_software`)."""

    device: str
    space: Space
    evaluator: BulkEvaluator
    hooked: Mapping[ZeroStage, Software] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Cluster:
        """Return the cluster, with the memory that its devices have in this space."""
        return grown_memory(self.evaluator.cluster, self.device, self.space.more_memory_bytes)

    @property
    def pricing(self) -> Pricing:
        """What the prices of its plans rest on."""
        return self.evaluator.pricing


def grown_memory(cluster: Cluster, device: str, more_bytes: int) -> Cluster:
    """Return the cluster with so much more memory on each of the devices called `device`."""

    def grown(group: NodeGroup) -> NodeGroup:
        if group.device.name != device:
            return group
        return replace(group, device=replace(group.device, memory_bytes=group.device.memory_bytes + more_bytes))

    return map_groups(cluster, grown) if more_bytes else cluster


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """A model, a cluster, what is open. `assumptions` are sentences about what nobody said."""

    reference: str
    model: Model
    cluster: Cluster
    spaces: tuple[DeviceSpace, ...]
    objective: Objective
    limit: int | None
    assumptions: tuple[str, ...]

    def weight(self, part: DeviceSpace, devices: int) -> float:
        """What an iteration's second costs on so many of the devices, in the unit of the objective."""
        if self.objective == "time":
            return 1.0
        value = amount(self.objective, self.cluster, part.space.slots[:devices], 1.0)
        if isinstance(value, Infeasible):
            refuse("--objective", self.objective, f"one that the cluster file tells of: {value.reason}")
        return value


def read_search(
    options: SpaceOptions,
    *,
    store: ProfileStore | None,
    objective: Objective = "time",
    limit: int | None = None,
    model: Model | None = None,
    place: Cluster | None = None,
) -> SearchRequest:
    """Return the search behind `options`, for the least `objective`, over at most `limit` families of plans. Raise
    InputError where they contradict each other, the model or the cluster. `model` and `place` None: what the options
    name, as far as it is free."""
    model = load_any_model(options.model, options.user_code) if model is None else model
    place, assumed = _read_place(options, model, store) if place is None else (place, list(place.notes))
    model, undropped = trained_on(model, place)
    assumed += undropped
    by_type: dict[str, list[DeviceSlot]] = {}
    for slot in place.free_slots:
        by_type.setdefault(slot.device, []).append(slot)
    if not by_type:
        refuse("--cluster", f"{place.text}, of which nothing is free", "a cluster with free devices")
    LIMITS.mixed_types.check(len(by_type), where="plan", key="--cluster")
    constraints = read_constraints(options, assumed)
    assumed += freedom_assumed(len(place.free_slots), options, has_host=set(by_type) != {LOCAL_DEVICE})
    global_batch = _global_batch(model, token_count(model, options.seq_len), by_type, options, assumed)
    training = _read_training(options, model, place, by_type, constraints, global_batch, assumed)
    if options.devices is not None and options.devices > len(place.free_slots):
        refuse("--devices", options.devices, f"at most the {len(place.free_slots)} free devices")
    spaces = tuple(_space_of_type(training, tuple(slots), store, assumed) for slots in by_type.values())
    return SearchRequest(
        reference=options.model,
        model=model,
        cluster=place,
        spaces=spaces,
        objective=objective,
        limit=limit,
        assumptions=tuple(dict.fromkeys(assumed)),
    )


def _read_place(options: SpaceOptions, model: Model, store: ProfileStore | None) -> tuple[Cluster, list[str]]:
    """The cluster, as far as it is said to be free, and what is assumed of it."""
    place = place_of(options.cluster, model, options, store=store)
    assumed = list(place.notes)
    if options.free is not None:
        from planner.one_job.free_devices.reading import cluster_with_free

        place = cluster_with_free(place, options.free, lenient=options.lenient)
        assumed += [note for note in place.notes if note not in assumed]
    return place, assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """What is trained where and how, alike on all types of devices; `options` with what its tool implies."""

    options: SpaceOptions
    model: Model
    place: Cluster
    constraints: Constraints
    global_batch: int
    tool: TrainingTool | None
    framework: SoftwareFramework
    dtype: DType


def _read_training(
    options: SpaceOptions,
    model: Model,
    place: Cluster,
    by_type: Mapping[str, list[DeviceSlot]],
    constraints: Constraints,
    global_batch: int,
    assumed: list[str],
) -> _Training:
    """The training with the software that the options, or their tool, name."""
    tool = tool_of(options.tool)
    if tool is not None and options.software is None:
        options = replace(options, software=tool.software)
        assumed.append(f"training software: {tool.software}, whose habits {tool.name} has (--software)")
    devices = tuple(place.group_of(slots[0]).device for slots in by_type.values())
    framework, dtype = training_software(options, model, devices, assumed)
    if tool is not None:
        options = _without_habit(options, model, framework, dtype, constraints, assumed)
    return _Training(
        options=options,
        model=model,
        place=place,
        constraints=constraints,
        global_batch=global_batch,
        tool=tool,
        framework=framework,
        dtype=dtype,
    )


def _space_of_type(
    training: _Training, slots: tuple[DeviceSlot, ...], store: ProfileStore | None, assumed: list[str]
) -> DeviceSpace:
    """The plans on devices of one type. NothingFits where the tool cannot run the training at all."""
    options, model, place, tool = training.options, training.model, training.place, training.tool
    said: list[str] = []
    recipe = make_recipe(
        model,
        place,
        slots,
        options,
        framework=training.framework,
        dtype=training.dtype,
        global_batch=training.global_batch,
        schedule="1f1b",
        zero=0,
        assumed=said,
    )
    refusal = None if tool is None else tool.job_refusal(job_of_recipe(model, recipe))
    if refusal is not None:
        raise NothingFits(f"{options.model} on {place.text}: {refusal}")
    said += training_assumed(model, recipe, options)
    assumed += [sentence for sentence in said if sentence not in assumed and "schedule," not in sentence]
    stated = None if options.overlap is None else recipe.overlap
    part = make_space(
        model,
        place,
        slots,
        recipe,
        constraints=training.constraints,
        overlap_under=partial(_overlap_of, training.framework.overlap_under, tool)
        if stated is None
        else partial(_always, stated),
        profiles=options.profiles,
        modelled="modelled" in options.allow,
        store=store,
    )
    stages = training.constraints.zero
    part = replace(part, hooked=hooked_software(training.framework, recipe.software, stages, options.feature))
    if part.evaluator.measured_alone:
        assumed.append(
            f"on {slots[0].device} only plans whose layers are all measured in the store (--allow modelled for others)"
        )
    return part


def _without_habit(
    options: SpaceOptions,
    model: Model,
    framework: SoftwareFramework,
    dtype: DType,
    constraints: Constraints,
    assumed: list[str],
) -> SpaceOptions:
    """`options` without fused accumulation of gradients where the tool holds the state in none of the open ways with
    it: a habit gives way to the stage of ZeRO that is asked for, but not a feature that was stated itself."""
    if any(text.startswith("fused_accumulation") for text in options.feature):
        return options
    job = Job(model=model, seq_len=0, dtype=dtype, optimizer=options.optimizer)
    fused = framework.software.fused_accumulation
    habitual, other = (
        constraints.open_zero(Shape(job=replace(job, fused_accumulation=each), dp=2)) for each in (fused, False)
    )
    if habitual or not other:
        return options
    stages = " and ".join(map(str, other))
    assumed.append(f"gradients are accumulated by passes of their own: so {constraints.tool} runs ZeRO {stages}")
    return replace(options, feature=(*options.feature, "fused_accumulation=false"))


def request_on(
    model: Model,
    cluster: Cluster,
    recipe: Recipe,
    *,
    constraints: Constraints,
    slots: Sequence[DeviceSlot] | None = None,
    reference: str | None = None,
    profiles: Framework | None = None,
    modelled: bool = False,
    store: ProfileStore | None = None,
    pricing: Pricing | None = None,
) -> SearchRequest:
    """A search for the least time on `slots` (None: on all that is free), a space for each type of device; overlaps are
    those of `recipe`. The rest as in `make_space`."""
    usable = cluster.free_slots if slots is None else slots
    spaces = tuple(
        make_space(
            model,
            cluster,
            tuple(slot for slot in usable if slot.device == device),
            recipe,
            constraints=constraints,
            overlap_under=partial(_always, recipe.overlap),
            profiles=profiles,
            modelled=modelled,
            store=store,
            pricing=pricing,
        )
        for device in dict.fromkeys(slot.device for slot in usable)
    )
    return SearchRequest(
        reference=reference or model.name,
        model=model,
        cluster=cluster,
        spaces=spaces,
        objective="time",
        limit=None,
        assumptions=(),
    )


def make_space(
    model: Model,
    place: Cluster,
    slots: tuple[DeviceSlot, ...],
    recipe: Recipe,
    *,
    constraints: Constraints,
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]],
    profiles: Framework | None,
    modelled: bool,
    store: ProfileStore | None,
    pricing: Pricing | None = None,
) -> DeviceSpace:
    """The plans of a training under `recipe` on `slots`, all of one type; `modelled`: also those of layers that the
    store has not measured, where it has measured some. `pricing` has priced other plans before, where nothing is
    measured."""
    device, group = slots[0].device, place.group_of(slots[0])
    lookup, tables = measured_on(model, slots, recipe, profiles, store)
    measured = lookup is not nothing_measured and not modelled
    # A CPU has no host memory beside its own; and of what was measured, with sequence parallelism or without, the
    # measurements decide.
    open_there = replace(constraints, offload=constraints.offload and device != LOCAL_DEVICE)
    if measured and constraints.shares_tokens is None:
        open_there = replace(open_there, sequence_parallel=(True, False))
    return DeviceSpace(
        device=device,
        space=Space(
            model=model,
            slots=slots,
            island=min(group.island_size, group.devices) if group.island_size else group.devices,
            node=group.devices,
            global_batch=recipe.global_batch,
            seq_len=recipe.seq_len,
            dtype=recipe.dtype,
            constraints=open_there,
            job=job_of_recipe(model, recipe),
        ),
        evaluator=BulkEvaluator(
            model=model,
            cluster=place,
            recipe=recipe,
            pricing=Pricing(lookup=lookup, link_tables=tables) if pricing is None or store is not None else pricing,
            overlap_under=overlap_under,
            measured_alone=measured,
        ),
    )


def _overlap_of(
    overlap_under: Callable[[ZeroStage], frozenset[Overlap]], tool: TrainingTool | None, zero: ZeroStage
) -> frozenset[Overlap]:
    """What runs beside compute under `zero`, as far as the tool does."""
    overlap = overlap_under(zero)
    return overlap - {"dp"} if tool is not None and not zero and not tool.overlaps_unsharded else overlap


def _always(overlap: frozenset[Overlap], _: ZeroStage) -> frozenset[Overlap]:
    """What runs beside compute where it does not depend on ZeRO."""
    return overlap


def measured_on(
    model: Model, slots: Sequence[DeviceSlot], recipe: Recipe, profiles: Framework | None, store: ProfileStore | None
) -> tuple[Lookup, tuple[LinkTable, ...]]:
    """What the store has measured of the model's layers and of links, on the type of `slots`."""
    if store is None:
        return nothing_measured, ()
    device = slots[0].device
    tables = tuple(usable_link_tables(store, device, profiles))
    origins = find_origins(
        store,
        model.layers,
        device=device,
        optimizer=recipe.optimizer,
        dtype=recipe.dtype,
        seq_len=recipe.seq_len,
        framework=profiles,
    )
    if not origins:
        return nothing_measured, tables
    workers = most_on_one_node(slots)
    return (
        lookup_in_store(store, device=device, optimizer=recipe.optimizer, origin=origins[0], workers=workers),
        tables,
    )


def _global_batch(
    model: Model, tokens: int, by_type: Mapping[str, list[DeviceSlot]], options: SpaceOptions, assumed: list[str]
) -> int:
    if options.global_batch is not None:
        return options.global_batch
    devices = options.devices or max(map(len, by_type.values()))
    batch, sentence = usual_global_batch(model, tokens, devices, fine_tunes=options.fine_tunes)
    assumed.append(sentence)
    return batch
