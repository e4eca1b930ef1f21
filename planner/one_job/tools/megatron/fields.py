"""A plan in the fields of Megatron Core's `TransformerConfig` and its kin, which Megatron-LM's arguments and
Megatron-Bridge's configuration are both made of.

Names as in megatron-core 0.16.1 (transformer/transformer_config.py, distributed/distributed_data_parallel_config.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import Decoder, decoder_of
from planner.one_job.tools.base.export_records import CannotExpress
from planner.one_job.tools.base.shape import Chunk
from planner.one_job.tools.base.tool import backwards
from planner.one_job.tools.base.writing import Task
from planner.one_job.tools.megatron.names import DEGREES, EXPERTS, LATENT, STRATEGIES, fields_of
from planner.one_job.tools.megatron.rules import recomputed_blocks
from planner.one_job.tools.megatron.traits import norm_fields, rotary_fields, router_fields
from profiles.vocabulary import NARROW_DTYPES

Fields = dict[str, Any]


def core_fields(task: Task) -> Fields:
    """Return the plan in Megatron Core's fields, by their names; None where its default holds."""
    return {
        **_architecture(task),
        **_experts(task),
        **_parallel(task),
        **_recompute(task),
        **_kernels(task),
        **_sharding(task),
        **_offload(task),
    }


def _architecture(task: Task) -> Fields:
    """The model: what `TransformerConfig` and the GPT model around it are told of its sizes."""
    decoder = task.decoder
    dropout = 0.1 if decoder.dropout else 0.0
    return {
        "num_layers": decoder.blocks,
        "hidden_size": decoder.hidden,
        "ffn_hidden_size": decoder.feed_forward_hidden,
        "num_attention_heads": decoder.heads,
        **_attention(decoder),
        "swiglu": decoder.gated,
        **norm_fields(decoder),
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[decoder.norm],
        **_positions(decoder, task.notes),
        "share_embeddings_and_output_weights": decoder.tied,
        "add_bias_linear": decoder.output_bias,
        "add_qkv_bias": decoder.qkv_bias and not decoder.output_bias,
        "qk_layernorm": decoder.query_key_norm == "head",
        "attention_dropout": dropout,
        "hidden_dropout": dropout,
        "vocab_size": decoder.vocab,
        **_windows(decoder),
    }


def _attention(decoder: Decoder) -> Fields:
    if decoder.latent is not None:
        latent = {"multi_latent_attention": True, **fields_of(decoder.latent, LATENT)}
        return {"num_query_groups": None, "kv_channels": None, **latent}
    return {
        "num_query_groups": decoder.kv_heads if decoder.kv_heads != decoder.heads else None,
        "kv_channels": decoder.head_dim if decoder.head_dim * decoder.heads != decoder.hidden else None,
    }


def _positions(decoder: Decoder, notes: list[str]) -> Fields:
    if not decoder.rotary_dim:
        kind = "learned_absolute" if decoder.positions else "none"
        return {"position_embedding_type": kind, "rotary_percent": None}
    partial = decoder.latent is None and decoder.rotary_dim != decoder.head_dim
    return {
        "position_embedding_type": "learned_absolute" if decoder.positions else "rope",
        "rotary_percent": decoder.rotary_dim / decoder.head_dim if partial else None,
        **rotary_fields(decoder, notes),
    }


