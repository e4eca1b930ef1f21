"""A DeepSpeed configuration (JSON) with its launcher line; where the plan has stages, the `PipelineModule` too.

Keys as in DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, runtime/tensor_parallel/config.py,
module_inject/auto_ep_config.py, runtime/pipe/module.py).
"""

from __future__ import annotations

import json
from typing import Any

from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.shape import (
    Uniform,
    chunks_of,
    headline,
    load_plan_model,
    nodes_of,
    recipe_of,
    recomputes_all_blocks,
    refuse_training_beyond,
    script_of,
    shell_lines,
    uniform,
)
from planner.shared.plan import Plan

TOOL = "deepspeed"

OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD", "muon": "Muon"}

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


def export_deepspeed(plan: Plan, context: ExportContext) -> Export:
    """`ds_config.json` and `launch.sh`, for several nodes a `hostfile`, for stages `pipeline.py`."""
    notes: list[str] = []
    shape = uniform(plan, TOOL)
    refuse_training_beyond(plan, TOOL)
    _refuse(plan, shape)
    config = {
        **_batch(plan, shape, notes),
        "zero_optimization": _zero(plan, shape),
        **_precision(plan, shape),
        **_optimizer(plan, notes),
        **_tensor_and_expert_parallel(plan, shape, notes),
        **_recomputation(plan, shape, notes),
    }
    files = [ExportFile(name="ds_config.json", text=json.dumps(config, indent=2) + "\n")]
    if shape.pp > 1:
        interval = int(shape.recompute == "full")
        text = PIPELINE.format(headline=headline(plan, shape), stages=shape.pp, dp=shape.dp, interval=interval)
        files.append(ExportFile(name="pipeline.py", text=text))
        notes.append("stages are not part of DeepSpeed's JSON: build the model with `pipeline` of pipeline.py")
    files += _launcher(plan, shape, context, notes)
    return Export(files=tuple(files), notes=tuple(notes))


def _refuse(plan: Plan, shape: Uniform) -> None:
    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=TOOL, key=key, found=found, expected=expected)

    if shape.cp > 1:
        raise refuse("stages[].cp", shape.cp, "1: its sequence parallelism exchanges heads (Ulysses), not tokens")
    if shape.tp > 1 and shape.sequence_parallel:
        raise refuse("stages[].sequence_parallel", True, "false: AutoTP keeps all tokens on each rank")
    if shape.zero and shape.replicate > 1:
        found = f"{shape.replicate} copies of {shape.shard} shards"
        raise refuse("stages[].sharding.replicate", found, "1: state sharded over all replicas")
    experts = plan.model.sizes.experts
    if experts and shape.ep > 1 and shape.etp > 1:
        raise refuse("stages[].etp", shape.etp, "1 where experts are shared (expert_tensor_parallel_size)")
    if experts and shape.ep == 1 and shape.etp != shape.tp:
        raise refuse("stages[].etp", shape.etp, f"tp = {shape.tp} where experts are not shared")
    if shape.pp > 1:
        _refuse_stages(plan, shape)


def _refuse_stages(plan: Plan, shape: Uniform) -> None:
    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=TOOL, key=key, found=found, expected=expected)

    if plan.schedule != "1f1b":
        raise refuse("schedule", plan.schedule, "1f1b")
    if shape.zero > 1:
        raise refuse("stages[].sharding.zero", f"{shape.zero} with {shape.pp} stages", "ZeRO 0 or 1 with stages")
    for name in ("tp", "ep"):
        if getattr(shape, name) > 1:
            raise refuse(f"stages[].{name}", f"{getattr(shape, name)} with {shape.pp} stages", "1 with stages")
    chunks = chunks_of(plan, load_plan_model(plan))
    if len({chunk.blocks for chunk in chunks}) > 1 or not chunks[0].blocks:
        found = f"{', '.join(str(chunk.blocks) for chunk in chunks)} blocks"
        raise refuse("stages[].chunks", found, "as many blocks in each stage")


def _batch(plan: Plan, shape: Uniform, notes: list[str]) -> dict[str, Any]:
    """`train_batch_size` is checked against all ranks, those of a tensor-parallel group among them."""
    found = {
        "train_micro_batch_size_per_gpu": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": plan.batch.micro_batches,
    }
    if shape.tp > 1:
        notes.append(f"a step takes {plan.batch.global_batch} samples, though DeepSpeed reports tp times as many")
        return found
    return {"train_batch_size": plan.batch.global_batch, **found}


