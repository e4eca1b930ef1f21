"""Fine-tunings as explicit plans: accelerate's configuration, transformers' TrainingArguments, LLaMA-Factory, axolotl.

Names as in accelerate 1.15 (commands/config), transformers 5.23 (TrainingArguments), trl (SFTConfig), peft 0.21
(LoraConfig), LLaMA-Factory 0.9.5 and axolotl 0.19. What none of them says (the model, tokens a sample) comes from
beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from estimator.pricing.recipe import OptimizerName, ZeroStage
from models_zoo.hugging_face.keys import Keys, describe
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, load_named
from planner.one_job.tools.base.settings import describe_unread, load_known
from planner.one_job.tools.base.shape import blocks_of
from planner.one_job.tools.fine_tuning.other_words import from_axolotl, from_llama_factory
from planner.one_job.tools.fine_tuning.sources import FineTuning, beside, read_mapping, read_sources
from planner.shared.options.common import Launcher
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.vocabulary import AttentionKernel, DType

OPTIMIZERS: dict[str, OptimizerName] = {
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused", "adamw_torch_xla"), "adamw"),
    **dict.fromkeys(("adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit"), "adam8bit"),
    "paged_adamw_32bit": "adamw",
    "paged_adamw": "adamw",
    "paged_adamw_8bit": "adam8bit",
    "adafactor": "adafactor",
    "sgd": "sgd",
}
"""By transformers' names (training_args.py, OptimizerNames); what begins with `paged` is in shared memory."""

