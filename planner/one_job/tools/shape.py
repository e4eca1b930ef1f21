"""What the exporters share: a plan whose stages are alike in launchers' numbers, its model, its nodes, its recipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

from estimator.frontends.load import load_any_model
from estimator.pricing.recipe import GradDType
from models_zoo.layers import Embedding, Head
from models_zoo.model import Model
from planner.one_job.tools.export_records import CannotExpress, ExportContext
from planner.one_job.tools.python_text import comment
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import Offload, Plan, RankAxis
from planner.shared.plan_parts import PlanRecipe, PlanSoftware
from profiles.errors import InputError
from profiles.vocabulary import RecomputeKind

MEGATRON_ORDER: tuple[RankAxis, ...] = ("tp", "cp", "dp", "pp")
"""Fastest first: what Megatron, torchtitan and PyTorch's meshes do."""

SCRIPT = "train.py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """A plan whose stages are alike, in the numbers that launchers take.

    `order` names the axes of more than one rank, fastest first. `micro_batch_per_rank` is samples. `recompute_layers`
    has each stage's count of layers, embedding and head among them.
    """

    tp: int
    pp: int
    dp: int
    cp: int
    ep: int
    etp: int
    vpp: int
    order: tuple[RankAxis, ...]
    sequence_parallel: bool
    zero: int
    shard: int
    replicate: int
    micro_batch_per_rank: int
    recompute: RecomputeKind
    recompute_layers: tuple[int, ...]
    offload: tuple[Offload, ...]

    @property
    def devices(self) -> int:
        """Ranks in all."""
        return self.tp * self.pp * self.dp * self.cp


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
class Nodes:
    """The plan's nodes in the order of their first ranks. `ranks` has each one's; `in_order`: node by node."""

    ranks: tuple[tuple[int, ...], ...]

    @property
    def in_order(self) -> bool:
        """Whether ranks count through one node after the other, as launchers number them."""
        return [rank for node in self.ranks for rank in node] == list(range(sum(map(len, self.ranks))))

    @property
    def per_node(self) -> int | None:
        """Ranks of each node, None where they differ."""
        counts = {len(node) for node in self.ranks}
        return counts.pop() if len(counts) == 1 else None


def uniform(plan: Plan, tool: str, *, orders: Iterable[tuple[RankAxis, ...]] = (MEGATRON_ORDER,)) -> Uniform:
    """The plan in launchers' numbers. CannotExpress where stages differ, replicas share a micro-batch unevenly, or
    ranks are counted in none of the `orders` (fastest axis first)."""
    degrees = {name: _alike(plan, tool, name) for name in ("tp", "cp", "dp", "ep", "etp", "sequence_parallel")}
    for number, stage in enumerate(plan.stages):
        shares = stage.micro_batch_shares
        if shares is not None and len(set(shares)) > 1:
            found = ", ".join(str(share) for share in shares[:8])
            key = f"stages[{number}].micro_batch_shares"
            raise CannotExpress(tool=tool, key=key, found=found, expected="the same samples on every replica")
    return Uniform(
        **degrees,
        pp=len(plan.stages),
        vpp=len(plan.stages[0].chunks) if plan.schedule == "interleaved" else 1,
        order=_rank_order(plan, tool, degrees, tuple(orders)),
        zero=_alike(plan, tool, "sharding.zero"),
        shard=_alike(plan, tool, "sharding.shard"),
        replicate=_alike(plan, tool, "sharding.replicate"),
        micro_batch_per_rank=plan.batch.micro_batch // degrees["dp"],
        recompute=_alike(plan, tool, "recompute.kind"),
        recompute_layers=tuple(stage.recompute.layers for stage in plan.stages),
        offload=tuple(sorted(_alike(plan, tool, "offload"))),
    )


def _alike(plan: Plan, tool: str, key: str) -> Any:
    """What all stages have under `key`; CannotExpress names the first that differs from stage 0."""
    value_of = attrgetter(key)
    first = value_of(plan.stages[0])
    for number, stage in enumerate(plan.stages):
        value = value_of(stage)
        if value != first:
            found = f"{_say(value)} where stage 0 has {_say(first)}"
            key = f"stages[{number}].{key}"
            raise CannotExpress(tool=tool, key=key, found=found, expected="the same in all stages")
    return first


def _say(value: object) -> str:
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, tuple) else str(value)


def _rank_order(
    plan: Plan, tool: str, degrees: dict[str, int], orders: tuple[tuple[RankAxis, ...], ...]
) -> tuple[RankAxis, ...]:
    """The axes of more than one rank, fastest first."""
    sizes = {**{axis: degrees[axis] for axis in ("tp", "cp", "dp")}, "pp": len(plan.stages)}
    counted = tuple(axis for axis in plan.rank_axis_order if sizes[axis] > 1)
    strides, step = {}, 1
    for axis in plan.rank_axis_order:
        strides[axis] = step
        step *= sizes[axis]
    within = [axis for axis in plan.rank_axis_order if axis != "pp"]
    for number, stage in enumerate(plan.stages):
        expected = [number * strides["pp"]]
        for axis in within:
            expected = [start + place * strides[axis] for place in range(sizes[axis]) for start in expected]
        if list(stage.ranks) != expected:
            found = f"{_few(stage.ranks)} where the order {', '.join(plan.rank_axis_order)} means {_few(expected)}"
            raise CannotExpress(
                tool=tool, key=f"stages[{number}].ranks", found=found, expected="ranks in the plan's order of axes"
            )
    known = [tuple(axis for axis in order if sizes[axis] > 1) for order in orders]
    if counted not in known:
        expected_orders = " or ".join(f"({', '.join(order)})" for order in orders)
        found = f"({', '.join(plan.rank_axis_order)}), fastest first"
        raise CannotExpress(tool=tool, key="rank_axis_order", found=found, expected=expected_orders)
    return counted


def _few(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return ", ".join(map(str, listed[:6])) + (", ..." if len(listed) > 6 else "")


def load_plan_model(plan: Plan) -> Model:
    """The model that the plan names. InputError where it is no longer the one of the plan."""
    reference = plan.model.reference
    model = _load_factory(reference) if ":" in reference else load_any_model(reference)
    sizes = model_sizes(model, parameters=plan.model.sizes.parameters)
    if sizes != plan.model.sizes:
        name = next(
            part.name for part in fields(sizes) if getattr(sizes, part.name) != getattr(plan.model.sizes, part.name)
        )
        found = f"{name}={getattr(plan.model.sizes, name)}"
        raise InputError(
            where="plan", key="model.sizes", found=found, expected=f"{getattr(sizes, name)}, as {reference} has now"
        )
    return model


@lru_cache(maxsize=4)
def _load_factory(reference: str) -> Model:
    """A user's own model, traced once a process."""
    return load_any_model(reference)


