"""A Megatron-Bridge recipe (NeMo's trainer for Megatron Core): a Python file whose `config()` returns the
`ConfigContainer`, and which trains with it when run.

Classes and fields as in megatron-bridge 0.3.1 (training/config.py, models/gpt_provider.py, models/mla_provider.py).
"""

from __future__ import annotations

from planner.one_job.tools.decoder import decoder_of
from planner.one_job.tools.export_records import CannotExpress, Export, ExportContext, ExportFile
from planner.one_job.tools.megatron.fields import (
    Fields,
    architecture_fields,
    expert_fields,
    kernel_fields,
    offload_fields,
    parallel_fields,
    recompute_fields,
    sharding_fields,
)
from planner.one_job.tools.python_text import Code, call, comment
from planner.one_job.tools.shape import (
    MEGATRON_ORDER,
    Uniform,
    chunks_of,
    headline,
    launcher_lines,
    load_plan_model,
    recipe_of,
    refuse_training_beyond,
    uniform,
)
from planner.shared.plan import Plan, RankAxis

TOOL = "bridge"

ORDERS: tuple[tuple[RankAxis, ...], ...] = (MEGATRON_ORDER, ("tp", "cp", "pp", "dp"))

OPTIMIZERS = {"adamw": "adam", "sgd": "sgd"}

TORCH_DTYPES = {"bf16": "torch.bfloat16", "fp8": "torch.bfloat16", "fp16": "torch.float16"}

