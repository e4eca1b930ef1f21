"""torchtune's recipes: a YAML file and the recipe that it is for.

Keys as in torchtune 0.6.1 (recipes/full_finetune_distributed.py, lora_finetune_distributed.py and their single-device
twins; torchtune/models, whose builders take the sizes of a model).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from models_zoo.model import Model
from planner.one_job.tools.base.decoder import Decoder, decoder_of, is_plain_llama
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.rules import ALL_LAYERS_RECOMPUTED, sharded_state_offloaded_whole, tokens_whole
from planner.one_job.tools.base.tool import Rule, TrainingTool
from planner.one_job.tools.base.writing import Task
from planner.one_job.tools.fine_tuning.rules import NO_GPTQ
from planner.one_job.tools.fine_tuning.writing import (
    ALPHA,
    learning_rate,
    note_samples,
    trains_attention_alone,
    weights_of,
)

OPTIMIZERS: Mapping[tuple[str, bool], Mapping[str, Any]] = {
    ("adamw", False): {"_component_": "torch.optim.AdamW"},
    ("adamw", True): {"_component_": "bitsandbytes.optim.PagedAdamW"},
    ("adam8bit", False): {"_component_": "bitsandbytes.optim.AdamW8bit"},
    ("adam8bit", True): {"_component_": "bitsandbytes.optim.PagedAdamW8bit"},
    ("sgd", False): {"_component_": "torch.optim.SGD", "momentum": 0.9},
}
"""What a recipe makes, by our optimizer and whether its state is in memory that device and host share."""
SHARDED_IN_8_BITS = "torchao.optim.AdamW8bit"
"""In place of bitsandbytes', whose states FSDP does not share."""