def chunks_of(plan: Plan, model: Model) -> tuple[Chunk, ...]:
    """The plan's chunks in the order in which a sample passes them: the first of every stage, then the second, ..."""
    embeds, heads = isinstance(model.layers[0], Embedding), isinstance(model.layers[-1], Head)
    layers, blocks = len(model.layers), len(model.layers) - embeds - heads
    ranges = [plan.stages[stage].chunks[turn] for turn in range(_turns(plan)) for stage in range(len(plan.stages))]
    return tuple(
        Chunk(
            first=min(max(first - embeds, 0), blocks),
            end=min(max(end - embeds, 0), blocks),
            embeds=embeds and first == 0,
            heads=heads and end == layers,
        )
        for first, end in ranges
    )


def _turns(plan: Plan) -> int:
    return 1 if plan.schedule == "dualpipe" else len(plan.stages[0].chunks)


def recomputes_all_blocks(shape: Uniform, chunks: tuple[Chunk, ...]) -> bool:
    """Whether no transformer block is left out of recomputation."""
    held = [sum(chunk.blocks for chunk in chunks[stage :: shape.pp]) for stage in range(shape.pp)]
    return all(layers >= blocks for layers, blocks in zip(shape.recompute_layers, held, strict=True))


def nodes_of(plan: Plan) -> Nodes:
    """Where the ranks sit."""
    found: dict[tuple[str, int], list[int]] = {}
    for device in plan.devices:
        found.setdefault((device.site, device.node), []).append(device.rank)
    return Nodes(ranks=tuple(tuple(ranks) for ranks in found.values()))


