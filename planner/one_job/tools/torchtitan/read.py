"""A torchtitan TOML file as an explicit plan (torchtitan 0.1 to 0.2; older places of the same keys too)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.pricing.recipe import OffloadPart, OptimizerName, Overlap, ScheduleName, ZeroStage
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.model import Model
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, load_named
from planner.one_job.tools.base.pipeline import weighted_blocks
from planner.one_job.tools.base.settings import describe_unread, load_known
from planner.one_job.tools.base.shape import blocks_of, experts_of
from planner.one_job.tools.torchtitan.flavors import flavor_names, named_flavor
from planner.one_job.tools.torchtitan.rules import DEGREES_NAMED, SCHEDULES
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.files import read_toml
from profiles.vocabulary import DType

SECTIONS = ("parallelism", "training", "experimental")
"""Where degrees may stand: today's place first, then those of 2024."""

PRICED: dict[str, tuple[ScheduleName, str]] = {
    **{name.lower(): (schedule, "") for name, schedule in SCHEDULES.items()},
    "loopedbfs": ("interleaved", "priced as interleaved 1F1B"),
    "interleavedzerobubble": ("zb-h1", "priced as zero bubble with one chunk a stage"),
    "zbvzerobubble": ("zb-h1", "priced as zero bubble with one chunk a stage"),
    "dualpipev": ("dualpipe", "priced as DualPipe"),
}
"""PyTorch's schedules by their names in lower case: ours, and what is said where it is another."""

OPTIMIZERS: dict[str, OptimizerName] = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "muon": "muon"}

WORDS = {
    **{name: f"parallelism.{key}" for name, key in DEGREES_NAMED.items()},
    "dp": "parallelism.data_parallel_shard_degree",
    "etp": "parallelism.expert_tensor_parallel_degree",
    "vpp": "parallelism.pipeline_parallel_layers_per_stage",
    "global_batch": "training.global_batch_size",
    "micro_batch": "training.local_batch_size",
    "micro_batches": "training.local_batch_size",
    "seq_len": "training.seq_len",
    "dtype": "training.mixed_precision_param",
    "grad_dtype": "training.mixed_precision_reduce",
    "optimizer": "optimizer.name",
    "recompute": "activation_checkpoint.mode",
    "zero": "parallelism.data_parallel_shard_degree",
    "hsdp": "parallelism.data_parallel_replicate_degree",
    "schedule": "parallelism.pipeline_parallel_schedule",
    "offload": "training.enable_cpu_offload",
    "overlap": "parallelism.enable_async_tensor_parallel",
    "sequence_parallel": "parallelism.tensor_parallel_degree",
}
"""What torchtitan calls the options of `estimate`."""