def _zero(plan: Plan, shape: Uniform) -> dict[str, Any]:
    recipe = recipe_of(plan)
    found: dict[str, Any] = {"stage": shape.zero}
    if shape.zero:
        found["overlap_comm"] = "dp" in recipe.overlap
        width = {"fp32": 4, "bf16": 2, "fp16": 2}[recipe.grad_dtype]
        if recipe.software.bucket_bytes:
            found["reduce_bucket_size"] = recipe.software.bucket_bytes // width
    offload = set(shape.offload)
    if "activations" in offload and shape.recompute != "full":
        expected = "offloaded activations with full recomputation alone (cpu_checkpointing)"
        raise CannotExpress(tool=TOOL, key="stages[].offload", found=", ".join(shape.offload), expected=expected)
    if "optimizer" in offload:
        if not shape.zero:
            expected = "an offloaded optimizer with ZeRO 1 or more"
            raise CannotExpress(tool=TOOL, key="stages[].offload", found="optimizer with ZeRO 0", expected=expected)
        found["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if "weights" in offload:
        if shape.zero != 3:
            found_zero = f"weights with ZeRO {shape.zero}"
            raise CannotExpress(
                tool=TOOL, key="stages[].offload", found=found_zero, expected="offloaded weights with ZeRO 3"
            )
        found["offload_param"] = {"device": "cpu", "pin_memory": True}
    return found


def _precision(plan: Plan, shape: Uniform) -> dict[str, Any]:
    """Weights in 16 bits with fp32 masters. Gradients of another width than the weights need ZeRO."""
    dtype, grads = plan.model.dtype, recipe_of(plan).grad_dtype
    if dtype not in ("bf16", "fp16", "fp32"):
        raise CannotExpress(tool=TOOL, key="model.dtype", found=dtype, expected="bf16, fp16 or fp32")
    if grads != dtype and not shape.zero and shape.pp == 1:
        found = f"{grads} gradients of {dtype} weights with ZeRO 0"
        raise CannotExpress(tool=TOOL, key="recipe.grad_dtype", found=found, expected=f"{dtype} gradients, or ZeRO")
    found_types: dict[str, Any] = {} if dtype == "fp32" else {dtype: {"enabled": True}}
    return {**found_types, "data_types": {"grad_accum_dtype": grads}}


def _optimizer(plan: Plan, notes: list[str]) -> dict[str, Any]:
    name = OPTIMIZERS.get(plan.optimizer)
    if name is None:
        notes.append(f"DeepSpeed makes no {plan.optimizer}: give deepspeed.initialize(optimizer=...) one")
        return {"zero_allow_untested_optimizer": True}
    notes.append("the learning rate and its schedule are yours: optimizer.params.lr and scheduler in ds_config.json")
    untested = {} if name == "AdamW" else {"zero_allow_untested_optimizer": True}
    return {"optimizer": {"type": name, "params": {}}, **untested}


def _tensor_and_expert_parallel(plan: Plan, shape: Uniform, notes: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if shape.tp > 1:
        found["tensor_parallel"] = {"autotp_size": shape.tp, "tp_overlap_comm": "tp" in recipe_of(plan).overlap}
        notes.append("AutoTP splits Hugging Face models by their own plan; other models need a partition_config")
        if shape.zero == 3:
            notes.append("AutoTP with ZeRO 3 needs DeepSpeed 0.19 or later")
    if shape.ep > 1:
        found["expert_parallel"] = {"enabled": True, "autoep_size": shape.ep}
        notes.append("AutoEP knows the experts of Hugging Face's models, or by preset_model and patterns")
    return found


def _recomputation(plan: Plan, shape: Uniform, notes: list[str]) -> dict[str, Any]:
    if shape.recompute == "none":
        return {}
    if shape.recompute == "selective":
        expected = "none or full: which operators are computed again is the model's own code"
        raise CannotExpress(tool=TOOL, key="stages[].recompute.kind", found="selective", expected=expected)
    chunks = chunks_of(plan, load_plan_model(plan))
    if not recomputes_all_blocks(shape, chunks):
        notes.append(f"the model's code checkpoints these numbers of layers by stage: {shape.recompute_layers}")
    if shape.pp == 1:
        notes.append("recomputation is turned on in the model: gradient_checkpointing_enable() of Hugging Face's")
    return {"activation_checkpointing": {"cpu_checkpointing": "activations" in shape.offload}}


def _launcher(plan: Plan, shape: Uniform, context: ExportContext, notes: list[str]) -> list[ExportFile]:
    nodes = nodes_of(plan)
    if not nodes.in_order:
        notes.append("ranks do not count through the nodes one by one, as DeepSpeed's launcher numbers them")
    files = []
    if len(nodes.ranks) == 1:
        where = [f"--num_gpus {len(nodes.ranks[0])}"]
    else:
        lines = [f"node{number} slots={len(ranks)}" for number, ranks in enumerate(nodes.ranks)]
        files.append(ExportFile(name="hostfile", text="\n".join(lines) + "\n"))
        notes.append("put the names of your nodes, in this order, into hostfile")
        where = ["--hostfile hostfile"]
    script = script_of(context, notes)
    command = shell_lines(["deepspeed", *where, f'{script} --deepspeed --deepspeed_config ds_config.json "$@"'])
    lines = ["#!/usr/bin/env bash", f"# {headline(plan, shape)}", "set -euo pipefail"]
    files.append(ExportFile(name="launch.sh", text="\n".join([*lines, command]) + "\n"))
    return files
