"""What the writers of plans share: everything about the plan that they ask for, its nodes, headlines and launchers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import field
from functools import cached_property
from itertools import groupby

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import Decoder, decoder_of
from planner.one_job.tools.base.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.python_text import comment
from planner.one_job.tools.base.shape import Chunk, Shape, recipe_of, shape_of, stage_shape
from planner.one_job.tools.base.tool import TrainingTool, load
from planner.shared.plan import Plan
from planner.shared.plan_checks import load_plan_model
from planner.shared.plan_parts import PlanRecipe
from profiles.records import dataclass

SCRIPT = "train.py"


@dataclass(kw_only=True)
class Task:
    """What the writer of a tool works on, a plan; it changes meanwhile: the writer adds sentences to `notes`, what the
    user should know."""

    plan: Plan
    tool: TrainingTool
    context: ExportContext
    notes: list[str] = field(default_factory=list)

    @cached_property
    def model(self) -> Model:
        """The model that the plan names."""
        return load_plan_model(self.plan, self.context.code)

    @cached_property
    def shape(self) -> Shape:
        """The plan in tools' numbers."""
        return shape_of(self.plan, self.tool.name, orders=self.tool.orders, code=self.context.code)

    @cached_property
    def decoder(self) -> Decoder:
        """The model as a decoder."""
        return decoder_of(self.model, self.tool.name)

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The plan's chunks in the order in which a sample passes them."""
        return self.shape.chunks

    @property
    def recipe(self) -> PlanRecipe:
        """How the plan trains."""
        return recipe_of(self.plan)

    @property
    def headline(self) -> str:
        """The plan in a line."""
        return headline(self.plan, self.shape)

    @property
    def bucket_elements(self) -> int:
        """Gradients of a bucket, 0 where they are summed in one piece."""
        width = {"fp32": 4, "bf16": 2, "fp16": 2}[self.recipe.grad_dtype]
        return self.recipe.software.bucket_bytes // width

    def script(self, *, default: str = SCRIPT, about: str = "") -> str:
        """The training script, as one word of a shell; a placeholder is noted."""
        if self.context.script is None:
            self.notes.append(about or f"{default} stands for the training script: --script names yours")
        return shlex.quote(self.context.script or default)


def note_rotary(task: Task, name: str, *, scales: tuple[str, ...] = ()) -> None:
    """Add to the task's notes what its tool is not told of rotary positions: the base, which it calls `name`, where the
    model's config says none; scaling of a type that is not among the `scales` that the tool knows."""
    traits = task.decoder.traits
    if traits.rope_base is None:
        task.notes.append(f"{name}, the base of rotary positions, is not part of a plan: set the model's own")
    kind = dict(traits.rope_scaling).get("rope_type")
    if kind is not None and kind not in scales:
        task.notes.append(f"rope_scaling of type {kind} is not in this file, whose rotary positions are unscaled")


def write_plan(plan: Plan, tool: TrainingTool, context: ExportContext) -> Export:
    """Return the files that start the plan with `tool`. Raise CannotExpress where it cannot run the plan."""
    task = Task(plan=plan, tool=tool, context=context)
    refusal = refusal_of(task)
    if refusal is not None:
        raise refusal
    files: tuple[ExportFile, ...] = load(tool.write)(task)
    return Export(files=files, notes=tuple(task.notes))


def refusal_of(task: Task) -> CannotExpress | None:
    """Return why the tool cannot run the plan; None where it can."""
    plan, tool = task.plan, task.tool
    if tool.alike:
        try:
            return tool.refusal(task.shape)
        except CannotExpress as uneven:
            return uneven
    if plan.rank_axis_order not in tool.orders:
        order = f"({', '.join(plan.rank_axis_order)}), fastest first"
        return CannotExpress(tool=tool.name, key="rank_axis_order", found=order, expected="tp, cp, dp within a stage")
    for number, stage in enumerate(plan.stages if tool.states else ()):
        refusal = tool.refusal(stage_shape(stage, plan, task.model))
        if refusal is not None:
            refusal.key = refusal.key.replace("[]", f"[{number}]")
            return refusal
    return None


def headline(plan: Plan, shape: Shape | None = None) -> str:
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


def launcher_lines(plan: Plan, notes: list[str]) -> tuple[str, ...]:
    """torchrun and its options for the plan's nodes, a line each, without the script."""
    nodes = nodes_of(plan)
    if not nodes.node_major:
        notes.append(
            "ranks do not count through the nodes one by one, as torchrun gives them: start each process with the RANK"
            " and LOCAL_RANK of the plan's `devices` instead (`--to slurm` does)"
        )
    if len(nodes.nodes) == 1:
        return ("torchrun", "--standalone", f"--nproc-per-node {nodes.world_size}")
    per_node = str(nodes.per_node)
    if nodes.per_node is None:
        counted = groupby(len(node.ranks) for node in nodes.nodes)
        counts = ", ".join(f"{len(list(run))} x {count}" for count, run in counted)
        notes.append(f"processes on the nodes in their order (nodes x processes), as RANKS_HERE: {counts}")
        per_node = '"${RANKS_HERE:?processes on this node}"'
    notes.append("set NODE_RANK (from 0) and MASTER_ADDR (node 0) on every node")
    return (
        "torchrun",
        f"--nnodes {len(nodes.nodes)}",
        f"--nproc-per-node {per_node}",
        '--node-rank "${NODE_RANK:?this node, from 0}"',
        '--master-addr "${MASTER_ADDR:?the address of node 0}"',
        '--master-port "${MASTER_PORT:-29500}"',
    )


def shell_lines(words: Iterable[str], *, indent: str = "    ") -> str:
    """One command of a shell over several lines."""
    return f" \\\n{indent}".join(words)
