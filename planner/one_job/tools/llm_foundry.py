"""llm-foundry's configuration (YAML) for Composer: FSDP or plain data parallelism of MPT models.

Keys as in llm-foundry 0.17 (llmfoundry/utils/config_utils.py, TrainConfig; llmfoundry/models/mpt/configuration_mpt.py)
and Composer 0.26 (composer/utils/parallelism.py, FSDPConfig); older places of the same keys are read too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from estimator.pricing.recipe import GradDType, ZeroStage
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.layers import Activation
from models_zoo.model import Model
from planner.one_job.tools.base.decoder import decoder_of
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, describe_model, load_named
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.python_text import comment
from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED
from planner.one_job.tools.base.settings import describe_unread, load_known, read_settings
from planner.one_job.tools.base.tool import Rule, TrainingTool, backwards
from planner.one_job.tools.base.writing import Task, note_rotary
from planner.shared.options.estimate import EstimateOptions
from profiles.vocabulary import DType

PRECISIONS: dict[str, DType] = {"amp_bf16": "bf16", "amp_fp16": "fp16", "amp_fp8": "fp8", "fp32": "fp32"}
STRATEGIES: dict[str, ZeroStage] = {
    "FULL_SHARD": 3,
    "SHARD_GRAD_OP": 2,
    "NO_SHARD": 0,
    "HYBRID_SHARD": 3,
    "_HYBRID_SHARD_ZERO2": 2,
}
HALVES: dict[str, GradDType] = {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}
"""What gradients are summed in under mixed_precision PURE."""
NORMS = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}

WORDS = {
    "dp": "the launcher's ranks",
    "micro_batch": "device_train_microbatch_size",
    "global_batch": "global_train_batch_size",
    "seq_len": "max_seq_len",
    "dtype": "precision",
    "grad_dtype": "fsdp_config.mixed_precision",
    "optimizer": "optimizer.name",
    "zero": "fsdp_config.sharding_strategy",
    "hsdp": "fsdp_config.data_parallel_replicate_degree",
    "recompute": "fsdp_config.activation_checkpointing",
    "offload": "fsdp_config.activation_cpu_offload",
    "attention": "model.attn_config.attn_impl",
}
"""What llm-foundry calls the options of `estimate`."""

# Not part of a plan, but asked for: the tokenizer, data, steps.
PLACEHOLDERS: dict[str, Any] = {
    "train_loader": {
        "name": "text",
        "dataset": {"local": "./my-copy-c4", "split": "train", "shuffle": True},
        "drop_last": True,
        "num_workers": 8,
    },
    "scheduler": {"name": "cosine_with_warmup", "t_warmup": "10ba", "alpha_f": 0.1},
    "max_duration": "100ba",
    "eval_interval": 0,
    "device_eval_batch_size": 1,
    "seed": 17,
}

LLM_FOUNDRY = TrainingTool(
    name="llm-foundry",
    summary="llm-foundry (Composer): its YAML",
    basis="llm-foundry 0.17: MPT models under FSDP or plain data parallelism, all blocks checkpointed or none",
    software="llm-foundry",
    schedules=("1f1b",),
    recompute=("none", "full"),
    zero=(0, 2, 3),
    sharded_pipelines=(),
    optimizers=("adamw",),
    dtypes=tuple(PRECISIONS.values()),
    degrees=(
        Rule(key="stages", allows=lambda s: s.pp == 1, found="{s.pp} pipeline stages", expected="one"),
        *(
            Rule(
                key=f"stages[].{name}",
                allows=lambda s, name=name: getattr(s, name) == 1,  # type: ignore[misc]
                expected="1: FSDP alone",
            )
            for name in ("tp", "cp")
        ),
    ),
    states=(
        Rule(
            key="recipe.grad_dtype",
            allows=lambda s: s.job.grad_dtype in (None, "fp32", HALVES.get(s.job.dtype) if s.zero else None),
            found="{s.job.grad_dtype} with ZeRO {s.zero}",
            expected="fp32, or with FSDP 16 bits (mixed_precision PURE)",
        ),
        Rule(
            key="stages[].offload",
            allows=lambda s: set(s.offload) <= {"activations"},
            found="{s.offload}",
            expected="nothing, or activations",
        ),
    ),
    whole=(
        ALL_LAYERS_RECOMPUTED,
        Rule(
            key="stages[].offload",
            allows=lambda s: not s.offload or s.recompute == "full",
            found="activations",
            expected="offloaded activations with full recomputation (activation_cpu_offload)",
        ),
    ),
    model="llm_foundry:refuse_model",
    write="llm_foundry:write_llm_foundry",
    read="llm_foundry:read_llm_foundry",
)


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that are no MPT."""
    decoder = decoder_of(model, tool)
    biases = {decoder.qkv_bias, decoder.output_bias, decoder.feed_forward_bias}
    whole = decoder.head_dim * decoder.heads == decoder.hidden and decoder.rotary_dim in (0, decoder.head_dim)
    plain = not (any(decoder.windows) or decoder.latent or decoder.experts) and decoder.query_key_norm == "none"
    if not (plain and whole and len(biases) == 1 and not (decoder.positions and decoder.rotary_dim)):
        kind = "mixture of experts" if decoder.experts else "model with heads, norms, biases or windows of its own"
        expected = "dense MPT models: biases in all linear layers or in none, heads that make up the width"
        raise CannotExpress(tool=tool, key="model", found=f"{model.name}, a {kind}", expected=expected)


