"""A Megatron-Bridge recipe (NeMo's trainer for Megatron Core): a Python file whose `config()` returns the
`ConfigContainer`, and which trains with it when run.

Classes and fields as in megatron-bridge 0.3.1 (training/config.py, models/gpt_provider.py, models/mla_provider.py).
"""

from __future__ import annotations

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import decoder_of
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.python_text import Code, call, comment
from planner.one_job.tools.base.tool import backwards
from planner.one_job.tools.base.writing import Task, launcher_lines
from planner.one_job.tools.megatron import fields as core
from planner.one_job.tools.megatron.fields import Fields, core_fields
from planner.one_job.tools.megatron.names import OPTIMIZERS

TORCH_DTYPES = {
    "bf16": "torch.bfloat16",
    "fp16": "torch.float16",
    **dict.fromkeys(("fp8", "fp8_block", "mxfp8", "nvfp4"), "torch.bfloat16"),
}
NARROW: dict[str, Fields] = {
    "fp8": {"bf16": True, "fp8": "hybrid"},
    "fp8_block": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "blockwise"},
    "mxfp8": {"bf16": True, "fp8": "e4m3", "fp8_recipe": "mxfp8"},
    "nvfp4": {"bf16": True, "fp4": "e2m1"},
}
"""Settings of `MixedPrecisionConfig` by compute type."""

