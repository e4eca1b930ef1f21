"""Megatron-LM's command line, or the script that holds it, as an explicit plan.

Degrees, batch, precision, recomputation, sharding, overlap and the division of layers come from the arguments; so does
the model, unless the user names one, which must then have the sizes that the arguments state. Defaults are those of
Megatron-LM's arguments.py. Each argument is one of: used; without effect on the speed (nothing is said of it); known
and not modelled (an assumption names it); not known (an assumption names the nearest known).
"""

from __future__ import annotations

from pathlib import Path

from estimator.pricing.recipe import OffloadPart, Overlap, ZeroStage
from models_zoo.model import Model
from models_zoo.user_code import UserCode
from planner.one_job.tools.base.import_records import Imported, NamedModel, Stated, load_named
from planner.one_job.tools.base.pipeline import even_blocks, layout_blocks, uneven_blocks
from planner.one_job.tools.base.shape import blocks_of, experts_of
from planner.one_job.tools.megatron.arguments import Arguments, known_arguments, read_arguments, refuse_others
from planner.one_job.tools.megatron.model import MODEL_ARGUMENTS, check_model, find_model, seq_length
from planner.one_job.tools.megatron.names import BATCH, DEGREES, FP8_RECIPES, OPTIMIZERS, STRATEGIES, argument
from planner.one_job.tools.megatron.shell import read_command
from planner.one_job.tools.megatron.software import offloaded_layers, read_software, recomputed_modules
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import InputError
from profiles.files import read_text
from profiles.vocabulary import AttentionKernel, DType

SCRIPTS = ("gpt", "mamba")
"""What is in the names of Megatron's scripts that train decoders."""

WORDS = {
    **{name: f"--{argument(field)}" for name, field in DEGREES.items()},
    **{name: f"--{word}" for name, word in BATCH.items()},
    "vpp": "--num-layers-per-virtual-pipeline-stage",
    "devices": "the launcher's nodes and ranks",
    "micro_batches": "--global-batch-size",
    "dtype": "--bf16, --fp16, --fp8-format",
    "optimizer": "--optimizer",
    "recompute": "--recompute-granularity",
    "zero": "--use-distributed-optimizer, --data-parallel-sharding-strategy",
    "hsdp": "--num-distributed-optimizer-instances",
    "sequence_parallel": "--sequence-parallel",
    "attention": "--attention-backend",
    "overlap": "--overlap-grad-reduce, --tp-comm-overlap, --overlap-p2p-communication",
    "grad_dtype": "--accumulate-allreduce-grads-in-fp32, --grad-reduce-in-bf16",
    "offload": "--optimizer-cpu-offload",
    "vocab_pad": "--make-vocab-size-divisible-by",
    "moe_capacity": "--moe-expert-capacity-factor",
    "schedule": "--num-layers-per-virtual-pipeline-stage",
}
"""What Megatron calls the options of `estimate`."""

COUNTS_EMBEDDING, COUNTS_LOSS = "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split"
FIRST_STAGE, LAST_STAGE = "decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"

METHODS = ("recompute-method", "checkpoint-method", "activations-checkpoint-method")
COUNTS = ("recompute-num-layers", "checkpoint-num-layers", "activations-checkpoint-num-layers")
"""Names of 2022 among them."""


def read_megatron(settings: str, *, model: str | None, options: EstimateOptions) -> Imported:
    """The plan of a command line, or of the file that `settings` (with or without a leading @) is the path to.

    InputError names argument, value and what was expected.
    """
    setting, text = _find_text(settings)
    command = read_command(text, where=setting)
    arguments = read_arguments(command.words, setting=setting)
    refuse_others(arguments, model_named=model is not None)
    notes = [*command.notes, *arguments.notes]
    named = _model(arguments, model, notes, options.user_code)
    read = _options(arguments, named.model, notes)
    return Imported(
        launcher="megatron",
        setting=setting,
        model=named,
        options=read,
        words=WORDS,
        devices=arguments.devices,
        software=read_software(arguments, named.model, read, notes),
        blocks=_blocks(arguments, named.model),
        copies=_copies(arguments),
        assumptions=tuple(dict.fromkeys(notes)),
    )


