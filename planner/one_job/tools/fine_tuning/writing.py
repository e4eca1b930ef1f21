"""A plan as settings of LLaMA-Factory, of axolotl, and of Accelerate with transformers' Trainer and PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from planner.one_job.tools.base.export_records import ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.writing import Task
from planner.one_job.tools.fine_tuning.rules import OPTIMIZERS

WEIGHTS = "PATH_OR_HUB_ID"
ZERO_FILE = "ds_config.json"
ATTENTION_MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALPHA = 2
"""Times the rank: how adapters are scaled by these tools' own defaults. It changes no speed."""


def write_llama_factory(task: Task) -> tuple[ExportFile, ...]:
    """Return `llama_factory.yaml`, and DeepSpeed's settings where the state is shared."""
    shape, job = task.shape, task.shape.job
    values: dict[str, Any] = {
        "model_name_or_path": _weights(task),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if job.lora_rank else "full",
    }
    if job.lora_rank:
        attention_alone = task.recipe.software.lora_targets == "attention"
        values |= {
            "lora_rank": job.lora_rank,
            "lora_target": ",".join(ATTENTION_MATRICES) if attention_alone else "all",
        }
    if job.frozen_as == "nf4":
        bits = {"quantization_bit": 4, "quantization_method": "bnb", "quantization_type": "nf4"}
        values |= {**bits, "double_quantization": True}
    values |= {"dataset": "DATASET", "template": "default", "cutoff_len": job.seq_len, "packing": True}
    values |= {"flash_attn": "fa2" if _flash(task) else "sdpa"}
    values |= {"disable_gradient_checkpointing": shape.recompute == "none"}
    values |= _trainer(task)
    task.notes.append("name your data (dataset, template), learning_rate and num_train_epochs")
    _note_samples(task)
    start = "llamafactory-cli train llama_factory.yaml"
    if shape.devices > 1:
        start = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={_per_node(task)} {start}"
    return (_yaml(task, "llama_factory.yaml", start, values), *_zero_files(task))


def write_axolotl(task: Task) -> tuple[ExportFile, ...]:
    """Return `axolotl.yaml`, and DeepSpeed's settings where the state is shared."""
    shape, job = task.shape, task.shape.job
    values: dict[str, Any] = {"base_model": _weights(task)}
    if job.frozen_as == "nf4":
        values["load_in_4bit"] = True
    if job.lora_rank:
        values |= {"adapter": "qlora" if job.frozen_as == "nf4" else "lora", "lora_r": job.lora_rank}
        values |= {"lora_alpha": ALPHA * job.lora_rank, **_axolotl_targets(task)}
    values |= {
        "datasets": [{"path": "DATASET", "type": "alpaca"}],
        "sequence_len": job.seq_len,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "micro_batch_size": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": task.plan.batch.micro_batches,
        "optimizer": OPTIMIZERS[task.plan.optimizer],
        "learning_rate": 2e-4 if job.lora_rank else 2e-5,
        "bf16": job.dtype == "bf16",
        "fp16": job.dtype == "fp16",
        "gradient_checkpointing": shape.recompute == "full",
        "attn_implementation": "flash_attention_2" if _flash(task) else "sdpa",
        "output_dir": "outputs",
    }
    if shape.zero:
        values["deepspeed"] = ZERO_FILE
    task.notes.append("name your data (datasets); learning_rate is a usual one")
    _note_samples(task)
    return (_yaml(task, "axolotl.yaml", "axolotl train axolotl.yaml", values), *_zero_files(task))


def _axolotl_targets(task: Task) -> dict[str, Any]:
    if task.recipe.software.lora_targets == "attention":
        return {"lora_target_modules": ATTENTION_MATRICES}
    return {"lora_target_linear": True}