ATTENTION: dict[str, AttentionKernel] = {
    **dict.fromkeys(("flash_attention_2", "flash_attention_3", "kernels-community/flash-attn", "sdpa"), "flash"),
    "eager": "math",
}
ATTENTION_MATRICES = {"q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "c_attn", "query_key_value", "Wqkv"}
STRATEGIES: dict[str, tuple[ZeroStage, bool]] = {
    "FULL_SHARD": (3, False),
    "SHARD_GRAD_OP": (2, False),
    "NO_SHARD": (0, False),
    "HYBRID_SHARD": (3, True),
    "HYBRID_SHARD_ZERO2": (2, True),
}
"""FSDP's sharding strategies: the stage of ZeRO, and whether it is inside nodes alone; counted from 1 in files."""
LENGTHS = ("max_length", "max_seq_length", "model_max_length", "block_size")

WORDS = {
    "tp": "tp_size",
    "cp": "cp_size",
    "micro_batch": "per_device_train_batch_size",
    "micro_batches": "gradient_accumulation_steps",
    "global_batch": "gradient_accumulation_steps",
    "seq_len": "max_length",
    "dtype": "mixed_precision (bf16, fp16)",
    "optimizer": "optim",
    "paged": "optim",
    "recompute": "gradient_checkpointing",
    "zero": "fsdp, deepspeed",
    "hsdp": "fsdp_sharding_strategy",
    "offload": "offload_optimizer, fsdp_offload_params",
    "lora": "r",
    "qlora": "load_in_4bit",
    "devices": "num_processes",
    "attention": "attn_implementation",
}
"""What these tools call the options of `estimate`."""


def _read(settings: str, *, model: str | None, options: EstimateOptions, launcher: Launcher) -> Imported:
    tuning = read_sources(settings, launcher=launcher)
    translate = TRANSLATED.get(launcher)
    known = load_known(f"fine_tuning/{KNOWN[launcher]}.toml")
    tuning.notes += describe_unread(tuning.launcher if launcher == "accelerate" else tuning.trainer, known)
    if translate is not None:
        translate(tuning)
    trainer = Keys(where=tuning.where, values=tuning.trainer)
    named = _model(tuning, trainer, model, options)
    _find_deepspeed(tuning, trainer)
    read: Stated = {"tp": 1, "pp": 1, **_batch(tuning, trainer), **_adapters(tuning, trainer, named)}
    features: dict[str, Any] = read.pop("features")
    sharing = _sharing(tuning, trainer)
    shard, copies = sharing.pop("shard", None), sharing.pop("copies", None)
    read |= sharing | _precision(tuning, trainer) | _optimizer(tuning, trainer)
    read |= _parallel(tuning)
    sharded = read.pop("checkpoints", False)
    read["recompute"] = "full" if sharded or trainer.flag("gradient_checkpointing", False) else "none"
    attention = str(tuning.loading.get("attn_implementation", tuning.trainer.get("attn_implementation")))
    if attention in ATTENTION:
        read["attention"] = ATTENTION[attention]
    length = next((name for name in LENGTHS if isinstance(tuning.trainer.get(name), int)), None)
    if length is not None:
        read["seq_len"] = trainer.size(length)
    copies = read.pop("copies", copies)
    return Imported(
        launcher=launcher,
        setting=tuning.where,
        model=named,
        options=read,
        words=WORDS,
        devices=_devices(tuning),
        software=features | _software(tuning, trainer),
        shard=shard,
        copies=copies,
        assumptions=tuple(dict.fromkeys(tuning.notes)),
    )


TRANSLATED: Mapping[str, Callable[[FineTuning], None]] = {
    "llama-factory": from_llama_factory,
    "axolotl": from_axolotl,
}
KNOWN: Mapping[str, str] = {
    "accelerate": "accelerate",
    "peft": "trainer",
    "llama-factory": "llama_factory",
    "axolotl": "axolotl",
}
"""The list of each one's keys, a data file of this folder."""

read_accelerate = partial(_read, launcher="accelerate")
read_trainer = partial(_read, launcher="peft")
read_llama_factory = partial(_read, launcher="llama-factory")
read_axolotl = partial(_read, launcher="axolotl")


def _model(tuning: FineTuning, trainer: Keys, model: str | None, options: EstimateOptions) -> NamedModel:
    named = model or tuning.model or trainer.get("model_name_or_path", None)
    if not isinstance(named, str):
        expected = "the model that it trains: MODEL beside --from"
        raise InputError(where=tuning.where, key="MODEL", found="nothing", expected=expected)
    return load_named(named, options.user_code)


def _devices(tuning: FineTuning) -> int | None:
    """accelerate's processes; one where it says that nothing is distributed."""
    launcher = Keys(where=tuning.where, values=tuning.launcher)
    if launcher.get("num_processes", None) in (None, -1):
        return 1 if launcher.get("distributed_type", None) == "NO" else None
    return launcher.size("num_processes")


def _batch(tuning: FineTuning, trainer: Keys) -> Stated:
    """A micro-batch of 8, nothing accumulated, where the Trainer is told neither; accelerate alone says no size."""
    if tuning.launcher and not tuning.trainer:
        steps = tuning.launcher.get("gradient_accumulation_steps")
        steps = steps or (tuning.deepspeed or {}).get("gradient_accumulation_steps")
        return {"micro_batches": steps} if isinstance(steps, int) else {}
    if "per_device_train_batch_size" not in tuning.trainer:
        tuning.notes.append("per_device_train_batch_size is not said: 8, the Trainer's own")
    if trainer.flag("auto_find_batch_size", False):
        tuning.notes.append("auto_find_batch_size: priced at the batch that is stated")
    return {
        "micro_batch": trainer.size("per_device_train_batch_size", 8),
        "micro_batches": trainer.size("gradient_accumulation_steps", 1),
    }


def _adapters(tuning: FineTuning, trainer: Keys, named: NamedModel) -> Stated:
    """`lora` or `qlora`, or the layers that do not learn; `features`: where adapters stand."""
    lora = dict(tuning.lora) if tuning.lora is not None else None
    if lora is None and (trainer.flag("use_peft", False) or "lora_r" in tuning.trainer):
        lora = {"r": trainer.size("lora_r", 16), "target_modules": trainer.get("lora_target_modules", None)}
    bits = tuning.bits if tuning.bits is not None else tuning.loading.get("quantization_config") or tuning.trainer
    bits = bits if isinstance(bits, Mapping) else {}
    if bits.get("load_in_8bit") or tuning.loading.get("load_in_8bit"):
        tuning.notes.append("load_in_8bit: not modelled; frozen weights are priced in 16 bits")
    if lora is None:
        return {"features": {}, **_frozen(tuning, named)}
    keys = Keys(where=tuning.where, values=lora)
    rank = keys.size("r", 8)
    narrow = bits.get("load_in_4bit") or tuning.loading.get("load_in_4bit")
    for name in ("use_dora", "modules_to_save"):
        if keys.get(name, None):
            tuning.notes.append(f"{name}: not modelled; priced as plain adapters")
    return {"qlora" if narrow else "lora": rank, "features": _targets(keys, tuning)}


def _targets(lora: Keys, tuning: FineTuning) -> dict[str, Any]:
    """peft's own default is the query and value matrices of most models."""
    targets = lora.get("target_modules", None)
    if targets in ("all-linear", "all"):
        return {}
    names = targets.split(",") if isinstance(targets, str) else targets
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise lora.wrong("target_modules", describe(targets), "all-linear, or names of modules")
    attention = names is None or set(names) <= ATTENTION_MATRICES
    whole = {"q_proj", "k_proj", "v_proj", "o_proj"}
    if names is None or (attention and set(names) < whole):
        said = "peft's default, query and value" if names is None else ", ".join(names)
        tuning.notes.append(f"target_modules {said}: priced as adapters beside all matrices of attention")
    elif not attention and not {"gate_proj", "up_proj", "down_proj"} <= set(names):
        tuning.notes.append(f"target_modules {', '.join(names)[:80]}: priced as adapters beside all matrices")
    return {"lora_targets": "attention"} if attention else {}


def _frozen(tuning: FineTuning, named: NamedModel) -> Stated:
    count, blocks = tuning.learning_blocks, len(blocks_of(named.model))
    if count is None:
        return {}
    if not 0 < abs(count) < blocks:
        raise InputError(where=tuning.where, key="layers that learn", found=count, expected=f"below {blocks} blocks")
    return {"freeze": (0, blocks + 1 - count) if count > 0 else (1 - count, len(named.model.layers))}


def _precision(tuning: FineTuning, trainer: Keys) -> Stated:
    """The Trainer's, else accelerate's, else the type that the model is loaded in."""
    said: dict[DType, bool] = {"bf16": trainer.flag("bf16", False), "fp16": trainer.flag("fp16", False)}
    if all(said.values()):
        raise trainer.wrong("bf16, fp16", "both", "one of them")
    dtype = next((name for name, set_so in said.items() if set_so), None)
    if dtype is None and tuning.launcher.get("mixed_precision") not in (None, "no", False):
        word = Keys(where=tuning.where, values=tuning.launcher).word("mixed_precision", "bf16", ("bf16", "fp16", "fp8"))
        dtype = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}[word]  # type: ignore[assignment]
    if dtype is None:
        loaded = str(tuning.loading.get("dtype", tuning.loading.get("torch_dtype", tuning.trainer.get("dtype"))))
        dtype = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(loaded)  # type: ignore[assignment]
    if dtype is None:
        tuning.notes.append("neither bf16 nor fp16 is set: priced in the type that weights are usually loaded in")
        return {}
    return {"dtype": dtype}