def _find_text(settings: str) -> tuple[str, str]:
    """What the settings are called, and their text."""
    path = settings.strip().removeprefix("@")
    if settings.strip().startswith("@") or _is_file(path):
        return path, read_text(path)
    if "--" not in settings:
        expected = "Megatron's arguments, or the path of a script that has them"
        raise InputError(where="megatron", found=f"{path!r}, neither a file nor arguments", expected=expected)
    return "megatron", settings


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # longer than any path, or with a null in it
        return False


def _model(arguments: Arguments, reference: str | None, notes: list[str], code: UserCode) -> NamedModel:
    script = arguments.script
    if reference is not None:
        named = load_named(reference, code)
        check_model(named.model, arguments)
        return named
    if script.startswith("pretrain_") and not any(part in script for part in SCRIPTS):
        expected = "pretrain_gpt.py, or MODEL beside the settings"
        raise InputError(where=arguments.setting, found=f"{script}, whose model is not known", expected=expected)
    if not arguments.has(*MODEL_ARGUMENTS):
        expected = f"--{MODEL_ARGUMENTS[0]} and the other sizes, or MODEL beside the settings"
        raise InputError(where=arguments.setting, found="no size of a model", expected=expected)
    return find_model(arguments, notes)


def _options(arguments: Arguments, model: Model, notes: list[str]) -> Stated:
    tp, pp = arguments.count("tensor-model-parallel-size") or 1, arguments.count("pipeline-model-parallel-size") or 1
    vpp = _chunks(arguments, model, pp)
    stated: Stated = {
        "tp": tp,
        "pp": pp,
        "cp": arguments.count("context-parallel-size") or 1,
        "vpp": vpp,
        "schedule": "interleaved" if vpp > 1 else "1f1b",
        "micro_batch": arguments.required("micro-batch-size"),
        "optimizer": OPTIMIZERS[arguments.choice("optimizer", tuple(OPTIMIZERS))],
        "recompute": _recompute(arguments, vpp, notes),
        "zero": _zero(arguments),
        "sequence_parallel": arguments.has("sequence-parallel") and tp > 1,
        "overlap": _overlap(arguments, vpp, notes),
        "offload": _offload(arguments),
        "vocab_pad": 1
        if arguments.has("padded-vocab-size")
        else arguments.count("make-vocab-size-divisible-by") or 128,
        "software": "megatron-lm" if _is_local(arguments) else "megatron-core",
    }
    if arguments.has("seq-length", "encoder-seq-length"):
        stated["seq_len"] = seq_length(arguments)
    batch = arguments.count("global-batch-size")
    if batch is None:
        stated["micro_batches"] = 1
    else:
        stated["global_batch"] = batch
    attention = _attention(arguments, notes)
    if attention is not None:
        stated["attention"] = attention
    _add_precision(arguments, stated, notes)
    _add_experts(arguments, model, stated, tp, notes)
    return stated


def _offload(arguments: Arguments) -> tuple[OffloadPart, ...]:
    parts: list[OffloadPart] = ["optimizer"] if arguments.has("optimizer-cpu-offload") else []
    return (*parts, "activations") if offloaded_layers(arguments) else tuple(parts)


def _is_local(arguments: Arguments) -> bool:
    """Whether Megatron's own layers run, not Transformer Engine's."""
    local = arguments.choice("transformer-impl", ("transformer_engine", "local")) == "local"
    return local or arguments.has("use-legacy-models")


def _add_precision(arguments: Arguments, stated: Stated, notes: list[str]) -> None:
    """Megatron trains in fp32 unless told otherwise; fp8 keeps the rest in 16 bits. Gradients are held and summed in
    fp32 with bf16 unless --grad-reduce-in-bf16, in fp16 with fp16 unless --accumulate-allreduce-grads-in-fp32."""
    if arguments.has("bf16") and arguments.has("fp16"):
        raise InputError(where=arguments.setting, key="--bf16, --fp16", found="both", expected="one of them")
    half: DType = "fp16" if arguments.has("fp16") else "bf16" if arguments.has("bf16") else "fp32"
    if arguments.has("fp4-format"):
        stated["dtype"] = "nvfp4"
    elif arguments.has("fp8-format", "fp8-hybrid", "fp8-e4m3"):
        stated["dtype"] = _fp8_type(arguments, notes)
    else:
        stated["dtype"] = half
    if half == "fp16":
        stated["grad_dtype"] = "fp32" if arguments.has("accumulate-allreduce-grads-in-fp32") else "fp16"
    elif half == "bf16":
        narrow = arguments.has("grad-reduce-in-bf16") or arguments.text("main-grads-dtype", "fp32") == "bf16"
        stated["grad_dtype"] = "bf16" if narrow else "fp32"
    else:
        stated["grad_dtype"] = "fp32"


