"""Settings that are told beside a row's columns, as columns: filled in where the row leaves them blank.

What a table states itself stands; what is told of its recipe is what was run where the table is blank.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, get_args

from bench.accuracy.adapters.arguments import argument_columns, argument_features
from bench.accuracy.adapters.frameworks import PublishedFramework
from bench.accuracy.adapters.techniques import technique_columns
from bench.accuracy.adapters.told import Told, count, flag
from estimator.pricing.pipeline_layout import blocks_by_chunk
from planner.one_job.validation.columns import RunRow
from profiles.vocabulary import Overlap, RecomputeModule

COUNTS = {
    "micro_batch": ("micro_batch",),
    "seq_len": ("seq_len",),
    "vocab": ("vocab",),
    "global_batch": ("global_batch",),
    "grad_accum": ("gradient_accumulation", "micro_batches"),
    "mtp_layers": ("mtp_layers", "mtp_num_layers"),
    "moe_ffn": ("moe_ffn_hidden_size",),
}
"""Columns of counts by the names under which they are told."""

OVERLAPS: dict[Overlap, tuple[str, ...]] = {
    "dp": ("overlap_grad_reduce", "overlap_grad_sync"),
    "p2p": ("overlap_p2p", "overlap_p2p_communication_warmup_flush"),
    "ep": ("moe_a2a_overlap", "overlap_moe_expert_parallel_comm"),
}
OFFLOADED_LAYERS = ("cpu_offload_activation_layers", "activation_offload_layers")
FIRST_NARROW_ATTENTION = r"training_results_v(?:4\.|5\.0)"
"""Sources whose software is of before summer 2025."""

GRAD_DTYPES = {"bf16": "bf16", "bfloat16": "bf16", "fp32": "fp32", "float32": "fp32"}

OFFLOADING = ("cpu_offloading", "fine_grained_activation_offloading")
"""Switches of activations' offload."""

SLOW_HOSTS = frozenset({"gb200", "gb300"})
"""Devices on whose hosts submissions to MLPerf launch from captured graphs."""

GRAPHS = {
    "full_iteration": "graph",
    "full iteration": "graph",
    "full": "graph",
    "layer": "graph_layers",
    "per layer": "graph_layers",
    "true": "graph",
    "none": "eager",
    "false": "eager",
}
"""How kernels are launched, by what a source calls its CUDA graphs; other words are of graphs of some modules."""

MODULES = {name: name for name in get_args(RecomputeModule)} | dict.fromkeys(("mlp_norm", "attn_norm"), "layernorm")
"""Recomputed modules by what sources call them."""


def recovered_row(row: RunRow, told: Told, framework: PublishedFramework, assumed: list[str]) -> RunRow:
    """Return `row` with blanks filled by what is told of it beside its columns.

    Adds to `assumed` what of it the columns cannot say.
    """
    if not told:
        return row
    columns: dict[str, Any] = {}
    for name, words in COUNTS.items():
        if getattr(row, name) is None:
            columns[name] = count(told, *words)
    columns["degrees"] = _degrees(row, told, assumed)
    if row.seq_parallel is None:
        columns["seq_parallel"] = flag(told, "sequence_parallel")
    if row.flash_attn is None and flag(told, "transformer_engine") is False:
        assumed.append("attention: of XLA itself, without Transformer Engine's fused kernel (flash_attn)")
        columns["flash_attn"] = False
    if row.dtype.lower() == "fp8" and told.get("precision_recipe", "").startswith("mxfp8"):
        columns["dtype"] = "mxfp8"
    columns["zero_or_fsdp"] = row.zero_or_fsdp or _sharding(told)
    if framework.alone and row.gpus_total == 1:
        columns["zero_or_fsdp"] = framework.alone
    columns["overlap"] = row.overlap or _overlap(row, told, framework)
    columns["grad_dtype"] = row.grad_dtype or GRAD_DTYPES.get(told.get("grad_reduce_dtype", ""), "")
    columns |= _recompute(row, told)
    columns |= _software(row, told)
    columns |= _experts(row, told)
    columns |= argument_columns(row, told, assumed)
    if not columns["launch"] and "mlperf" in row.model_name.lower() and row.gpu.lower() in SLOW_HOSTS:
        assumed.append("launch: not told; a graph a layer, as in 16 of 18 submissions with adapters on that device")
        columns["launch"] = "graph_layers"
    columns |= technique_columns(row, told, columns)
    columns["pipeline_layout"] = row.pipeline_layout or _layout(told, dict(columns["degrees"]), assumed)
    return replace(row, **columns)