def _optimizer(tuning: FineTuning, trainer: Keys) -> Stated:
    name = str(trainer.get("optim", "adamw_torch_fused"))
    if name not in OPTIMIZERS:
        tuning.notes.append(f"optim {name}: not modelled; priced as AdamW")
    paged = {"paged": True} if name.startswith("paged") else {}
    return {"optimizer": OPTIMIZERS.get(name, "adamw"), **paged}


def _software(tuning: FineTuning, trainer: Keys) -> dict[str, Any]:
    """torch.compile fuses the small operators of a block, Liger's kernels the loss with its product."""
    features: dict[str, Any] = {}
    dynamo = Keys(where=tuning.where, values=tuning.launcher).part("dynamo_config")
    backend = next((dynamo.get(key, None) for key in ("backend", "dynamo_backend") if key in dynamo.values), None)
    if trainer.flag("torch_compile", False) or backend not in (None, "NO", "no"):
        features["kernels"] = "fused"
    if trainer.flag("use_liger_kernel", False):
        features["fused_cross_entropy"] = True
        tuning.notes.append("use_liger_kernel: its loss is priced, other kernels one an operator")
    return features


# Who holds the state


def _find_deepspeed(tuning: FineTuning, trainer: Keys) -> None:
    """DeepSpeed's JSON: in the settings, in the file that they name, or accelerate's few keys of it."""
    named = trainer.get("deepspeed", None)
    launcher = Keys(where=tuning.where, values=tuning.launcher).part("deepspeed_config")
    named = named or launcher.get("deepspeed_config_file", None)
    if isinstance(named, Mapping):
        tuning.deepspeed = named
    elif isinstance(named, str) and named:
        tuning.deepspeed = read_mapping(beside(tuning, named))
    elif launcher.values and tuning.launcher.get("distributed_type") in (None, "DEEPSPEED"):
        parts = {"offload_optimizer": "offload_optimizer_device", "offload_param": "offload_param_device"}
        zero = {"stage": launcher.size("zero_stage", 2, least=0, most=3)}
        devices = {part: {"device": launcher.get(key, None)} for part, key in parts.items()}
        steps = launcher.get("gradient_accumulation_steps", None)
        tuning.deepspeed = {"zero_optimization": {**zero, **devices}, "gradient_accumulation_steps": steps}


