"""Hugging Face Accelerate's configuration (YAML): FSDP2 with its mesh, or plain data parallelism.

Keys as in accelerate 1.15.0 (commands/config/config_args.py, commands/launch.py, parallelism_config.py).
"""

from __future__ import annotations

from typing import Any

import yaml

from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.python_text import comment
from planner.one_job.tools.shape import (
    Uniform,
    chunks_of,
    headline,
    load_plan_model,
    nodes_of,
    recomputes_all_blocks,
    refuse_training_beyond,
    script_of,
    uniform,
)
from planner.shared.plan import Plan

TOOL = "accelerate"

PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp32": "no"}


def export_accelerate(plan: Plan, context: ExportContext) -> Export:
    """`accelerate.yaml`; its first lines say how to start it."""
    notes: list[str] = []
    shape = uniform(plan, TOOL)
    refuse_training_beyond(plan, TOOL)
    _refuse(plan, shape)
    nodes = nodes_of(plan)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": _distributed_type(shape),
        "num_machines": len(nodes.ranks),
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
    script = script_of(context, notes)
    head = [
        headline(plan, shape),
        f"accelerate launch --config_file accelerate.yaml {comment(script)}",
    ]
    if len(nodes.ranks) > 1:
        head[1] = head[1].replace(" accelerate.yaml", " accelerate.yaml --machine_rank N --main_process_ip NODE_0", 1)
        notes.append("start it on every node with its --machine_rank (from 0) and the --main_process_ip of node 0")
    text = "".join(f"# {line}\n" for line in head) + yaml.safe_dump(config, sort_keys=False)
    return Export(files=(ExportFile(name="accelerate.yaml", text=text),), notes=tuple(notes))


def _refuse(plan: Plan, shape: Uniform) -> None:
    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=TOOL, key=key, found=found, expected=expected)

    if shape.pp > 1:
        raise refuse("stages", f"{shape.pp} pipeline stages", "one")
    if shape.ep > 1:
        raise refuse("stages[].ep", shape.ep, "1")
    if plan.model.sizes.experts and shape.etp != shape.tp:
        raise refuse("stages[].etp", shape.etp, f"tp = {shape.tp}, as all matrices are split alike")
    if shape.tp > 1 and shape.sequence_parallel:
        raise refuse("stages[].sequence_parallel", True, "false: how tp splits tokens is the model's own plan")
    if plan.model.dtype not in PRECISIONS:
        raise refuse("model.dtype", plan.model.dtype, " or ".join(PRECISIONS))
    if shape.zero == 1 and shape.dp * shape.cp > 1:
        raise refuse("stages[].sharding.zero", 1, "ZeRO 0 (DDP), 2 or 3 (FSDP)")
    if shape.zero == 0 and (shape.cp > 1 or (shape.tp > 1 and shape.dp > 1)):
        found = f"0 with tp {shape.tp} and cp {shape.cp}"
        raise refuse("stages[].sharding.zero", found, "ZeRO 2 or 3 (FSDP) with tensor or context parallelism")
    if shape.zero >= 2 and shape.shard % shape.cp:
        found = f"{shape.shard} with cp {shape.cp}"
        raise refuse("stages[].sharding.shard", found, "a multiple of cp, over which it shards too")
    if shape.zero >= 2 and shape.replicate > 1 and shape.shard == shape.cp:
        raise refuse("stages[].sharding.shard", shape.shard, "more shards than cp beside copies of the state")
    if set(shape.offload) not in (set(), {"weights", "optimizer"}):
        found = ", ".join(shape.offload)
        raise refuse("stages[].offload", found, "nothing, or weights and optimizer together (fsdp_offload_params)")
    if shape.offload and shape.zero < 2:
        raise refuse("stages[].offload", ", ".join(shape.offload), "offloading with ZeRO 2 or 3 (FSDP)")
    if shape.recompute == "selective":
        raise refuse("stages[].recompute.kind", "selective", "none or full")
    if shape.recompute == "full" and not recomputes_all_blocks(shape, chunks_of(plan, load_plan_model(plan))):
        raise refuse("stages[].recompute.layers", shape.recompute_layers[0], "all layers or none")


def _distributed_type(shape: Uniform) -> str:
    if shape.devices == 1:
        return "NO"
    return "FSDP" if shape.zero >= 2 and shape.dp * shape.cp > 1 else "MULTI_GPU"


def _mesh(shape: Uniform) -> dict[str, int]:
    """FSDP shards over dp_shard * cp."""
    shards = shape.shard // shape.cp if shape.zero else 1
    replicas = shape.replicate if shape.zero else shape.dp
    return {"dp_replicate": replicas, "dp_shard": shards, "tp": shape.tp, "cp": shape.cp}


def _fsdp(plan: Plan, shape: Uniform) -> dict[str, Any]:
    return {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": shape.zero == 3,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP" if plan.model.sizes.blocks else "SIZE_BASED_WRAP",
        "fsdp_activation_checkpointing": shape.recompute == "full",
        "fsdp_offload_params": bool(shape.offload),
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
    }


def _note(plan: Plan, shape: Uniform, config: dict[str, Any], notes: list[str]) -> None:
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
    if not nodes_of(plan).in_order:
        notes.append("ranks do not count through the nodes one by one, as accelerate numbers them")
    if nodes_of(plan).per_node is None:
        notes.append("nodes have different numbers of processes: accelerate takes as many on each")
