"""A DeepSpeed configuration (JSON) with its launcher line; where the plan has stages, the `PipelineModule` too.

Keys as in DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py,
module_inject/auto_ep_config.py, runtime/pipe/module.py).
"""

from __future__ import annotations

import json
from typing import Any

from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.tool import backwards
from planner.one_job.tools.base.writing import Task, shell_lines
from planner.one_job.tools.deepspeed.rules import OPTIMIZERS

PIPELINE = '''"""{headline}

The plan's {stages} stages for DeepSpeed's pipeline engine: `pipeline(layers, loss)` with the model as a list of
`LayerSpec`s, whose transformer blocks are of a class called `block` (a part of its name, lower or upper case).
"""

from deepspeed.pipe import PipelineModule
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology


def pipeline(layers, loss, *, block="Block"):
    return PipelineModule(
        layers=layers,
        loss_fn=loss,
        topology=PipeDataParallelTopology(num_pp={stages}, num_dp={dp}),
        partition_method=f"type:{{block}}",
        activation_checkpoint_interval={interval},
    )
'''


def write_deepspeed(task: Task) -> tuple[ExportFile, ...]:
    """Return `ds_config.json` and `launch.sh`, for several nodes a `hostfile`, for stages `pipeline.py`."""
    plan, shape, notes = task.plan, task.shape, task.notes
    config = {
        **_batch(task),
        "zero_optimization": _zero(task),
        **_precision(task),
        **_optimizer(plan.optimizer, notes),
        **_tensor_and_expert_parallel(task),
        **_recomputation(task),
    }
    files = [ExportFile(name="ds_config.json", text=json.dumps(config, indent=2) + "\n")]
    if shape.pp > 1:
        interval = int(shape.recompute == "full")
        text = PIPELINE.format(headline=task.headline, stages=shape.pp, dp=shape.dp, interval=interval)
        files.append(ExportFile(name="pipeline.py", text=text))
        notes.append("stages are not part of DeepSpeed's JSON: build the model with `pipeline` of pipeline.py")
    files += _launcher(task)
    return tuple(files)


def _batch(task: Task) -> dict[str, Any]:
    """`train_batch_size` is checked against all ranks, those of a tensor-parallel group among them."""
    plan, shape = task.plan, task.shape
    batch = {
        "train_micro_batch_size_per_gpu": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": plan.batch.micro_batches,
    }
    if shape.tp > 1:
        task.notes.append(f"a step takes {plan.batch.global_batch} samples, though DeepSpeed reports tp times as many")
        return batch
    return {"train_batch_size": plan.batch.global_batch, **batch}


def _zero(task: Task) -> dict[str, Any]:
    shape = task.shape
    zero: dict[str, Any] = {"stage": shape.zero}
    if shape.zero:
        zero["overlap_comm"] = "dp" in task.recipe.overlap
        if task.bucket_elements:
            zero["reduce_bucket_size"] = task.bucket_elements
    host = {"device": "cpu", "pin_memory": True}
    names = {"optimizer": "offload_optimizer", "weights": "offload_param"}
    return zero | {name: dict(host) for part, name in names.items() if part in shape.offload}


def _precision(task: Task) -> dict[str, Any]:
    """Weights in 16 bits with fp32 masters."""
    dtype, grads = task.plan.model.dtype, task.recipe.grad_dtype
    types: dict[str, Any] = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return {**types, "data_types": {"grad_accum_dtype": grads}}


def _optimizer(optimizer: str, notes: list[str]) -> dict[str, Any]:
    name = backwards(OPTIMIZERS).get(optimizer)
    if name is None:
        notes.append(f"DeepSpeed makes no {optimizer}: give deepspeed.initialize(optimizer=...) one")
        return {"zero_allow_untested_optimizer": True}
    notes.append("the learning rate and its schedule are yours: optimizer.params.lr and scheduler in ds_config.json")
    untested = {} if name == "AdamW" else {"zero_allow_untested_optimizer": True}
    return {"optimizer": {"type": name, "params": {}}, **untested}


def _tensor_and_expert_parallel(task: Task) -> dict[str, Any]:
    shape, notes = task.shape, task.notes
    settings: dict[str, Any] = {}
    if shape.tp > 1:
        settings["tensor_parallel"] = {"autotp_size": shape.tp, "tp_overlap_comm": "tp" in task.recipe.overlap}
        notes.append("AutoTP splits Hugging Face models by their own plan; other models need a partition_config")
        if shape.zero == 3:
            notes.append("AutoTP with ZeRO 3 needs DeepSpeed 0.19 or later")
    if shape.ep > 1:
        settings["expert_parallel"] = {"enabled": True, "autoep_size": shape.ep}
        notes.append("AutoEP knows the experts of Hugging Face's models, or by preset_model and patterns")
    return settings


def _recomputation(task: Task) -> dict[str, Any]:
    shape, notes = task.shape, task.notes
    if shape.recompute == "none":
        return {}
    if not shape.recomputes_all_blocks:
        notes.append(f"the model's code checkpoints these numbers of layers by stage: {shape.recompute_layers}")
    if shape.pp == 1:
        notes.append("recomputation is turned on in the model: gradient_checkpointing_enable() of Hugging Face's")
    return {"activation_checkpointing": {"cpu_checkpointing": "activations" in shape.offload}}


def _launcher(task: Task) -> list[ExportFile]:
    nodes, notes = nodes_of(task.plan), task.notes
    if not nodes.node_major:
        notes.append("ranks do not count through the nodes one by one, as DeepSpeed's launcher numbers them")
    files = []
    if len(nodes.nodes) == 1:
        where = [f"--num_gpus {len(nodes.nodes[0].ranks)}"]
    else:
        lines = [f"node{number} slots={len(node.ranks)}" for number, node in enumerate(nodes.nodes)]
        files.append(ExportFile(name="hostfile", text="\n".join(lines) + "\n"))
        notes.append("put the names of your nodes, in this order, into hostfile")
        where = ["--hostfile hostfile"]
    script = task.script()
    command = shell_lines(["deepspeed", *where, f'{script} --deepspeed --deepspeed_config ds_config.json "$@"'])
    lines = ["#!/usr/bin/env bash", f"# {task.headline}", "set -euo pipefail"]
    files.append(ExportFile(name="launch.sh", text="\n".join([*lines, command]) + "\n"))
    return files
