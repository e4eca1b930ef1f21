"""The plan as JAX meshes with PartitionSpecs: a Python file to import, which checks the shard shapes when it is run.

Says every plan whose expert groups line up with its axes, uneven ones too: each stage has a mesh of its own. API as in
JAX 0.4.30 and later (jax.sharding).
"""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

from estimator.pricing.recipe import ScheduleName
from models_zoo.layers import Attention, Embedding, Experts, Head, TransformerBlock
from models_zoo.model import Model
from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.python_text import comment, literal
from planner.one_job.tools.base.shape import Shape
from planner.one_job.tools.base.tool import Rule, TrainingTool
from planner.one_job.tools.base.writing import Task, headline
from planner.shared.plan import Plan, PlanStage
from profiles.vocabulary import RecomputeKind

Axes = list[tuple[str, int]]
Weights = dict[str, tuple[tuple[int, ...], tuple[str | None, ...]]]

TEMPLATE = '''"""{headline}

A mesh for each stage of the plan, and the PartitionSpecs of its weights, optimizer state and activations. Import
`build_meshes` and `specs`, or print what each device holds:

    python {name}

On a machine without the devices, XLA_FLAGS=--xla_force_host_platform_device_count={world} makes as many of its CPU.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

WORLD_SIZE = {world}

# A stage each: its ranks (the last axis counts fastest), the model's layers [first, end) that it holds, the mesh's axes
# with their sizes, and the roles that they play: which axes, slowest first, make up tp, cp, dp, the shards of the
# state, expert parallelism (ep) and expert-tensor parallelism (etp).
STAGES = [
{stages}]

# The weights of a layer of each kind: their shape, and the role that each dimension is split over. "state" stands where
# ZeRO 3 (FSDP) splits further.
WEIGHTS = {{
{weights}}}


def build_meshes(devices=None):
    """A Mesh for each stage; rank r is devices[r]."""
    devices = np.array(jax.devices() if devices is None else devices)
    assert len(devices) >= WORLD_SIZE, f"{{len(devices)}} devices, the plan has {{WORLD_SIZE}}"
    meshes = []
    for stage in STAGES:
        names, sizes = zip(*stage["axes"])
        meshes.append(Mesh(devices[stage["ranks"]].reshape(sizes), names))
    return meshes


def specs(stage, *, sharded):
    """The PartitionSpec of every weight in WEIGHTS on stage number `stage`. `sharded`: with the state's shards in, as
    ZeRO 3 holds weights, ZeRO 2 gradients and ZeRO 1 the optimizer's state."""
    sizes, roles = dict(STAGES[stage]["axes"]), STAGES[stage]["roles"]
    made = {{}}
    for name, (shape, split) in WEIGHTS.items():
        taken = {{axis for role in split if role not in (None, "state") for axis in roles[role]}}
        parts = []
        for count, role in zip(shape, split):
            axes = roles[role] if role else ()
            if role == "state":  # without what experts are shared over; a dimension that does not divide stays whole
                axes = tuple(axis for axis in axes if axis not in taken) if sharded else ()
                axes = () if count % int(np.prod([sizes[axis] for axis in axes])) else axes
            parts.append(axes or None)
        made[name] = P(*parts)
    return made


def weight_specs(stage):
    """How the plan holds weights between steps."""
    return specs(stage, sharded=STAGES[stage]["zero"] == 3)


def gradient_specs(stage):
    return specs(stage, sharded=STAGES[stage]["zero"] >= 2)


def optimizer_specs(stage):
    return specs(stage, sharded=STAGES[stage]["zero"] >= 1)


def activation_spec(stage):
    """Of what passes from layer to layer: (batch, tokens, hidden), or (batch, ...) without tokens."""
    roles = STAGES[stage]["roles"]
    tokens = roles["cp"] + (roles["tp"] if STAGES[stage]["sequence_parallel"] else ())
    return P(roles["dp"] or None, tokens or None)


def main():
    for number, mesh in enumerate(build_meshes()):
        print(f"stage {{number}}: {{dict(mesh.shape)}}, activations {{activation_spec(number)}}")
        held, kept = weight_specs(number), optimizer_specs(number)
        for name, (shape, _) in WEIGHTS.items():
            weight = NamedSharding(mesh, held[name]).shard_shape(shape)
            state = NamedSharding(mesh, kept[name]).shard_shape(shape)
            print(f"  {{name}} {{shape}}: weight {{weight}} by {{held[name]}}, optimizer state {{state}}")


if __name__ == "__main__":
    main()
'''


