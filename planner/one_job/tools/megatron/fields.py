"""A plan in the fields of Megatron Core's `TransformerConfig` and its kin, which Megatron-LM's arguments and
Megatron-Bridge's configuration are both made of.

Names as in megatron-core 0.16.1 (transformer/transformer_config.py, distributed/distributed_data_parallel_config.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.one_job.tools.decoder import Decoder
from planner.one_job.tools.export_records import CannotExpress
from planner.one_job.tools.shape import Chunk, Uniform, recipe_of
from planner.shared.plan import Plan

Fields = dict[str, Any]


def architecture_fields(decoder: Decoder, model: str, tool: str, notes: list[str]) -> Fields:
    """The model: what `TransformerConfig` and the GPT model around it are told of its sizes."""
    _refuse_architecture(decoder, model, tool)
    found: Fields = {
        "num_layers": decoder.blocks,
        "hidden_size": decoder.hidden,
        "ffn_hidden_size": decoder.feed_forward_hidden,
        "num_attention_heads": decoder.heads,
        "num_query_groups": decoder.kv_heads if decoder.kv_heads != decoder.heads else None,
        "kv_channels": decoder.head_dim if decoder.head_dim * decoder.heads != decoder.hidden else None,
        "swiglu": decoder.gated,
        "normalization": {"rmsnorm": "RMSNorm", "layernorm": "LayerNorm"}[decoder.norm],
        "position_embedding_type": "learned_absolute" if decoder.positions else "rope",
        "rotary_percent": None,
        "share_embeddings_and_output_weights": decoder.tied,
        "add_bias_linear": decoder.output_bias,
        "add_qkv_bias": decoder.qkv_bias and not decoder.output_bias,
        "qk_layernorm": decoder.query_key_norm == "head",
        "attention_dropout": 0.1 if decoder.dropout else 0.0,
        "hidden_dropout": 0.1 if decoder.dropout else 0.0,
        "vocab_size": decoder.vocab,
    }
    if decoder.rotary_dim:
        notes.append("the base and scaling of rotary positions are not part of a plan: add the model's own")
        if decoder.latent is None and decoder.rotary_dim != decoder.head_dim:
            found["rotary_percent"] = decoder.rotary_dim / decoder.head_dim
    elif not decoder.positions:
        found["position_embedding_type"] = "none"
    windowed = tuple(window is not None for window in decoder.windows)
    if any(windowed):
        width = next(window for window in decoder.windows if window is not None)
        found["window_size"] = (width - 1, 0)
        found["window_attn_skip_freq"] = None if all(windowed) else windowed
    if decoder.latent is not None:
        latent = decoder.latent
        found |= {
            "multi_latent_attention": True,
            "q_lora_rank": latent.query_rank,
            "kv_lora_rank": latent.key_value_rank,
            "qk_head_dim": latent.nope_dim,
            "qk_pos_emb_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
            "num_query_groups": None,
            "kv_channels": None,
        }
    return found


def _refuse_architecture(decoder: Decoder, model: str, tool: str) -> None:
    def refuse(found: str, expected: str) -> CannotExpress:
        return CannotExpress(tool=tool, key="model", found=f"{model}, {found}", expected=expected)

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


def expert_fields(decoder: Decoder, plan: Plan, shape: Uniform, tool: str, notes: list[str]) -> Fields:
    """The experts, where the model has them."""
    experts = decoder.experts
    if experts is None:
        return {}
    if experts.expert.gated != decoder.gated or experts.expert.activation != decoder.activation:
        found = f"{plan.model.name}, whose experts are not activated as its dense layers"
        raise CannotExpress(tool=tool, key="model", found=found, expected="one activation in all feed-forwards")
    recipe = recipe_of(plan)
    if decoder.output_bias and shape.etp > 1:
        expected = "1, as its experts have the biases that all linear layers have"
        raise CannotExpress(tool=tool, key="stages[].etp", found=shape.etp, expected=expected)
    if decoder.output_bias:
        notes.append("the experts have biases as all linear layers do, which the plan's do not")
    if recipe.moe_imbalance > 1:
        notes.append(f"the plan reckons with {recipe.moe_imbalance:g} times the mean tokens on the fullest expert rank")
    deduplicated = recipe.software.dispatch == "deduplicated" and shape.ep > 1
    return {
        "num_moe_experts": experts.count,
        "moe_layer_freq": None if all(decoder.expert_blocks) else decoder.expert_blocks,
        "moe_ffn_hidden_size": experts.expert.hidden,
        "moe_router_topk": experts.top_k,
        "moe_router_pre_softmax": experts.top_k == 1,
        "moe_router_load_balancing_type": "aux_loss",
        "moe_shared_expert_intermediate_size": experts.shared_hidden or None,
        "moe_grouped_gemm": plan.model.dtype in ("bf16", "fp8"),
        "moe_token_dispatcher_type": "flex" if deduplicated else "alltoall",
        "moe_enable_deepep": deduplicated,
        "moe_expert_capacity_factor": recipe.moe_capacity_factor,
        "moe_pad_expert_input_to_capacity": recipe.moe_capacity_factor is not None and not deduplicated,
        "expert_model_parallel_size": shape.ep,
        "expert_tensor_parallel_size": shape.etp,
        "overlap_moe_expert_parallel_comm": _overlaps_experts(plan, shape, notes),
    }


def _overlaps_experts(plan: Plan, shape: Uniform, notes: list[str]) -> bool:
    if "ep" not in recipe_of(plan).overlap or shape.ep == 1:
        return False
    allowed = (shape.pp == 1 or shape.vpp > 1) and shape.recompute != "full"
    if not allowed:
        notes.append("expert communication beside compute needs interleaving or one stage, and no full recomputation")
    return allowed


def parallel_fields(shape: Uniform, chunks: Sequence[Chunk], plan: Plan, tool: str) -> Fields:
    """Degrees, and who holds which blocks."""
    allowed = ("interleaved",) if shape.vpp > 1 else ("1f1b", "interleaved")
    if shape.pp > 1 and plan.schedule not in allowed:
        raise CannotExpress(tool=tool, key="schedule", found=plan.schedule, expected="1f1b or interleaved")
    if plan.model.seq_len and shape.cp > 1 and plan.model.seq_len % (2 * shape.cp):
        expected = f"a multiple of 2 * cp = {2 * shape.cp}"
        raise CannotExpress(tool=tool, key="model.seq_len", found=plan.model.seq_len, expected=expected)
    return {
        "tensor_model_parallel_size": shape.tp,
        "pipeline_model_parallel_size": shape.pp,
        "context_parallel_size": shape.cp,
        "sequence_parallel": shape.sequence_parallel and shape.tp > 1,
        "virtual_pipeline_model_parallel_size": shape.vpp if shape.vpp > 1 else None,
        **split_fields(shape, chunks),
    }


def split_fields(shape: Uniform, chunks: Sequence[Chunk]) -> Fields:
    """Nothing where all chunks hold as many blocks; else the first and last stage's where those alone differ, else the
    layout of each chunk: E the embedding, t a block, L the head, | between chunks."""
    counts = [chunk.blocks for chunk in chunks]
    if len(set(counts)) == 1:
        return {}
    if shape.vpp == 1 and shape.pp > 2 and len(set(counts[1:-1])) == 1 and min(counts) > 0:
        return {"num_layers_in_first_pipeline_stage": counts[0], "num_layers_in_last_pipeline_stage": counts[-1]}
    words = [
        ("E" if chunk.embeds else "") + _repeat("t", chunk.blocks) + ("L" if chunk.heads else "") for chunk in chunks
    ]
    return {"pipeline_model_parallel_layout": "|".join(words)}


def _repeat(letter: str, count: int) -> str:
    return f"{letter}*{count}" if count > 1 else letter * count


def recompute_fields(shape: Uniform, chunks: Sequence[Chunk], tool: str) -> Fields:
    """What backward computes again. `block` counts blocks of each chunk, the first ones (core/transformer/
    transformer_block.py)."""
    if shape.recompute == "none":
        return {}
    again = _recomputed(shape, chunks)
    whole = all(count == chunk.blocks for count, chunk in zip(again, chunks, strict=True))
    key = "stages[].recompute.layers"
    if shape.recompute == "selective":
        if not whole:
            found = f"selective recomputation of {shape.recompute_layers} layers by stage"
            raise CannotExpress(tool=tool, key=key, found=found, expected="selective recomputation of all layers")
        return {"recompute_granularity": "selective", "recompute_modules": ("core_attn",)}
    if whole:
        return {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    most = max(again)
    if any(count != min(most, chunk.blocks) for count, chunk in zip(again, chunks, strict=True)):
        found = f"{', '.join(map(str, again))} blocks by chunk"
        raise CannotExpress(tool=tool, key=key, found=found, expected="one number of blocks of every chunk")
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_num_layers": most}


def _recomputed(shape: Uniform, chunks: Sequence[Chunk]) -> list[int]:
    """Blocks of each chunk that are recomputed: the first of the stage, counted through its chunks."""
    left = list(shape.recompute_layers)
    found = []
    for number, chunk in enumerate(chunks):
        taken = min(left[number % shape.pp], chunk.blocks)
        left[number % shape.pp] -= taken
        found.append(taken)
    return found


def kernel_fields(plan: Plan, shape: Uniform, notes: list[str]) -> Fields:
    """Kernels and overlaps as the recipe declares them."""
    recipe = recipe_of(plan)
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
        "attention_backend": "unfused" if plan.stages[0].attention == "math" else None,
    }


def sharding_fields(plan: Plan, shape: Uniform, tool: str) -> Fields:
    """Who holds which part of weights, gradients and optimizer state: the distributed optimizer (ZeRO 1) or Megatron
    FSDP (2, 3), which is documented to go with tp, ep and cp, not with stages."""
    overlap = "dp" in recipe_of(plan).overlap
    if shape.zero >= 2 and shape.pp > 1:
        expected = "ZeRO 0 or 1 with pipeline stages"
        found = f"{shape.zero} with {shape.pp} stages"
        raise CannotExpress(tool=tool, key="stages[].sharding.zero", found=found, expected=expected)
    holders = shape.ep * shape.etp
    if shape.zero and shape.ep > 1 and (shape.devices // shape.pp // holders) % shape.replicate:
        found = f"{shape.replicate} with ep * etp = {holders} of {shape.devices // shape.pp} ranks"
        expected = "copies of the sharded state that divide the replicas of the experts"
        raise CannotExpress(tool=tool, key="stages[].sharding.replicate", found=found, expected=expected)
    return {
        "use_distributed_optimizer": shape.zero > 0,
        "use_megatron_fsdp": shape.zero >= 2,
        "data_parallel_sharding_strategy": {2: "optim_grads", 3: "optim_grads_params"}.get(shape.zero),
        "num_distributed_optimizer_instances": shape.replicate if shape.zero and shape.replicate > 1 else None,
        "overlap_grad_reduce": overlap,
        "overlap_param_gather": overlap and shape.zero > 0,
        "use_tp_pp_dp_mapping": shape.order[-1:] == ("dp",) and shape.pp > 1,
    }


def offload_fields(plan: Plan, shape: Uniform, tool: str, notes: list[str]) -> Fields:
    """What is held in host memory."""
    found: Fields = {}

    def refuse(expected: str) -> CannotExpress:
        return CannotExpress(tool=tool, key="stages[].offload", found=", ".join(shape.offload), expected=expected)

    if "weights" in shape.offload:
        raise refuse("offloading of optimizer state or activations")
    if "optimizer" in shape.offload:
        if not shape.zero or plan.optimizer != "adamw":
            raise refuse("an offloaded optimizer with ZeRO 1 or more, and AdamW")
        found |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    if "activations" in shape.offload:
        blocks = plan.model.sizes.blocks or 0
        if shape.pp > 1 or shape.recompute != "none" or blocks < 2:
            raise refuse("offloaded activations with one stage and without recomputation")
        found["cpu_offloading_num_layers"] = blocks - 1
        notes.append(f"activations of {blocks - 1} of the {blocks} blocks are offloaded, the most that it allows")
    return found
