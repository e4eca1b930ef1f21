"""A plan as settings of LLaMA-Factory, of axolotl, and of Accelerate with transformers' Trainer and PEFT."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from models_zoo.layers import Attention
from models_zoo.model import Model, TokenInput
from planner.one_job.tools.base.export_records import CannotExpress, ExportFile
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.shape import blocks_of
from planner.one_job.tools.base.writing import Task
from planner.one_job.tools.fine_tuning.rules import OPTIMIZERS, PAGED_OPTIMIZERS
from profiles.records import dataclass

WEIGHTS = "PATH_OR_HUB_ID"
ZERO_FILE = "ds_config.json"
ATTENTION_MATRICES = ["q_proj", "k_proj", "v_proj", "o_proj"]
ALPHA = 2
"""Times the rank: how adapters are scaled by these tools' own defaults. It changes no speed."""


def refuse_model(model: Model, tool: str) -> None:
    """Raise CannotExpress for what is no causal language model."""
    mixers = [block.attention for block in blocks_of(model)]
    causal = all(mixer.causal for mixer in mixers if isinstance(mixer, Attention))
    if not (isinstance(model.input, TokenInput) and mixers and causal):
        said = f"{model.name}, a {model.family} model"
        raise CannotExpress(tool=tool, key="model", found=said, expected="causal language models")


def write_llama_factory(task: Task) -> tuple[ExportFile, ...]:
    """Return `llama_factory.yaml`, and DeepSpeed's settings where the state is shared."""
    shape, job = task.shape, task.shape.job
    values: dict[str, Any] = {
        "model_name_or_path": weights_of(task),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora" if job.lora_rank else "full" if job.frozen_layers is None else "freeze",
    }
    if job.lora_rank:
        values |= {
            "lora_rank": job.lora_rank,
            "lora_target": ",".join(ATTENTION_MATRICES) if trains_attention_alone(task) else "all",
        }
    values |= _llama_factory_freeze(task)
    if job.frozen_as == "nf4":
        bits = {"quantization_bit": 4, "quantization_method": "bnb", "quantization_type": "nf4"}
        values |= {**bits, "double_quantization": True}
    values |= {"dataset": "DATASET", "template": "default", "cutoff_len": job.seq_len, "packing": True}
    values |= {"flash_attn": "fa2" if _flash(task) else "sdpa"}
    values |= {"disable_gradient_checkpointing": shape.recompute == "none"}
    values |= _trainer(task)
    task.notes.append("name your data (dataset, template), learning_rate and num_train_epochs")
    note_samples(task)
    start = "llamafactory-cli train llama_factory.yaml"
    if shape.devices > 1:
        start = f"FORCE_TORCHRUN=1 NPROC_PER_NODE={_per_node(task)} {start}"
    return (_yaml(task, "llama_factory.yaml", start, values), *_zero_files(task))


def write_axolotl(task: Task) -> tuple[ExportFile, ...]:
    """Return `axolotl.yaml`, and DeepSpeed's settings where the state is shared."""
    shape, job = task.shape, task.shape.job
    values: dict[str, Any] = {"base_model": weights_of(task)}
    if job.frozen_as == "nf4":
        values["load_in_4bit"] = True
    if job.lora_rank:
        values |= {"adapter": "qlora" if job.frozen_as == "nf4" else "lora", "lora_r": job.lora_rank}
        values |= {"lora_alpha": ALPHA * job.lora_rank, **_axolotl_targets(task)}
    values |= _axolotl_learning(task)
    values |= {
        "datasets": [{"path": "DATASET", "type": "alpaca"}],
        "sequence_len": job.seq_len,
        "sample_packing": True,
        "pad_to_sequence_len": True,
        "micro_batch_size": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": task.plan.batch.micro_batches,
        "optimizer": _optimizer(task),
        "learning_rate": learning_rate(task),
        "bf16": job.dtype == "bf16",
        "fp16": job.dtype == "fp16",
        "gradient_checkpointing": shape.recompute == "full",
        "attn_implementation": "flash_attention_2" if _flash(task) else "sdpa",
        "output_dir": "outputs",
    }
    if shape.zero:
        values["deepspeed"] = ZERO_FILE
    task.notes.append("name your data (datasets); learning_rate is a usual one")
    note_samples(task)
    return (_yaml(task, "axolotl.yaml", "axolotl train axolotl.yaml", values), *_zero_files(task))


