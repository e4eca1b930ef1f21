"""torchtitan's configurations: a Python module for its releases from 0.3, TOML for those before.

`torchtitan_settings` has what both say. Classes as in torchtitan 0.3.0 (trainer.py, models/llama3/__init__.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.one_job.tools.base.decoder import Decoder
from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.python_text import Code, call, comment
from planner.one_job.tools.base.writing import Task, launcher_lines, note_rotary
from planner.one_job.tools.torchtitan.flavors import find_flavor
from planner.one_job.tools.torchtitan.settings import titan_settings

CONVERTERS = "[Float8LinearConverter.Config(model_compile_enabled=True, enable_fsdp_float8_all_gather={})]"

TEMPLATE = '''"""{headline}

A configuration for torchtitan 0.3; start it with:

    {command}
"""

{imports}

# Not part of the plan: yours to set.
STEPS = 1000
LEARNING_RATE = 3e-4
DATASET = "c4"
ASSETS = "./tests/assets/tokenizer"  # folder of the tokenizer

{model}

def plan() -> Trainer.Config:
    spec = {spec}
    return Trainer.Config(
        model_spec=spec,
        loss={loss},
        hf_assets_path=ASSETS,
        optimizer=default_adamw(lr=LEARNING_RATE),
        lr_scheduler=LRSchedulersContainer.Config(warmup_steps=min(200, STEPS // 5)),
        dataloader=HuggingFaceTextDataLoader.Config(dataset=DATASET),
        training={training},
        parallelism={parallelism},
        activation_checkpoint={recompute},
        compile=CompileConfig(enable={compiled}),
    )
'''

CUSTOM_MODEL = '''
def _model_config() -> Llama3Model.Config:
    """A model of Llama's kind with the plan's sizes."""
    dim, heads, kv_heads, head_dim = {hidden}, {heads}, {kv_heads}, {head_dim}
    hidden_dim, vocab, blocks = {feed_forward_hidden}, {vocab}, {blocks}
    norm = {{"weight": nn.init.ones_}}
    matrix = {{"weight": partial(nn.init.trunc_normal_, std=0.02), "bias": nn.init.zeros_}}
    table = {{"weight": partial(nn.init.normal_, std=1.0)}}
    rope = ComplexRoPE.Config(dim=head_dim, max_seq_len={seq_len}, theta=ROPE_THETA, {scaling})

    def block() -> Llama3TransformerBlock.Config:
        return Llama3TransformerBlock.Config(
            attention_norm=RMSNorm.Config(normalized_shape=dim, param_init=norm{epsilon}),
            ffn_norm=RMSNorm.Config(normalized_shape=dim, param_init=norm{epsilon}),
            attention=make_gqa_config(
                dim=dim,
                n_heads=heads,
                n_kv_heads=kv_heads,
                head_dim=head_dim,
                wqkv_param_init=matrix,
                wo_param_init=matrix,
                inner_attention=get_attention_config("flex"),
                fuse_qkv=True,
                rope=rope,
            ),
            feed_forward=make_ffn_config(
                dim=dim, hidden_dim=hidden_dim, w1_param_init=matrix, w2w3_param_init=matrix
            ),
        )

    config = Llama3Model.Config(
        dim=dim,
        vocab_size=vocab,
        enable_weight_tying={tied},
        tok_embeddings=Embedding.Config(num_embeddings=vocab, embedding_dim=dim, param_init={table_init}),
        norm=RMSNorm.Config(normalized_shape=dim, param_init=norm{epsilon}),
        lm_head=Linear.Config(in_features=dim, out_features=vocab, param_init=matrix),
        layers=[block() for _ in range(blocks)],
    )
    for converter in {converters}:
        config = converter.build().convert(config)
    return config


def _spec() -> ModelSpec:
    return ModelSpec(
        name="llama3",
        flavor="plan",
        model=_model_config(),
        parallelize_fn=parallelize_llama,
        pipelining_fn=pipeline_llm,
        post_optimizer_build_fn=None,
        state_dict_adapter=Llama3StateDictAdapter,
    )

'''

IMPORTS = (
    "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
    "from torchtitan.components.optimizer import LRSchedulersContainer, default_adamw",
    "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
    "from torchtitan.distributed.activation_checkpoint import FullAC",
    "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
    "from torchtitan.trainer import Trainer",
)

CUSTOM_IMPORTS = (
    "from torchtitan.distributed.pipeline_parallel import pipeline_llm",
    "from torchtitan.models.common import ComplexRoPE, Embedding, Linear, RMSNorm",
    "from torchtitan.models.common.config_utils import get_attention_config, make_ffn_config, make_gqa_config",
    "from torchtitan.models.common.param_init import skip_param_init",
    "from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock",
    "from torchtitan.models.llama3.parallelize import parallelize_llama",
    "from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter",
    "from torchtitan.protocols.model_spec import ModelSpec",
)

FLOAT8_IMPORT = "from torchtitan.components.quantization import Float8LinearConverter"


def write_torchtitan(task: Task) -> tuple[ExportFile, ...]:
    """Return `torchtitan_plan.py`, whose `plan()` is the configuration."""
    plan, shape, notes = task.plan, task.shape, task.notes
    settings = titan_settings(task, "0.3")
    flavor = find_flavor(task.decoder, "0.3")
    converters = CONVERTERS.format(settings.gathers_narrow) if settings.fp8 else "[]"
    imports = [*IMPORTS, *([FLOAT8_IMPORT] if settings.fp8 else [])]
    if flavor is None:
        imports += CUSTOM_IMPORTS
        model, spec = _custom_model(task, converters), "_spec()"
        note_rotary(task, "ROPE_THETA", scales=("llama3",))
        head = "from functools import partial\n\nimport torch.nn as nn\n"
    else:
        imports.append(f"from torchtitan.models.{flavor[0]} import model_registry")
        quantized = f", converters={converters}" if settings.fp8 else ""
        if task.decoder.traits.rope_base is not None:
            notes.append(
                f"the flavor has rotary positions of its own: the model's base is {task.decoder.traits.rope_base:g}"
            )
        model, spec, head = "", f'model_registry("{flavor[1]}"{quantized})', ""
    training = {**settings.training, "steps": Code("STEPS")}
    training["disable_cuda_graphs"] = task.recipe.software.launch != "graph" or shape.pp > 1
    words = [*launcher_lines(plan, notes), "-m torchtitan.train --module torchtitan_plan --config plan"]
    if task.context.script is not None:
        notes.append(f"torchtitan.train starts this configuration, not {task.context.script}")
    text = TEMPLATE.format(
        headline=task.headline,
        command=comment(" ".join(words)),
        imports=head + "\n".join(sorted(imports)),
        model=model,
        spec=spec,
        loss=_loss(task),
        training=call("TrainingConfig", training, indent=8),
        parallelism=call("ParallelismConfig", settings.parallelism, indent=8),
        recompute="FullAC.Config()" if settings.recompute == "full" else "None",
        compiled=settings.compiled,
    )
    return (ExportFile(name="torchtitan_plan.py", text=text),)


def write_torchtitan_toml(task: Task) -> tuple[ExportFile, ...]:
    """Return `torchtitan.toml` for the releases that read TOML (to 0.2)."""
    plan, notes = task.plan, task.notes
    settings = titan_settings(task, "0.2")
    name, flavor = find_flavor(task.decoder, "0.2") or ("", "")
    if task.context.script is not None:
        notes.append(f"torchtitan.train starts this configuration, not {task.context.script}")
    words = [*launcher_lines(plan, notes), "-m torchtitan.train --job.config_file torchtitan.toml"]
    converters = ["quantize.linear.float8"] if settings.fp8 else []
    sections: dict[str, Mapping[str, Any]] = {
        "job": {"description": task.headline},
        "model": {"name": name, "flavor": flavor, "converters": converters},
        "optimizer": {"name": "AdamW"},
        "training": settings.training,
        "parallelism": settings.parallelism,
        "activation_checkpoint": {"mode": settings.recompute},
        "compile": {"enable": settings.compiled},
    }
    if settings.gathers_narrow:
        sections["quantize.linear.float8"] = {"enable_fsdp_float8_all_gather": True}
    body = "\n".join(f"[{title}]\n{_toml(section)}" for title, section in sections.items())
    text = f"# for torchtitan 0.2; start it with:\n# {comment(' '.join(words))}\n\n{body}"
    return (ExportFile(name="torchtitan.toml", text=text),)


def _custom_model(task: Task, converters: str) -> str:
    decoder = task.decoder
    table_init = '{"weight": skip_param_init}' if decoder.tied else "table"
    sizes = ("hidden", "heads", "kv_heads", "head_dim", "feed_forward_hidden", "vocab", "blocks", "tied")
    text = CUSTOM_MODEL.format(
        **{name: getattr(decoder, name) for name in sizes},
        seq_len=task.plan.model.seq_len,
        table_init=table_init,
        converters=converters,
        scaling=_rope_scaling(decoder),
        epsilon="" if decoder.traits.norm_eps is None else f", eps={decoder.traits.norm_eps!r}",
    )
    base = 500000.0 if decoder.traits.rope_base is None else decoder.traits.rope_base
    return f"ROPE_THETA = {base!r}\n{text}"


def _rope_scaling(decoder: Decoder) -> str:
    """Llama 3.1's scaling, by the names of torchtitan's `RoPE.Config`; none where the model has none, or another."""
    scaling = dict(decoder.traits.rope_scaling)
    if scaling.get("rope_type") != "llama3":
        return 'scaling="none"'
    names = {"factor": "scaling_factor", "low_freq_factor": "low_freq_factor", "high_freq_factor": "high_freq_factor"}
    words = [f"{name}={scaling[key]!r}" for key, name in names.items() if key in scaling]
    original = scaling.get("original_max_position_embeddings")
    words += [f"original_max_position_embeddings={int(original)}"] if isinstance(original, float) else []
    return ", ".join(['scaling="llama"', *words])


def _loss(task: Task) -> str:
    """Chunked, so that no logits of all tokens are kept, where the recipe fuses the loss."""
    plain = f"CrossEntropyLoss.Config(global_vocab_size={task.decoder.vocab})"
    return f"ChunkedLossWrapper.Config(loss_fn={plain})" if task.recipe.software.fused_cross_entropy else plain


def _toml(section: Mapping[str, Any]) -> str:
    """Keys with strings, numbers, booleans and lists, which TOML and JSON write alike."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in section.items())
