"""A DeepSpeed configuration JSON as an explicit plan.

The file names no model, and no degree but data parallelism: MODEL and `--tp`, `--pp` come from beside it. Recomputation
is turned on in the model's code; where the file configures it, it is taken as full.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.pricing.recipe import GradDType, OffloadPart, OptimizerName, ZeroStage
from models_zoo.hugging_face.keys import Keys, describe
from planner.one_job.tools.base.import_records import Imported, Stated, load_named
from planner.one_job.tools.base.settings import describe_unread, load_known
from planner.one_job.tools.deepspeed.rules import OPTIMIZERS
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.files import read_json
from profiles.vocabulary import DType

OPTIMIZER_NAMES: dict[str, OptimizerName] = {
    **{name.lower(): optimizer for name, optimizer in OPTIMIZERS.items()},
    **dict.fromkeys(("adam", "fusedadam", "deepspeedcpuadam"), OPTIMIZERS["AdamW"]),
    "adafactor": "adafactor",
}
STAGES: tuple[ZeroStage, ...] = (0, 1, 2, 3)
TYPES: dict[str, GradDType] = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "bfp16": "bf16"}

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")

WORDS = {
    "tp": "tensor_parallel.autotp_size",
    "pp": "pipeline.stages",
    "dp": "train_batch_size",
    "cp": "sequence_parallel_size",
    "global_batch": "train_batch_size",
    "micro_batch": "train_micro_batch_size_per_gpu",
    "micro_batches": "gradient_accumulation_steps",
    "dtype": "bf16, fp16",
    "grad_dtype": "data_types.grad_accum_dtype",
    "zero": "zero_optimization.stage",
    "hsdp": "zero_optimization.mics_shard_size",
    "offload": "zero_optimization.offload_optimizer",
    "overlap": "zero_optimization.overlap_comm",
    "optimizer": "optimizer.type",
    "recompute": "activation_checkpointing",
}
"""What DeepSpeed calls the options of `estimate`."""


def read_deepspeed(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """The plan of the file at `settings` for `model`. InputError with file, key, value and what was expected; "auto" is
    refused, since what a trainer would put there is not known."""
    setting = settings.removeprefix("@")
    values = read_json(Path(setting))
    if not isinstance(values, dict):
        raise InputError(where=setting, found=describe(values), expected="a JSON object")
    if model is None:
        expected = "the model that it trains: MODEL beside --from deepspeed FILE"
        raise InputError(where=setting, key="MODEL", found="nothing", expected=expected)
    keys = Keys(where=setting, values=values)
    notes = describe_unread(values, load_known("deepspeed/known.toml"))
    zero = Keys(where=setting, values={}) if values.get("zero_optimization") is True else keys.part("zero_optimization")
    stage = _stage(keys, zero)
    tp, pp = _degree(keys, "tensor_parallel", "autotp_size"), _degree(keys, "pipeline", "stages")
    read: Stated = {
        "zero": stage,
        "tp": tp or options.tp or 1,
        "pp": pp or options.pp or 1,
        "dtype": _dtype(keys),
        "optimizer": _optimizer(keys, notes),
        "overlap": ("dp",) if zero.flag("overlap_comm", stage == 3) else (),
    }
    shared = keys.size("sequence_parallel_size", 1)
    if shared > 1:
        read["cp"] = shared
        notes.append("sequence_parallel_size: priced as context parallelism")
    offload = _offload(keys, zero, notes)
    if offload:
        read["offload"] = offload
    _add_gradients(keys, read)
    _add_batch(keys, read)
    _add_recompute(keys, read, notes)
    software = "huggingface-deepspeed" if read["tp"] == read["pp"] == 1 else "megatron-deepspeed"
    if options.software is None:
        notes.append(f"the model's code is taken as that of {software} (--software)")
    read["software"] = software
    shard = zero.size("mics_shard_size", -1, least=-1)
    return Imported(
        launcher="deepspeed",
        setting=setting,
        model=load_named(model, options.user_code),
        options=read,
        words=WORDS,
        software=_buckets(zero, read),
        shard=shard if shard > 0 and stage else None,
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _known(keys: Keys, key: str, what: str) -> Any:
    """The value of a key; "auto" is refused."""
    value = keys.get(key, None)
    if value == "auto":
        expected = f"{what}: what the trainer would put in place of auto, written out"
        raise keys.wrong(key, '"auto"', expected)
    return value


def _stage(keys: Keys, zero: Keys) -> ZeroStage:
    if keys.get("zero_optimization", None) is True:
        return 1
    _known(zero, "stage", "a number from 0 to 3")
    return STAGES[zero.size("stage", 0, least=0, most=3)]


def _degree(keys: Keys, section: str, key: str) -> int | None:
    part = keys.part(section)
    if part.get(key, None) == "auto":
        return None
    degree = part.size(key, 0, least=0)
    return degree or None


def _dtype(keys: Keys) -> DType:
    """bf16 or fp16 where one is enabled, else fp32."""
    bf16, fp16 = (any(_enabled(keys, name) for name in names) for names in (("bf16", "bfloat16"), ("fp16", "amp")))
    if bf16 and fp16:
        raise keys.wrong("bf16, fp16", "both enabled", "one of them")
    return "bf16" if bf16 else "fp16" if fp16 else "fp32"


def _enabled(keys: Keys, name: str) -> bool:
    part = keys.part(name)
    _known(part, "enabled", "true or false")
    return part.flag("enabled", False)


def _optimizer(keys: Keys, notes: list[str]) -> OptimizerName:
    name = keys.part("optimizer").get("type", None)
    if name is None:
        notes.append("the optimizer is made in the model's code: priced as AdamW (--optimizer)")
        return "adamw"
    optimizer = OPTIMIZER_NAMES.get(str(name).lower())
    if optimizer is None:
        notes.append(f"optimizer.type {name}: not modelled; priced as AdamW")
    return optimizer or "adamw"


def _offload(keys: Keys, zero: Keys, notes: list[str]) -> tuple[OffloadPart, ...]:
    parts: list[OffloadPart] = []
    device = zero.part("offload_optimizer").get("device", "none")
    if device not in (None, "none") or zero.flag("cpu_offload", False):
        parts.append("optimizer")
        if device == "nvme":
            notes.append("zero_optimization.offload_optimizer: on NVMe; priced as in host memory")
    weights = zero.part("offload_param").get("device", "none")
    if weights not in (None, "none") or zero.flag("cpu_offload_param", False):
        notes.append("zero_optimization.offload_param: not modelled; weights are priced on the devices")
    if keys.part("activation_checkpointing").flag("cpu_checkpointing", False):
        parts.append("activations")
    return tuple(parts)


def _add_gradients(keys: Keys, read: Stated) -> None:
    """Gradients are held and summed in the weights' type unless the file says another."""
    part = keys.part("data_types")
    stated = part.get("grad_accum_dtype", None) or keys.get("communication_data_type", None)
    if keys.flag("fp32_allreduce", False):
        stated = "fp32"
    if stated is None:
        return
    if str(stated).lower() not in TYPES:
        raise keys.wrong("data_types.grad_accum_dtype", describe(stated), f"one of {', '.join(TYPES)}")
    read["grad_dtype"] = TYPES[str(stated).lower()]