TORCHTUNE = TrainingTool(
    name="torchtune",
    summary="torchtune: full fine-tuning, LoRA and QLoRA as a recipe's YAML",
    basis="torchtune 0.6: one device, or FSDP2 over all; tensor parallelism of dense Llamas where all weights learn",
    software="torchtune",
    schedules=("1f1b",),
    recompute=("none", "full"),
    zero=(2, 3),
    sharded_pipelines=(),
    trains_all=False,
    optimizers=tuple(dict.fromkeys(name for name, _ in OPTIMIZERS)),
    dtypes=("bf16", "fp32"),
    job=(
        Rule(
            key="recipe.frozen_layers",
            allows=lambda s: s.job.frozen_layers is None,
            found="{s.job.frozen_layers}",
            expected="null: adapters or all weights learn",
        ),
        NO_GPTQ,
        Rule(
            key="recipe.grad_dtype",
            allows=lambda s: s.job.grad_dtype in (None, s.job.dtype),
            found="{s.job.grad_dtype} gradients of {s.job.dtype} weights",
            expected="{s.job.dtype} gradients",
        ),
    ),
    degrees=(
        Rule(key="stages", allows=lambda s: s.pp == 1, found="{s.pp} pipeline stages", expected="one"),
        Rule(
            key="stages[].tp",
            allows=lambda s: (s.tp == 1) | (not s.job.lora_rank and not s.job.tied),
            expected="1 with adapters, and where embedding and head share their weights",
        ),
        Rule(key="stages[].cp", allows=lambda s: s.cp == 1, expected="1"),
        Rule(key="stages[].ep", allows=lambda s: s.ep == 1, expected="1"),
        tokens_whole("false: its tensor parallelism keeps all tokens on each rank"),
    ),
    states=(
        Rule(
            key="stages[].sharding.shard",
            allows=lambda s: s.zero == 0 or s.replicate == 1,
            expected="all replicas",
        ),
        Rule(
            key="recipe.software.memory.paged_states",
            allows=lambda s: not s.job.paged_states or s.devices == 1,
            found="true with {s.devices} devices",
            expected="false: FSDP shares no state of bitsandbytes",
        ),
        sharded_state_offloaded_whole(2, "nothing, or weights and optimizer together with FSDP (fsdp_cpu_offload)"),
    ),
    whole=(ALL_LAYERS_RECOMPUTED,),
    model="fine_tuning.torchtune:refuse_model",
    write="fine_tuning.torchtune:write_torchtune",
    read="fine_tuning.torchtune_read:read_torchtune",
)


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for models that are not of Llama's or Qwen2's kind."""
    decoder = decoder_of(model, tool)
    plain = is_plain_llama(replace(decoder, qkv_bias=False))
    if not plain or decoder.head_dim * decoder.heads != decoder.hidden:
        said = f"{model.name}, with {decoder.norm}, {decoder.activation} and heads of {decoder.head_dim}"
        expected = "dense models of Llama's or Qwen2's kind, whose heads make up the width"
        raise CannotExpress(tool=tool, key="model", found=said, expected=expected)


def write_torchtune(task: Task) -> tuple[ExportFile, ...]:
    """Return `torchtune.yaml`; its first lines say how to start its recipe."""
    shape, job, software = task.shape, task.shape.job, task.recipe.software
    kind, component = _family(task.decoder)
    config: dict[str, Any] = {
        "output_dir": "outputs",
        "model": _model(task, component),
        "tokenizer": _tokenizer(task, kind),
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer",
            "checkpoint_dir": weights_of(task),
            "checkpoint_files": {"filename_format": "model-{}-of-{}.safetensors", "max_filename": "00004"},
            "recipe_checkpoint": None,
            "output_dir": "${output_dir}",
            "model_type": kind,
        },
        "resume_from_checkpoint": False,
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": True},
        "seed": None,
        "shuffle": True,
        "batch_size": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": task.plan.batch.micro_batches,
        "epochs": 1,
        "max_steps_per_epoch": None,
        "optimizer": _optimizer(task),
        "loss": {"_component_": "torchtune.modules.loss.CEWithChunkedOutputLoss"},
        "clip_grad_norm": None,
        "compile": software.kernels == "fused",
        "device": "cuda",
        "dtype": job.dtype,
        "enable_activation_checkpointing": shape.recompute == "full",
        "enable_activation_offloading": False,
        "metric_logger": {
            "_component_": "torchtune.training.metric_logging.DiskLogger",
            "log_dir": "${output_dir}/logs",
        },
        "log_every_n_steps": 1,
        "log_peak_memory_stats": True,
        **_stepping(task),
        **_parallelism(task),
    }
    task.notes.append(
        "checkpoint_dir is a folder with the weights' safetensors (max_filename: the number of the last), and"
        " tokenizer.path its tokenizer; name your dataset"
    )
    note_samples(task)
    head = "".join(f"# {line}\n" for line in (task.headline, _command(task)))
    return (ExportFile(name="torchtune.yaml", text=head + yaml.safe_dump(config, sort_keys=False)),)


def _family(decoder: Decoder) -> tuple[str, str]:
    """The checkpointer's model type, and the module and name of the builder."""
    if decoder.qkv_bias:
        return "QWEN2", "qwen2.qwen2"
    if decoder.tied:
        return "LLAMA3_2", "llama3_2.llama3_2"
    return "LLAMA3", "llama3_1.llama3_1" if _scaled(decoder) else "llama3.llama3"


def _scaled(decoder: Decoder) -> bool:
    return dict(decoder.traits.rope_scaling).get("rope_type") == "llama3"


