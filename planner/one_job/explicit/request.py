"""From the options of an explicit plan to its setup; what is not said is derived, and said as an assumption."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NoReturn, get_args

from estimator.frontends.load import load_any_model
from estimator.pricing.build import PipelineDegrees, refuse_degrees, uniform_setup
from estimator.pricing.recipe import Recipe, ScheduleName, Setup, StageSetup, ZeroStage
from estimator.pricing.software import (
    Framework,
    features_beyond_generic,
    overruled,
)
from models_zoo.layers import Experts, TransformerBlock
from models_zoo.model import Model
from planner.one_job.explicit.batch import Batch, choose_batch, refuse
from planner.one_job.explicit.sharding import open_stages, sharding, zero_stage
from planner.shared.inputs import place_of, token_count, trained_on
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.training import CellOptions, TrainingOptions
from planner.shared.software_defaults import choices_in_turn, recompute_ladder
from planner.shared.training_software import training_software
from profiles.cluster import Cluster, DeviceSlot
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import AttentionKernel, DType, Infeasible, RecomputeKind

DEGREE_NAMES = ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplicitRequest:
    """An explicit plan that was asked for. `setups` are tried in turn until one fits: more than one where recomputation
    (and with it the micro-batch) is left open. `assumptions` are sentences about what nobody said; `often` are features
    that nobody stated and that users of the software often have otherwise, `larger` samples of a rank's micro-batch,
    likewise. `derived` are those of the assumptions that hold whatever is chosen: what follows from the degrees."""

    reference: str
    setups: tuple[Setup, ...]
    assumptions: tuple[str, ...]
    often: tuple[str, ...] = ()
    larger: tuple[int, ...] = ()
    derived: tuple[str, ...] = ()


def read_explicit(
    options: EstimateOptions, *, store: ProfileStore | None, model: Model | None = None, as_planned: bool = False
) -> ExplicitRequest:
    """Return the setups behind `options`. Raise InputError where they contradict each other, the model or the cluster.
    `model` None: what the options name; else a file of settings has it, and all that the software's recipes would.
    `as_planned`: batch and sequence parallelism that nobody states are as `plan` has them, not as the software does."""
    reference, cluster = options.model, options.cluster
    if reference is None or cluster is None:
        lacking = "MODEL" if reference is None else "--cluster"
        expected = "a model and a cluster, or --plan"
        raise InputError(where="estimate", key=lacking, found="nothing", expected=expected)
    _refuse_cell_options(options)
    habits = model is None
    model = load_any_model(reference, options.user_code) if model is None else model
    tokens = token_count(model, options.seq_len)
    place = place_of(cluster, model, options, store=store)
    model, undropped = trained_on(model, place)
    assumed = [*place.notes, *undropped]
    grid = _grid(model, place, options, assumed)
    slots = place.free_slots[: grid.devices]
    devices = tuple({slot.device: place.group_of(slot).device for slot in slots}.values())
    framework, dtype = training_software(options, model, devices, assumed, habits=habits)
    grid = replace(
        grid, sequence_parallel=_shares_tokens(model, tokens, grid, options, None if as_planned else framework, assumed)
    )
    batch = choose_batch(model, tokens, grid, options, framework, as_planned=as_planned)
    assumed += batch.assumptions
    derived = tuple(assumed)
    schedule = _schedule(options, grid, assumed)
    assumed += batch.chosen
    recipe = make_recipe(
        model,
        place,
        slots,
        options,
        framework=framework,
        dtype=dtype,
        global_batch=batch.global_batch,
        schedule=schedule,
        zero=zero_stage(options, grid, framework),
        assumed=assumed,
    )
    setups = _setups(model, place, recipe, grid, batch, slots, options, framework, assumed)
    stated = {text.partition("=")[0].strip().replace("-", "_") for text in options.feature}
    often = tuple(text for text in framework.often if text.partition("=")[0] not in stated)
    return ExplicitRequest(
        reference=reference,
        setups=setups,
        assumptions=tuple(dict.fromkeys([*assumed, *model.notes])),
        often=often,
        larger=batch.larger,
        derived=derived,
    )


def make_recipe(
    model: Model,
    place: Cluster,
    slots: tuple[DeviceSlot, ...],
    options: TrainingOptions,
    *,
    framework: Framework,
    dtype: DType,
    global_batch: int,
    schedule: ScheduleName,
    zero: ZeroStage,
    assumed: list[str],
) -> Recipe:
    """Return what `options` fix of the training whatever the plan; what they leave open goes to `assumed`."""
    recipe = Recipe(
        global_batch=global_batch,
        seq_len=token_count(model, options.seq_len),
        dtype=dtype,
        grad_dtype=options.grad_dtype or dict(framework.grad_dtype)[dtype],
        optimizer=options.optimizer,
        schedule=schedule,
        attention=_attention(options, place, slots, assumed),
        vocabulary_multiple=options.vocab_pad or framework.vocabulary_multiple,
        lora_rank=_lora_rank(options, model),
        frozen_layers=_frozen(options, model),
        moe_capacity_factor=_capacity(options, model),
        moe_imbalance=options.moe_imbalance,
        overlap=framework.overlap_under(zero) if options.overlap is None else frozenset(options.overlap),
        software=overruled(framework.software_under(zero), options.features),
    )
    assumed += _defaults(options, recipe)
    return recipe


def canonical(setup: Setup) -> Setup:
    """Return `setup` with one way to say each thing: None for layers recomputed or ranks sharded over that are all
    there are.

    A plan file keeps the numbers; what it gives back is this.
    """
    return replace(setup, stages=tuple(_canonical_stage(stage) for stage in setup.stages))


def _canonical_stage(stage: StageSetup) -> StageSetup:
    layers = stage.recompute_layers
    kind: RecomputeKind = "none" if layers == 0 else stage.recompute
    whole = kind == "none" or layers is None or layers >= stage.layers
    return replace(
        stage,
        recompute=kind,
        recompute_layers=None if whole else layers,
        shard=None if not stage.zero or stage.shard == stage.dp * stage.cp else stage.shard,
    )


def _refuse_cell_options(options: EstimateOptions) -> None:
    """What only Cells have is not silently ignored."""
    for name in options.part(CellOptions).changed():
        refuse(f"--{name}", getattr(options, name), "none: an explicit plan has --pp stages and nothing left to choose")


def _shares_tokens(
    model: Model,
    tokens: int,
    grid: PipelineDegrees,
    options: EstimateOptions,
    framework: Framework | None,
    assumed: list[str],
) -> bool:
    """Whether tensor-parallel ranks share the tokens: as said, else wherever that can be, under a `framework` as that
    does."""
    if options.sequence_parallel is not None:
        return options.sequence_parallel
    wanted = grid.tp > 1 and (framework is None or framework.sequence_parallel)
    shares = wanted and refuse_degrees(model, replace(grid, sequence_parallel=True), seq_len=tokens) is None
    if grid.tp > 1:
        word = "on" if shares else "off"
        why = f"as {framework.name} has it" if framework else "as it is wherever it can be"
        assumed.append(f"sequence parallelism {word}, {why} (--sequence-parallel)")
    return shares


def _grid(model: Model, place: Cluster, options: EstimateOptions, assumed: list[str]) -> PipelineDegrees:
    """All degrees: those said, 1, and for dp what the devices leave."""
    said = _said_degrees(model, options, assumed)
    free = len(place.free_slots)
    wanted = options.devices or free
    if not 1 <= wanted <= free:
        refuse("--devices", wanted, f"from 1 to the {free} free devices of {place.text}")
    beside = said["tp"] * said["pp"] * said["cp"]
    dp = options.dp
    if dp is None:
        if wanted % beside:
            refuse("--tp, --pp, --cp", f"tp * pp * cp = {beside} on {wanted} devices", "a divisor of the devices")
        dp = wanted // beside
        assumed.append(f"dp {dp}: {wanted} devices over tp * pp * cp = {beside} (--dp)")
    grid = PipelineDegrees(dp=dp, **said)
    if grid.devices != wanted:
        degrees_said = f"tp * pp * dp * cp = {said['tp']} * {said['pp']} * {dp} * {said['cp']} = {grid.devices}"
        fewer = f"the {wanted} free devices, or --devices {grid.devices}" if grid.devices < free else f"at most {free}"
        refuse("--tp, --pp, --dp, --cp", degrees_said, f"the {wanted} devices" if options.devices else fewer)
    return grid


def _said_degrees(model: Model, options: EstimateOptions, assumed: list[str]) -> dict[str, Any]:
    """All degrees but dp: those said, or 1, and for experts the usual one."""
    said = {name: getattr(options, name) or 1 for name in DEGREE_NAMES if name != "dp"}
    if not _has_experts(model):
        for name in ("ep", "etp"):
            if said[name] > 1:
                refuse(f"--{name}", said[name], f"none: {model.name} has no experts")
    elif options.etp is None and said["tp"] > 1:
        # Megatron Core's default; with ep given, experts are usually whole.
        said["etp"] = said["tp"] if options.ep is None else 1
        how = f"shared by the tp ranks: etp {said['etp']}" if said["etp"] > 1 else "whole on a rank: etp 1"
        assumed.append(f"each expert's matrices {how} (--etp)")
    return said


def _has_experts(model: Model) -> bool:
    blocks = (layer for layer in model.layers if isinstance(layer, TransformerBlock))
    return any(isinstance(block.feed_forward, Experts) for block in blocks)


def _schedule(options: EstimateOptions, grid: PipelineDegrees, assumed: list[str]) -> ScheduleName:
    schedule = options.schedule or ("interleaved" if grid.vpp > 1 else "1f1b")
    if grid.vpp > 1 and options.schedule is None:
        assumed.append(f"interleaved schedule: 1f1b with {grid.vpp} chunks of layers a stage (--schedule)")
    if grid.vpp > 1 and schedule == "1f1b":
        refuse("--vpp, --schedule", f"{grid.vpp} chunks a stage under 1f1b", "interleaved, or no --vpp")
    if schedule == "interleaved" and grid.vpp == 1:
        refuse("--vpp", "1" if options.vpp else "nothing", "at least 2 chunks a stage for the interleaved schedule")
    if grid.vpp > 1 and grid.pp == 1:
        refuse("--vpp", f"{grid.vpp} with pp = 1", "more than one stage to interleave")
    return schedule


def _attention(
    options: TrainingOptions, place: Cluster, slots: tuple[DeviceSlot, ...], assumed: list[str]
) -> AttentionKernel:
    said = options.attention
    if said is not None:
        return said
    has_flash = all(group.flash_attention for group in {place.group_of(slot).device for slot in slots})
    assumed.append(f"{'flash' if has_flash else 'math'} attention: what the devices have (--attention)")
    return "flash" if has_flash else "math"


def _frozen(options: TrainingOptions, model: Model) -> tuple[int, int] | None:
    frozen = options.freeze
    if frozen is not None:
        layers = len(model.layers)
        if not 0 <= frozen[0] < frozen[1] <= layers:
            refuse("--freeze", f"{frozen[0]}:{frozen[1]}", f"FIRST:END within the model's layers 0:{layers}")
        if options.adapter_rank:
            refuse("--freeze, --lora", "both", "one of them: adapters freeze all layers")
        if frozen == (0, layers):
            refuse("--freeze", f"{frozen[0]}:{frozen[1]}", "a layer left that learns")
    return frozen


def _lora_rank(options: TrainingOptions, model: Model) -> int:
    rank = options.adapter_rank
    widths = [layer.hidden for layer in model.layers if isinstance(layer, TransformerBlock)]
    if widths and rank > min(widths):
        refuse("--lora", rank, f"at most {min(widths)}: adapters narrower than the model's layers")
    return rank


def _capacity(options: TrainingOptions, model: Model) -> float | None:
    factor = options.moe_capacity
    if not _has_experts(model):
        for name, unstated in (("moe_capacity", None), ("moe_imbalance", 1.0)):
            if getattr(options, name) != unstated:
                refuse(f"--{name.replace('_', '-')}", getattr(options, name), f"none: {model.name} has no experts")
        return None
    return factor


def _defaults(options: TrainingOptions, recipe: Recipe) -> list[str]:
    """Sentences about what the recipe takes for granted."""
    precision = recipe.dtype if recipe.dtype in ("fp32", "tf32") else f"{recipe.dtype} with fp32 master weights"
    said = [f"{recipe.schedule} schedule, {recipe.optimizer} in {precision}, gradients in {recipe.grad_dtype}"]
    if options.overlap is None:
        beside = " and ".join(sorted(recipe.overlap)) or "no"
        said.append(f"{beside} communication beside compute, as {recipe.software.name} software does (--overlap)")
    beyond = ", ".join(f"{name}={value}" for name, value in features_beyond_generic(recipe.software).items())
    if beyond:
        said.append(f"{recipe.software.name} software, beyond what most do: {beyond} (--feature)")
    if options.vocab_pad is None and recipe.vocabulary_multiple > 1:
        said.append(f"vocabulary padded to a multiple of {recipe.vocabulary_multiple} * tp (--vocab-pad)")
    return said


def _setups(
    model: Model,
    place: Cluster,
    recipe: Recipe,
    grid: PipelineDegrees,
    batch: Batch,
    slots: tuple[DeviceSlot, ...],
    options: EstimateOptions,
    framework: Framework,
    assumed: list[str],
) -> tuple[Setup, ...]:
    """One setup for each micro-batch and recomputation that is to be tried."""
    # All tools are imported for the few commands that state degrees.
    from planner.one_job.tools.habitual_blocks import habitual_blocks

    first_zero, shard = sharding(options, grid, framework, assumed)
    setups, blocks = [], habitual_blocks(model, recipe, grid)
    tried = tuple(_tried(batch, options, framework, -(-len(model.layers) // grid.pp)))
    for zero, (samples, kind, layers) in product(open_stages(options, grid, first_zero), tried):
        if layers is not None and layers > len(model.layers):
            refuse("--recompute", f"full:{layers}", f"at most full:{len(model.layers)}, the model's layers")
        setup = uniform_setup(
            model,
            place,
            recipe,
            **{name: getattr(grid, name) for name in DEGREE_NAMES},
            micro_batch_per_rank=samples,
            sequence_parallel=grid.sequence_parallel,
            zero=zero,
            shard=shard,
            recompute=kind,
            recompute_layers=layers,
            offload=frozenset(options.offload or ()),
            devices=slots,
            blocks=blocks,
        )
        if isinstance(setup, Infeasible):
            refuse_infeasible(setup)
        for number, stage in enumerate(setup.stages):
            types = sorted({slot.device for slot in stage.slots})
            if len(types) > 1:
                refuse("--pp", f"stage {number} on {' and '.join(types)}", "each stage on devices of one type")
        setups.append(canonical(setup))
    return tuple(setups)


def _tried(
    batch: Batch, options: EstimateOptions, framework: Framework, stage_layers: int
) -> Iterator[tuple[int, RecomputeKind, int | None]]:
    """Micro-batch, kind and layers of recomputation in the order in which they are tried: smaller micro-batches and
    more recomputation than the software's own where memory forces it, each where it is left open."""
    sizes = (batch.micro_batch_per_rank, *batch.smaller)
    if options.recompute != "auto":
        yield from ((samples, *recompute_rule(options.recompute)) for samples in sizes)
        return
    yield from choices_in_turn(framework, sizes, recompute_ladder(framework), stage_layers)