def read_torchtitan(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """The plan of the file at `settings`. `model` stands for a flavor that is not known. InputError with file, key,
    value and what was expected; for broken TOML with its line."""
    setting = settings.removeprefix("@")
    values = read_toml(Path(setting))
    titan = _Titan(where=setting, values=values)
    notes = describe_unread(values, load_known("torchtitan/known.toml"))
    named = _flavor(titan) if model is None else load_named(model, options.user_code)
    read = _options(titan, named.model, notes)
    return Imported(
        launcher="torchtitan",
        setting=setting,
        model=named,
        options=read,
        words=WORDS,
        software=_software(titan),
        blocks=_blocks(titan, named.model, read),
        copies=_copies(titan, read),
        assumptions=tuple(dict.fromkeys(notes)),
    )


class _Titan(Keys):
    """The file's sections."""

    def holding(self, key: str) -> Keys:
        """The first of `SECTIONS` that has the key; today's where none does."""
        holders = (self.part(name) for name in SECTIONS if key in self.part(name).values)
        return next(holders, self.part(SECTIONS[0]))

    def degree(self, key: str, default: int = 1, *, least: int = 1) -> int:
        """A degree of parallelism."""
        degree = self.holding(key).size(key, default, least=least)
        if not degree:
            raise self.holding(key).wrong(key, degree, "at least 1, or -1 for what is left")
        return degree


def _flavor(titan: _Titan) -> NamedModel:
    name, flavor = titan.part("model").word("name", "llama3"), titan.part("model").word("flavor", "debugmodel")
    model = named_flavor(name, flavor, where=titan.where)
    if model is None:
        expected = f"one of {', '.join(flavor_names())}; or MODEL"
        raise InputError(where=titan.where, key="model.flavor", found=f"{name} {flavor}", expected=expected)
    return model


def _options(titan: _Titan, model: Model, notes: list[str]) -> Stated:
    tp, pp, cp = (titan.degree(f"{kind}_parallel_degree") for kind in ("tensor", "pipeline", "context"))
    schedule, vpp = _schedule(titan, model, pp, notes)
    precise = titan.part("training")
    stated: Stated = {
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "vpp": vpp,
        "schedule": schedule,
        "seq_len": precise.size("seq_len", 2048),
        "zero": _zero(titan, pp, cp, notes),
        "sequence_parallel": tp > 1,
        "optimizer": _optimizer(titan, notes),
        "recompute": _recompute(titan, model, pp, notes),
        "overlap": _overlap(titan),
        "offload": _offload(titan, notes),
        "dtype": _dtype(titan, notes),
        "grad_dtype": "bf16" if precise.get("dtype", "float32") == "bfloat16" else "fp32",
        "software": "torchtitan",
    }
    shard = _shard(titan)
    if shard > 0:
        stated["dp"] = shard * titan.degree("data_parallel_replicate_degree")
    if experts_of(model) is not None:
        ep = titan.degree("expert_parallel_degree")
        stated["ep"] = ep
        stated["etp"] = titan.degree("expert_tensor_parallel_degree") if ep > 1 else tp
    _add_batch(titan, stated, pp, notes)
    return stated


def _add_batch(titan: _Titan, stated: Stated, pp: int, notes: list[str]) -> None:
    """`local_batch_size` samples a data-parallel rank at once, in a pipeline cut into micro-batches; what is left of
    the global batch is accumulated."""
    training = titan.part("training")
    local = training.size(training.spelling("local_batch_size", "batch_size"), 8)
    micro = local
    if pp > 1:
        parallel = titan.holding("pipeline_parallel_microbatches")
        count = parallel.optional_size("pipeline_parallel_microbatches")
        micro = local // count if count else titan.degree("pipeline_parallel_microbatch_size")
        if not micro or local % micro:
            said = f"{local}, in micro-batches of {micro}"
            raise training.wrong("local_batch_size", said, "a multiple of pipeline_parallel_microbatch_size")
    stated["micro_batch"] = micro
    batch = training.size("global_batch_size", -1, least=-1)
    if batch > 0:
        stated["global_batch"] = batch
        if pp > 1 and batch != local * (stated.get("dp") or 0):
            notes.append(f"the pipeline is priced as filled once an iteration, not for every {local} samples a rank")
    else:
        stated["micro_batches"] = local // micro


def _shard(titan: _Titan) -> int:
    """Ranks that share the weights, -1 for all that are left."""
    old = titan.part("training")
    if "data_parallel_degree" in old.values:
        return old.size("data_parallel_degree", -1, least=-1)
    return titan.degree("data_parallel_shard_degree", -1, least=-1)


def _zero(titan: _Titan, pp: int, cp: int, notes: list[str]) -> ZeroStage:
    """FSDP is ZeRO 3. Weights that stay gathered after forward are, in a pipeline, gathered and their gradients summed
    once an iteration: ZeRO 1; without one, ZeRO 2. torchtitan 0.2.2, models/llama3/infra/parallelize.py."""
    if _shard(titan) == 1 and cp == 1:
        return 0
    policies = ("default", "always", "never")
    policy = titan.part("parallelism").word("fsdp_reshard_after_forward", "default", policies)
    if policy == "always" or (policy == "default" and pp == 1):
        return 3
    zero: ZeroStage = 1 if pp > 1 else 2
    notes.append(f"FSDP that keeps weights gathered after forward is priced as ZeRO {zero}")
    return zero


def _copies(titan: _Titan, stated: Stated) -> int | None:
    copies = titan.degree("data_parallel_replicate_degree")
    return copies if copies > 1 and stated["zero"] else None


def _schedule(titan: _Titan, model: Model, pp: int, notes: list[str]) -> tuple[ScheduleName, int]:
    """The schedule, and chunks of layers a stage: two under looped schedules unless their size is stated."""
    if pp == 1:
        return "1f1b", 1
    keys = titan.holding("pipeline_parallel_schedule")
    text = str(keys.get("pipeline_parallel_schedule", "1F1B"))
    if text.lower() not in PRICED:
        names = "1F1B, GPipe, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV"
        raise keys.wrong("pipeline_parallel_schedule", repr(text), f"one of {names}")
    schedule, said = PRICED[text.lower()]
    if said:
        notes.append(f"pipeline_parallel_schedule {text}: {said}")
    if schedule != "interleaved":
        return schedule, 1
    parts = _parts(titan)
    chunks = len(parts) if parts else _chunk_count(titan, model, pp)
    if chunks % pp or chunks < 2 * pp:
        counted = f"{chunks} chunks of layers over {pp} stages"
        raise keys.wrong("pipeline_parallel_layers_per_stage", counted, "two or more for each stage")
    return schedule, chunks // pp


def _chunk_count(titan: _Titan, model: Model, pp: int) -> int:
    keys = titan.part("parallelism")
    size = keys.optional_size("pipeline_parallel_layers_per_stage")
    if size is None:
        return 2 * pp
    first, last = _spared(keys)
    return -(-(len(blocks_of(model)) + first + last) // size)


def _spared(keys: Keys) -> tuple[int, int]:
    return (
        keys.size("pipeline_parallel_first_stage_less_layers", 1, least=0),
        keys.size("pipeline_parallel_last_stage_less_layers", 1, least=0),
    )


def _parts(titan: _Titan) -> list[list[str]]:
    """The modules of each chunk, where the file lists them."""
    keys = titan.part("parallelism")
    parts = keys.get("module_fqns_per_model_part", None) or []
    if not isinstance(parts, list) or not all(isinstance(part, list) for part in parts):
        raise keys.wrong("module_fqns_per_model_part", describe(parts), "a list of lists of modules")
    return parts


def _blocks(titan: _Titan, model: Model, stated: Stated) -> tuple[int, ...] | None:
    """Blocks of each chunk; None where they are not divided, or not in a way that can be told."""
    pp, vpp = stated["pp"] or 1, stated["vpp"] or 1
    blocks = len(blocks_of(model))
    if pp == 1 or not blocks:
        return None
    keys, parts = titan.part("parallelism"), _parts(titan)
    if parts:
        counts = tuple(sum(str(module).startswith("layers.") for module in part) for part in parts)
        if len(counts) != pp * vpp or sum(counts) != blocks or not all(counts[1:-1]):
            said = f"{len(counts)} parts of {sum(counts)} layers"
            raise keys.wrong("module_fqns_per_model_part", said, f"{pp * vpp} parts of the model's {blocks}")
        return counts
    first, last = _spared(keys)
    counts_found = weighted_blocks(blocks, chunks=pp * vpp, first_less=first, last_less=last)
    if counts_found is None or not all(counts_found[1:-1]):
        said = f"{pp} stages of {vpp} chunks for {blocks} blocks"
        raise keys.wrong("pipeline_parallel_degree", said, "a block or more for each chunk")
    return counts_found


def _gathers_narrow(titan: _Titan) -> bool:
    """Whether weights are gathered in fp8."""
    quantize = titan.part("quantize")
    sections = (titan, quantize.part("linear"), quantize.part("dense"))
    return any(section.part("float8").flag("enable_fsdp_float8_all_gather", False) for section in sections)


def _dtype(titan: _Titan, notes: list[str]) -> DType:
    training, converters = titan.part("training"), _converters(titan)
    if any("mx" in word for word in converters):
        notes.append("model.converters: MX formats are priced as fp8")
    if any("float8" in word or "mx" in word for word in converters) or titan.part("float8").flag(
        "enable_float8_linear", False
    ):
        return "fp8"
    held = training.get("dtype", "float32")
    computed = training.get("mixed_precision_param", "bfloat16")
    for key, dtype in (("dtype", held), ("mixed_precision_param", computed)):
        if dtype not in ("bfloat16", "float32"):
            raise training.wrong(key, describe(dtype), "bfloat16 or float32")
    return "bf16" if "bfloat16" in (held, computed) else "fp32"


def _converters(titan: _Titan) -> list[str]:
    model = titan.part("model")
    converters = model.get("converters", None) or []
    words = converters.split(",") if isinstance(converters, str) else converters
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise model.wrong("converters", describe(converters), "a list of names")
    return words


def _optimizer(titan: _Titan, notes: list[str]) -> OptimizerName:
    name = titan.part("optimizer").word("name", "AdamW")
    optimizer = OPTIMIZERS.get(name.lower())
    if optimizer is None:
        notes.append(f"optimizer.name {name}: not modelled; priced as AdamW")
    return optimizer or "adamw"


def _recompute(titan: _Titan, model: Model, pp: int, notes: list[str]) -> str:
    """`selective` with a number recomputes every so many-th block; with `op` it keeps some operators' results."""
    mode = titan.part("activation_checkpoint").word("mode", "selective", ("none", "selective", "full", "memory_budget"))
    if mode in ("none", "full"):
        return mode
    if mode == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget: priced as selective recomputation")
        return "selective"
    keys = titan.part("activation_checkpoint")
    option = str(keys.get("selective_ac_option", "2"))
    if option == "op":
        notes.append("selective_ac_option op: priced as recomputation of attention alone")
        return "selective"
    if not (option.isascii() and option.isdigit() and int(option)):
        raise keys.wrong("selective_ac_option", repr(option), "op, or a number of layers")
    layers = len(blocks_of(model)) // pp // int(option)
    return f"full:{layers}" if layers else "none"


def _overlap(titan: _Titan) -> tuple[Overlap, ...]:
    keys = titan.holding("enable_async_tensor_parallel")
    return ("dp", "tp") if keys.flag("enable_async_tensor_parallel", False) else ("dp",)


def _offload(titan: _Titan, notes: list[str]) -> tuple[OffloadPart, ...]:
    if not titan.part("training").flag("enable_cpu_offload", False):
        return ()
    notes.append("training.enable_cpu_offload: the optimizer's state is priced in host memory, weights on the device")
    return ("optimizer",)


def _software(titan: _Titan) -> dict[str, Any]:
    """torch.compile fuses the small operators of a block; training in bf16 throughout keeps no copy of the weights."""
    features: dict[str, Any] = {}
    compiling = titan.part("compile")
    components = compiling.get("components", None) or ["model", "loss"]
    compiled = compiling.flag("enable", False) or titan.part("training").flag("compile", False)
    features["kernels"] = "fused" if compiled and "model" in components else "eager"
    features["narrow_parameters"] = _gathers_narrow(titan)
    if titan.part("training").get("dtype", "float32") == "bfloat16":
        features["optimizer_masters"] = False
    if titan.part("parallelism").word("expert_parallel_comm_backend", "standard") == "deepep":
        features["dispatch"] = "deduplicated"
    return features
