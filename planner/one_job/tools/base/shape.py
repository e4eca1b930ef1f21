"""A plan whose stages are alike, in the numbers that tools take."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from estimator.pricing.recipe import GradDType, Recipe
from models_zoo.layers import Attention, Embedding, Experts, Head, TransformerBlock
from models_zoo.model import Model
from models_zoo.user_code import NO_CODE, UserCode
from planner.one_job.tools.base.export_records import CannotExpress
from planner.shared.plan import Offload, Plan, PlanStage, RankAxis
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_parts import PlanRecipe, PlanSoftware
from profiles.records import dataclass
from profiles.vocabulary import Degrees, FrozenAs, RecomputeKind

MEGATRON_ORDER: tuple[RankAxis, ...] = ("tp", "cp", "dp", "pp")
"""Fastest first: what Megatron, torchtitan and PyTorch's meshes do."""


def blocks_of(model: Model) -> list[TransformerBlock]:
    """Return the model's transformer blocks, in their order."""
    return [layer for layer in model.layers if isinstance(layer, TransformerBlock)]


def experts_of(model: Model) -> Experts | None:
    """Return the experts of the first block that has some; None where no block has."""
    parts = (block.feed_forward for block in blocks_of(model))
    return next((part for part in parts if isinstance(part, Experts)), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is trained, whatever the plan. `grad_dtype` None: nobody says it."""

    model: Model
    seq_len: int
    dtype: str
    optimizer: str = "adamw"
    grad_dtype: GradDType | None = None
    lora_rank: int = 0
    frozen_as: FrozenAs = "held"
    frozen_layers: tuple[int, int] | None = None
    paged_states: bool = False
    overlap: frozenset[str] = frozenset()
    fused_accumulation: bool = False
    vocabulary_multiple: int = 1

    @property
    def blocks(self) -> int:
        """Transformer blocks."""
        return len(blocks_of(self.model))

    @property
    def experts(self) -> Experts | None:
        """The experts of the first block that has some."""
        return experts_of(self.model)

    @property
    def kv_heads(self) -> int:
        """Key-value heads, the fewest of any block; 1 without attention."""
        mixers = (block.attention for block in blocks_of(self.model))
        return min((mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)), default=1)

    @property
    def tied(self) -> bool:
        """Whether embedding and head share their weights."""
        head = self.model.layers[-1]
        return isinstance(head, Head) and head.tied

    @property
    def biased_experts(self) -> bool:
        """Whether blocks have experts and biases in their linear layers."""
        blocks = blocks_of(self.model)
        mixers = (block.attention for block in blocks if isinstance(block.feed_forward, Experts))
        return any(isinstance(mixer, Attention) and mixer.output_bias for mixer in mixers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A pipeline chunk: its transformer blocks [first, end), and whether embedding and head are in it."""

    first: int
    end: int
    embeds: bool
    heads: bool

    @property
    def blocks(self) -> int:
        """Transformer blocks in it."""
        return self.end - self.first


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape(Degrees):
    """A plan whose stages are alike, in the numbers that tools take; a search fills in what it knows so far.

    In a search the degrees may be arrays with a place for each of many plans. `order` names the axes of more than one
    rank, fastest first. `micro_batch_per_rank` is samples. `recompute_layers` has each stage's count of layers,
    embedding and head among them. `chunks` are in the order in which a sample passes them.
    """

    job: Job
    pp: int = 1
    vpp: int = 1
    order: tuple[RankAxis, ...] = MEGATRON_ORDER
    zero: int = 0
    shard: int = 1
    replicate: int = 1
    micro_batch_per_rank: int = 1
    micro_batches: int = 1
    schedule: str = "1f1b"
    recompute: RecomputeKind = "none"
    recompute_layers: tuple[int, ...] = ()
    offload: tuple[Offload, ...] = ()
    chunks: tuple[Chunk, ...] = ()

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.stage_devices * self.pp

    @property
    def ranks(self) -> int:
        """Replicas that may share the state."""
        return self.dp * self.cp

    @property
    def blocks_by_chunk(self) -> str:
        """Transformer blocks of each chunk, listed."""
        return ", ".join(str(chunk.blocks) for chunk in self.chunks)

    @property
    def recomputes_all_blocks(self) -> bool:
        """Whether no transformer block is left out of recomputation."""
        held = [sum(chunk.blocks for chunk in self.chunks[stage :: self.pp]) for stage in range(self.pp)]
        return all(layers >= blocks for layers, blocks in zip(self.recompute_layers, held, strict=True))


def job_of_plan(plan: Plan, model: Model) -> Job:
    """Return what the plan trains."""
    recipe = recipe_of(plan)
    return Job(
        model=model,
        seq_len=plan.model.seq_len or 0,
        dtype=plan.model.dtype,
        optimizer=plan.optimizer,
        grad_dtype=None if plan.recipe is None else recipe.grad_dtype,
        lora_rank=recipe.lora_rank,
        frozen_as=recipe.software.frozen_as,
        frozen_layers=recipe.frozen_layers,
        paged_states=recipe.software.features().memory.paged_states,
        overlap=frozenset(recipe.overlap),
        fused_accumulation=recipe.software.fused_accumulation,
        vocabulary_multiple=recipe.vocabulary_multiple,
    )


def job_of_recipe(model: Model, recipe: Recipe) -> Job:
    """Return what is trained under `recipe`."""
    return Job(
        model=model,
        seq_len=recipe.seq_len,
        dtype=recipe.dtype,
        optimizer=recipe.optimizer,
        grad_dtype=recipe.grad_dtype,
        lora_rank=recipe.lora_rank,
        frozen_as=recipe.software.frozen_as,
        frozen_layers=recipe.frozen_layers,
        paged_states=recipe.software.memory.paged_states,
        overlap=frozenset(recipe.overlap),
        fused_accumulation=recipe.software.fused_accumulation,
        vocabulary_multiple=recipe.vocabulary_multiple,
    )


def shape_of(
    plan: Plan, tool: str, *, orders: Iterable[tuple[RankAxis, ...]] = (MEGATRON_ORDER,), code: UserCode = NO_CODE
) -> Shape:
    """Return the plan in tools' numbers. Raise CannotExpress where stages differ, replicas share a micro-batch
    unevenly, or ranks are counted in none of the `orders` (fastest axis first). `code` is what of the
    user's own the plan may run."""
    degrees = {name: _alike(plan, tool, name) for name in ("tp", "cp", "dp", "ep", "etp", "sequence_parallel")}
    for number, stage in enumerate(plan.stages):
        shares = stage.micro_batch_shares
        if shares is not None and len(set(shares)) > 1:
            listed = ", ".join(str(share) for share in shares[:8])
            key = f"stages[{number}].micro_batch_shares"
            raise CannotExpress(tool=tool, key=key, found=listed, expected="the same samples on every replica")
    order = _rank_order(plan, tool, degrees, tuple(orders))
    state = {name: _alike(plan, tool, f"sharding.{name}") for name in ("zero", "shard", "replicate")}
    recompute, offload = _alike(plan, tool, "recompute.kind"), tuple(sorted(_alike(plan, tool, "offload")))
    model = load_plan_model(plan, code)
    return Shape(
        **degrees,
        **state,
        job=job_of_plan(plan, model),
        pp=len(plan.stages),
        vpp=len(plan.stages[0].chunks) if plan.schedule == "interleaved" else 1,
        order=order,
        micro_batch_per_rank=plan.batch.micro_batch // degrees["dp"],
        micro_batches=plan.batch.micro_batches,
        schedule=plan.schedule,
        recompute=recompute,
        recompute_layers=tuple(stage.recompute.layers for stage in plan.stages),
        offload=offload,
        chunks=chunks_of(plan, model),
    )


def stage_shape(stage: PlanStage, plan: Plan, model: Model) -> Shape:
    """Return one stage of a plan whose stages may differ, in tools' numbers."""
    return Shape(
        job=job_of_plan(plan, model),
        tp=stage.tp,
        pp=len(plan.stages),
        dp=stage.dp,
        cp=stage.cp,
        ep=stage.ep,
        etp=stage.etp,
        sequence_parallel=stage.sequence_parallel,
        zero=stage.sharding.zero,
        shard=stage.sharding.shard,
        replicate=stage.sharding.replicate,
        schedule=plan.schedule,
        recompute=stage.recompute.kind,
        offload=stage.offload,
    )


def _alike(plan: Plan, tool: str, key: str) -> Any:
    """What all stages have under `key`; CannotExpress names the first that differs from stage 0."""
    value_of = attrgetter(key)
    first = value_of(plan.stages[0])
    for number, stage in enumerate(plan.stages):
        value = value_of(stage)
        if value != first:
            said = f"{_say(value)} where stage 0 has {_say(first)}"
            key = f"stages[{number}].{key}"
            raise CannotExpress(tool=tool, key=key, found=said, expected="the same in all stages")
    return first


def _say(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, tuple) else str(value)


def _rank_order(
    plan: Plan, tool: str, degrees: dict[str, int], orders: tuple[tuple[RankAxis, ...], ...]
) -> tuple[RankAxis, ...]:
    """The axes of more than one rank, fastest first."""
    sizes = {**{axis: degrees[axis] for axis in ("tp", "cp", "dp")}, "pp": len(plan.stages)}
    _check_ranks(plan, tool, sizes)
    counted = tuple(axis for axis in plan.rank_axis_order if sizes[axis] > 1)
    if counted not in [tuple(axis for axis in order if sizes[axis] > 1) for order in orders]:
        listed = " or ".join(f"({', '.join(order)})" for order in orders)
        said = f"({', '.join(plan.rank_axis_order)}), fastest first"
        raise CannotExpress(tool=tool, key="rank_axis_order", found=said, expected=listed)
    return counted


def _check_ranks(plan: Plan, tool: str, sizes: dict[str, int]) -> None:
    """Raise CannotExpress where a stage's ranks are not those that the plan's order of axes gives it."""
    strides, step = {}, 1
    for axis in plan.rank_axis_order:
        strides[axis] = step
        step *= sizes[axis]
    for number, stage in enumerate(plan.stages):
        expected = [number * strides["pp"]]
        for axis in (axis for axis in plan.rank_axis_order if axis != "pp"):
            expected = [start + place * strides[axis] for place in range(sizes[axis]) for start in expected]
        if list(stage.ranks) != expected:
            said = f"{_few(stage.ranks)} where the order {', '.join(plan.rank_axis_order)} means {_few(expected)}"
            key = f"stages[{number}].ranks"
            raise CannotExpress(tool=tool, key=key, found=said, expected="ranks in the plan's order of axes")


def _few(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return ", ".join(map(str, listed[:6])) + (", ..." if len(listed) > 6 else "")


def chunks_of(plan: Plan, model: Model) -> tuple[Chunk, ...]:
    """Return the plan's chunks in the order in which a sample passes them: the first of every stage, then the second,
    ..."""
    stages = [stage.chunks[:1] if plan.schedule == "dualpipe" else stage.chunks for stage in plan.stages]
    embeds, heads = isinstance(model.layers[0], Embedding), isinstance(model.layers[-1], Head)
    layers, blocks = len(model.layers), len(model.layers) - embeds - heads
    return tuple(
        Chunk(
            first=min(max(first - embeds, 0), blocks),
            end=min(max(end - embeds, 0), blocks),
            embeds=embeds and first == 0,
            heads=heads and end == layers,
        )
        for first, end in (ranges[turn] for turn in range(len(stages[0])) for ranges in stages)
    )


def recipe_of(plan: Plan) -> PlanRecipe:
    """Return the plan's recipe; where the file has none (a Cell's plan), gradients as wide as the weights and no
    overlap."""
    if plan.recipe is not None:
        return plan.recipe
    widths: dict[str, GradDType] = {"bf16": "bf16", "fp16": "fp16"}
    return PlanRecipe(grad_dtype=widths.get(plan.model.dtype, "fp32"), software=PlanSoftware(name="generic"))