def _windows(decoder: Decoder) -> Fields:
    """Tokens to the left and the right that attention sees, and which layers slide where not all do."""
    widths = [window for window in decoder.windows if window is not None]
    if not widths:
        return {}
    slides = tuple(window is not None for window in decoder.windows)
    return {"window_size": (widths[0] - 1, 0), "window_attn_skip_freq": None if all(slides) else slides}


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that Megatron Core has no configuration of."""
    decoder = decoder_of(model, tool)

    def refuse(what: str, expected: str) -> CannotExpress:
        return CannotExpress(tool=tool, key="model", found=f"{model.name}, {what}", expected=expected)

    if (decoder.gated, decoder.activation) not in ((True, "silu"), (False, "gelu")):
        gate = "a gated " if decoder.gated else ""
        raise refuse(f"with {gate}{decoder.activation}", "SwiGLU or an ungated GELU")
    if decoder.output_bias != decoder.feed_forward_bias and not (decoder.experts and all(decoder.expert_blocks)):
        raise refuse("with biases in some linear layers only", "biases in all, in none, or on query, key and value")
    if decoder.query_key_norm == "full":
        raise refuse("with one norm over all heads of queries", "a norm of each head's queries and keys")
    if len({window for window in decoder.windows if window is not None}) > 1:
        raise refuse("with windows of several widths", "one width of sliding windows")
    if decoder.experts and decoder.experts.shared_gate:
        raise refuse("whose shared expert has a gate", "shared experts without a gate")

    experts = decoder.experts
    if experts and (experts.expert.gated, experts.expert.activation) != (decoder.gated, decoder.activation):
        raise refuse("whose experts are not activated as its dense layers", "one activation in all feed-forwards")


def _experts(task: Task) -> Fields:
    """The experts, where the model has them."""
    decoder, plan, shape, recipe, notes = task.decoder, task.plan, task.shape, task.recipe, task.notes
    experts = decoder.experts
    if experts is None:
        return {}
    if decoder.output_bias:
        notes.append("the experts have biases as all linear layers do, which the plan's do not")
    if recipe.moe_imbalance > 1:
        notes.append(f"the plan reckons with {recipe.moe_imbalance:g} times the mean tokens on the fullest expert rank")
    deduplicated = recipe.software.dispatch != "all_to_all" and shape.ep > 1
    if recipe.software.dispatch == "hybrid" and deduplicated:
        notes.append("the plan reckons with HybridEP: set moe_flex_dispatcher_backend to hybridep")
    return {
        **fields_of(experts, EXPERTS),
        "moe_layer_freq": None if all(decoder.expert_blocks) else decoder.expert_blocks,
        **router_fields(decoder, notes),
        "moe_router_load_balancing_type": "aux_loss",
        "moe_grouped_gemm": plan.model.dtype == "bf16" or plan.model.dtype in NARROW_DTYPES,
        "moe_token_dispatcher_type": "flex" if deduplicated else "alltoall",
        "moe_enable_deepep": deduplicated,
        "moe_expert_capacity_factor": recipe.moe_capacity_factor,
        "moe_pad_expert_input_to_capacity": recipe.moe_capacity_factor is not None and not deduplicated,
        **{DEGREES[name]: getattr(shape, name) for name in ("ep", "etp")},
        "overlap_moe_expert_parallel_comm": _overlaps_experts(task),
        "moe_shared_expert_overlap": recipe.software.shared_beside and bool(experts.shared_hidden) and not deduplicated,
    }


def _overlaps_experts(task: Task) -> bool:
    shape = task.shape
    if "ep" not in task.recipe.overlap or shape.ep == 1:
        return False
    allowed = (shape.pp == 1 or shape.vpp > 1) and shape.recompute != "full"
    if not allowed:
        task.notes.append(
            "expert communication beside compute needs interleaving or one stage, and no full recomputation"
        )
    return allowed


def _parallel(task: Task) -> Fields:
    """Degrees, and who holds which blocks."""
    shape = task.shape
    return {
        **{DEGREES[name]: getattr(shape, name) for name in ("tp", "pp", "cp")},
        "sequence_parallel": shape.sequence_parallel and shape.tp > 1,
        "virtual_pipeline_model_parallel_size": shape.vpp if shape.vpp > 1 else None,
        **split_fields(task.chunks, shape.pp),
    }


def split_fields(chunks: Sequence[Chunk], stages: int) -> Fields:
    """Nothing where all chunks hold as many blocks; else the first and last stage's where those alone differ, else the
    layout of each chunk: E the embedding, t a block, L the head, | between chunks."""
    counts = [chunk.blocks for chunk in chunks]
    if len(set(counts)) == 1:
        return {}
    if len(chunks) == stages > 2 and len(set(counts[1:-1])) == 1 and min(counts) > 0:
        return {"num_layers_in_first_pipeline_stage": counts[0], "num_layers_in_last_pipeline_stage": counts[-1]}
    words = [
        ("E" if chunk.embeds else "") + _repeat("t", chunk.blocks) + ("L" if chunk.heads else "") for chunk in chunks
    ]
    return {"pipeline_model_parallel_layout": "|".join(words)}


def _repeat(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


def _recompute(task: Task) -> Fields:
    """What backward computes again."""
    shape = task.shape
    if shape.recompute == "none":
        return {}
    if shape.recompute == "selective":
        return {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
    whole = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    if shape.recomputes_all_blocks:
        return whole
    return {**whole, "recompute_method": "block", "recompute_num_layers": max(recomputed_blocks(shape))}


def _kernels(task: Task) -> Fields:
    """Kernels and overlaps as the recipe declares them."""
    shape, recipe, notes = task.shape, task.recipe, task.notes
    software = recipe.software
    overlaps_tp = "tp" in recipe.overlap and shape.tp > 1
    if overlaps_tp and not shape.sequence_parallel:
        notes.append("tensor-parallel communication beside compute needs sequence parallelism: left off")
    if software.launch == "graph":
        notes.append(
            "the plan replays kernels from a captured graph: choose a --cuda-graph-impl that your model allows"
        )
    return {
        "cross_entropy_loss_fusion": software.fused_cross_entropy,
        "gradient_accumulation_fusion": software.fused_accumulation and shape.zero < 2,
        "fused_kernels": software.kernels == "fused",
        "tp_comm_overlap": overlaps_tp and shape.sequence_parallel,
        "attention_backend": "unfused" if task.plan.stages[0].attention == "math" else None,
    }


def _sharding(task: Task) -> Fields:
    """Who holds which part of weights, gradients and optimizer state: the distributed optimizer (ZeRO 1) or Megatron
    FSDP (2, 3), which is documented to go with tp, ep and cp, not with stages."""
    shape, overlap = task.shape, "dp" in task.recipe.overlap
    return {
        "use_distributed_optimizer": shape.zero > 0,
        "use_megatron_fsdp": shape.zero >= 2,
        "data_parallel_sharding_strategy": backwards(STRATEGIES)[shape.zero] if shape.zero >= 2 else None,
        "num_distributed_optimizer_instances": shape.replicate if shape.zero and shape.replicate > 1 else None,
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap and shape.zero > 0,
        "use_tp_pp_dp_mapping": shape.order[-1:] == ("dp",) and shape.pp > 1,
    }


def _offload(task: Task) -> Fields:
    """What is held in host memory."""
    offloaded: Fields = {}
    if "optimizer" in task.shape.offload:
        offloaded |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if "activations" in task.shape.offload:
        blocks = task.shape.job.blocks
        offloaded["cpu_offloading_num_layers"] = blocks - 1
        task.notes.append(f"activations of {blocks - 1} of the {blocks} blocks are offloaded, the most that it allows")
    return offloaded