def _add_batch(keys: Keys, read: Stated) -> None:
    """Batch = micro-batch * accumulation * data-parallel ranks; DeepSpeed derives what is missing, the accumulation as
    1 where the batch or the micro-batch stands alone."""
    sizes = {}
    for key in BATCH:
        _known(keys, key, "a number")
        sizes[key] = keys.optional_size(key)
    batch, micro, steps = (sizes[key] for key in BATCH)
    if batch is None and micro is None:
        raise keys.wrong("train_micro_batch_size_per_gpu", "nothing, nor train_batch_size", "one of them")
    if batch is not None:
        read["global_batch"] = batch
    if micro is not None:
        read["micro_batch"] = micro
    if batch is None or micro is None:
        read["micro_batches"] = steps or 1
    elif steps is not None:
        if batch % (micro * steps):
            said = f"{batch}, with micro-batches of {micro} and {steps} steps"
            raise keys.wrong("train_batch_size", said, f"a multiple of {micro * steps}")
        read["dp"] = batch // (micro * steps)


def _add_recompute(keys: Keys, read: Stated, notes: list[str]) -> None:
    section = keys.part("activation_checkpointing")
    on = any(section.values.get(key) for key in section.values if key != "profile")
    if on:
        read["recompute"] = "full"
        notes.append("activation checkpointing is turned on in the model's code; configured here, so taken as full")


def _buckets(zero: Keys, read: Stated) -> dict[str, Any]:
    """Gradients are summed in buckets of so many elements."""
    elements = zero.get("reduce_bucket_size", None)
    if isinstance(elements, bool) or not isinstance(elements, int | float) or not 0 < elements < 1e15:
        return {}
    width = 4 if read["dtype"] == "fp32" or read.get("grad_dtype") == "fp32" else 2
    return {"bucket_bytes": int(elements) * width}
