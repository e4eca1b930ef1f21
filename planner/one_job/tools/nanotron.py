"""nanotron's configuration (YAML): data, tensor and pipeline parallelism, with ZeRO 1 at most.

Keys as in nanotron's main branch of 2025 (config/config.py, config/parallelism_config.py, config/models_config.py);
stages as its models/base.py, build_model, divides them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from estimator.pricing.recipe import GradDType, OptimizerName, Overlap, ScheduleName
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.model import Model
from planner.one_job.tools.base.decoder import decoder_of, is_plain_llama
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, describe_model, load_named
from planner.one_job.tools.base.pipeline import Division
from planner.one_job.tools.base.python_text import comment
from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED
from planner.one_job.tools.base.settings import describe_unread, load_known, read_settings
from planner.one_job.tools.base.shape import Job, Shape
from planner.one_job.tools.base.tool import Rule, TrainingTool, backwards
from planner.one_job.tools.base.writing import Task, launcher_lines, note_rotary
from planner.shared.options.estimate import EstimateOptions
from profiles.vocabulary import DType

DTYPES: dict[str, DType] = {"bfloat16": "bf16", "float32": "fp32"}
ENGINES: dict[str, ScheduleName] = {"1f1b": "1f1b", "afab": "gpipe"}
OPTIMIZERS: dict[str, OptimizerName] = {"adamW": "adamw", "sgd": "sgd"}
DEGREES = {"tp": "tp", "pp": "pp", "dp": "dp", "cp": "context_parallel_size", "ep": "expert_parallel_size"}
WIDTHS = {"bf16": 2, "fp32": 4}

WORDS = {
    **{name: f"parallelism.{key}" for name, key in DEGREES.items()},
    "micro_batch": "tokens.micro_batch_size",
    "global_batch": "tokens.batch_accumulation_per_replica",
    "micro_batches": "tokens.batch_accumulation_per_replica",
    "seq_len": "tokens.sequence_length",
    "dtype": "model.dtype",
    "grad_dtype": "optimizer.accumulate_grad_in_fp32",
    "optimizer": "optimizer.optimizer_factory.name",
    "zero": "optimizer.zero_stage",
    "schedule": "parallelism.pp_engine",
    "recompute": "parallelism.recompute_layer",
    "sequence_parallel": "parallelism.tp_mode",
    "overlap": "parallelism.tp_linear_async_communication",
    "vocab_pad": "model.make_vocab_size_divisible_by",
}
"""What nanotron calls the options of `estimate`."""

# Not part of a plan, but asked for: steps, learning rate, samples drawn at random.
PLACEHOLDERS: dict[str, Any] = {
    "general": {"project": "cellplan", "run": "plan", "seed": 42},
    "data_stages": [
        {
            "name": "training",
            "start_training_step": 1,
            "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
        }
    ],
}


def balanced_blocks(shape: Shape) -> tuple[int, ...] | None:
    """Return the blocks of each stage; None where the last stage would be left without the head.

    A stage takes blocks until the matrix products up to there are more than its share of all; the head's count.
    """
    decoder, pp = decoder_of(shape.job.model, "nanotron"), shape.pp
    multiple = shape.job.vocabulary_multiple * shape.tp
    block = (4 * decoder.hidden + 3 * decoder.feed_forward_hidden) * decoder.hidden
    head = -(-decoder.vocab // multiple) * multiple * decoder.hidden
    total, done, counts = block * decoder.blocks + head, 0, [0]
    for cost in (*[block] * decoder.blocks, 0):  # the last is the norm before the head
        done += cost
        counts[-1] += cost > 0
        if done > total * (len(counts) / pp):
            counts.append(0)
    return tuple(counts) if len(counts) == pp and all(counts[:-1]) else None


NANOTRON = TrainingTool(
    name="nanotron",
    summary="nanotron: its YAML",
    basis="nanotron of 2025: dense models of Llama's kind, ZeRO 1 at most, 1F1B or all forward passes first, stages as"
    " it balances them itself",
    software="nanotron",
    schedules=tuple(ENGINES.values()),
    recompute=("none", "full"),
    zero=(0, 1),
    sharded_pipelines=(0, 1),
    division=Division(words="stages as nanotron balances their matrix products", blocks=balanced_blocks),
    optimizers=tuple(OPTIMIZERS.values()),
    dtypes=tuple(DTYPES.values()),
    job=(
        Rule(
            key="recipe.grad_dtype",
            allows=lambda s: s.job.grad_dtype in (None, "fp32", s.job.dtype),
            found="{s.job.grad_dtype}",
            expected="fp32 (accumulate_grad_in_fp32), or the weights' type",
        ),
    ),
    degrees=(
        Rule(
            key="stages[].cp",
            allows=lambda s: s.cp == 1,
            expected="1: its ring attention is not written for",
        ),
        Rule(
            key="stages[].tp",
            allows=lambda s: s.tp <= s.job.kv_heads,
            expected="at most the {s.job.kv_heads} key-value heads",
        ),
        Rule(
            key="batch.micro_batches",
            allows=lambda s: s.micro_batches >= s.pp - 1,
            found="{s.micro_batches} with {s.pp} stages",
            expected="as many micro-batches as stages, or one fewer",
        ),
    ),
    states=(
        Rule(
            key="stages[].sharding.replicate",
            allows=lambda s: not s.zero or s.replicate == 1,
            expected="1: optimizer state sharded over all replicas",
        ),
        Rule(key="stages[].offload", allows=lambda s: not s.offload, found="{s.offload}", expected="nothing"),
    ),
    whole=(ALL_LAYERS_RECOMPUTED,),
    searched=(
        Rule(
            key="recipe.overlap",
            allows=lambda s: s.tp == 1 or bool(s.sequence_parallel) or "tp" not in s.job.overlap,
            found="tp without sequence parallelism",
            expected="tp beside compute in tp_mode REDUCE_SCATTER alone",
        ),
    ),
    model="nanotron:refuse_model",
    write="nanotron:write_nanotron",
    read="nanotron:read_nanotron",
)


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that are not of Llama's kind."""
    decoder = decoder_of(model, tool)
    if not is_plain_llama(decoder) or decoder.head_dim * decoder.heads != decoder.hidden:
        said = f"{model.name}, with {decoder.norm}, {decoder.activation} and heads of {decoder.head_dim}"
        expected = "dense models of Llama's kind, whose heads make up the width"
        raise CannotExpress(tool=tool, key="model", found=said, expected=expected)


