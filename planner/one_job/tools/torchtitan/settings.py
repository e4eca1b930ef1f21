"""A plan in torchtitan's settings, which its TOML files (to 0.2) and its Python configurations (from 0.3) share.

Names as in torchtitan 0.2.2 (config/job_config.py) and 0.3.0 (config/configs.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import Decoder, decoder_of, is_plain_llama
from planner.one_job.tools.base.export_records import CannotExpress
from planner.one_job.tools.base.shape import Shape
from planner.one_job.tools.base.tool import backwards
from planner.one_job.tools.base.writing import Task
from planner.one_job.tools.torchtitan.flavors import Release, find_flavor
from planner.one_job.tools.torchtitan.rules import DEGREES_NAMED, SCHEDULES
from profiles.records import dataclass

HEADS = {"0.2": "output", "0.3": "lm_head"}
"""What the output projection is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sections that both forms have, by torchtitan's own names."""

    training: Mapping[str, Any]
    parallelism: Mapping[str, Any]
    recompute: Literal["none", "full"]
    compiled: bool
    fp8: bool
    gathers_narrow: bool


def titan_settings(task: Task, release: Release) -> Settings:
    """Return the settings that both forms have."""
    plan, shape, notes, software = task.plan, task.shape, task.notes, task.recipe.software
    samples = shape.micro_batch_per_rank
    local = samples * plan.batch.micro_batches if shape.pp > 1 else samples
    training = {
        "local_batch_size": local,
        "global_batch_size": plan.batch.global_batch,
        "seq_len": plan.model.seq_len,
        # Weights are fp32, gathered and used in 16 bits.
        "mixed_precision_param": "float32" if plan.model.dtype == "fp32" else "bfloat16",
        "mixed_precision_reduce": "float32",
        "enable_cpu_offload": bool(shape.offload),
    }
    parallelism: dict[str, Any] = {
        **{DEGREES_NAMED[name]: getattr(shape, name) for name in ("pp", "tp", "cp")},
        **_data_parallel(shape, release),
        DEGREES_NAMED["ep"]: shape.ep,
    }
    if shape.pp > 1:
        parallelism |= _pipeline(task, release)
    notes.append("the optimizer's learning rate, its schedule, steps, data and tokenizer are yours")
    return Settings(
        training=training,
        parallelism=parallelism,
        recompute="full" if shape.recompute == "full" else "none",
        compiled=software.kernels == "fused" or plan.model.dtype == "fp8",
        fp8=plan.model.dtype == "fp8",
        gathers_narrow=plan.model.dtype == "fp8" and software.narrow_parameters,
    )


def _data_parallel(shape: Shape, release: Release) -> dict[str, Any]:
    """dp_shard * cp ranks share the weights; `never` keeps them gathered after forward: ZeRO 2, in a pipeline 1."""
    sharded = shape.zero > 0
    settings: dict[str, Any] = {
        "data_parallel_replicate_degree": shape.replicate if sharded else shape.dp,
        "data_parallel_shard_degree": shape.shard // shape.cp if sharded else 1,
    }
    if sharded:
        settings["fsdp_reshard_after_forward"] = "always" if shape.zero == 3 else "never"
    if release == "0.3":
        settings["enable_sequence_parallel"] = shape.sequence_parallel and shape.tp > 1
    elif shape.ep > 1:
        settings["expert_tensor_parallel_degree"] = shape.etp
    return settings


def _pipeline(task: Task, release: Release) -> dict[str, Any]:
    parts = [
        [
            *(["tok_embeddings"] if chunk.embeds else []),
            *(f"layers.{block}" for block in range(chunk.first, chunk.end)),
            *(["norm", HEADS[release]] if chunk.heads else []),
        ]
        for chunk in task.chunks
    ]
    return {
        "pipeline_parallel_schedule": backwards(SCHEDULES)[task.plan.schedule],
        "pipeline_parallel_microbatch_size": task.shape.micro_batch_per_rank,
        "module_fqns_per_model_part": parts,
    }


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that are none of torchtitan's own and, from 0.3 on, not of Llama's kind."""
    decoder = decoder_of(model, tool)
    release: Release = "0.3" if tool == "torchtitan" else "0.2"
    if find_flavor(decoder, release) is None and (release == "0.2" or not is_plain_llama(decoder)):
        expected = "its own llama3, qwen3 and deepseek_v3 flavors"
        others = ", and dense models of Llama's kind of any size" if release == "0.3" else " (0.3 runs other sizes)"
        said = f"{model.name}, a {_kind(decoder)}"
        raise CannotExpress(tool=tool, key="model", found=said, expected=expected + others)


def _kind(decoder: Decoder) -> str:
    experts = "mixture of experts" if decoder.experts else "dense model"
    positions = "learned" if decoder.positions else "rotary" if decoder.rotary_dim else "no"
    return f"{experts} with {decoder.norm} and {positions} positions"
