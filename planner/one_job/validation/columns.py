"""The columns of a run table: what each means, what may stand in it, and the reader of one cell."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Literal, get_args, get_type_hints

from estimator.pricing.recipe import Launch
from profiles.errors import InputError
from profiles.numerals import read_number
from profiles.records import dataclass

CellKind = Literal["text", "count", "count_or_none", "number", "flag"]

WORDS_FOR_TRUE = frozenset({"1", "true", "yes", "y"})
WORDS_FOR_FALSE = frozenset({"0", "false", "no", "n"})
MOST = 10**15
"""Larger counts are typing errors: no run has so many of anything that is counted here. Nor is any figure larger than
that times a thousand, or smaller than one in it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `aliases` are other headers for it, `name` its own: that of the field of `RunRow` that it fills, or
    of an entry of `RunRow.degrees`.

    `count` is a whole number from 1, `count_or_none` from 0 (0: none of it), `number` finite and above 0, `flag` 0 or
    1; `allowed` are the words of a text, where they are few.
    """

    kind: CellKind
    meaning: str
    aliases: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """One run as its author wrote it: text is empty and everything else None where a cell is blank. `where` is file
    and line, `degrees` the degrees of parallelism that are stated, by name."""

    where: str
    id: Annotated[
        str, Column("text", "the row's name, each once; what stands before its first hyphen is the row's source")
    ]
    source_repo_or_paper: Annotated[str, Column("text", "who published the run; not read")] = ""
    source_path_or_table: Annotated[str, Column("text", "where in it; not read")] = ""
    gpu: Annotated[
        str, Column("text", "the device: a name or alias of `cellplan hardware list`, in any case", aliases=("device",))
    ] = ""
    gpu_mem_gb: Annotated[
        float | None,
        Column("number", "the device's memory in the GB of its name: tells variants apart", aliases=("device_mem_gb",)),
    ] = None
    gpus_total: Annotated[int | None, Column("count", "devices of the run", aliases=("gpus", "devices"))] = None
    gpus_per_node: Annotated[int | None, Column("count", "devices in a node", aliases=("devices_per_node",))] = None
    intra_node_link: Annotated[str, Column("text", "the link inside a node: a link's name, nvlink or pcie")] = ""
    inter_node_link: Annotated[
        str, Column("text", "the network between nodes: `4x roce100` (NICs of a node, link), `ib-hdr200`")
    ] = ""
    model_name: Annotated[
        str,
        Column("text", "a zoo name, a config.json, or any name where the sizes below are stated", aliases=("model",)),
    ] = ""
    model_family: Annotated[
        str, Column("text", "what the blocks are: gpt, llama, moe (llama with experts) or bert")
    ] = ""
    params_b: Annotated[
        float | None, Column("number", "parameters in 1e9; groups rows that cannot be predicted, else not read")
    ] = None
    layers: Annotated[int | None, Column("count", "transformer blocks")] = None
    hidden: Annotated[int | None, Column("count", "width of the model")] = None
    heads: Annotated[int | None, Column("count", "attention heads")] = None
    kv_heads: Annotated[int | None, Column("count", "key-value heads")] = None
    ffn_hidden: Annotated[
        int | None,
        Column("count", "width of the feed-forward; of one expert where `moe_ffn` is blank", aliases=("ffn",)),
    ] = None
    vocab: Annotated[int | None, Column("count", "tokens of the vocabulary, before padding")] = None
    experts: Annotated[int | None, Column("count_or_none", "routed experts of a block")] = None
    topk: Annotated[int | None, Column("count_or_none", "experts that a token visits", aliases=("top_k",))] = None
    seq_len: Annotated[int | None, Column("count", "tokens of a sample")] = None
    global_batch: Annotated[int | None, Column("count", "samples of an iteration")] = None
    micro_batch: Annotated[int | None, Column("count", "samples of a micro-batch on one rank")] = None
    degrees: Annotated[
        tuple[tuple[str, int], ...],
        Column("count", "tensor-parallel ranks", name="tp"),
        Column("count", "pipeline stages", name="pp"),
        Column("count", "chunks of layers on a stage (interleaved schedule where above 1)", name="vpp"),
        Column("count", "data-parallel ranks", name="dp"),
        Column("count", "context-parallel ranks", name="cp"),
        Column("count", "expert-parallel ranks", name="ep"),
        Column("count", "ranks that share one expert's matrices", name="etp"),
    ] = ()
    zero_or_fsdp: Annotated[
        str,
        Column("text", "0 to 3, zero-1 and the like, fsdp (3), shard_grad_op (2), none or ddp (0)", aliases=("zero",)),
    ] = ""
    seq_parallel: Annotated[
        bool | None, Column("flag", "sequence parallelism inside tp", aliases=("sequence_parallel",))
    ] = None
    recompute: Annotated[str, Column("text", "what is recomputed", allowed=("none", "selective", "full"))] = ""
    flash_attn: Annotated[bool | None, Column("flag", "fused attention kernel")] = None
    dtype: Annotated[
        str, Column("text", "fp32, tf32, bf16, fp16 or fp8, or what software calls them (float16, amp_bf16, mxfp8)")
    ] = ""
    optimizer_notes: Annotated[
        str, Column("text", "adamw, sgd, adam8bit, muon or adafactor", aliases=("optimizer",))
    ] = ""
    metric_name: Annotated[
        str, Column("text", "what `metric_value` is: iter_time_s, tflops_per_gpu, tokens_per_s_per_gpu or mfu")
    ] = ""
    metric_value: Annotated[float | None, Column("number", "the published figure (mfu in percent)")] = None
    peak_mem_gb: Annotated[
        float | None, Column("number", "memory of the fullest device, in `memory_unit`; see `memory_kind`")
    ] = None
    notes: Annotated[str, Column("text", "anything; not read")] = ""
    derived_iter_time_s: Annotated[
        float | None, Column("number", "seconds of an iteration that the table's author worked out")
    ] = None
    derived_check: Annotated[str, Column("text", "how; not read")] = ""
    iter_time_s: Annotated[
        float | None, Column("number", "seconds of an iteration, instead of metric_name and metric_value")
    ] = None
    framework: Annotated[
        str, Column("text", "the training software, as in `cellplan hardware list`: what it is declared to do")
    ] = ""
    cluster: Annotated[
        str, Column("text", "a cluster's short form or file, instead of gpu, gpus_per_node and the links")
    ] = ""
    schedule: Annotated[str, Column("text", "gpipe, 1f1b, interleaved, zb-h1 or dualpipe")] = ""
    shard: Annotated[int | None, Column("count", "ranks that share what ZeRO shards (HSDP)")] = None
    pipeline_layout: Annotated[
        str, Column("text", "blocks of each chunk, as --pipeline-model-parallel-layout of Megatron: Ett|tt|tL")
    ] = ""
    recompute_layers: Annotated[int | None, Column("count", "layers of a stage that are recomputed")] = None
    features: Annotated[
        str, Column("text", "features in place of what the software is declared to do: NAME=VALUE, joined by ;")
    ] = ""
    grad_accum: Annotated[int | None, Column("count", "micro-batches of an iteration on one rank")] = None
    grad_dtype: Annotated[str, Column("text", "what gradients are summed in", allowed=("fp32", "bf16", "fp16"))] = ""
    optimizer_masters: Annotated[bool | None, Column("flag", "whether the optimizer holds its own fp32 weights")] = None
    overlap: Annotated[str, Column("text", "communication beside compute: any of dp, tp, p2p joined by +, or none")] = (
        ""
    )
    kernels: Annotated[str, Column("text", "fused or one kernel an operator", allowed=("fused", "eager"))] = ""
    launch: Annotated[
        str,
        Column(
            "text",
            "kernels launched one by one, by compiled code, or as captured graphs: of routers, of all but experts, of"
            " layers, of the iteration",
            allowed=get_args(Launch),
        ),
    ] = ""
    fused_cross_entropy: Annotated[bool | None, Column("flag", "whether no fp32 copy of the logits is kept")] = None
    vocab_multiple: Annotated[
        int | None, Column("count", "the vocabulary is padded to a multiple of this times tp")
    ] = None
    offload: Annotated[str, Column("text", "optimizer, activations, both joined by +, or none")] = ""
    lora_rank: Annotated[int | None, Column("count_or_none", "rank of adapters; everything else is frozen")] = None
    moe_ffn: Annotated[int | None, Column("count", "width of one expert")] = None
    shared_experts: Annotated[int | None, Column("count_or_none", "experts that every token visits")] = None
    dense_layers: Annotated[int | None, Column("count_or_none", "first blocks without experts")] = None
    moe_every: Annotated[int | None, Column("count", "behind these every so manieth block has experts")] = None
    moe_imbalance: Annotated[
        float | None, Column("number", "the fullest expert rank's tokens over the mean (blank: 1)")
    ] = None
    mtp_layers: Annotated[int | None, Column("count_or_none", "modules that predict further tokens (MTP)")] = None
    head_dim: Annotated[int | None, Column("count", "width of a head")] = None
    moe_capacity_factor: Annotated[float | None, Column("number", "static capacity of experts; blank: dropless")] = None
    image: Annotated[int | None, Column("count", "pixels of an image's side")] = None
    dropout: Annotated[bool | None, Column("flag", "dropout in GPT's and BERT's blocks")] = None
    tied_embeddings: Annotated[bool | None, Column("flag", "whether the head has the embedding's weights")] = None
    qkv_bias: Annotated[bool | None, Column("flag", "biases of query, key and value")] = None
    output_bias: Annotated[bool | None, Column("flag", "bias of attention's output")] = None
    qk_norm: Annotated[str, Column("text", "norm of queries and keys", allowed=("none", "head", "full"))] = ""
    embedding_norm: Annotated[bool | None, Column("flag", "norm behind the embedding")] = None
    window: Annotated[int | None, Column("count", "tokens that a block's attention looks back")] = None
    window_every: Annotated[int | None, Column("count", "every so manieth block has the window, the first one too")] = (
        None
    )
    query_rank: Annotated[int | None, Column("count", "latent attention: rank of the queries (blank: whole)")] = None
    key_value_rank: Annotated[
        int | None, Column("count", "latent attention: rank of keys and values; makes attention latent")
    ] = None
    nope_dim: Annotated[int | None, Column("count", "latent attention: width of a head without rotation")] = None
    rope_dim: Annotated[int | None, Column("count", "latent attention: width of a head with rotation")] = None
    value_dim: Annotated[int | None, Column("count", "latent attention: width of a head's values")] = None
    predicted_tokens: Annotated[
        int | None, Column("count", "tokens of a sample that the head predicts (blank: all)")
    ] = None
    tflops_convention: Annotated[
        str, Column("text", "how a published TFLOP/s counts", allowed=("model", "causal", "hardware"))
    ] = ""
    memory_kind: Annotated[
        str, Column("text", "what peak_mem_gb is", allowed=("allocated", "reserved", "required"))
    ] = ""
    memory_stage: Annotated[str, Column("text", "whose it is (blank: the fullest's)", allowed=("last",))] = ""
    memory_unit: Annotated[str, Column("text", "its unit", allowed=("GB", "GiB", "MiB"))] = ""
    out_of_memory: Annotated[bool | None, Column("flag", "the run ended out of memory")] = None

    def degree(self, name: str) -> int | None:
        """Return the degree of parallelism of that name, None where the row states none."""
        return dict(self.degrees).get(name)

    @property
    def source(self) -> str:
        """The group that the row is counted in: its id up to the first hyphen; a user's own ids may have none."""
        prefix, hyphen, _ = self.id.partition("-")
        return prefix if hyphen else "own"


