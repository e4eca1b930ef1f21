"""A plan in torchtitan's settings, which its TOML files (to 0.2) and its Python configurations (from 0.3) share.

Names as in torchtitan 0.2.2 (config/job_config.py) and 0.3.0 (config/configs.py).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from models_zoo.layers import Head
from models_zoo.model import Model
from planner.one_job.tools.decoder import Decoder
from planner.one_job.tools.export_records import CannotExpress
from planner.one_job.tools.shape import (
    Chunk,
    Uniform,
    chunks_of,
    recipe_of,
    recomputes_all_blocks,
    refuse_training_beyond,
)
from planner.shared.plan import Plan

Release = Literal["0.2", "0.3"]

SCHEDULES = {"1f1b": "1F1B", "gpipe": "GPipe", "interleaved": "Interleaved1F1B"}

HEADS = {"0.2": "output", "0.3": "lm_head"}
"""What the output projection is called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The sections that both forms have, by torchtitan's own names."""

    training: dict[str, Any]
    parallelism: dict[str, Any]
    recompute: Literal["none", "full"]
    compiled: bool
    fp8: bool


def titan_settings(plan: Plan, shape: Uniform, model: Model, release: Release, notes: list[str]) -> Settings:
    """CannotExpress for what torchtitan has no setting for."""
    tool = _tool(release)
    refuse_training_beyond(plan, tool)
    head = model.layers[-1]
    if shape.pp > 1 and isinstance(head, Head) and head.tied:
        found = f"{shape.pp} stages of {model.name}, whose embedding and head share their weights"
        raise CannotExpress(tool=tool, key="stages", found=found, expected="such models in one stage")
    chunks = chunks_of(plan, model)
    _refuse_degrees(plan, shape, release)
    own = shape.micro_batch_per_rank
    local = own * plan.batch.micro_batches if shape.pp > 1 else own
    training = {
        "local_batch_size": local,
        "global_batch_size": plan.batch.global_batch,
        "seq_len": plan.model.seq_len,
        **_precision(plan, shape, tool),
        "enable_cpu_offload": _offloads(shape, tool),
    }
    parallelism: dict[str, Any] = {
        "pipeline_parallel_degree": shape.pp,
        "tensor_parallel_degree": shape.tp,
        "context_parallel_degree": shape.cp,
        **_data_parallel(shape, release),
        "expert_parallel_degree": shape.ep,
    }
    if shape.pp > 1:
        parallelism |= _pipeline(plan, shape, chunks, release)
    software = recipe_of(plan).software
    notes.append("the optimizer's learning rate, its schedule, steps, data and tokenizer are yours")
    return Settings(
        training=training,
        parallelism=parallelism,
        recompute=_recompute(shape, chunks, tool),
        compiled=software.kernels == "fused" or plan.model.dtype == "fp8",
        fp8=plan.model.dtype == "fp8",
    )


def _tool(release: Release) -> str:
    return "torchtitan" if release == "0.3" else "torchtitan-toml"


def _refuse_degrees(plan: Plan, shape: Uniform, release: Release) -> None:
    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=_tool(release), key=key, found=found, expected=expected)

    if plan.optimizer != "adamw":
        raise refuse("optimizer", plan.optimizer, "adamw")
    if shape.pp > 1 and plan.schedule not in SCHEDULES:
        raise refuse("schedule", plan.schedule, " or ".join(SCHEDULES))
    if release == "0.2" and shape.tp > 1 and not shape.sequence_parallel:
        raise refuse("stages[].sequence_parallel", False, "true: tensor parallelism comes with it")
    if shape.zero == 1 and shape.dp * shape.cp > 1:
        raise refuse("stages[].sharding.zero", 1, "ZeRO 0 (DDP), 2 or 3 (FSDP)")
    if shape.zero == 0 and (shape.cp > 1 or (release == "0.2" and shape.dp not in (1, shape.devices))):
        found = f"0 with tp {shape.tp}, pp {shape.pp} and cp {shape.cp}"
        raise refuse("stages[].sharding.zero", found, "ZeRO 2 or 3 (FSDP) beside other parallelism")
    if shape.zero >= 2 and shape.shard % shape.cp:
        raise refuse("stages[].sharding.shard", shape.shard, f"a multiple of cp = {shape.cp}, over which it shards too")
    tokens = plan.model.seq_len or 0
    if tokens % (shape.tp * (2 * shape.cp if shape.cp > 1 else 1)):
        raise refuse("model.seq_len", tokens, "a multiple of tp and 2 * cp")
    if plan.model.sizes.experts:
        _refuse_experts(shape, release)


def _refuse_experts(shape: Uniform, release: Release) -> None:
    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=_tool(release), key=key, found=found, expected=expected)

    if shape.ep == 1 and shape.etp != shape.tp:
        raise refuse("stages[].etp", shape.etp, f"tp = {shape.tp} where experts are not shared")
    if shape.ep > 1 and shape.etp not in ((1,) if release == "0.3" else (1, shape.tp)):
        raise refuse("stages[].etp", shape.etp, "1" if release == "0.3" else f"1 or tp = {shape.tp}")
    ranks = (shape.shard if shape.zero else 1) * (shape.tp if shape.etp == 1 else 1)
    if shape.ep > 1 and ranks % shape.ep:
        found = f"{shape.ep} over {ranks} ranks that share one copy of the weights"
        raise refuse("stages[].ep", found, "a divisor of dp_shard * cp * tp")