def write_nanotron(task: Task) -> tuple[ExportFile, ...]:
    """Return `nanotron.yaml`; its first lines say how to start it."""
    plan, notes = task.plan, task.notes
    config = {
        **PLACEHOLDERS,
        "model": _model(task),
        "optimizer": _optimizer(task),
        "parallelism": _parallelism(task),
        "tokens": {
            "sequence_length": plan.model.seq_len,
            "micro_batch_size": task.shape.micro_batch_per_rank,
            "batch_accumulation_per_replica": plan.batch.micro_batches,
            "train_steps": 100,
        },
    }
    notes.append("steps, learning rate, checkpoints, tokenizer and data_stages (random tokens here) are yours")
    note_rotary(task, "rope_theta")
    if "dp" not in task.recipe.overlap:
        notes.append("gradients are summed beside backward, which the plan does not count on")
    script = task.script(default="run_train.py", about="run_train.py is nanotron's own: --script names another")
    command = " ".join([*launcher_lines(plan, notes), f"{script} --config-file nanotron.yaml"])
    text = f"# {task.headline}\n# CUDA_DEVICE_MAX_CONNECTIONS=1 {comment(command)}\n"
    return (ExportFile(name="nanotron.yaml", text=text + yaml.safe_dump(config, sort_keys=False)),)


