"""The columns of a run table: what each means, what may stand in it, and the reader of one cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from profiles.errors import InputError

CellKind = Literal["text", "count", "count_or_none", "number", "flag"]

WORDS_FOR_TRUE = frozenset({"1", "true", "yes", "y"})
WORDS_FOR_FALSE = frozenset({"0", "false", "no", "n"})
MOST = 10**15
"""Larger counts are typing errors: no run has so many of anything that is counted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column. `field` is its name in `RunRow`, `aliases` other headers for it.

    `count` is a whole number from 1, `count_or_none` from 0 (0: none of it), `number` finite and above 0, `flag` 0 or
    1; `allowed` are the words of a text, where they are few.
    """

    name: str
    field: str
    kind: CellKind
    meaning: str
    aliases: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def _column(
    name: str,
    kind: CellKind,
    meaning: str,
    *,
    field: str = "",
    aliases: tuple[str, ...] = (),
    allowed: tuple[str, ...] = (),
) -> Column:
    return Column(name=name, field=field or name, kind=kind, meaning=meaning, aliases=aliases, allowed=allowed)


PUBLISHED = (
    _column("id", "text", "the row's name, each once; what stands before its first hyphen is the row's source"),
    _column("source_repo_or_paper", "text", "who published the run; tells the framework where no column does"),
    _column("source_path_or_table", "text", "where in it"),
    _column("gpu", "text", "the device, as in `cellplan hardware list` or in common words", aliases=("device",)),
    _column("gpu_mem_gb", "number", "the device's memory in the GB of its name", aliases=("device_mem_gb",)),
    _column("gpus_total", "count", "devices of the run", aliases=("gpus", "devices")),
    _column("gpus_per_node", "count", "devices in a node", aliases=("devices_per_node",)),
    _column("intra_node_link", "text", "the link inside a node, in common words or a link's name"),
    _column("inter_node_link", "text", "the network between nodes: `4x 100Gb/s RoCE per node`, `8x ib-hdr200`"),
    _column(
        "model_name", "text", "a zoo name, a config.json, or the name that its publisher gave it", aliases=("model",)
    ),
    _column("model_family", "text", "dense_gpt, llama, moe, bert, resnet or what the model is otherwise"),
    _column("params_b", "number", "parameters in 1e9"),
    _column("layers", "count", "transformer blocks"),
    _column("hidden", "count", "width of the model"),
    _column("heads", "count", "attention heads"),
    _column("kv_heads", "count", "key-value heads"),
    _column(
        "ffn_hidden", "count", "width of the feed-forward; of one expert where `moe_ffn` is blank", aliases=("ffn",)
    ),
    _column("vocab", "count", "tokens of the vocabulary, before padding"),
    _column("experts", "count_or_none", "routed experts of a block"),
    _column("topk", "count_or_none", "experts that a token visits", aliases=("top_k",)),
    _column("seq_len", "count", "tokens of a sample"),
    _column("global_batch", "count", "samples of an iteration"),
    _column("micro_batch", "count", "samples of a micro-batch on one rank"),
    _column("tp", "count", "tensor-parallel ranks"),
    _column("pp", "count", "pipeline stages"),
    _column("vpp", "count", "chunks of layers on a stage (interleaved schedule where above 1)"),
    _column("dp", "count", "data-parallel ranks"),
    _column("cp", "count", "context-parallel ranks"),
    _column("ep", "count", "expert-parallel ranks"),
    _column(
        "zero_or_fsdp",
        "text",
        "`ZeRO-1`, `FSDP`, `FSDP_SHARD_GRAD_OP`, `ZeRO-1 over 8 ranks`, 0 to 3",
        aliases=("zero",),
    ),
    _column("seq_parallel", "flag", "sequence parallelism inside tp", aliases=("sequence_parallel",)),
    _column("recompute", "text", "what is recomputed", allowed=("none", "selective", "full")),
    _column("flash_attn", "flag", "fused attention kernel"),
    _column("dtype", "text", "`bf16`, `fp16 mixed`, `amp_bf16`, `MXFP8`, `tf32`, `fp32` ..."),
    _column("optimizer_notes", "text", "the optimizer, LoRA, precision of its state", aliases=("optimizer",)),
    _column("metric_name", "text", "what `metric_value` is: iter_time_s, tflops_per_gpu, tokens_per_s_per_gpu or mfu"),
    _column("metric_value", "number", "the published figure (mfu in percent)"),
    _column("peak_mem_gb", "number", "memory of the fullest device; see `memory_kind` and `memory_unit`"),
    _column("notes", "text", "anything else; a few set phrases in it are read (see COLUMNS.md)"),
    _column("derived_iter_time_s", "number", "seconds of an iteration that the table's author worked out"),
    _column("derived_check", "text", "how; not read"),
)

DECLARED = (
    _column("iter_time_s", "number", "seconds of an iteration, instead of metric_name and metric_value"),
    _column("framework", "text", "a name of data/software.toml: what the software is declared to do"),
    _column("cluster", "text", "a cluster's short form or file, instead of gpu, gpus_per_node and the links"),
    _column("schedule", "text", "gpipe, 1f1b, interleaved, zb-h1 or dualpipe"),
    _column("etp", "count", "ranks that share one expert's matrices"),
    _column("shard", "count", "ranks that share what ZeRO shards (HSDP)"),
    _column("recompute_layers", "count", "layers of a stage that are recomputed"),
    _column("grad_accum", "count", "micro-batches of an iteration on one rank"),
    _column("grad_dtype", "text", "what gradients are summed in", allowed=("fp32", "bf16", "fp16")),
    _column("optimizer_masters", "flag", "whether the optimizer holds its own fp32 weights"),
    _column("overlap", "text", "communication beside compute: any of dp, tp, p2p joined by +, or none"),
    _column("kernels", "text", "fused or one kernel an operator", allowed=("fused", "eager")),
    _column("launch", "text", "kernels launched one by one, or as a captured graph", allowed=("eager", "graph")),
    _column("fused_cross_entropy", "flag", "whether no fp32 copy of the logits is kept"),
    _column("vocab_multiple", "count", "the vocabulary is padded to a multiple of this times tp"),
    _column("offload", "text", "optimizer, activations, both joined by +, or none"),
    _column("lora_rank", "count_or_none", "rank of adapters; everything else is frozen"),
    _column("moe_ffn", "count", "width of one expert"),
    _column("shared_experts", "count_or_none", "experts that every token visits"),
    _column("dense_layers", "count_or_none", "first blocks without experts"),
    _column("head_dim", "count", "width of a head"),
    _column("moe_capacity_factor", "number", "static capacity of experts; blank: dropless"),
    _column("image", "count", "pixels of an image's side"),
    _column("tflops_convention", "text", "how a published TFLOP/s counts", allowed=("model", "causal", "hardware")),
    _column("memory_kind", "text", "what peak_mem_gb is", allowed=("allocated", "reserved", "required")),
    _column("memory_unit", "text", "its unit", allowed=("GB", "GiB")),
    _column("out_of_memory", "flag", "the run ended out of memory"),
)

COLUMNS: tuple[Column, ...] = (*PUBLISHED, *DECLARED)
BY_HEADER = {header: column for column in COLUMNS for header in (column.name, *column.aliases)}

Cell = str | int | float | bool | None


def read_cell(column: Column, text: str, *, where: str) -> Cell:
    """The value of one cell, None where it is blank (text: empty). InputError naming `where` and the column.

    >>> read_cell(BY_HEADER["tp"], " 8 ", where="runs.csv, line 2")
    8
    """
    text = text.strip()
    if column.kind == "text":
        return _word(column, text, where)
    if not text:
        return None
    if column.kind == "flag":
        if text.lower() in WORDS_FOR_TRUE | WORDS_FOR_FALSE:
            return text.lower() in WORDS_FOR_TRUE
        raise InputError(where=where, key=column.name, found=repr(text), expected="0 or 1")
    number = _number(text)
    if column.kind == "number":
        if number is None or not 0 < number < math.inf:
            raise InputError(where=where, key=column.name, found=repr(text), expected="a finite number above 0")
        return number
    least = 0 if column.kind == "count_or_none" else 1
    if number is None or number != math.floor(number) or not least <= number <= MOST:
        raise InputError(where=where, key=column.name, found=repr(text), expected=f"a whole number from {least}")
    return int(number) or None


def _word(column: Column, text: str, where: str) -> str:
    if not column.allowed or not text:
        return text
    found = {word.lower(): word for word in column.allowed}.get(text.lower())
    if found is None:
        raise InputError(where=where, key=column.name, found=repr(text), expected=f"one of {', '.join(column.allowed)}")
    return found


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