NOT_OF_THE_MODEL = (
    "swiglu",
    "fused_kernels",
    "multi_latent_attention",
    "attention_backend",
    "moe_enable_deepep",
    "tp_comm_overlap",
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


def export_bridge(plan: Plan, context: ExportContext) -> Export:
    """`bridge_recipe.py`. CannotExpress for what Megatron Core cannot run."""
    notes: list[str] = []
    shape = uniform(plan, TOOL, orders=ORDERS)
    refuse_training_beyond(plan, TOOL)
    model = load_plan_model(plan)
    decoder, chunks = decoder_of(model, TOOL), chunks_of(plan, model)
    tokens = plan.model.seq_len or 0
    if decoder.positions > tokens:
        notes.append(
            f"learned positions of the sequence's {tokens} tokens alone, where the model has {decoder.positions}"
        )
    fields: Fields = {
        **architecture_fields(decoder, model.name, TOOL, notes),
        **expert_fields(decoder, plan, shape, TOOL, notes),
        **parallel_fields(shape, chunks, plan, TOOL),
        **recompute_fields(shape, chunks, TOOL),
        **kernel_fields(plan, shape, notes),
        **offload_fields(plan, shape, TOOL, notes),
    }
    sharding = sharding_fields(plan, shape, TOOL)
    provider, imports = _provider(fields, plan)
    command = " ".join([*launcher_lines(plan, notes), context.script or "bridge_recipe.py"])
    notes.append(
        "TRAIN_ITERS, LEARNING_RATE, mock data and the null tokenizer stand for yours, at the top and in config()"
    )
    text = TEMPLATE.format(
        headline=headline(plan, shape),
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
        optimizer=call("OptimizerConfig", _optimizer(plan, fields, sharding), indent=8),
        ddp=call("DistributedDataParallelConfig", _gradients(plan, sharding), indent=8),
        dist=call(
            "DistributedInitConfig",
            {
                "use_tp_pp_dp_mapping": sharding["use_tp_pp_dp_mapping"],
                "use_megatron_fsdp": sharding["use_megatron_fsdp"],
            },
            indent=8,
        ),
        overlap=call("CommOverlapConfig", _overlap(plan, shape, fields, sharding), indent=8),
        precision=call("MixedPrecisionConfig", _precision(plan), indent=8),
        dataset=call("MockGPTDatasetConfig", _dataset(tokens), indent=8),
        tokenizer=call("TokenizerConfig", {"tokenizer_type": "NullTokenizer", "vocab_size": decoder.vocab}),
        checkpoint=call(
            "CheckpointConfig", {"ckpt_format": "fsdp_dtensor" if sharding["use_megatron_fsdp"] else "torch_dist"}
        ),
    )
    return Export(files=(ExportFile(name="bridge_recipe.py", text=text),), notes=tuple(notes))


def _provider(fields: Fields, plan: Plan) -> tuple[str, str]:
    """The model's provider as a call, and the imports that it needs."""
    if fields["position_embedding_type"] == "none":
        found = f"{plan.model.name}, without learned or rotary positions"
        raise CannotExpress(tool=TOOL, key="model", found=found, expected="learned or rotary positions")
    latent = fields.get("multi_latent_attention", False)
    dtype = Code(TORCH_DTYPES.get(plan.model.dtype, "torch.float32"))
    own: dict[str, object] = {
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
        own[name] = [int(flag) for flag in value] if name in FLAGS else list(value) if name in LISTS else value
    if fields.get("moe_enable_deepep"):
        own["moe_flex_dispatcher_backend"] = "deepep"
    imports = [f"from megatron.bridge.models.{'mla_provider' if latent else 'gpt_provider'} import {_class(latent)}"]
    if fields["attention_backend"] == "unfused":
        own["attention_backend"] = Code("AttnBackend.unfused")
        imports.append("from megatron.core.transformer.enums import AttnBackend")
    if fields.get("cpu_offloading_num_layers"):
        own["cpu_offloading"] = True
    own |= {
        "seq_length": plan.model.seq_len,
        "make_vocab_size_divisible_by": recipe_of(plan).vocabulary_multiple,
        "should_pad_vocab": True,
        "pipeline_dtype": dtype,
    }
    return call(_class(latent), own, indent=4), "\n".join(imports)


def _class(latent: bool) -> str:
    return "MLAModelProvider" if latent else "GPTModelProvider"


def _optimizer(plan: Plan, fields: Fields, sharding: Fields) -> Fields:
    if plan.optimizer not in OPTIMIZERS:
        expected = " or ".join(OPTIMIZERS)
        raise CannotExpress(tool=TOOL, key="optimizer", found=plan.optimizer, expected=expected)
    found: Fields = {
        "optimizer": OPTIMIZERS[plan.optimizer],
        "lr": Code("LEARNING_RATE"),
        "use_distributed_optimizer": sharding["use_distributed_optimizer"],
    }
    if fields.get("optimizer_cpu_offload"):
        found |= {"optimizer_cpu_offload": True, "use_precision_aware_optimizer": True}
    return found


def _gradients(plan: Plan, sharding: Fields) -> Fields:
    recipe = recipe_of(plan)
    found = {
        "use_distributed_optimizer": sharding["use_distributed_optimizer"],
        "grad_reduce_in_fp32": recipe.grad_dtype == "fp32",
        "overlap_grad_reduce": sharding["overlap_grad_reduce"],
        "overlap_param_gather": sharding["overlap_param_gather"],
        "use_megatron_fsdp": sharding["use_megatron_fsdp"],
        "data_parallel_sharding_strategy": sharding["data_parallel_sharding_strategy"],
        "num_distributed_optimizer_instances": sharding["num_distributed_optimizer_instances"],
        "bucket_size": _bucket_elements(plan),
    }
    return {name: value for name, value in found.items() if value is not None}


def _bucket_elements(plan: Plan) -> int | None:
    recipe = recipe_of(plan)
    width = {"fp32": 4, "bf16": 2, "fp16": 2}[recipe.grad_dtype]
    return recipe.software.bucket_bytes // width or None


def _overlap(plan: Plan, shape: Uniform, fields: Fields, sharding: Fields) -> Fields:
    found: Fields = {
        "tp_comm_overlap": fields["tp_comm_overlap"],
        "overlap_grad_reduce": sharding["overlap_grad_reduce"],
        "overlap_param_gather": sharding["overlap_param_gather"],
        "bucket_size": _bucket_elements(plan),
        "overlap_moe_expert_parallel_comm": fields.get("overlap_moe_expert_parallel_comm", False),
    }
    if shape.vpp > 1 and ("p2p" in recipe_of(plan).overlap or shape.pp == 2):
        found |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    elif shape.pp > 1:
        found |= {"overlap_p2p_comm": False, "batch_p2p_comm": True}
    return {name: value for name, value in found.items() if value is not None}


def _precision(plan: Plan) -> Fields:
    dtype, grads = plan.model.dtype, recipe_of(plan).grad_dtype
    if dtype not in ("bf16", "fp16", "fp8", "fp32"):
        raise CannotExpress(tool=TOOL, key="model.dtype", found=dtype, expected="bf16, fp16, fp8 or fp32")
    wanted = {"bf16": ("bf16", "fp32"), "fp8": ("bf16", "fp32"), "fp16": ("fp16", "fp32")}.get(dtype, ("fp32",))
    if grads not in wanted:
        expected = f"{' or '.join(wanted)} gradients with {dtype}"
        raise CannotExpress(tool=TOOL, key="recipe.grad_dtype", found=grads, expected=expected)
    kind = Code(TORCH_DTYPES.get(dtype, "torch.float32"))
    own = {"fp8": {"bf16": True, "fp8": "hybrid"}}.get(dtype, {dtype: True})
    return {**own, "params_dtype": kind, "pipeline_dtype": kind, "grad_reduce_in_fp32": grads == "fp32"}


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