def write_peft(task: Task) -> tuple[ExportFile, ...]:
    """Return `accelerate.yaml`, the Trainer's arguments, and those of PEFT and bitsandbytes where there are any."""
    shape, job = task.shape, task.shape.job
    nodes = nodes_of(task.plan)
    config: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "DEEPSPEED" if shape.zero else "MULTI_GPU" if shape.devices > 1 else "NO",
        "num_machines": len(nodes.nodes),
        "num_processes": shape.devices,
        "machine_rank": 0,
        "mixed_precision": {"fp32": "no"}.get(job.dtype, job.dtype),
    }
    if shape.zero:
        config["deepspeed_config"] = {"deepspeed_config_file": ZERO_FILE, "zero3_init_flag": shape.zero == 3}
    checkpointing = {"gradient_checkpointing": shape.recompute == "full"}
    files = [
        _yaml(task, "accelerate.yaml", f"accelerate launch --config_file accelerate.yaml {task.script()}", config),
        _json("training_args.json", {**_trainer(task), **checkpointing}),
    ]
    if job.lora_rank:
        attention_alone = task.recipe.software.lora_targets == "attention"
        targets = ATTENTION_MATRICES if attention_alone else "all-linear"
        lora = {"r": job.lora_rank, "lora_alpha": ALPHA * job.lora_rank, "target_modules": targets}
        files.append(_json("lora_config.json", {**lora, "task_type": "CAUSAL_LM"}))
        task.notes.append("lora_config.json holds the arguments of peft.LoraConfig")
    if job.frozen_as == "nf4":
        bits = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        files.append(_json("quantization_config.json", {**bits, "bnb_4bit_compute_dtype": _compute_type(job.dtype)}))
        task.notes.append("quantization_config.json holds the arguments of transformers.BitsAndBytesConfig")
    task.notes.append("the script reads training_args.json: HfArgumentParser(TrainingArguments).parse_json_file(...)")
    _note_samples(task)
    return (*files, *_zero_files(task))


def _trainer(task: Task) -> dict[str, Any]:
    """The arguments of transformers' Trainer that the plan says."""
    shape, plan = task.shape, task.plan
    values: dict[str, Any] = {
        "output_dir": "outputs",
        "per_device_train_batch_size": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": plan.batch.micro_batches,
        "optim": OPTIMIZERS[plan.optimizer],
        "bf16": plan.model.dtype == "bf16",
        "fp16": plan.model.dtype == "fp16",
    }
    return values | ({"deepspeed": ZERO_FILE} if shape.zero else {})


def _zero_files(task: Task) -> tuple[ExportFile, ...]:
    """DeepSpeed's settings; sizes and types come from the Trainer, which fills in what is "auto"."""
    shape = task.shape
    if not shape.zero:
        return ()
    zero: dict[str, Any] = {"stage": shape.zero, "overlap_comm": "dp" in shape.job.overlap}
    if shape.offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "zero_optimization": zero,
    }
    return (_json(ZERO_FILE, config),)


def _weights(task: Task) -> str:
    """Where the weights are: the folder of a config, or the Hub id that the plan names."""
    reference = task.plan.model.reference
    path = Path(reference)
    if path.suffix == ".json" or path.is_dir():
        return str(path.parent if path.suffix == ".json" else path)
    if reference.count("/") == 1 and ":" not in reference:
        return reference
    task.notes.append(f"{WEIGHTS} stands for the weights of {task.plan.model.name}: a folder or a Hub id")
    return WEIGHTS


def _flash(task: Task) -> bool:
    return all(stage.attention == "flash" for stage in task.plan.stages)


def _compute_type(dtype: str) -> str:
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[dtype]


def _per_node(task: Task) -> int:
    nodes = nodes_of(task.plan)
    if len(nodes.nodes) > 1:
        task.notes.append("on several nodes set NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT too")
    return nodes.per_node or nodes.world_size


def _note_samples(task: Task) -> None:
    tokens = task.shape.job.seq_len
    task.notes.append(
        f"every sample has {tokens} tokens: shorter ones are packed; padded instead, the padding's share of the time is"
        " lost"
    )


def _yaml(task: Task, name: str, start: str, values: dict[str, Any]) -> ExportFile:
    head = "".join(f"# {line}\n" for line in (task.headline, start))
    return ExportFile(name=name, text=head + yaml.safe_dump(values, sort_keys=False))


def _json(name: str, values: dict[str, Any]) -> ExportFile:
    return ExportFile(name=name, text=json.dumps(values, indent=2) + "\n")