def _model(task: Task, component: str) -> dict[str, Any]:
    """The builder's sizes; Llama 3.2's scales rotary positions, by 1 where the model's are not."""
    decoder, job = task.decoder, task.shape.job
    family, builder = component.split(".")
    scaling = dict(decoder.traits.rope_scaling)
    base, epsilon = decoder.traits.rope_base, decoder.traits.norm_eps
    sizes: dict[str, Any] = {
        "vocab_size": decoder.vocab,
        "num_layers": decoder.blocks,
        "num_heads": decoder.heads,
        "num_kv_heads": decoder.kv_heads,
        "embed_dim": decoder.hidden,
        "intermediate_dim": decoder.feed_forward_hidden,
        "max_seq_len": task.plan.model.seq_len,
    }
    sizes |= {} if base is None else {"rope_base": int(base)}
    sizes |= {} if epsilon is None else {"norm_eps": epsilon}
    if family in ("llama3_1", "llama3_2"):
        sizes["scale_factor"] = int(scaling["factor"]) if _scaled(decoder) else 1
    if family == "qwen2":
        sizes["tie_word_embeddings"] = decoder.tied
    if base is None:
        task.notes.append("rope_base, the base of rotary positions, is not part of a plan: set the model's own")
    if scaling and not (_scaled(decoder) and "scale_factor" in sizes):
        task.notes.append(f"rope_scaling of type {scaling.get('rope_type')} is not in this file")
    if not job.lora_rank:
        return {"_component_": f"torchtune.models.{component}", **sizes}
    return {
        "_component_": f"torchtune.models.{family}.lora_{builder}",
        "lora_attn_modules": ["q_proj", "k_proj", "v_proj", "output_proj"],
        "apply_lora_to_mlp": not trains_attention_alone(task),
        "apply_lora_to_output": False,
        "lora_rank": job.lora_rank,
        "lora_alpha": ALPHA * job.lora_rank,
        "lora_dropout": 0.0,
        **({"quantize_base": True} if job.frozen_as == "nf4" else {}),
        **sizes,
    }


def _tokenizer(task: Task, kind: str) -> dict[str, Any]:
    files = {"path": "TOKENIZER/tokenizer.model"}
    if kind == "QWEN2":
        files = {"path": "TOKENIZER/vocab.json", "merges_file": "TOKENIZER/merges.txt"}
    component = "qwen2.qwen2_tokenizer" if kind == "QWEN2" else "llama3.llama3_tokenizer"
    return {"_component_": f"torchtune.models.{component}", **files, "max_seq_len": task.plan.model.seq_len}


def _optimizer(task: Task) -> dict[str, Any]:
    shape, job = task.shape, task.shape.job
    made = dict(OPTIMIZERS[task.plan.optimizer, job.paged_states])
    if task.plan.optimizer == "adam8bit" and shape.devices > 1:
        made["_component_"] = SHARDED_IN_8_BITS
    if made["_component_"] == "torch.optim.AdamW" and shape.tp == 1:
        made["fused"] = True
    return {**made, "lr": learning_rate(task)}


def _stepping(task: Task) -> dict[str, Any]:
    """The recipes of adapters ask for a schedule of the learning rate, the others whether a step is in backward."""
    if not task.shape.job.lora_rank:
        return {"optimizer_in_bwd": task.recipe.software.features().memory.step_in_backward}
    name = "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup"
    return {"lr_scheduler": {"_component_": name, "num_warmup_steps": 100}}


def _parallelism(task: Task) -> dict[str, Any]:
    shape = task.shape
    if shape.devices == 1:
        return {}
    settings: dict[str, Any] = {
        "fsdp_cpu_offload": bool(shape.offload),
        "fsdp_reshard_after_forward": shape.zero != 2,
    }
    if shape.tp > 1:
        plan = {"_component_": "torchtune.models.llama3.base_llama_tp_plan"}
        settings |= {"tensor_parallel_dim": shape.tp, "tensor_parallel_plan": plan}
    return settings


def _command(task: Task) -> str:
    nodes = nodes_of(task.plan)
    recipe = f"{'lora' if task.shape.job.lora_rank else 'full'}_finetune"
    if task.shape.devices == 1:
        return f"tune run {recipe}_single_device --config torchtune.yaml"
    several = ""
    if len(nodes.nodes) > 1:
        several = f"--nnodes {len(nodes.nodes)} --rdzv_backend c10d --rdzv_endpoint NODE_0:29500 "
        task.notes.append("start it on every node, with the address of the first as NODE_0")
    if nodes.per_node is None:
        task.notes.append("nodes have different numbers of processes: --nproc_per_node is that of each")
    per_node = nodes.per_node or len(nodes.nodes[0].ranks)
    return f"tune run {several}--nproc_per_node {per_node} {recipe}_distributed --config torchtune.yaml"
