"""torchtitan's configurations: a Python module for its releases from 0.3, TOML for those before.

`torchtitan_settings` has what both say. Classes as in torchtitan 0.3.0 (trainer.py, models/llama3/__init__.py).
"""

from __future__ import annotations

import json
from typing import Any

from planner.one_job.tools.decoder import Decoder, decoder_of
from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.python_text import Code, call, comment
from planner.one_job.tools.shape import (
    Uniform,
    headline,
    launcher_lines,
    load_plan_model,
    recipe_of,
    uniform,
)
from planner.one_job.tools.torchtitan.settings import Settings, find_flavor, is_plain_llama, titan_settings
from planner.shared.plan import Plan

TOOL = "torchtitan"
TOML = "torchtitan-toml"

CONVERTERS = "[Float8LinearConverter.Config(model_compile_enabled=True)]"

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
    rope = ComplexRoPE.Config(dim=head_dim, max_seq_len={seq_len}, theta=ROPE_THETA, scaling="none")

    def block() -> Llama3TransformerBlock.Config:
        return Llama3TransformerBlock.Config(
            attention_norm=RMSNorm.Config(normalized_shape=dim, param_init=norm),
            ffn_norm=RMSNorm.Config(normalized_shape=dim, param_init=norm),
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
        norm=RMSNorm.Config(normalized_shape=dim, param_init=norm),
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


def export_torchtitan(plan: Plan, context: ExportContext) -> Export:
    """`torchtitan_plan.py`, whose `plan()` is the configuration. CannotExpress for what torchtitan cannot run, models
    that are none of its own and not of Llama's kind among it."""
    notes: list[str] = []
    shape, decoder, settings = _prepare(plan, TOOL, notes)
    flavor = find_flavor(decoder, "0.3")
    if flavor is None and not is_plain_llama(decoder):
        found = f"{plan.model.name}, a {_kind(decoder)}"
        expected = "its own llama3, qwen3 and deepseek_v3 flavors, and dense models of Llama's kind of any size"
        raise CannotExpress(tool=TOOL, key="model", found=found, expected=expected)
    converters = CONVERTERS if settings.fp8 else "[]"
    imports = [*IMPORTS, *([FLOAT8_IMPORT] if settings.fp8 else [])]
    if flavor is None:
        imports += CUSTOM_IMPORTS
        model, spec = _custom_model(plan, decoder, converters), "_spec()"
        notes.append("ROPE_THETA, the base of rotary positions, is not part of a plan: set the model's own")
        head = "from functools import partial\n\nimport torch.nn as nn\n"
    else:
        imports.append(f"from torchtitan.models.{flavor[0]} import model_registry")
        quantized = f", converters={converters}" if settings.fp8 else ""
        model, spec, head = "", f'model_registry("{flavor[1]}"{quantized})', ""
    training = {**settings.training, "steps": Code("STEPS")}
    training["disable_cuda_graphs"] = recipe_of(plan).software.launch != "graph" or shape.pp > 1
    words = [*launcher_lines(plan, notes), "-m torchtitan.train --module torchtitan_plan --config plan"]
    if context.script is not None:
        notes.append(f"torchtitan.train starts this configuration, not {context.script}")
    text = TEMPLATE.format(
        headline=headline(plan, shape),
        command=comment(" ".join(words)),
        imports=head + "\n".join(sorted(imports)),
        model=model,
        spec=spec,
        loss=_loss(plan, decoder),
        training=call("TrainingConfig", training, indent=8),
        parallelism=call("ParallelismConfig", settings.parallelism, indent=8),
        recompute="FullAC.Config()" if settings.recompute == "full" else "None",
        compiled=settings.compiled,
    )
    return Export(files=(ExportFile(name="torchtitan_plan.py", text=text),), notes=tuple(notes))


def export_torchtitan_toml(plan: Plan, context: ExportContext) -> Export:
    """`torchtitan.toml` for the releases that read TOML (to 0.2). CannotExpress as above, and for models that are none
    of its flavors."""
    notes: list[str] = []
    shape, decoder, settings = _prepare(plan, TOML, notes)
    flavor = find_flavor(decoder, "0.2")
    if flavor is None:
        expected = "flavors of its llama3, qwen3 and deepseek_v3 (0.3, `--to torchtitan`, runs other sizes)"
        raise CannotExpress(tool=TOML, key="model", found=plan.model.name, expected=expected)
    if context.script is not None:
        notes.append(f"torchtitan.train starts this configuration, not {context.script}")
    words = [*launcher_lines(plan, notes), "-m torchtitan.train --job.config_file torchtitan.toml"]
    converters = ["quantize.linear.float8"] if settings.fp8 else []
    sections: dict[str, dict[str, Any]] = {
        "job": {"description": headline(plan, shape)},
        "model": {"name": flavor[0], "flavor": flavor[1], "converters": converters},
        "optimizer": {"name": "AdamW"},
        "training": settings.training,
        "parallelism": settings.parallelism,
        "activation_checkpoint": {"mode": settings.recompute},
        "compile": {"enable": settings.compiled},
    }
    body = "\n".join(f"[{name}]\n{_toml(section)}" for name, section in sections.items())
    text = f"# for torchtitan 0.2; start it with:\n# {comment(' '.join(words))}\n\n{body}"
    return Export(files=(ExportFile(name="torchtitan.toml", text=text),), notes=tuple(notes))


def _prepare(plan: Plan, tool: str, notes: list[str]) -> tuple[Uniform, Decoder, Settings]:
    shape = uniform(plan, tool)
    model = load_plan_model(plan)
    decoder = decoder_of(model, tool)
    return shape, decoder, titan_settings(plan, shape, model, "0.3" if tool == TOOL else "0.2", notes)


def _kind(decoder: Decoder) -> str:
    experts = "mixture of experts" if decoder.experts else "dense model"
    positions = "learned" if decoder.positions else "rotary" if decoder.rotary_dim else "no"
    return f"{experts} with {decoder.norm} and {positions} positions"


def _custom_model(plan: Plan, decoder: Decoder, converters: str) -> str:
    table_init = '{"weight": skip_param_init}' if decoder.tied else "table"
    sizes = ("hidden", "heads", "kv_heads", "head_dim", "feed_forward_hidden", "vocab", "blocks", "tied")
    text = CUSTOM_MODEL.format(
        **{name: getattr(decoder, name) for name in sizes},
        seq_len=plan.model.seq_len,
        table_init=table_init,
        converters=converters,
    )
    return f"ROPE_THETA = 500000.0\n{text}"


def _loss(plan: Plan, decoder: Decoder) -> str:
    """Chunked, so that no logits of all tokens are kept, where the recipe fuses the loss."""
    plain = f"CrossEntropyLoss.Config(global_vocab_size={decoder.vocab})"
    return f"ChunkedLossWrapper.Config(loss_fn={plain})" if recipe_of(plan).software.fused_cross_entropy else plain


def _toml(section: dict[str, Any]) -> str:
    """Keys with strings, numbers, booleans and lists, which TOML and JSON write alike."""
    return "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in section.items())