def _axolotl_learning(task: Task) -> dict[str, Any]:
    """Patterns of the names of all parameters that learn, where some layers do not."""
    learning = _learning(task)
    if learning is None:
        return {}
    numbers = "|".join(map(str, learning.blocks))
    names = [rf"^model\.layers\.({numbers})\."] if numbers else []
    names += [r"^model\.embed_tokens"] if learning.embeds else []
    names += [r"^model\.norm", r"^lm_head"] if learning.heads else []
    return {"unfrozen_parameters": names}


def _axolotl_targets(task: Task) -> dict[str, Any]:
    if trains_attention_alone(task):
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
        targets = ATTENTION_MATRICES if trains_attention_alone(task) else "all-linear"
        lora = {"r": job.lora_rank, "lora_alpha": ALPHA * job.lora_rank, "target_modules": targets}
        files.append(_json("lora_config.json", {**lora, "task_type": "CAUSAL_LM"}))
        task.notes.append("lora_config.json holds the arguments of peft.LoraConfig")
    if job.frozen_as == "nf4":
        bits = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        files.append(_json("quantization_config.json", {**bits, "bnb_4bit_compute_dtype": _compute_type(job.dtype)}))
        task.notes.append("quantization_config.json holds the arguments of transformers.BitsAndBytesConfig")
    _note_frozen(task)
    task.notes.append("the script reads training_args.json: HfArgumentParser(TrainingArguments).parse_json_file(...)")
    note_samples(task)
    return (*files, *_zero_files(task))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Learning:
    """The transformer blocks that learn where some layers do not; whether embedding and head do."""

    blocks: tuple[int, ...]
    embeds: bool
    heads: bool


def _learning(task: Task) -> _Learning | None:
    """None: all layers learn, or adapters alone."""
    frozen = task.shape.job.frozen_layers
    if frozen is None:
        return None
    layers, first, end = len(task.model.layers), *frozen
    blocks = (block for block in range(layers - 2) if not first <= block + 1 < end)
    return _Learning(blocks=tuple(blocks), embeds=first > 0, heads=not first <= layers - 1 < end)


def _llama_factory_freeze(task: Task) -> dict[str, Any]:
    """It counts the blocks that learn from the last, or below 0 from the first; what learns beside them is named."""
    learning = _learning(task)
    if learning is None:
        return {}
    count = -len(learning.blocks) if learning.blocks[0] == 0 else len(learning.blocks)
    more = ["embed_tokens"] * learning.embeds + ["norm", "lm_head"] * learning.heads
    extra = {"freeze_extra_modules": ",".join(more)} if more else {}
    return {"freeze_trainable_layers": count, "freeze_trainable_modules": "all", **extra}


def _note_frozen(task: Task) -> None:
    """PEFT has no setting for it: the script says which layers learn."""
    learning = _learning(task)
    if learning is None:
        return
    first, end = task.shape.job.frozen_layers or (0, 0)
    task.notes.append(
        f"layers {first} to {end - 1} (0 is the embedding, then the blocks) do not learn: the script calls"
        " requires_grad_(False) of their parameters before the Trainer is made"
    )


def trains_attention_alone(task: Task) -> bool:
    """Return whether adapters stand beside the matrices of attention alone."""
    return task.recipe.software.lora_targets == "attention"


def learning_rate(task: Task) -> float:
    """Return a usual one: a plan says none."""
    return 2e-4 if task.shape.job.lora_rank else 2e-5


def _optimizer(task: Task) -> str:
    """transformers' name of the plan's optimizer."""
    names = PAGED_OPTIMIZERS if task.shape.job.paged_states else OPTIMIZERS
    return names[task.plan.optimizer]


def _trainer(task: Task) -> dict[str, Any]:
    """The arguments of transformers' Trainer that the plan says."""
    shape, plan = task.shape, task.plan
    values: dict[str, Any] = {
        "output_dir": "outputs",
        "per_device_train_batch_size": shape.micro_batch_per_rank,
        "gradient_accumulation_steps": plan.batch.micro_batches,
        "optim": _optimizer(task),
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


def weights_of(task: Task) -> str:
    """Return where the weights are: the folder of a config, or the Hub id that the plan names."""
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


def note_samples(task: Task) -> None:
    """Add to the task's notes how long samples are taken to be."""
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