def recipe_of(plan: Plan) -> PlanRecipe:
    """The plan's recipe; where the file has none (a Cell's plan), gradients as wide as the weights and no overlap."""
    if plan.recipe is not None:
        return plan.recipe
    own: dict[str, GradDType] = {"bf16": "bf16", "fp16": "fp16"}
    return PlanRecipe(grad_dtype=own.get(plan.model.dtype, "fp32"), software=PlanSoftware(name="generic"))


def headline(plan: Plan, shape: Uniform | None = None) -> str:
    """The plan in a line, whatever its names hold: for the first line of an exported file."""
    batch = plan.batch
    said = [f"{plan.model.name} on {len(plan.devices)} devices of {plan.cluster}"]
    if shape is not None:
        degrees = {name: getattr(shape, name) for name in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")}
        said.append(" ".join(f"{name} {n}" for name, n in degrees.items() if n > 1 or name in ("tp", "pp", "dp")))
        said += [f"ZeRO {shape.zero}"] if shape.zero else []
    said.append(f"{batch.global_batch} samples as {batch.micro_batches} micro-batches of {batch.micro_batch}")
    said.append(f"estimated {plan.estimate.iteration_time_s:.4g} s an iteration")
    return comment(", ".join(said))


def script_of(context: ExportContext, notes: list[str], *, default: str = SCRIPT, about: str = "") -> str:
    """The training script, as one word of a shell; a placeholder is noted."""
    if context.script is None:
        notes.append(about or f"{default} stands for the training script: --script names yours")
    return shlex.quote(context.script or default)


def launcher_lines(plan: Plan, notes: list[str]) -> tuple[str, ...]:
    """torchrun and its options for the plan's nodes, a line each, without the script."""
    nodes = nodes_of(plan)
    if not nodes.in_order:
        notes.append(
            "ranks do not count through the nodes one by one, as torchrun gives them: start each process with the RANK"
            " and LOCAL_RANK of the plan's `devices` instead (`--to slurm` does)"
        )
    if len(nodes.ranks) == 1:
        return ("torchrun", "--standalone", f"--nproc-per-node {len(nodes.ranks[0])}")
    per_node = str(nodes.per_node)
    if nodes.per_node is None:
        counts = ", ".join(f"{len(list(run))} x {count}" for count, run in groupby(len(node) for node in nodes.ranks))
        notes.append(f"processes on the nodes in their order (nodes x processes), as RANKS_HERE: {counts}")
        per_node = '"${RANKS_HERE:?processes on this node}"'
    notes.append("set NODE_RANK (from 0) and MASTER_ADDR (node 0) on every node")
    return (
        "torchrun",
        f"--nnodes {len(nodes.ranks)}",
        f"--nproc-per-node {per_node}",
        '--node-rank "${NODE_RANK:?this node, from 0}"',
        '--master-addr "${MASTER_ADDR:?the address of node 0}"',
        '--master-port "${MASTER_PORT:-29500}"',
    )


def shell_lines(words: Iterable[str], *, indent: str = "    ") -> str:
    """One command of a shell over several lines."""
    return f" \\\n{indent}".join(words)


def refuse_training_beyond(plan: Plan, tool: str, *, lora: bool = False) -> None:
    """CannotExpress for adapters (unless `lora`) and frozen layers, which are set in the training's own code."""
    recipe = recipe_of(plan)
    if recipe.lora_rank and not lora:
        raise CannotExpress(tool=tool, key="recipe.lora_rank", found=recipe.lora_rank, expected="0: all weights learn")
    if recipe.frozen_layers is not None:
        first, end = recipe.frozen_layers
        expected = "null: all layers learn"
        raise CannotExpress(tool=tool, key="recipe.frozen_layers", found=f"{first} to {end}", expected=expected)