def _ends(of: Shape | PlanStage, shard: int) -> dict[str, tuple[int, int]]:
    """Where the runs of ranks of each role begin and end: ranks count tp, cp, dp. Shards of the state are runs of cp
    and dp ranks, expert groups runs of all."""
    inner = of.tp * of.cp
    return {
        "tp": (1, of.tp),
        "cp": (of.tp, inner),
        "dp": (inner, inner * of.dp),
        "state": (of.tp, of.tp * shard),
        "etp": (1, of.etp),
        "ep": (of.etp, of.etp * of.ep),
    }


def _cuts(runs: dict[str, tuple[int, int]]) -> list[tuple[int, int]]:
    """Where such a run ends within an axis, the axis is cut in two there."""
    ends = sorted({end for run in runs.values() for end in run} | {1})
    return list(pairwise(ends)) or [(1, 1)]


JAX_MESH = TrainingTool(
    name="jax-mesh",
    summary="JAX: meshes and PartitionSpecs as Python that runs",
    basis="JAX 0.4.30: any plan whose experts line up with its axes; schedule and recomputation are the program's",
    software="generic",
    schedules=get_args(ScheduleName),
    recompute=get_args(RecomputeKind),
    counts_recomputed_layers=True,
    zero=(0, 1, 2, 3),
    sharded_pipelines=(0, 1, 2, 3),
    alike=False,
    orders=(("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")),
    trains_all=False,
    states=(
        Rule(
            key="stages[].ep",
            allows=lambda s: not any(high % low for low, high in _cuts(_ends(s, s.shard))),
            found="{s.ep} (etp {s.etp}) with tp {s.tp}, cp {s.cp}, dp {s.dp}",
            expected="groups of experts that line up with tp, cp and dp",
        ),
    ),
    write="jax_mesh:write_jax_mesh",
)


def write_jax_mesh(task: Task) -> tuple[ExportFile, ...]:
    """Return `jax_mesh.py`."""
    plan, notes, model = task.plan, task.notes, task.model
    weights = _weights(model, plan)
    if not weights:
        notes.append(
            f"no PartitionSpecs: {model.name} has no transformer blocks; its weights are whole on each tp rank"
        )
    notes.append("the stages' schedule and transfers between their meshes are the program's own")
    text = TEMPLATE.format(
        headline=headline(plan),
        name=comment(task.context.script or "jax_mesh.py"),
        world=len(plan.devices),
        stages="".join(map(_stage, plan.stages)),
        weights="".join(f"    {literal(name)}: {literal(value)},\n" for name, value in weights.items()),
    )
    return (ExportFile(name="jax_mesh.py", text=text),)


def _stage(stage: PlanStage) -> str:
    axes, roles = stage_axes(stage)
    lines = "".join(f"            {literal(role)}: {literal(names)},\n" for role, names in roles.items())
    return (
        "    {\n"
        f'        "ranks": {literal(list(stage.ranks))},\n'
        f'        "layers": {literal(list(stage.chunks))},\n'
        f'        "zero": {stage.sharding.zero},\n'
        f'        "sequence_parallel": {stage.sequence_parallel and stage.tp > 1},\n'
        f'        "axes": {literal(axes)},\n'
        f'        "roles": {{\n{lines}        }},\n'
        "    },\n"
    )