def recompute_rules(text: str) -> tuple[tuple[RecomputeKind, int | None], ...]:
    """Return what `--recompute` means: kinds, each with the number of layers (None: all), to be tried in turn.

    >>> recompute_rules("full:8")
    (('full', 8),)
    """
    return (("none", None), ("selective", None), ("full", None)) if text == "auto" else (recompute_rule(text),)


def recompute_rule(text: str) -> tuple[RecomputeKind, int | None]:
    """Return the kind and the number of layers (None: all) that `--recompute` means where it is not auto."""
    word, _, layers = text.partition(":")
    kind: RecomputeKind = next(kind for kind in get_args(RecomputeKind) if kind == word)
    return kind, int(layers) if layers else None


def refuse_infeasible(infeasible: Infeasible) -> NoReturn:
    """Raise InputError for sizes that do not go together, naming the options that the reason speaks of."""
    expected: dict[str, str] = {
        "divisibility": "sizes that divide evenly",
        "devices": "no more devices than there are",
        "support": "a combination that exists",
        "memory": "less memory",
    }
    named = [name for name in DEGREE_NAMES if re.search(rf"\b{name}\b", infeasible.reason)]
    named += ["dtype"] if re.search(rf"\bno ({'|'.join(get_args(DType))}) rate\b", infeasible.reason) else []
    raise InputError(
        where="plan",
        key=", ".join(f"--{name}" for name in named) or None,
        found=infeasible.reason,
        expected=expected[infeasible.lacking],
    )
