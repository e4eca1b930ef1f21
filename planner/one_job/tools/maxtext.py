"""MaxText's configuration (YAML on top of its base.yml); each line is a flag `key=value` of its command line too.

Keys as in maxtext 0.2.5 (configs/base.yml, configs/types.py). Off TPUs all axes are `ici_`: there is one slice.
"""

from __future__ import annotations

from typing import Any

import yaml

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import Decoder, decoder_of
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.pipeline import EVEN
from planner.one_job.tools.base.python_text import comment
from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED, experts_split_as_all
from planner.one_job.tools.base.shape import Chunk, Shape
from planner.one_job.tools.base.tool import Rule, TrainingTool
from planner.one_job.tools.base.writing import Task, note_rotary
from planner.shared.plan import Plan

OPTIMIZERS = {"adamw": "adamw", "sgd": "sgd", "muon": "muon"}

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "bfloat16"}

REMAT = {"none": "minimal_with_context", "selective": "minimal", "full": "full"}
"""Saved: all products and attention's output; all products; only the layers' inputs."""


MAXTEXT = TrainingTool(
    name="maxtext",
    summary="MaxText: its YAML, whose lines are its flags",
    basis="MaxText 0.2.5: fsdp, tensor, context and expert axes; stages of as many blocks, gpipe as autodiff runs it",
    software="maxtext",
    schedules=("gpipe",),
    recompute=("none", "selective", "full"),
    zero=(0, 1, 3),
    sharded_pipelines=(0, 1, 3),
    orders=(("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp")),
    division=EVEN,
    optimizers=tuple(OPTIMIZERS),
    dtypes=tuple(DTYPES),
    degrees=(
        experts_split_as_all("tp = {s.tp}, which splits experts too"),
        Rule(
            key="stages[].ep",
            allows=lambda s: (s.pp == 1) | (s.ep == 1),
            found="{s.ep} with {s.pp} stages",
            expected="1 with stages",
        ),
        Rule(
            key="batch.micro_batches",
            allows=lambda s: s.micro_batches % s.pp == 0,
            found="{s.micro_batches} with {s.pp} stages",
            expected="a multiple of the stages",
        ),
        Rule(
            key="model.dtype",
            allows=lambda s: (s.pp > 1) | (s.micro_batches == 1) | (s.job.dtype != "fp8"),
            found="fp8 with {s.micro_batches} accumulated micro-batches",
            expected="fp8 without gradient accumulation",
        ),
    ),
    states=(
        Rule(
            key="stages[].sharding.zero",
            allows=lambda s: s.cp == 1 or s.zero == 3,
            expected="3 with context parallelism, which shards weights too",
        ),
        Rule(
            key="stages[].sharding.shard",
            allows=lambda s: s.shard % s.cp == 0,
            expected="a multiple of cp = {s.cp}",
        ),
        Rule(
            key="stages[].sharding.replicate",
            allows=lambda s: s.zero != 1 or s.replicate == 1,
            expected="1 with ZeRO 1",
        ),
        Rule(
            key="stages[].ep",
            allows=lambda s: s.ep == 1 or (s.zero == 3 and s.shard // s.cp % s.ep == 0),
            found="{s.ep} with ZeRO {s.zero} over {s.shard} ranks",
            expected="a divisor of the replicas that share the weights under ZeRO 3",
        ),
        Rule(
            key="stages[].offload",
            allows=lambda s: "activations" not in s.offload,
            expected="offloading of weights or optimizer state",
        ),
    ),
    whole=(ALL_LAYERS_RECOMPUTED,),
    model="maxtext:refuse_model",
    write="maxtext:write_maxtext",
)


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models of which MaxText has no decoder."""
    decoder = decoder_of(model, tool)
    if _decoder_block(decoder) is None:
        said = f"{model.name}, with {decoder.norm}, {decoder.activation} and biases {decoder.output_bias}"
        expected = "models of the kinds of GPT-3, Llama, Mixtral, Qwen3 and DeepSeek"
        raise CannotExpress(tool=tool, key="model", found=said, expected=expected)


def write_maxtext(task: Task) -> tuple[ExportFile, ...]:
    """Return `maxtext.yml`."""
    plan, shape, notes, chunks = task.plan, task.shape, task.notes, task.chunks
    config: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "plan",
        "hardware": _hardware(plan),
        **_architecture(task),
        "max_target_length": plan.model.seq_len,
        **_axes(shape),
        **_batch(plan, shape, chunks),
        **_precision(task),
        "remat_policy": REMAT[shape.recompute],
        "attention": _attention(plan),
        "opt_type": OPTIMIZERS[plan.optimizer],
        **_offload(shape),
    }
    if config["attention"] == "cudnn_flash_te":
        config["max_segments_per_seq"] = 32
    _note(plan, shape, notes)
    start = "python3 -m maxtext.trainers.pre_train.train maxtext.yml base_output_directory=OUT"
    if task.context.script is not None:
        start = f"python3 {comment(task.context.script)} maxtext.yml base_output_directory=OUT"
    text = f"# {task.headline}\n# {start}\n" + yaml.safe_dump(config, sort_keys=False)
    return (ExportFile(name="maxtext.yml", text=text),)


def _hardware(plan: Plan) -> str:
    device = plan.stages[0].device
    if device.startswith("tpu"):
        return "tpu"
    return "gpu" if len(nodes_of(plan).nodes) == 1 else "gpu_multiprocess"


def _architecture(task: Task) -> dict[str, Any]:
    decoder = task.decoder
    sizes: dict[str, Any] = {
        "decoder_block": _decoder_block(decoder),
        "base_num_decoder_layers": decoder.blocks,
        "base_emb_dim": decoder.hidden,
        "base_mlp_dim": decoder.feed_forward_hidden,
        "base_num_query_heads": decoder.heads,
        "base_num_kv_heads": decoder.kv_heads,
        "head_dim": decoder.head_dim,
        "mlp_activations": ["silu", "linear"] if decoder.gated else [decoder.activation],
        "vocab_size": _padded_vocabulary(task),
        "logits_via_embedding": decoder.tied,
        "enable_dropout": decoder.dropout,
        **({"dropout_rate": 0.1} if decoder.dropout else {}),
        "use_qk_norm": decoder.query_key_norm == "head",
        **({} if decoder.traits.norm_eps is None else {"normalization_layer_epsilon": decoder.traits.norm_eps}),
    }
    if decoder.positions:
        sizes |= {"trainable_position_size": decoder.positions, "fused_qkv": True}
    else:
        note_rotary(task, "rope_max_timescale")
        base = decoder.traits.rope_base
        sizes |= {} if base is None else {"rope_max_timescale": int(base)}
    if decoder.latent is not None:
        latent = decoder.latent
        sizes |= {
            "attention_type": "mla",
            "q_lora_rank": latent.query_rank or 0,
            "kv_lora_rank": latent.key_value_rank,
            "qk_nope_head_dim": latent.nope_dim,
            "qk_rope_head_dim": latent.rope_dim,
            "v_head_dim": latent.value_dim,
        }
    return {**sizes, **_experts(task)}


def _decoder_block(decoder: Decoder) -> str | None:
    """The decoder of MaxText's own that is built like this."""
    experts = decoder.experts
    if any(decoder.windows) or (experts and experts.shared_gate):
        return None
    if decoder.norm == "layernorm":
        return "gpt3" if _is_gpt3(decoder) else None
    if not _is_gated(decoder):
        return None
    if decoder.latent is not None:
        dense_first = list(decoder.expert_blocks) == sorted(decoder.expert_blocks)
        return "deepseek" if experts and dense_first else None
    if experts and (experts.shared_hidden or not all(decoder.expert_blocks)):
        return None
    dense_name, sparse_name = ("qwen3", "qwen3_moe") if decoder.query_key_norm == "head" else ("llama2", "mixtral")
    return sparse_name if experts else dense_name


def _is_gated(decoder: Decoder) -> bool:
    biased = decoder.qkv_bias or decoder.output_bias or decoder.feed_forward_bias
    return decoder.gated and decoder.activation == "silu" and decoder.query_key_norm != "full" and not biased


def _is_gpt3(decoder: Decoder) -> bool:
    biased = decoder.qkv_bias and decoder.output_bias and decoder.feed_forward_bias
    plain = decoder.kv_heads == decoder.heads and not decoder.gated and not decoder.experts
    return biased and plain and decoder.positions > 0 and decoder.activation == "gelu"


def _padded_vocabulary(task: Task) -> int:
    """MaxText pads nothing itself."""
    multiple = task.recipe.vocabulary_multiple * task.plan.stages[0].tp
    return -(-task.decoder.vocab // multiple) * multiple


def _experts(task: Task) -> dict[str, Any]:
    decoder = task.decoder
    experts = decoder.experts
    if experts is None:
        return {}
    capacity = task.recipe.moe_capacity_factor
    settings: dict[str, Any] = {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.top_k,
        "base_moe_mlp_dim": experts.expert.hidden,
        "capacity_factor": -1.0 if capacity is None else capacity,
    }
    if capacity is not None:
        settings |= {"sparse_matmul": False, "megablox": False}
    if experts.shared_hidden:
        settings["shared_experts"] = experts.shared_hidden // experts.expert.hidden
    if not all(decoder.expert_blocks):
        settings["first_num_dense_layers"] = decoder.expert_blocks.index(True)
    return settings


def _axes(shape: Shape) -> dict[str, Any]:
    """`data` replicates, `fsdp` and `context` shard weights too (base.yml, logical_axis_rules); `expert` ranks take
    samples of their own and shard what is no expert."""
    shards = shape.shard // shape.cp if shape.zero == 3 else 1
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


def _batch(plan: Plan, shape: Shape, chunks: tuple[Chunk, ...]) -> dict[str, Any]:
    """Micro-batches are gradient accumulation, or the pipeline's; all forward passes come before the backward ones."""
    batch = plan.batch
    if shape.pp == 1:
        per_device = batch.micro_batch / shape.devices
        return {"per_device_batch_size": _number(per_device), "gradient_accumulation_steps": batch.micro_batches}
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


def _precision(task: Task) -> dict[str, Any]:
    dtype = task.plan.model.dtype
    grads = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[task.recipe.grad_dtype]
    quantized = {"quantization": "fp8"} if dtype == "fp8" else {}
    return {"dtype": DTYPES[dtype], "weight_dtype": "float32", "grad_dtype": grads, **quantized}


def _attention(plan: Plan) -> str:
    if plan.stages[0].attention == "math":
        return "dot_product"
    return "flash" if plan.stages[0].device.startswith("tpu") else "cudnn_flash_te"


def _offload(shape: Shape) -> dict[str, Any]:
    names = {"optimizer": "optimizer_memory_host_offload", "weights": "parameter_memory_host_offload"}
    return {names[part]: True for part in shape.offload}


def _note(plan: Plan, shape: Shape, notes: list[str]) -> None:
    notes.append("steps, learning rate, data (dataset_type) and base_output_directory are yours")
    if shape.pp > 1 and shape.dp > 1 and shape.zero != 3 and shape.order[-1] == "pp":
        notes.append("MaxText counts the data axis outside of the stages: replicas of a stage are further apart")
    if shape.recompute != "full":
        notes.append(f"remat_policy {REMAT[shape.recompute]} computes elementwise operators again in backward")
    if plan.stages[0].device.startswith("tpu") and len(nodes_of(plan).nodes) > 1:
        notes.append("all axes are within one slice (ici_): with several slices move factors of them to dcn_")
    if plan.batch.micro_batch % shape.devices and shape.pp == 1:
        notes.append("per_device_batch_size is a fraction: devices share samples over tp and cp")