def write_llm_foundry(task: Task) -> tuple[ExportFile, ...]:
    """Return `llm_foundry.yaml`; its first lines say how to start it."""
    plan, shape = task.plan, task.shape
    config = {
        "max_seq_len": plan.model.seq_len,
        "model": _mpt(task),
        "tokenizer": {"name": "EleutherAI/gpt-neox-20b", "kwargs": {"model_max_length": plan.model.seq_len}},
        **PLACEHOLDERS,
        "optimizer": {"name": "decoupled_adamw", "lr": 3.0e-4, "betas": [0.9, 0.95], "weight_decay": 0.0},
        "global_train_batch_size": plan.batch.global_batch,
        "device_train_microbatch_size": shape.micro_batch_per_rank,
        "precision": backwards(PRECISIONS)[plan.model.dtype],
        # Recomputation is a setting of FSDP, also of one that shards nothing.
        **({"fsdp_config": _fsdp(task)} if shape.zero or shape.recompute == "full" else {}),
        **({"compile_config": {}} if task.recipe.software.kernels == "fused" else {}),
    }
    task.notes.append("data, tokenizer, learning rate and max_duration are yours")
    text = "".join(f"# {line}\n" for line in (task.headline, comment(_launch(task))))
    return (ExportFile(name="llm_foundry.yaml", text=text + yaml.safe_dump(config, sort_keys=False)),)


