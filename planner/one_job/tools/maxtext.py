"""MaxText's configuration (YAML on top of its base.yml); each line is a flag `key=value` of its command line too.

Keys as in maxtext 0.2.5 (configs/base.yml, configs/types.py). Off TPUs all axes are `ici_`: there is one slice.
"""

from __future__ import annotations

from typing import Any

import yaml

from planner.one_job.tools.decoder import Decoder, decoder_of
from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.python_text import comment
from planner.one_job.tools.shape import (
    Chunk,
    Uniform,
    chunks_of,
    headline,
    load_plan_model,
    nodes_of,
    recipe_of,
    recomputes_all_blocks,
    refuse_training_beyond,
    uniform,
)
from planner.shared.plan import Plan, RankAxis

TOOL = "maxtext"

ORDERS: tuple[tuple[RankAxis, ...], ...] = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))

OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "bfloat16"}

REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
"""Saved: all products and attention's output; all products; only the layers' inputs."""


def export_maxtext(plan: Plan, context: ExportContext) -> Export:
    """`maxtext.yml`. CannotExpress for what MaxText's axes and its pipeline cannot say."""
    notes: list[str] = []
    shape = uniform(plan, TOOL, orders=ORDERS)
    refuse_training_beyond(plan, TOOL)
    model = load_plan_model(plan)
    decoder, chunks = decoder_of(model, TOOL), chunks_of(plan, model)
    config: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "plan",
        "hardware": _hardware(plan),
        **_architecture(decoder, plan, notes),
        "max_target_length": plan.model.seq_len,
        **_axes(shape, decoder),
        **_batch(plan, shape, chunks),
        **_precision(plan),
        "remat_policy": _remat(shape, chunks),
        "attention": _attention(plan),
        "opt_type": _optimizer(plan),
        **_offload(shape),
    }
    if config["attention"] == "cudnn_flash_te":
        config["max_segments_per_seq"] = 32
    _note(plan, shape, notes)
    start = "python3 -m maxtext.trainers.pre_train.train maxtext.yml base_output_directory=OUT"
    if context.script is not None:
        start = f"python3 {comment(context.script)} maxtext.yml base_output_directory=OUT"
    text = f"# {headline(plan, shape)}\n# {start}\n" + yaml.safe_dump(config, sort_keys=False)
    return Export(files=(ExportFile(name="maxtext.yml", text=text),), notes=tuple(notes))


def _hardware(plan: Plan) -> str:
    device = plan.stages[0].device
    if device.startswith("tpu"):
        return "tpu"
    return "gpu" if len(nodes_of(plan).ranks) == 1 else "gpu_multiprocess"


def _architecture(decoder: Decoder, plan: Plan, notes: list[str]) -> dict[str, Any]:
    block = _decoder_block(decoder)
    if block is None:
        found = f"{plan.model.name}, with {decoder.norm}, {decoder.activation} and biases {decoder.output_bias}"
        expected = "models of the kinds of GPT-3, Llama, Mixtral, Qwen3 and DeepSeek"
        raise CannotExpress(tool=TOOL, key="model", found=found, expected=expected)
    found_sizes: dict[str, Any] = {
        "decoder_block": block,
        "base_num_decoder_layers": decoder.blocks,
        "base_emb_dim": decoder.hidden,
        "base_mlp_dim": decoder.feed_forward_hidden,
        "base_num_query_heads": decoder.heads,
        "base_num_kv_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "mlp_activations": ["silu", "linear"] if decoder.gated else [decoder.activation],
        "vocab_size": _padded_vocabulary(decoder, plan),
        "logits_via_embedding": decoder.tied,
        "enable_dropout": decoder.dropout,
        **({"dropout_rate": 0.1} if decoder.dropout else {}),
        "use_qk_norm": decoder.query_key_norm == "head",
    }
    if decoder.positions:
        found_sizes |= {"trainable_position_size": decoder.positions, "fused_qkv": True}
    else:
        notes.append("rope_max_timescale, the base of rotary positions, is not part of a plan: set the model's own")
    if decoder.latent is not None:
        latent = decoder.latent
        found_sizes |= {
            "attention_type": "mla",
            "q_lora_rank": latent.query_rank or 0,
            "kv_lora_rank": latent.key_value_rank,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
        }
    return {**found_sizes, **_experts(decoder, plan)}