def _columns() -> Iterator[Column]:
    for name, hint in get_type_hints(RunRow, include_extras=True).items():
        for column in get_args(hint)[1:]:
            yield replace(column, name=column.name or name)


COLUMNS: tuple[Column, ...] = tuple(_columns())
BY_HEADER = {header: column for column in COLUMNS for header in (column.name, *column.aliases)}

DEGREES = tuple(column.name for column in get_args(get_type_hints(RunRow, include_extras=True)["degrees"])[1:])
"""The columns that fill `RunRow.degrees`."""

Cell = str | int | float | bool | None


def cell_of(row: RunRow, column: Column) -> Cell:
    """Return what `row` has in that column, None (text: empty) where it is blank."""
    value: Cell = row.degree(column.name) if column.name in DEGREES else getattr(row, column.name)
    return value


def read_cell(column: Column, text: str, *, where: str) -> Cell:
    """The value of one cell, None where it is blank (text: empty). Raise InputError naming `where` and the column.

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
        if not 1e-3 / MOST <= number <= 1e3 * MOST:
            raise InputError(where=where, key=column.name, found=repr(text), expected="a number from 1e-18 to 1e18")
        return number
    least = 0 if column.kind == "count_or_none" else 1
    if number is None or number != math.floor(number) or not least <= number <= MOST:
        raise InputError(where=where, key=column.name, found=repr(text), expected=f"a whole number from {least}")
    return int(number) or None


def _word(column: Column, text: str, where: str) -> str:
    if not column.allowed or not text:
        return text
    word = {word.lower(): word for word in column.allowed}.get(text.lower())
    if word is None:
        raise InputError(where=where, key=column.name, found=repr(text), expected=f"one of {', '.join(column.allowed)}")
    return word


def _number(text: str) -> float | None:
    try:
        number = read_number(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
