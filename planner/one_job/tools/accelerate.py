"""Hugging Face Accelerate's configuration (YAML): FSDP2 with its mesh, or plain data parallelism.

Keys as in accelerate 1.15.0 (commands/config/config_args.py, commands/launch.py, parallelism_config.py).
"""

from __future__ import annotations

from typing import Any

import yaml

from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.python_text import comment
from planner.one_job.tools.base.rules import (
    ALL_LAYERS_RECOMPUTED,
    STATE_SHARDED_OVER_CP,
    experts_split_as_all,
    sharded_state_offloaded_whole,
    tokens_whole,
)
from planner.one_job.tools.base.shape import Shape
from planner.one_job.tools.base.tool import Rule, TrainingTool
from planner.one_job.tools.base.writing import Task
from planner.shared.plan import Plan

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}


ACCELERATE = TrainingTool(
    name="accelerate",
    summary="Hugging Face Accelerate: FSDP2 or DDP as YAML",
    basis="accelerate 1.15: FSDP2 with its mesh, or plain data parallelism; tensor parallelism as the model plans it",
    software="generic",
    schedules=("1f1b",),
    recompute=("none", "full"),
    zero=(0, 2, 3),
    sharded_pipelines=(),
    dtypes=tuple(PRECISIONS),
    degrees=(
        Rule(key="stages", allows=lambda s: s.pp == 1, found="{s.pp} pipeline stages", expected="one"),
        Rule(key="stages[].ep", allows=lambda s: s.ep == 1, expected="1"),
        experts_split_as_all("tp = {s.tp}, as all matrices are split alike"),
        tokens_whole("false: how tp splits tokens is the model's own plan"),
    ),
    states=(
        Rule(
            key="stages[].sharding.zero",
            allows=lambda s: s.zero > 0 or (s.cp == 1 and (s.tp == 1 or s.dp == 1)),
            found="0 with tp {s.tp} and cp {s.cp}",
            expected="ZeRO 2 or 3 (FSDP) with tensor or context parallelism",
        ),
        STATE_SHARDED_OVER_CP,
        Rule(
            key="stages[].sharding.shard",
            allows=lambda s: s.zero < 2 or s.replicate == 1 or s.shard > s.cp,
            expected="more shards than cp beside copies of the state",
        ),
        sharded_state_offloaded_whole(
            2, "nothing, or weights and optimizer together with ZeRO 2 or 3 (fsdp_offload_params)"
        ),
    ),
    whole=(ALL_LAYERS_RECOMPUTED,),
    write="accelerate:write_accelerate",
    read="fine_tuning.read:read_accelerate",
)


def write_accelerate(task: Task) -> tuple[ExportFile, ...]:
    """Return `accelerate.yaml`; its first lines say how to start it."""
    plan, shape, notes = task.plan, task.shape, task.notes
    nodes = nodes_of(plan)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(shape),
        "num_machines": len(nodes.nodes),
        "num_processes": shape.devices,
        "machine_rank": 0,
        "rdzv_backend": "static",
        "same_network": True,
        "main_training_function": "main",
        "mixed_precision": PRECISIONS[plan.model.dtype],
        "use_cpu": False,
    }
    if config["distributed_type"] == "FSDP":
        config["fsdp_config"] = _fsdp(plan, shape)
    sizes = _mesh(shape)
    if config["distributed_type"] == "FSDP" or shape.tp > 1:
        config["parallelism_config"] = {f"parallelism_config_{name}_size": size for name, size in sizes.items()}
    _note(plan, shape, config, notes)
    script = task.script()
    head = [
        task.headline,
        f"accelerate launch --config_file accelerate.yaml {comment(script)}",
    ]
    if len(nodes.nodes) > 1:
        head[1] = head[1].replace(" accelerate.yaml", " accelerate.yaml --machine_rank N --main_process_ip NODE_0", 1)
        notes.append("start it on every node with its --machine_rank (from 0) and the --main_process_ip of node 0")
    text = "".join(f"# {line}\n" for line in head) + yaml.safe_dump(config, sort_keys=False)
    return (ExportFile(name="accelerate.yaml", text=text),)


def _distributed_type(shape: Shape) -> str:
    if shape.devices == 1:
        return "NO"
    return "FSDP" if shape.zero >= 2 and shape.dp * shape.cp > 1 else "MULTI_GPU"


def _mesh(shape: Shape) -> dict[str, int]:
    """FSDP shards over dp_shard * cp."""
    shards = shape.shard // shape.cp if shape.zero else 1
    replicas = shape.replicate if shape.zero else shape.dp
    return {"dp_replicate": replicas, "dp_shard": shards, "tp": shape.tp, "cp": shape.cp}


def _fsdp(plan: Plan, shape: Shape) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": shape.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP" if plan.model.sizes.blocks else "SIZE_BASED_WRAP",
        "fsdp_activation_checkpointing": shape.recompute == "full",
        "fsdp_offload_params": bool(shape.offload),
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _note(plan: Plan, shape: Shape, config: dict[str, Any], notes: list[str]) -> None:
    notes.append(
        f"in the script: batches of {shape.micro_batch_per_rank} samples per process, and"
        f" Accelerator(gradient_accumulation_steps={plan.batch.micro_batches}); optimizer {plan.optimizer}"
    )
    if plan.model.sizes.blocks and config["distributed_type"] == "FSDP":
        notes.append(
            "blocks are wrapped by the model's _no_split_modules; else name fsdp_transformer_layer_cls_to_wrap"
        )
    if shape.recompute == "full" and config["distributed_type"] != "FSDP":
        notes.append("recomputation is turned on in the model: gradient_checkpointing_enable() of Hugging Face's")
    if shape.tp > 1:
        notes.append("tensor parallelism takes the model's own plan: from_pretrained(tp_plan='auto', device_mesh=...)")
    if not nodes_of(plan).node_major:
        notes.append("ranks do not count through the nodes one by one, as accelerate numbers them")
    if nodes_of(plan).per_node is None:
        notes.append("nodes have different numbers of processes: accelerate takes as many on each")