def _decoder_block(decoder: Decoder) -> str | None:
    """The decoder of MaxText's own that is built like this."""
    experts = decoder.experts
    if any(decoder.windows) or (experts and experts.shared_gate):
        return None
    biased = (decoder.qkv_bias, decoder.output_bias, decoder.feed_forward_bias)
    if decoder.norm == "layernorm":
        plain = all(biased) and decoder.kv_heads == decoder.heads and not decoder.gated and not experts
        return "gpt3" if plain and decoder.positions and decoder.activation == "gelu" else None
    if any(biased) or not decoder.gated or decoder.activation != "silu" or decoder.query_key_norm == "full":
        return None
    if decoder.latent is not None:
        dense_first = list(decoder.expert_blocks) == sorted(decoder.expert_blocks)
        return "deepseek" if experts and dense_first else None
    if experts is None:
        return "qwen3" if decoder.query_key_norm == "head" else "llama2"
    if not all(decoder.expert_blocks) or experts.shared_hidden:
        return None
    return "qwen3_moe" if decoder.query_key_norm == "head" else "mixtral"


def _padded_vocabulary(decoder: Decoder, plan: Plan) -> int:
    """MaxText pads nothing itself."""
    multiple = recipe_of(plan).vocabulary_multiple * plan.stages[0].tp
    return -(-decoder.vocab // multiple) * multiple


def _experts(decoder: Decoder, plan: Plan) -> dict[str, Any]:
    experts = decoder.experts
    if experts is None:
        return {}
    capacity = recipe_of(plan).moe_capacity_factor
    found: dict[str, Any] = {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "base_moe_mlp_dim": experts.expert.hidden,
        "capacity_factor": -1.0 if capacity is None else capacity,
    }
    if capacity is not None:
        found |= {"sparse_matmul": False, "megablox": False}
    if experts.shared_hidden:
        found["shared_experts"] = experts.shared_hidden // experts.expert.hidden
    if not all(decoder.expert_blocks):
        found["first_num_dense_layers"] = decoder.expert_blocks.index(True)
    return found


def _axes(shape: Uniform, decoder: Decoder) -> dict[str, Any]:
    """`data` replicates, `fsdp` and `context` shard weights too (base.yml, logical_axis_rules); `expert` ranks take
    samples of their own and shard what is no expert."""

    def refuse(key: str, found: object, expected: str) -> CannotExpress:
        return CannotExpress(tool=TOOL, key=key, found=found, expected=expected)

    if shape.zero == 2:
        raise refuse("stages[].sharding.zero", 2, "ZeRO 0, 1 (shard_optimizer_over_data) or 3 (fsdp)")
    if shape.cp > 1 and shape.zero != 3:
        raise refuse("stages[].sharding.zero", shape.zero, "3 with context parallelism, which shards weights too")
    if shape.cp > 1 and shape.shard % shape.cp:
        raise refuse("stages[].sharding.shard", shape.shard, f"a multiple of cp = {shape.cp}")
    if shape.zero == 1 and shape.replicate > 1:
        raise refuse("stages[].sharding.replicate", shape.replicate, "1 with ZeRO 1")
    if decoder.experts and shape.etp != shape.tp:
        raise refuse("stages[].etp", shape.etp, f"tp = {shape.tp}, which splits experts too")
    shards = shape.shard // shape.cp if shape.zero == 3 else 1
    if shape.ep > 1 and (shape.zero != 3 or shards % shape.ep):
        found = f"{shape.ep} with ZeRO {shape.zero} over {shards} replicas"
        raise refuse("stages[].ep", found, "a divisor of the replicas that share the weights under ZeRO 3")
    if shape.pp > 1 and shape.ep > 1:
        raise refuse("stages[].ep", f"{shape.ep} with {shape.pp} stages", "1 with stages")
    tokens = shape.sequence_parallel
    return {
        "ici_pipeline_parallelism": shape.pp,
        "ici_data_parallelism": shape.replicate if shape.zero == 3 else shape.dp,
        "ici_fsdp_parallelism": shards // shape.ep,
        "ici_expert_parallelism": shape.ep,
        "ici_context_parallelism": shape.cp,
        "ici_tensor_parallelism": 1 if tokens else shape.tp,
        "ici_tensor_sequence_parallelism": shape.tp if tokens else 1,
        "dcn_data_parallelism": 1,
        "shard_optimizer_over_data": shape.zero == 1,
    }


def _batch(plan: Plan, shape: Uniform, chunks: tuple[Chunk, ...]) -> dict[str, Any]:
    """Micro-batches are gradient accumulation, or the pipeline's; all forward passes come before the backward ones."""
    batch = plan.batch
    if shape.pp == 1:
        per_device = batch.micro_batch / shape.devices
        return {"per_device_batch_size": _number(per_device), "gradient_accumulation_steps": batch.micro_batches}
    if plan.schedule != "gpipe":
        expected = "gpipe: autodiff runs all forward passes before the backward ones"
        raise CannotExpress(tool=TOOL, key="schedule", found=plan.schedule, expected=expected)
    if len({chunk.blocks for chunk in chunks}) > 1 or not chunks[0].blocks:
        found = f"{', '.join(str(chunk.blocks) for chunk in chunks)} blocks"
        raise CannotExpress(tool=TOOL, key="stages[].chunks", found=found, expected="as many blocks in each stage")
    if batch.micro_batches % shape.pp:
        found = f"{batch.micro_batches} with {shape.pp} stages"
        expected = "a multiple of the stages"
        raise CannotExpress(tool=TOOL, key="batch.micro_batches", found=found, expected=expected)
    return {
        "per_device_batch_size": _number(batch.global_batch / shape.devices),
        "gradient_accumulation_steps": 1,
        "num_pipeline_microbatches": batch.micro_batches,
        "num_layers_per_pipeline_stage": chunks[0].blocks,
        "num_pipeline_repeats": 1,
        "scan_layers": False,
    }


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _precision(plan: Plan) -> dict[str, Any]:
    dtype = plan.model.dtype
    if dtype not in DTYPES:
        raise CannotExpress(tool=TOOL, key="model.dtype", found=dtype, expected=" or ".join(DTYPES))
    if dtype == "fp8" and len(plan.stages) == 1 and plan.batch.micro_batches > 1:
        found = f"fp8 with {plan.batch.micro_batches} accumulated micro-batches"
        raise CannotExpress(tool=TOOL, key="model.dtype", found=found, expected="fp8 without gradient accumulation")
    grads = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[recipe_of(plan).grad_dtype]
    quantized = {"quantization": "fp8"} if dtype == "fp8" else {}
    return {"dtype": DTYPES[dtype], "weight_dtype": "float32", "grad_dtype": grads, **quantized}


def _remat(shape: Uniform, chunks: tuple[Chunk, ...]) -> str:
    if shape.recompute != "none" and not recomputes_all_blocks(shape, chunks):
        found = f"{', '.join(map(str, shape.recompute_layers))} layers by stage"
        expected = "one policy for all layers"
        raise CannotExpress(tool=TOOL, key="stages[].recompute.layers", found=found, expected=expected)
    return REMAT[shape.recompute]


def _attention(plan: Plan) -> str:
    if plan.stages[0].attention == "math":
        return "dot_product"
    return "flash" if plan.stages[0].device.startswith("tpu") else "cudnn_flash_te"


def _optimizer(plan: Plan) -> str:
    if plan.optimizer not in OPTIMIZERS:
        raise CannotExpress(tool=TOOL, key="optimizer", found=plan.optimizer, expected=" or ".join(OPTIMIZERS))
    return OPTIMIZERS[plan.optimizer]


def _offload(shape: Uniform) -> dict[str, Any]:
    if "activations" in shape.offload:
        found = ", ".join(shape.offload)
        expected = "offloading of weights or optimizer state"
        raise CannotExpress(tool=TOOL, key="stages[].offload", found=found, expected=expected)
    known = {"optimizer": "optimizer_memory_host_offload", "weights": "parameter_memory_host_offload"}
    return {known[part]: True for part in shape.offload}


def _note(plan: Plan, shape: Uniform, notes: list[str]) -> None:
    notes.append("steps, learning rate, data (dataset_type) and base_output_directory are yours")
    if shape.pp > 1 and shape.dp > 1 and shape.zero != 3 and shape.order[-1] == "pp":
        notes.append("MaxText counts the data axis outside of the stages: replicas of a stage are further apart")
    if shape.recompute != "full":
        notes.append(f"remat_policy {REMAT[shape.recompute]} computes elementwise operators again in backward")
    if plan.stages[0].device.startswith("tpu") and len(nodes_of(plan).ranks) > 1:
        notes.append("all axes are within one slice (ici_): with several slices move factors of them to dcn_")
    if plan.batch.micro_batch % shape.devices and shape.pp == 1:
        notes.append("per_device_batch_size is a fraction: devices share samples over tp and cp")