def _degrees(row: RunRow, told: Told, assumed: list[str]) -> tuple[tuple[str, int], ...]:
    """The stated degrees, and those told where the row states none; dp where that printed contradicts the devices."""
    stated = dict(row.degrees)
    for name in ("tp", "pp", "dp", "vpp", "etp"):
        degree = count(told, name)
        if name not in stated and degree:
            stated[name] = degree
    consistent = count(told, "dp_if_consistent")
    if consistent and consistent != stated.get("dp"):
        stated["dp"] = consistent
        assumed.append(f"dp: {consistent}, as the other degrees and the devices imply, where another is printed")
    return tuple(stated.items())


def _layout(told: Told, degrees: dict[str, int], assumed: list[str]) -> str:
    """The layout told of a recipe; of one for other degrees than the run's nothing is known."""
    # What is told is in lower case; of Megatron's letters E and L are capitals.
    layout = told.get("pipeline_layout", "").replace("e", "E").replace("l", "L")
    chunks = degrees.get("pp", 1) * degrees.get("vpp", 1)
    if layout and len(blocks_by_chunk(layout)) != chunks:
        assumed.append(f"pipeline_layout: that of the recipe is for other degrees than {chunks} chunks; divided evenly")
        return ""
    return layout


def _sharding(told: Told) -> str:
    stage = told.get("zero_stage", "")
    if not stage and "fsdp" in told.get("sharding", ""):
        return told["sharding"]
    return stage


def _overlap(row: RunRow, told: Told, framework: PublishedFramework) -> str:
    """What runs beside compute; blank where nothing is told of it. Stages' messages are hidden wherever Megatron
    interleaves, unless it is said that they are not. What Megatron hides of tensor parallelism without being asked to
    stays hidden where its option is off (the feature `tensor_overlap`)."""
    stated = {kind: flag(told, *names) for kind, names in OVERLAPS.items()}
    if stated["dp"] is None and stated["p2p"] is None:
        return ""
    asked = told.get("tp_comm_overlap", "").startswith("userbuffers") or flag(told, "tp_comm_overlap")
    stated["tp"] = asked or "tp" in framework.declared.overlap
    interleaved = (row.degree("vpp") or count(told, "vpp") or 1) > 1
    stated["p2p"] = interleaved if stated["p2p"] is None else stated["p2p"]
    return "+".join(kind for kind in get_args(Overlap) if stated.get(kind)) or "none"


def _recompute(row: RunRow, told: Told) -> dict[str, Any]:
    """Recomputation by kind and number of layers."""
    kind = row.recompute or told.get("recompute", "")
    layers = count(told, "recompute_layers", "recompute_num_layers")
    columns: dict[str, Any] = {"recompute": kind}
    if kind == "full" and layers and told.get("recompute_method") == "block":
        columns["recompute_layers"] = layers
    return columns


def _modules(told: Told) -> list[str]:
    """What selective recomputation runs again, of the modules that are told."""
    words = re.split(r"[+,\s\[\]]+", told.get("recompute_modules", ""))
    return sorted({MODULES[word] for word in words if word in MODULES})


def _software(row: RunRow, told: Told) -> dict[str, Any]:
    """Features of the software and what it offloads."""
    features = [row.features] if row.features else []
    features += argument_features(row, told)
    dispatcher = told.get("moe_dispatcher") or told.get("dispatcher") or told.get("moe_token_dispatcher_type", "")
    if dispatcher:
        name = "hybrid" if "hybridep" in dispatcher else "deduplicated" if "deepep" in dispatcher else "all_to_all"
        features.append(f"dispatch={name}")
    if flag(told, "te_op_fuser"):
        features.append("grouped_products=fused")
    if flag(told, "moe_paged_stash"):
        features.append("paged_stash=yes")
    scaling = f"{told.get('precision_recipe', '')} {told.get('fp8_recipe', '')}"
    if re.search("current|tensorwise|delayed", scaling):
        features.append(f"fp8_scaling={'delayed' if 'delayed' in scaling else 'current'}")
    wide = re.fullmatch(r"(\d+)\+(\d+)", told.get("bf16_layers_first_last", ""))
    if wide and wide.groups() != ("0", "0"):
        features += [f"wide_first={wide[1]}", f"wide_last={wide[2]}"]
    elif flag(told, "first_last_layers_bf16"):
        # Megatron's --num-layers-at-start-in-bf16 and -at-end-in-bf16 where they are not given.
        features += ["wide_first=1", "wide_last=1"]
    beside = flag(told, "moe_shared_expert_overlap")
    if beside is not None:
        features.append(f"shared_beside={'yes' if beside else 'no'}")
    modules = _modules(told)
    if modules and (row.recompute or told.get("recompute")) == "selective":
        features.append(f"selective={'+'.join(modules)}")
    features += _stated_features(row, told)
    features += _offloaded_layers(row, told)
    if flag(told, "no_gradient_accumulation_fusion"):
        features.append("fused_accumulation=no")
    features += _memory_features(told)
    if flag(told, "cross_entropy_loss_fusion") and told.get("cross_entropy_fusion_impl") != "te":
        features.append("loss_in_place=no")
    entropy = told.get("cross_entropy_fusion") or told.get("cross_entropy_loss_fusion", "")
    offloaded = count(told, *OFFLOADED_LAYERS)
    return {
        "launch": row.launch or _launch(told),
        "features": "; ".join(features),
        "kernels": row.kernels or ("fused" if flag(told, "compile") else ""),
        "fused_cross_entropy": row.fused_cross_entropy
        if row.fused_cross_entropy is not None or not entropy
        else entropy not in ("0", "false", "none"),
        "offload": row.offload or ("activations" if offloaded or flag(told, *OFFLOADING) else ""),
    }