def stage_axes(stage: PlanStage) -> tuple[Axes, dict[str, tuple[str, ...]]]:
    """Return the mesh's axes, slowest first, and which of them play which role."""
    runs = _ends(stage, stage.sharding.shard)
    cuts = _cuts(runs)
    owners = [next((name for name in ("tp", "cp", "dp") if _within(cut, runs[name])), "dp") for cut in cuts]
    names = [
        owner if owners.count(owner) == 1 else f"{owner}{owners[:place].count(owner)}"
        for place, owner in enumerate(owners)
    ]
    axes = [(name, high // low) for name, (low, high) in zip(names, cuts, strict=True)][::-1]
    roles = {
        role: tuple(name for name, cut in zip(names, cuts, strict=True) if _within(cut, run))[::-1]
        for role, run in runs.items()
    }
    return axes, roles


def _within(cut: tuple[int, int], run: tuple[int, int]) -> bool:
    return run[0] <= cut[0] < cut[1] <= run[1]


def _weights(model: Model, plan: Plan) -> Weights:
    """The weights of each kind of layer, with the roles that split them: columns of what reads the hidden width, rows
    of what writes it."""
    weights: Weights = {}
    recipe = plan.recipe
    tp = max(stage.tp for stage in plan.stages)
    multiple = (recipe.vocabulary_multiple if recipe else 1) * tp
    for layer in dict.fromkeys(model.layers):
        if isinstance(layer, Embedding):
            rows = -(-layer.vocab // multiple) * multiple
            weights["embedding"] = ((rows, layer.hidden), ("tp", "state"))
        elif isinstance(layer, Head) and layer.vocab:
            columns = -(-layer.vocab // multiple) * multiple
            weights["head"] = ((layer.hidden, columns), ("state", "tp"))
        elif isinstance(layer, TransformerBlock):
            weights |= _block_weights(layer, tp)
    return weights


def _block_weights(block: TransformerBlock, tp: int) -> Weights:
    hidden, feed_forward = block.hidden, block.feed_forward
    weights: Weights = {"norm": ((hidden,), ("state",))}
    if isinstance(block.attention, Attention):
        weights |= _attention_weights(block.attention, hidden, tp)
    elif block.attention:
        mixer = block.attention
        inner, keys = mixer.heads * mixer.value_dim, mixer.groups * mixer.key_dim
        shared = None if mixer.groups % tp else "tp"
        weights["linear_query"] = weights["linear_key"] = ((hidden, keys), ("state", shared))
        weights["linear_value"] = weights["linear_gate"] = ((hidden, inner), ("state", "tp"))
        weights["linear_rates"] = ((hidden, len(mixer.rates) * mixer.heads), ("state", "tp"))
        weights["linear_output"] = ((inner, hidden), ("tp", "state"))
    if isinstance(feed_forward, Experts):
        count, inner = feed_forward.count, feed_forward.expert.hidden
        weights["router"] = ((hidden, count), ("state", None))
        weights["expert_up"] = ((count, hidden, inner), ("ep", "state", "etp"))
        weights["expert_down"] = ((count, inner, hidden), ("ep", "etp", "state"))
        if feed_forward.shared_hidden:
            weights["shared_expert_up"] = ((hidden, feed_forward.shared_hidden), ("state", "tp"))
            weights["shared_expert_down"] = ((feed_forward.shared_hidden, hidden), ("tp", "state"))
    elif feed_forward:
        weights["feed_forward_up"] = ((hidden, feed_forward.hidden), ("state", "tp"))
        weights["feed_forward_down"] = ((feed_forward.hidden, hidden), ("tp", "state"))
    return weights


def _attention_weights(attention: Attention, hidden: int, tp: int) -> Weights:
    weights: Weights = {}
    if attention.latent is not None:
        latent = attention.latent
        queries = attention.heads * (latent.nope_dim + latent.rope_dim)
        weights["key_value_down"] = ((hidden, latent.key_value_rank + latent.rope_dim), ("state", None))
        up = attention.heads * (latent.nope_dim + latent.value_dim)
        weights["key_value_up"] = ((latent.key_value_rank, up), ("state", "tp"))
        rank = latent.query_rank
        weights |= {"query_down": ((hidden, rank), ("state", None))} if rank else {}
        weights["query"] = ((rank or hidden, queries), ("state", "tp"))
        weights["attention_output"] = ((attention.heads * latent.value_dim, hidden), ("tp", "state"))
    else:
        width = attention.head_dim
        weights["query"] = ((hidden, attention.heads * width), ("state", "tp"))
        shared = None if attention.kv_heads % tp else "tp"
        weights["key_value"] = ((hidden, 2 * attention.kv_heads * width), ("state", shared))
        weights["attention_output"] = ((attention.heads * width, hidden), ("tp", "state"))
    if attention.output_gate:
        weights["attention_gate"] = weights["query"]
    return weights