def _sharing(tuning: FineTuning, trainer: Keys) -> Stated:
    """ZeRO's stage, what is in host memory, and whose habits the software has; with FSDP shards or copies."""
    if tuning.deepspeed is not None:
        return _deepspeed(tuning)
    fsdp = _fsdp_keys(tuning, trainer)
    if fsdp is None:
        return {"zero": 0, "software": "huggingface", "overlap": ("dp",)}
    version = fsdp.size("version", 1, most=2)
    reshards = str(fsdp.get("reshard_after_forward", "true")).lower()
    strategy = str(fsdp.get("sharding_strategy", "FULL_SHARD")).upper()
    strategy = list(STRATEGIES)[int(strategy) - 1] if strategy in "12345" else strategy
    if reshards.upper() in STRATEGIES:
        strategy, reshards = reshards.upper(), "true"
    if strategy not in STRATEGIES:
        raise fsdp.wrong("sharding_strategy", describe(strategy), f"one of {', '.join(STRATEGIES)}")
    zero, inside = STRATEGIES[strategy]
    if version == 2 and reshards == "false":
        zero = 2
    stated: Stated = {"zero": zero, "software": "torch-fsdp" if zero else "huggingface", "overlap": ("dp",)}
    if fsdp.flag("activation_checkpointing", False):
        stated["checkpoints"] = True
    if fsdp.flag("offload_params", False):
        tuning.notes.append(
            "fsdp_offload_params: the optimizer's state is priced in host memory, weights on the device"
        )
        stated["offload"] = ("optimizer",)
    if inside:
        stated["shard"] = _per_node(tuning)
    return stated


def _deepspeed(tuning: FineTuning) -> Stated:
    keys = Keys(where=tuning.where, values=tuning.deepspeed or {})
    zero = keys.part("zero_optimization")
    stages: tuple[ZeroStage, ...] = (0, 1, 2, 3)
    stage = stages[zero.size("stage", 0, least=0, most=3)]
    stated: Stated = {"zero": stage, "software": "huggingface", "overlap": ()}
    if zero.flag("overlap_comm", stage == 3) or stage == 0:
        stated["overlap"] = ("dp",)
    if zero.part("offload_optimizer").get("device", None) not in (None, "none"):
        stated["offload"] = ("optimizer",)
    if zero.part("offload_param").get("device", None) not in (None, "none"):
        tuning.notes.append("offload_param: not modelled; weights are priced on the devices")
    return stated


def _fsdp_keys(tuning: FineTuning, trainer: Keys) -> Keys | None:
    """FSDP's settings without their prefix, of accelerate or of the Trainer; None where nothing is sharded so."""
    words = trainer.get("fsdp", None)
    asked = words not in (None, "", [], False) or tuning.launcher.get("distributed_type") == "FSDP"
    if not asked:
        return None
    config = trainer.get("fsdp_config", None)
    if isinstance(config, str):
        config = read_mapping(beside(tuning, config))
    launcher = Keys(where=tuning.where, values=tuning.launcher).part("fsdp_config").values
    values = {key.removeprefix("fsdp_"): value for key, value in {**launcher, **(config or {})}.items()}
    listed = words.replace(",", " ").split() if isinstance(words, str) else words if isinstance(words, list) else []
    strategies = {name.lower(): name for name in STRATEGIES}
    for word in map(str, listed):
        if word in strategies:
            values["sharding_strategy"] = strategies[word]
        elif word == "offload":
            values["offload_params"] = True
    return Keys(where=tuning.where, values=values, prefix="fsdp_")


def _per_node(tuning: FineTuning) -> int:
    processes, nodes = _devices(tuning), tuning.launcher.get("num_machines", 1)
    if processes is None or not isinstance(nodes, int) or nodes < 1 or processes % nodes:
        expected = "num_processes and num_machines, which say how many share a copy of the state"
        raise InputError(
            where=tuning.where, key="fsdp_sharding_strategy", found="shards inside nodes", expected=expected
        )
    return processes // nodes


def _parallel(tuning: FineTuning) -> Stated:
    """accelerate's mesh."""
    mesh = Keys(where=tuning.where, values=tuning.launcher).part("parallelism_config")
    sizes = {name.removeprefix("parallelism_config_").removesuffix("_size"): name for name in mesh.values}
    stated: Stated = {}
    for axis in ("tp", "cp"):
        if axis in sizes:
            stated[axis] = mesh.size(sizes[axis])
    copies = mesh.size(sizes["dp_replicate"]) if "dp_replicate" in sizes else 1
    return stated | ({"copies": copies} if copies > 1 and mesh.size(sizes.get("dp_shard", "dp_shard"), 1) > 1 else {})