def _launch(told: Told) -> str:
    """How kernels are launched: by the graph that is told of, its scope, or a compiler; blank where nothing is."""
    graph = told.get("cuda_graph_impl") or told.get("cuda_graph", "")
    scope = told.get("cuda_graph_scope") or told.get("cuda_graph_modules", "")
    if graph in GRAPHS:
        return GRAPHS[graph]
    if scope in GRAPHS:
        return GRAPHS[scope]
    if "attn" in scope:
        return "graph_dense"
    if "moe_router" in scope:
        return "graph_router"
    return "eager" if scope else "compiled" if flag(told, "compile") else ""


def _offloaded_layers(row: RunRow, told: Told) -> list[str]:
    """The share of a stage's layers whose activations are offloaded, where their number is told."""
    layers = count(told, *OFFLOADED_LAYERS)
    if not layers or not row.layers:
        return []
    return [f"offloaded_share={min(1.0, layers * (row.degree('pp') or 1) / row.layers):.3f}"]


def _stated_features(row: RunRow, told: Told) -> list[str]:
    """What is told of attention's precision and of tensor-parallel exchange."""
    stated = []
    narrow, pipelined = flag(told, "fp8_attention"), flag(told, "tp_comm_overlap")
    if narrow is not None:
        word = "first" if re.search(FIRST_NARROW_ATTENTION, row.source_repo_or_paper) else "yes"
        stated.append(f"fp8_attention={word if narrow else 'no'}")
    if told.get("tp_comm_overlap", "").startswith("userbuffers"):
        pipelined = True
    if pipelined is not None:
        stated.append(f"tensor_overlap={'pipelined' if pipelined else 'backward'}")
    return stated


def _memory_features(told: Told) -> list[str]:
    """What is told of how weights, moments and adapters are held. Submissions of Llama 2 70B with adapters keep frozen
    weights in the narrow type and their activations' inputs in 8 bits (activation_func_fp8_input_store of Megatron
    Core): 80 layers of 8,192 tokens do not fit a B200 otherwise, and ran."""
    adapters, gathered = told.get("lora", ""), flag(told, "fp8_param_gather", "fp8_all_gather")
    features = ["moments=bf16"] if told.get("exp_avg_dtype") == "bfloat16" else []
    if adapters.startswith("rank"):
        targets = "attention" if "attention" in adapters else "all"
        return [*features, f"lora_targets={targets}", "narrow_parameters=yes", "narrow_activations=yes"]
    if gathered is not None:
        features.append(f"narrow_parameters={'yes' if gathered else 'no'}")
    return features


def _experts(row: RunRow, told: Told) -> dict[str, Any]:
    """Of a mixture: capacity, the first dense blocks, shared experts and latent attention as Megatron's options state
    them."""
    columns: dict[str, Any] = {}
    capacity = told.get("moe_capacity_factor", "")
    if row.moe_capacity_factor is None and re.fullmatch(r"\d+(\.\d+)?", capacity):
        columns["moe_capacity_factor"] = float(capacity)
    pattern = re.fullmatch(r"\(\[0\]\*(\d+)\+\[1\]\*\d+\)", told.get("moe_layer_freq", ""))
    if pattern and row.dense_layers is None:
        columns["dense_layers"] = int(pattern[1])
    shared, width = count(told, "moe_shared_expert_intermediate_size"), row.moe_ffn or row.ffn_hidden
    if shared and width and row.shared_experts is None and not shared % width:
        columns["shared_experts"] = shared // width
    if flag(told, "multi_latent_attention") and row.key_value_rank is None:
        # Megatron-core's defaults of its options (megatron/training/arguments.py, _add_mla_args).
        columns |= {"key_value_rank": 32, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
    return columns