def _fp8_type(arguments: Arguments, notes: list[str]) -> DType:
    recipe = arguments.choice("fp8-recipe", tuple(FP8_RECIPES))
    if recipe == "custom":
        notes.append("--fp8-recipe custom: products are priced as with one scale a tensor")
    return FP8_RECIPES[recipe]


def _add_experts(arguments: Arguments, model: Model, stated: Stated, tp: int, notes: list[str]) -> None:
    ep, etp = arguments.count("expert-model-parallel-size") or 1, arguments.count("expert-tensor-parallel-size")
    if experts_of(model) is None:
        for name, degree in (("expert-model-parallel-size", ep), ("expert-tensor-parallel-size", etp)):
            if degree not in (None, 1):
                raise arguments.wrong(name, degree, f"none: {model.name} has no experts")
        return
    stated["ep"] = ep
    stated["etp"] = tp if etp is None else etp
    if arguments.has("moe-expert-capacity-factor"):
        stated["moe_capacity"] = arguments.number("moe-expert-capacity-factor", 1.0)
    dispatcher = arguments.text("moe-token-dispatcher-type", "allgather")
    if dispatcher == "allgather" and ep > 1:
        notes.append("--moe-token-dispatcher-type allgather: tokens are priced as exchanged all to all")


# The pipeline


def _chunks(arguments: Arguments, model: Model, pp: int) -> int:
    """Chunks of layers a stage."""
    stated = arguments.count("num-virtual-stages-per-pipeline-rank")
    if stated is not None:
        return stated
    layout = _layout(arguments)
    if layout is not None:
        if len(layout) % pp:
            expected = f"chunks in a multiple of --pipeline-model-parallel-size {pp}"
            raise arguments.wrong("pipeline-model-parallel-layout", f"{len(layout)} chunks", expected)
        return len(layout) // pp
    size = arguments.count("num-layers-per-virtual-pipeline-stage")
    if size is None:
        return 1
    layers = _counted_layers(arguments, model)
    if layers % pp or layers // pp % size:
        said = f"{size}, of {layers} layers over {pp} stages"
        raise arguments.wrong("num-layers-per-virtual-pipeline-stage", said, "a divisor of a stage's layers")
    return layers // pp // size


def _counted_layers(arguments: Arguments, model: Model) -> int:
    """Blocks, with embedding and loss where they count as one."""
    spared = [arguments.has(name) for name in (COUNTS_EMBEDDING, COUNTS_LOSS)]
    return len(blocks_of(model)) + sum(spared)


def _layout(arguments: Arguments) -> tuple[int, ...] | None:
    text = arguments.text("pipeline-model-parallel-layout")
    if text is None:
        return None
    blocks = layout_blocks(text)
    if blocks is None or (len(blocks) > 2 and not all(blocks[1:-1])):
        expected = "chunks of t with | between them, such as Ett|(tt|)*2tL, none of them empty"
        raise arguments.wrong("pipeline-model-parallel-layout", repr(text), expected)
    return blocks