def _model(task: Task) -> dict[str, Any]:
    decoder, recipe = task.decoder, task.recipe
    dtype = task.plan.model.dtype
    buckets = recipe.software.bucket_bytes * WIDTHS[dtype] // (WIDTHS[recipe.grad_dtype] << 20)
    return {
        "dtype": backwards(DTYPES)[dtype],
        "init_method": {"std": 0.025},
        "make_vocab_size_divisible_by": recipe.vocabulary_multiple,
        **({"ddp_bucket_cap_mb": buckets} if buckets else {}),
        "model_config": {
            "is_llama_config": True,
            "hidden_act": decoder.activation,
            "hidden_size": decoder.hidden,
            "intermediate_size": decoder.feed_forward_hidden,
            "num_hidden_layers": decoder.blocks,
            "num_attention_heads": decoder.heads,
            "num_key_value_heads": decoder.kv_heads,
            "max_position_embeddings": task.plan.model.seq_len,
            "tie_word_embeddings": decoder.tied,
            "vocab_size": decoder.vocab,
            **({} if decoder.traits.rope_base is None else {"rope_theta": decoder.traits.rope_base}),
            **({} if decoder.traits.norm_eps is None else {"rms_norm_eps": decoder.traits.norm_eps}),
        },
    }


def _optimizer(task: Task) -> dict[str, Any]:
    name = backwards(OPTIMIZERS)[task.plan.optimizer]
    adam = {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": 1.0e-8, "torch_adam_is_fused": True}
    return {
        "zero_stage": task.shape.zero,
        "accumulate_grad_in_fp32": task.recipe.grad_dtype == "fp32",
        "clip_grad": 1.0,
        "weight_decay": 0.1,
        "learning_rate_scheduler": {"learning_rate": 3.0e-4, "lr_warmup_steps": 10, "lr_warmup_style": "linear"},
        "optimizer_factory": {"name": name, **(adam if name == "adamW" else {})},
    }


def _parallelism(task: Task) -> dict[str, Any]:
    """Beside compute, tensor-parallel communication runs in reduce-scatter mode alone."""
    shape = task.shape
    overlaps = "tp" in task.recipe.overlap
    if overlaps and shape.tp > 1 and not shape.sequence_parallel:
        task.notes.append("tensor-parallel communication beside compute needs sequence parallelism: left off")
        overlaps = False
    scatters = shape.sequence_parallel or (overlaps and shape.tp == 1)
    return {
        **{DEGREES[name]: getattr(shape, name) for name in ("dp", "pp", "tp")},
        "pp_engine": backwards(ENGINES)[shape.schedule if shape.pp > 1 else "1f1b"],
        "tp_mode": "REDUCE_SCATTER" if scatters else "ALL_REDUCE",
        "tp_linear_async_communication": overlaps,
        "recompute_layer": shape.recompute == "full",
    }


def read_nanotron(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """Return the plan of the file at `settings`; `model` stands for a model that is not of Llama's or Qwen2's kind.
    Raise InputError with file, key, value and what was expected."""
    setting = settings.removeprefix("@")
    keys = read_settings(Path(setting))
    notes = describe_unread(keys.values, load_known("nanotron.toml"))
    named = _described(keys, setting) if model is None else load_named(model, options.user_code)
    stated = _options(keys)
    shape = Shape(
        job=Job(model=named.model, seq_len=0, dtype="bf16", vocabulary_multiple=stated["vocab_pad"]),
        tp=stated["tp"],
        pp=stated["pp"],
    )
    return Imported(
        launcher="nanotron",
        setting=setting,
        model=named,
        options=stated,
        words=WORDS,
        devices=stated["tp"] * stated["pp"] * stated["dp"] * stated["cp"],
        software=_buckets(keys.part("model"), stated),
        blocks=_balanced(keys, shape) if shape.pp > 1 else None,
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _described(keys: Keys, setting: str) -> NamedModel:
    sizes = keys.part("model").part("model_config")
    if sizes.flag("is_starcoder2_config", False) or sizes.get("moe_config", None):
        said = "a model of another kind than Llama's"
        raise sizes.wrong("moe_config, is_starcoder2_config", said, "a dense Llama or Qwen2, or MODEL beside --from")
    biased = sizes.flag("is_qwen2_config", False) and sizes.flag("attention_bias", False)
    plain = {key: value for key, value in sizes.values.items() if value is not None and key != "attention_bias"}
    name = f"nanotron-{sizes.size('num_hidden_layers', 32)}x{sizes.size('hidden_size', 4096)}"
    return describe_model({**plain, "model_type": "qwen2" if biased else "llama"}, where=setting, name=name)


def _balanced(keys: Keys, shape: Shape) -> tuple[int, ...]:
    try:
        blocks = balanced_blocks(shape)
    except CannotExpress as other:
        raise keys.part("parallelism").wrong("pp", f"{shape.pp} stages of {other.found}", "1: its stages") from None
    if blocks is None:
        said = f"{shape.pp} stages of {shape.job.blocks} blocks"
        raise keys.part("parallelism").wrong("pp", said, "stages that each get a part of the model")
    return blocks


def _options(keys: Keys) -> Stated:
    degrees, tokens, optimizer = keys.part("parallelism"), keys.part("tokens"), keys.part("optimizer")
    tp, pp, dp = (degrees.size(DEGREES[name]) for name in ("tp", "pp", "dp"))
    micro_batch, accumulated = tokens.size("micro_batch_size"), tokens.size("batch_accumulation_per_replica")
    dtype = DTYPES[keys.part("model").word("dtype", "bfloat16", tuple(DTYPES))]
    engine = degrees.word("pp_engine", "afab", tuple(ENGINES))
    grad_dtype: GradDType = "fp32" if dtype == "fp32" or optimizer.flag("accumulate_grad_in_fp32", False) else "bf16"
    scatters = degrees.word("tp_mode", "ALL_REDUCE").upper() == "REDUCE_SCATTER"
    beside: tuple[Overlap, ...] = ("dp", "tp")
    return {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": degrees.size(DEGREES["cp"], 1),
        "micro_batch": micro_batch,
        "global_batch": micro_batch * accumulated * dp,
        "seq_len": tokens.size("sequence_length"),
        "dtype": dtype,
        "grad_dtype": grad_dtype,
        "optimizer": _optimizer_of(optimizer.part("optimizer_factory")),
        "zero": optimizer.size("zero_stage", least=0, most=1),
        "schedule": ENGINES[engine] if pp > 1 else "1f1b",
        "recompute": "full" if degrees.flag("recompute_layer", False) else "none",
        "sequence_parallel": scatters and tp > 1,
        "overlap": beside if scatters and degrees.flag("tp_linear_async_communication", False) else beside[:1],
        "vocab_pad": keys.part("model").size("make_vocab_size_divisible_by", 1),
        "software": "nanotron",
    }


def _optimizer_of(factory: Keys) -> OptimizerName:
    names = {name.lower(): optimizer for name, optimizer in OPTIMIZERS.items()}
    name = factory.word("name", "adamW")
    if name.lower() not in names:
        raise factory.wrong("name", describe(name), f"one of {', '.join(OPTIMIZERS)}")
    return names[name.lower()]


def _buckets(model: Keys, stated: Stated) -> Mapping[str, Any]:
    """Gradients are summed in DistributedDataParallel's buckets, counted in bytes of weights."""
    megabytes = model.size("ddp_bucket_cap_mb", 25)
    return {"bucket_bytes": (megabytes << 20) * WIDTHS[stated["grad_dtype"]] // WIDTHS[stated["dtype"]]}