NOT_OF_THE_MODEL = (
    "swiglu",
    "fused_kernels",
    "multi_latent_attention",
    "attention_backend",
    "moe_enable_deepep",
    "tp_comm_overlap",
    "data_parallel_sharding_strategy",
    "num_distributed_optimizer_instances",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
"""Fields that the provider is told in another way."""

FLAGS = ("moe_layer_freq", "window_attn_skip_freq")
LISTS = ("recompute_modules",)

TEMPLATE = '''"""{headline}

A recipe for Megatron-Bridge 0.3; start it with:

    {command}
"""

import torch
import torch.nn.functional as F
{imports}
from megatron.bridge.training.comm_overlap import CommOverlapConfig
from megatron.bridge.training.config import (
    CheckpointConfig,
    ConfigContainer,
    DistributedDataParallelConfig,
    DistributedInitConfig,
    LoggerConfig,
    MockGPTDatasetConfig,
    OptimizerConfig,
    SchedulerConfig,
    TokenizerConfig,
    TrainingConfig,
)
from megatron.bridge.training.gpt_step import forward_step
from megatron.bridge.training.mixed_precision import MixedPrecisionConfig
from megatron.bridge.training.pretrain import pretrain

# Not part of the plan: yours to set.
TRAIN_ITERS = 100
LEARNING_RATE = 3e-4


def config() -> ConfigContainer:
    model = {model}
    return ConfigContainer(
        model=model,
        train={train},
        optimizer={optimizer},
        scheduler=SchedulerConfig(lr_warmup_iters=0, lr_decay_style="cosine"),
        ddp={ddp},
        dist={dist},
        comm_overlap={overlap},
        mixed_precision={precision},
        dataset={dataset},
        tokenizer={tokenizer},
        logger=LoggerConfig(log_interval=1),
        checkpoint={checkpoint},
    )


if __name__ == "__main__":
    pretrain(config(), forward_step)
'''


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that the providers of Megatron-Bridge cannot be told."""
    core.refuse_model(model, tool)
    decoder = decoder_of(model, tool)
    if not decoder.positions and not decoder.rotary_dim:
        said = f"{model.name}, without learned or rotary positions"
        raise CannotExpress(tool=tool, key="model", found=said, expected="learned or rotary positions")


def write_bridge(task: Task) -> tuple[ExportFile, ...]:
    """Return `bridge_recipe.py`."""
    plan, shape, notes, decoder = task.plan, task.shape, task.notes, task.decoder
    tokens = plan.model.seq_len or 0
    if decoder.positions > tokens:
        notes.append(
            f"learned positions of the sequence's {tokens} tokens alone, where the model has {decoder.positions}"
        )
    fields = core_fields(task)
    provider, imports = _provider(fields, task)
    command = " ".join([*launcher_lines(plan, notes), task.context.script or "bridge_recipe.py"])
    notes.append(
        "TRAIN_ITERS, LEARNING_RATE, mock data and the null tokenizer stand for yours, at the top and in config()"
    )
    text = TEMPLATE.format(
        headline=task.headline,
        command=comment(command),
        imports=imports,
        model=provider,
        train=call(
            "TrainingConfig",
            {
                "train_iters": Code("TRAIN_ITERS"),
                "global_batch_size": plan.batch.global_batch,
                "micro_batch_size": shape.micro_batch_per_rank,
            },
            indent=8,
        ),
        optimizer=call("OptimizerConfig", _optimizer(task, fields), indent=8),
        ddp=call("DistributedDataParallelConfig", _gradients(task, fields), indent=8),
        dist=call(
            "DistributedInitConfig",
            {
                "use_tp_pp_dp_mapping": fields["use_tp_pp_dp_mapping"],
                "use_megatron_fsdp": fields["use_megatron_fsdp"],
            },
            indent=8,
        ),
        overlap=call("CommOverlapConfig", _overlap(task, fields), indent=8),
        precision=call("MixedPrecisionConfig", _precision(task), indent=8),
        dataset=call("MockGPTDatasetConfig", _dataset(tokens), indent=8),
        tokenizer=call("TokenizerConfig", {"tokenizer_type": "NullTokenizer", "vocab_size": decoder.vocab}),
        checkpoint=call(
            "CheckpointConfig", {"ckpt_format": "fsdp_dtensor" if fields["use_megatron_fsdp"] else "torch_dist"}
        ),
    )
    return (ExportFile(name="bridge_recipe.py", text=text),)


def _provider(fields: Fields, task: Task) -> tuple[str, str]:
    """The model's provider as a call, and the imports that it needs."""
    latent = fields.get("multi_latent_attention", False)
    dtype = Code(TORCH_DTYPES.get(task.plan.model.dtype, "torch.float32"))
    settings: dict[str, object] = {
        "activation_func": Code("F.silu" if fields["swiglu"] else "F.gelu"),
        "gated_linear_unit": fields["swiglu"],
        "bias_activation_fusion": fields["fused_kernels"],
        "bias_dropout_fusion": fields["fused_kernels"],
        "masked_softmax_fusion": fields["fused_kernels"],
        "apply_rope_fusion": fields["fused_kernels"] and fields["position_embedding_type"] == "rope",
    }
    for name, value in fields.items():
        if name in NOT_OF_THE_MODEL or value is None or name.startswith(("use_", "optimizer_")):
            continue
        settings[name] = [int(flag) for flag in value] if name in FLAGS else list(value) if name in LISTS else value
    if fields.get("moe_enable_deepep"):
        settings["moe_flex_dispatcher_backend"] = "deepep"
    if fields.get("use_rope_scaling"):
        settings["rope_scaling"] = True
    imports = [f"from megatron.bridge.models.{'mla_provider' if latent else 'gpt_provider'} import {_class(latent)}"]
    if fields["attention_backend"] == "unfused":
        settings["attention_backend"] = Code("AttnBackend.unfused")
        imports.append("from megatron.core.transformer.enums import AttnBackend")
    if fields.get("cpu_offloading_num_layers"):
        settings["cpu_offloading"] = True
    settings |= {
        "seq_length": task.plan.model.seq_len,
        "make_vocab_size_divisible_by": task.recipe.vocabulary_multiple,
        "should_pad_vocab": True,
        "pipeline_dtype": dtype,
    }
    return call(_class(latent), settings, indent=4), "\n".join(imports)


def _class(latent: bool) -> str:
    return "MLAModelProvider" if latent else "GPTModelProvider"


def _optimizer(task: Task, fields: Fields) -> Fields:
    settings: Fields = {
        "optimizer": backwards(OPTIMIZERS)[task.plan.optimizer],
        "lr": Code("LEARNING_RATE"),
        "use_distributed_optimizer": fields["use_distributed_optimizer"],
    }
    if fields.get("optimizer_cpu_offload"):
        settings |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    return settings


def _gradients(task: Task, fields: Fields) -> Fields:
    settings = {
        "use_distributed_optimizer": fields["use_distributed_optimizer"],
        "grad_reduce_in_fp32": task.recipe.grad_dtype == "fp32",
        "overlap_grad_reduce": fields["overlap_grad_reduce"],
        "overlap_param_gather": fields["overlap_param_gather"],
        "use_megatron_fsdp": fields["use_megatron_fsdp"],
        "data_parallel_sharding_strategy": fields["data_parallel_sharding_strategy"],
        "num_distributed_optimizer_instances": fields["num_distributed_optimizer_instances"],
        "bucket_size": task.bucket_elements or None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _overlap(task: Task, fields: Fields) -> Fields:
    shape = task.shape
    settings: Fields = {
        "tp_comm_overlap": fields["tp_comm_overlap"],
        "overlap_grad_reduce": fields["overlap_grad_reduce"],
        "overlap_param_gather": fields["overlap_param_gather"],
        "bucket_size": task.bucket_elements or None,
        "overlap_moe_expert_parallel_comm": fields.get("overlap_moe_expert_parallel_comm", False),
    }
    if shape.vpp > 1 and ("p2p" in task.recipe.overlap or shape.pp == 2):
        settings |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    elif shape.pp > 1:
        settings |= {"overlap_p2p_comm": False, "batch_p2p_comm": True}
    return {name: value for name, value in settings.items() if value is not None}


def _precision(task: Task) -> Fields:
    dtype, grads = task.plan.model.dtype, task.recipe.grad_dtype
    kind = Code(TORCH_DTYPES.get(dtype, "torch.float32"))
    types, software = NARROW.get(dtype, {dtype: True}), task.recipe.software
    if dtype in NARROW:
        types = {**types, "fp8_param_gather": software.narrow_parameters and dtype != "nvfp4"}
    if dtype == "fp8" and software.fp8_scaling == "current":
        types |= {"fp8_recipe": "tensorwise"}
    if dtype in NARROW and (software.wide_first or software.wide_last):
        types |= {
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": software.wide_first,
            "num_layers_at_end_in_bf16": software.wide_last,
        }
    return {**types, "params_dtype": kind, "pipeline_dtype": kind, "grad_reduce_in_fp32": grads == "fp32"}


def _dataset(tokens: int) -> Fields:
    return {
        "seq_length": tokens,
        "random_seed": 1234,
        "reset_attention_mask": False,
        "reset_position_ids": False,
        "eod_mask_loss": False,
        "num_dataset_builder_threads": 1,
        "split": "9999,8,2",
        "dataloader_type": "single",
    }