def _blocks(arguments: Arguments, model: Model) -> tuple[int, ...] | None:
    """Blocks of each chunk; None for one chunk. InputError where Megatron could not divide them so."""
    pp, blocks = arguments.count("pipeline-model-parallel-size") or 1, len(blocks_of(model))
    vpp = _chunks(arguments, model, pp)
    if pp == 1 or not blocks:
        return None
    layout = _layout(arguments)
    if layout is not None:
        if sum(layout) != blocks:
            raise arguments.wrong("pipeline-model-parallel-layout", f"{sum(layout)} blocks", f"the model's {blocks}")
        return layout
    first, last = arguments.count(FIRST_STAGE), arguments.count(LAST_STAGE)
    if first is not None or last is not None:
        counts, key = uneven_blocks(blocks, pp=pp, vpp=vpp, first=first, last=last), f"{FIRST_STAGE}, --{LAST_STAGE}"
    else:
        counts = even_blocks(
            blocks,
            pp=pp,
            vpp=vpp,
            spare_first=arguments.has(COUNTS_EMBEDDING),
            spare_last=arguments.has(COUNTS_LOSS),
        )
        key = "pipeline-model-parallel-size"
    if counts is None:
        shared = f"{_counted_layers(arguments, model)} layers over {pp} stages of {vpp} chunks"
        raise arguments.wrong(key, shared, "layers that divide evenly")
    return counts


# State, recomputation, communication


def _zero(arguments: Arguments) -> ZeroStage:
    if arguments.has("use-megatron-fsdp", "use-custom-fsdp"):
        return STRATEGIES[arguments.choice("data-parallel-sharding-strategy", tuple(STRATEGIES))]
    if arguments.has("use-torch-fsdp2"):
        return 2 if arguments.has("torch-fsdp2-no-reshard-after-forward") else 3
    return 1 if arguments.has("use-distributed-optimizer") else 0


def _copies(arguments: Arguments) -> int | None:
    instances = arguments.count("num-distributed-optimizer-instances") or 1
    return instances if instances > 1 and _zero(arguments) else None


def _recompute(arguments: Arguments, vpp: int, notes: list[str]) -> str:
    """`uniform` recomputes all layers, `block` so many of each chunk."""
    kind = _recompute_kind(arguments)
    method = next((arguments.text(name) for name in METHODS if arguments.has(name)), None)
    layers = next((arguments.count(name) for name in COUNTS if arguments.has(name)), None)
    if kind == "selective":
        return "selective" if recomputed_modules(arguments, notes) else "none"
    if kind == "full" and method == "block" and layers is not None:
        return f"full:{layers * vpp}"
    if kind == "full" and (layers or 1) > 1:
        notes.append("recomputation in units of several layers is priced as keeping each layer's input")
    return kind


def _recompute_kind(arguments: Arguments) -> str:
    for name in ("recompute-granularity", "checkpoint-granularity"):
        kind = arguments.text(name, choices=("full", "selective"))
        if kind is not None:
            return kind
    if arguments.has("checkpoint-activations", "activations-checkpoint-method"):
        return "full"
    return "selective" if arguments.has("recompute-activations", "moe-layer-recompute") else "none"


def _overlap(arguments: Arguments, vpp: int, notes: list[str]) -> tuple[Overlap, ...]:
    """What runs beside compute. Transfers between stages do where chunks are interleaved, unless told otherwise."""
    overlaps: list[Overlap] = []
    fsdp = arguments.has("use-torch-fsdp2")
    if arguments.has("overlap-grad-reduce") or fsdp:
        overlaps.append("dp")
        if arguments.has("use-distributed-optimizer") and not arguments.has("overlap-param-gather") and not fsdp:
            notes.append("without --overlap-param-gather weights are gathered in the open; priced as gradients are")
    if arguments.has("tp-comm-overlap"):
        overlaps.append("tp")
    if vpp > 1 and not arguments.has("no-overlap-p2p-communication"):
        overlaps.append("p2p")
    if arguments.has("overlap-moe-expert-parallel-comm"):
        overlaps.append("ep")
    return tuple(overlaps)


def _attention(arguments: Arguments, notes: list[str]) -> AttentionKernel | None:
    """The kernel; None: what the devices have, which is what `auto` takes."""
    kinds = ("flash", "fused", "unfused", "local", "auto")
    backend = arguments.text("attention-backend", choices=kinds)
    if backend in ("flash", "fused") or arguments.has("use-flash-attn"):
        return "flash"
    if backend in ("unfused", "local") or (backend is None and _is_local(arguments)):
        for name in arguments.values:
            argument = known_arguments().get(name)
            if argument is not None and argument.role == "unfused_attention":
                notes.append(f"--{name}: not modelled; attention is priced as Megatron's fused softmax")
        return "math"
    return None