def _precision(plan: Plan, shape: Uniform, tool: str) -> dict[str, Any]:
    """Weights are fp32, gathered and used in 16 bits; reductions are fp32."""
    dtype = plan.model.dtype
    if dtype not in ("bf16", "fp32", "fp8"):
        raise CannotExpress(tool=tool, key="model.dtype", found=dtype, expected="bf16, fp32 or fp8")
    grads = None if plan.recipe is None else plan.recipe.grad_dtype
    if grads not in (None, "fp32") and shape.dp * shape.cp > 1:
        raise CannotExpress(tool=tool, key="recipe.grad_dtype", found=grads, expected="fp32: what FSDP sums in")
    return {"mixed_precision_param": "float32" if dtype == "fp32" else "bfloat16", "mixed_precision_reduce": "float32"}


def _offloads(shape: Uniform, tool: str) -> bool:
    if not shape.offload:
        return False
    if set(shape.offload) != {"weights", "optimizer"} or shape.zero < 2:
        found = f"{', '.join(shape.offload)} with ZeRO {shape.zero}"
        expected = "nothing, or weights and optimizer together under FSDP (enable_cpu_offload)"
        raise CannotExpress(tool=tool, key="stages[].offload", found=found, expected=expected)
    return True


def _data_parallel(shape: Uniform, release: Release) -> dict[str, Any]:
    """dp_shard * cp ranks share the weights; `never` keeps them gathered after forward, as ZeRO 2 does."""
    sharded = shape.zero >= 2
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": shape.replicate if sharded else shape.dp,
        "data_parallel_shard_degree": shape.shard // shape.cp if sharded else 1,
    }
    if sharded:
        found["fsdp_reshard_after_forward"] = "always" if shape.zero == 3 else "never"
    if release == "0.3":
        found["enable_sequence_parallel"] = shape.sequence_parallel and shape.tp > 1
    elif shape.ep > 1:
        found["expert_tensor_parallel_degree"] = shape.etp
    return found


def _pipeline(plan: Plan, shape: Uniform, chunks: tuple[Chunk, ...], release: Release) -> dict[str, Any]:
    parts = [
        [
            *(["tok_embeddings"] if chunk.embeds else []),
            *(f"layers.{block}" for block in range(chunk.first, chunk.end)),
            *(["norm", HEADS[release]] if chunk.heads else []),
        ]
        for chunk in chunks
    ]
    return {
        "pipeline_parallel_schedule": SCHEDULES[plan.schedule],
        "pipeline_parallel_microbatch_size": shape.micro_batch_per_rank,
        "module_fqns_per_model_part": parts,
    }


def _recompute(shape: Uniform, chunks: tuple[Chunk, ...], tool: str) -> Literal["none", "full"]:
    if shape.recompute == "none":
        return "none"
    if shape.recompute == "selective":
        expected = "none or full: its selective policy computes other operators again"
        raise CannotExpress(tool=tool, key="stages[].recompute.kind", found="selective", expected=expected)
    if not recomputes_all_blocks(shape, chunks):
        found = f"{', '.join(map(str, shape.recompute_layers))} layers by stage"
        raise CannotExpress(tool=tool, key="stages[].recompute.layers", found=found, expected="all layers or none")
    return "full"


@cache
def _flavors() -> list[dict[str, Any]]:
    text = files("planner.one_job.tools.torchtitan").joinpath("flavors.json").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = json.loads(text)["flavors"]
    return found


def find_flavor(decoder: Decoder, release: Release) -> tuple[str, str] | None:
    """The model and flavor of torchtitan that has these sizes."""
    own: dict[str, Any] = {
        name: getattr(decoder, name)
        for name in ("blocks", "hidden", "heads", "kv_heads", "head_dim", "feed_forward_hidden", "vocab", "tied")
    }
    experts, latent = decoder.experts, decoder.latent
    own |= {
        "query_key_norm": decoder.query_key_norm,
        "dense_blocks": decoder.expert_blocks.count(False),
        "experts": experts.count if experts else None,
        "top_k": experts.top_k if experts else None,
        "expert_hidden": experts.expert.hidden if experts else None,
        "shared_hidden": experts.shared_hidden if experts else None,
        "key_value_rank": latent.key_value_rank if latent else None,
        "query_rank": latent.query_rank if latent else None,
    }
    usual = {"query_key_norm": "none", "experts": None, "key_value_rank": None}
    if not (is_plain_llama(decoder, query_key_norm=True) or experts):
        return None
    for flavor in _flavors():
        sizes = {name: value for name, value in flavor.items() if name not in ("model", "flavor", "releases")}
        if release in flavor["releases"] and all(own[name] == value for name, value in {**usual, **sizes}.items()):
            return flavor["model"], flavor["flavor"]
    return None


def is_plain_llama(decoder: Decoder, *, query_key_norm: bool = False) -> bool:
    """Whether the model is of Llama's kind: RMSNorm, rotary positions, SwiGLU, no biases, no windows, no experts."""
    return (
        decoder.norm == "rmsnorm"
        and decoder.rotary_dim == decoder.head_dim
        and not decoder.positions
        and (decoder.gated, decoder.activation) == (True, "silu")
        and not (decoder.qkv_bias or decoder.output_bias or decoder.feed_forward_bias)
        and (query_key_norm or decoder.query_key_norm == "none")
        and not any(decoder.windows)
        and decoder.latent is None
        and decoder.experts is None
    )