def _mpt(task: Task) -> dict[str, Any]:
    """MPT's sizes; dropout of a tenth where the model has any."""
    decoder, software = task.decoder, task.recipe.software
    multiple = task.recipe.vocabulary_multiple
    grouped = {"attn_type": "grouped_query_attention", "kv_n_heads": decoder.kv_heads}
    attention = {
        **(grouped if decoder.kv_heads != decoder.heads else {}),
        "attn_impl": "torch" if task.plan.stages[0].attention == "math" else "flash",
        "rope": decoder.rotary_dim > 0,
    }
    if decoder.rotary_dim:
        note_rotary(task, "rope_theta")
        base = decoder.traits.rope_base
        attention |= {} if base is None else {"rope_theta": base}
    return {
        "name": "mpt_causal_lm",
        "init_device": "meta",
        "d_model": decoder.hidden,
        "n_heads": decoder.heads,
        "n_layers": decoder.blocks,
        "ffn_config": {
            "ffn_type": "mptglu" if decoder.gated else "mptmlp",
            "ffn_hidden_size": decoder.feed_forward_hidden,
            "ffn_act_fn": {"name": decoder.activation},
        },
        "max_seq_len": decoder.positions or task.plan.model.seq_len,
        "vocab_size": -(-decoder.vocab // multiple) * multiple,
        "learned_pos_emb": decoder.positions > 0,
        "attn_config": attention,
        "no_bias": not decoder.output_bias,
        "norm_type": f"low_precision_{decoder.norm}",
        "tie_word_embeddings": decoder.tied,
        **dict.fromkeys(("resid_pdrop", "emb_pdrop") if decoder.dropout else (), 0.1),
        "loss_fn": "fused_crossentropy" if software.fused_cross_entropy else "torch_crossentropy",
    }


def _fsdp(task: Task) -> dict[str, Any]:
    shape, pure = task.shape, task.recipe.grad_dtype != "fp32"
    hybrid = shape.zero > 0 and shape.replicate > 1
    strategy = next(name for name, zero in STRATEGIES.items() if zero == shape.zero and ("HYBRID" in name) == hybrid)
    degrees = {"data_parallel_shard_degree": shape.shard, "data_parallel_replicate_degree": shape.replicate}
    return {
        "sharding_strategy": strategy,
        **(degrees if hybrid else {}),
        "mixed_precision": "PURE" if pure else "DEFAULT",
        "activation_checkpointing": shape.recompute == "full",
        "activation_checkpointing_reentrant": False,
        "activation_cpu_offload": "activations" in shape.offload,
        "limit_all_gathers": True,
    }


def _launch(task: Task) -> str:
    """Composer's launcher, which sets the variables that it reads; on several nodes once on each."""
    nodes, notes = nodes_of(task.plan), task.notes
    about = "train.py is llm-foundry's own (scripts/train): --script names another"
    script = task.script(default="train.py", about=about)
    if not nodes.node_major or nodes.per_node is None:
        notes.append("Composer numbers ranks node by node, with as many processes on each, which the plan has not")
    words = ["composer", f"--nproc {nodes.per_node or len(nodes.nodes[0].ranks)}"]
    if len(nodes.nodes) > 1:
        words += [f"--world_size {task.shape.devices}", "--node_rank N", "--master_addr NODE_0", "--master_port 29500"]
    return " ".join([*words, script, "llm_foundry.yaml"])


def read_llm_foundry(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """Return the plan of the file at `settings`; `model` stands for a model that is no MPT. Raise InputError with file,
    key, value and what was expected."""
    setting = settings.removeprefix("@")
    raw = read_settings(Path(setting)).values
    keys = Keys(where=setting, values=interpolated(raw, raw))
    notes = describe_unread(keys.values, load_known("llm_foundry.toml"))
    named = _described(keys, notes) if model is None else load_named(model, options.user_code)
    fsdp = keys.part("fsdp_config")
    return Imported(
        launcher="llm-foundry",
        setting=setting,
        model=named,
        options=_options(keys, fsdp, notes),
        words=WORDS,
        software=_software(keys),
        copies=_copies(fsdp),
        assumptions=tuple(dict.fromkeys(notes)),
    )


def interpolated(value: Any, root: Mapping[str, Any], depth: int = 0) -> Any:
    """Return `value` with `${a.b}` replaced by what stands there in `root`, as OmegaConf does; what is not there stays.

    >>> interpolated({"a": "${variables.n}"}, {"variables": {"n": 3}})
    {'a': 3}
    """
    if isinstance(value, Mapping):
        return {key: interpolated(part, root, depth) for key, part in value.items()}
    if isinstance(value, list):
        return [interpolated(part, root, depth) for part in value]
    name = re.fullmatch(r"\$\{([\w.]+)\}", value) if isinstance(value, str) and depth < 10 else None
    if name is None:
        return value
    place: Any = root
    for step in name[1].split("."):
        if not isinstance(place, Mapping) or step not in place:
            return value
        place = place[step]
    return interpolated(place, root, depth + 1)


def _described(keys: Keys, notes: list[str]) -> NamedModel:
    """The model of MPT's sizes; their defaults are MPTConfig's."""
    sizes = keys.part("model")
    if sizes.get("name", None) != "mpt_causal_lm":
        raise sizes.wrong("name", describe(sizes.get("name", None)), "mpt_causal_lm, or MODEL beside --from")
    attention, feed_forward = sizes.part("attn_config"), sizes.part("ffn_config")
    hidden, heads, blocks = (sizes.size(*sized) for sized in (("d_model", 2048), ("n_heads", 16), ("n_layers", 24)))
    groups = {"multiquery_attention": 1, "grouped_query_attention": attention.size("kv_n_heads", heads)}
    gated = feed_forward.word("ffn_type", "mptmlp") == "mptglu"
    rotary = attention.flag("rope", False)
    learned = sizes.flag("learned_pos_emb", True) and not (rotary or attention.flag("alibi", False))
    norm = sizes.word("norm_type", "low_precision_layernorm").removeprefix("low_precision_").removeprefix("triton_")
    if norm not in NORMS:
        raise sizes.wrong("norm_type", describe(norm), f"one of {', '.join(NORMS)}, low_precision_ before it or not")
    if attention.flag("qk_ln", False) or attention.flag("qk_gn", False):
        notes.append("model.attn_config.qk_ln: not modelled; queries and keys are priced without norms")
    config = {
        "model_type": "megatron",
        "vocab_size": sizes.size("vocab_size", 50368),
        "hidden_size": hidden,
        "num_hidden_layers": blocks,
        "num_attention_heads": heads,
        "num_key_value_heads": groups.get(attention.word("attn_type", "multihead_attention"), heads),
        "intermediate_size": _inner(sizes, feed_forward, hidden),
        "hidden_act": _activation(feed_forward),
        "gated": gated,
        "max_position_embeddings": sizes.size("max_seq_len", 2048),
        "position_embedding_type": "learned_absolute" if learned else "rope" if rotary else "none",
        "normalization": NORMS[norm],
        "linear_bias": not sizes.flag("no_bias", False),
        "dropout": any(sizes.share(name, 0.0) for name in ("resid_pdrop", "emb_pdrop")),
        "tie_word_embeddings": sizes.flag("tie_word_embeddings", True),
    }
    return describe_model(config, where=keys.where, name=f"llm-foundry-{blocks}x{hidden}")


def _inner(sizes: Keys, feed_forward: Keys, hidden: int) -> int:
    stated = feed_forward.optional_size("ffn_hidden_size")
    ratio = sizes.get("expansion_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio * hidden < 2**24:
        raise sizes.wrong("expansion_ratio", describe(ratio), "a number above 0")
    return stated or int(ratio * hidden)


def _activation(feed_forward: Keys) -> Activation:
    return feed_forward.part("ffn_act_fn").activation("name", "gelu")


def _options(keys: Keys, fsdp: Keys, notes: list[str]) -> Stated:
    dtype = PRECISIONS[keys.word("precision", "amp_bf16", tuple(PRECISIONS))]
    zero = STRATEGIES[fsdp.word("sharding_strategy", "FULL_SHARD", tuple(STRATEGIES))] if fsdp.values else 0
    mixed = fsdp.word("mixed_precision", "DEFAULT", ("DEFAULT", "PURE", "FULL")) if zero else "DEFAULT"
    if mixed == "FULL":
        notes.append("fsdp_config.mixed_precision FULL: weights are priced as gathered in the compute type")
    name = keys.part("optimizer").word("name", "decoupled_adamw")
    if name not in ("decoupled_adamw", "adamw"):
        notes.append(f"optimizer.name {name}: not modelled; priced as AdamW")
    stated: Stated = {
        "tp": 1,
        "pp": 1,
        "seq_len": keys.size("max_seq_len"),
        "global_batch": keys.size("global_train_batch_size"),
        "dtype": dtype,
        "grad_dtype": HALVES.get(dtype, "fp32") if mixed == "PURE" else "fp32",
        "optimizer": "adamw",
        "zero": zero,
        "recompute": "full" if fsdp.flag("activation_checkpointing", False) else "none",
        "offload": ("activations",) if fsdp.flag("activation_cpu_offload", False) else (),
        "overlap": ("dp",),
        "vocab_pad": 1,
        "software": "llm-foundry",
    }
    kernel = keys.part("model").part("attn_config").word("attn_impl", "flash")
    stated["attention"] = "math" if kernel == "torch" else "flash"
    if keys.get("device_train_microbatch_size", "auto") == "auto":
        notes.append("device_train_microbatch_size auto: the micro-batch is derived (--micro-batch)")
    else:
        stated["micro_batch"] = keys.size("device_train_microbatch_size")
    return stated


def _copies(fsdp: Keys) -> int | None:
    """Copies of the sharded state: the degree, or the first axis of older files' mesh of two."""
    mesh = fsdp.get("device_mesh", None)
    copies = mesh[0] if isinstance(mesh, list) and len(mesh) == 2 else fsdp.size("data_parallel_replicate_degree", 1)
    return copies if isinstance(copies, int) and copies > 1 else None


def _software(keys: Keys) -> dict[str, Any]:
    """torch.compile fuses small operators; the fused loss keeps no copy of the logits."""
    fused_loss = keys.part("model").word("loss_fn", "fused_crossentropy") == "fused_crossentropy"
    compiled = {"kernels": "fused"} if keys.get("compile_config", None) is not None else {}
    return {"fused_cross_entropy": fused_loss, **compiled}
