"""What Megatron-LM's arguments turn on or off in the software: features in place of those that it is declared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from estimator.pricing.recipe import Launch
from models_zoo.model import Model
from planner.one_job.tools.base.import_records import Stated
from planner.one_job.tools.base.shape import blocks_of, experts_of
from planner.one_job.tools.megatron.arguments import Arguments
from profiles.vocabulary import RecomputeModule

Features = dict[str, Any]

GRAPHS: Mapping[str, Launch] = {"full_iteration": "graph", "full": "graph_layers", "": "graph_layers"}
"""How kernels are launched, by --cuda-graph-scope; other words are of graphs of some modules of a layer."""

NARROW_MOMENTS = ("exp-avg-dtype", "exp-avg-sq-dtype")
FP8_ATTENTION = ("fp8-dot-product-attention", "fp8-multi-head-attention")
FIRST_WIDE, LAST_WIDE = "num-layers-at-start-in-bf16", "num-layers-at-end-in-bf16"


def read_software(arguments: Arguments, model: Model, stated: Stated, notes: list[str]) -> Features:
    """Return features of the software that `arguments` state, by name; `stated` holds the options that they give.

    Adds to `notes` what of it estimates take otherwise. Raise InputError for a word that Megatron does not know.
    """
    features: Features = {
        "fused_cross_entropy": arguments.has("cross-entropy-loss-fusion"),
        "fused_accumulation": not arguments.has("no-gradient-accumulation-fusion"),
    }
    eager = [arguments.has("no-bias-dropout-fusion"), arguments.has("no-bias-gelu-fusion", "no-bias-swiglu-fusion")]
    if all(eager):
        features["kernels"] = "eager"
    elif any(eager):
        notes.append("one fusion of small operators is off; all are priced as fused")
    elements = arguments.count("ddp-bucket-size")
    if elements is not None and "dp" in (stated["overlap"] or ()):
        features["bucket_bytes"] = elements * (4 if stated["grad_dtype"] == "fp32" else 2)
    if arguments.has("deterministic-mode"):
        features["deterministic"] = True
    if stated["recompute"] == "selective":
        features["selective"] = recomputed_modules(arguments, [])
    offloaded, blocks = offloaded_layers(arguments), len(blocks_of(model))
    if offloaded and blocks:
        # So many of each stage's.
        stages = arguments.count("pipeline-model-parallel-size") or 1
        features["offloaded_share"] = min(1.0, offloaded * stages / blocks)
    launch = _launch(arguments)
    return features | _precision(arguments, notes) | _experts(arguments, model) | ({"launch": launch} if launch else {})


def offloaded_layers(arguments: Arguments) -> int:
    """Return of how many layers of a stage activations are in host memory."""
    return arguments.count("cpu-offloading-num-layers", least=0) or 0


def recomputed_modules(arguments: Arguments, notes: list[str]) -> tuple[RecomputeModule, ...]:
    """Return what selective recomputation runs again, of what estimates know; adds the rest to `notes`."""
    words = arguments.words("recompute-modules") or ("core_attn",)
    if arguments.has("moe-layer-recompute"):
        words = (*words, "moe")
    modules: dict[str, RecomputeModule] = {name: name for name in get_args(RecomputeModule)}
    others = [word for word in words if word not in modules]
    if others:
        notes.append(f"recomputation of {', '.join(others)}: not modelled; priced as kept")
    return tuple(sorted({modules[word] for word in words if word in modules}))


def _precision(arguments: Arguments, notes: list[str]) -> Features:
    """What is narrow besides products: attention, weights as held and gathered, the optimizer's moments; and what is
    not, layers at either end."""
    features: Features = {}
    if arguments.text("fp8-recipe") == "tensorwise":
        features["fp8_scaling"] = "current"
    if arguments.has(*FP8_ATTENTION):
        features["fp8_attention"] = "yes"
    if arguments.has("fp8-param-gather"):
        features["narrow_parameters"] = True
    if arguments.has("first-last-layers-bf16"):
        for name, feature in ((FIRST_WIDE, "wide_first"), (LAST_WIDE, "wide_last")):
            count = arguments.count(name, least=0)
            features[feature] = 1 if count is None else count
    moments = {arguments.text(name, "fp32") for name in NARROW_MOMENTS}
    if arguments.has("use-precision-aware-optimizer") and moments == {"bf16"}:
        features["moments"] = "bf16"
    elif moments != {"fp32"}:
        notes.append(f"--{', --'.join(NARROW_MOMENTS)}: the optimizer's moments are priced in fp32")
    return features


def _experts(arguments: Arguments, model: Model) -> Features:
    """How tokens come to a mixture's experts, and how those are multiplied."""
    features: Features = {}
    flex = arguments.text("moe-token-dispatcher-type") == "flex"
    backend = arguments.text("moe-flex-dispatcher-backend", "deepep")
    if flex and backend == "hybridep":
        features["dispatch"] = "hybrid"
    elif arguments.has("moe-enable-deepep") or (flex and backend == "deepep"):
        features["dispatch"] = "deduplicated"
    if experts_of(model) is None:
        return features
    if not arguments.has("moe-grouped-gemm"):
        features["grouped_products"] = "sequential"
    elif arguments.has("use-transformer-engine-op-fuser"):
        features["grouped_products"] = "fused"
    features["shared_beside"] = arguments.has("moe-shared-expert-overlap")
    return features


def _launch(arguments: Arguments) -> Launch | None:
    """How kernels are launched: by graphs of layers, of some of their modules, of the whole iteration; None where
    no argument says."""
    if arguments.text("cuda-graph-impl", "none") == "none":
        return "graph_layers" if arguments.has("enable-cuda-graph", "external-cuda-graph") else None
    scope = arguments.words("cuda-graph-scope")
    if not set(scope) - set(GRAPHS):
        return GRAPHS[scope[0] if scope else ""]
    return "graph_dense" if "attn" in scope else "graph_router" if "moe_router" in scope else "eager"
