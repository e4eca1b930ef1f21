"""What a model's config says beside its layers, in the fields of Megatron Core and back: rotary base and scaling, the
norms' epsilon, how the router chooses. What Megatron has no field for is noted by name."""

from __future__ import annotations

from typing import Any

from models_zoo.model import RouterTraits
from planner.one_job.tools.base.decoder import Decoder
from planner.one_job.tools.megatron.arguments import Arguments

Fields = dict[str, Any]

LLAMA_SCALING = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192.0}
"""What Megatron takes for granted beside the factor (its rotary_pos_embedding.py)."""

YARN_BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}
"""Likewise, of YaRN."""


def rotary_fields(decoder: Decoder, notes: list[str]) -> Fields:
    """Return base and scaling of rotary positions. Adds to `notes` what is not known or cannot be said."""
    base = decoder.traits.rope_base
    if base is None:
        notes.append("the base and scaling of rotary positions are not part of a plan: add the model's own")
        return {}
    fields: Fields = {"rotary_base": _plain(base), **_scaling_fields(decoder, notes)}
    return fields


def norm_fields(decoder: Decoder) -> Fields:
    """Return the norms' epsilon, nothing where nobody says it."""
    epsilon = decoder.traits.norm_eps
    return {} if epsilon is None else {"layernorm_epsilon": epsilon}


def router_fields(decoder: Decoder, notes: list[str]) -> Fields:
    """Return how experts are chosen. Adds to `notes` what of it Megatron cannot be told."""
    experts, router = decoder.experts, decoder.traits.router
    if experts is None:
        return {}
    if router is None or router.score is None:
        return {"moe_router_pre_softmax": experts.top_k == 1}
    softmax = router.score == "softmax"
    if router.normalizes is None:
        notes.append(
            "whether the router's scores are made to sum to 1 is not in the config: check moe_router_pre_softmax"
        )
    if not softmax and router.normalizes is False and experts.top_k > 1:
        notes.append("norm_topk_prob false: Megatron makes several sigmoid scores sum to 1")
    return {
        "moe_router_score_function": router.score,
        "moe_router_pre_softmax": softmax and (router.normalizes is False or experts.top_k == 1),
        **_chosen_fields(router),
    }


def _chosen_fields(router: RouterTraits) -> Fields:
    return {
        "moe_router_num_groups": router.groups,
        "moe_router_group_topk": router.chosen_groups,
        "moe_router_topk_scaling_factor": router.scale if router.scale not in (None, 1.0) else None,
        "moe_router_enable_expert_bias": bool(router.balancing_bias) and router.score == "sigmoid",
    }


def _scaling_fields(decoder: Decoder, notes: list[str]) -> Fields:
    scaling = dict(decoder.traits.rope_scaling)
    kind, factor = scaling.get("rope_type"), scaling.get("factor")
    if kind is None:
        return {"rope_type": "rope"} if decoder.latent is not None else {}
    if decoder.latent is not None and kind == "yarn" and isinstance(factor, float):
        _note_others(scaling, YARN_BETAS, notes)
        return {
            "rope_type": "yarn",
            "rotary_scaling_factor": _plain(factor),
            "original_max_position_embeddings": _plain(scaling.get("original_max_position_embeddings")),
            "mscale": scaling.get("mscale"),
            "mscale_all_dim": scaling.get("mscale_all_dim"),
        }
    if decoder.latent is None and kind == "llama3" and isinstance(factor, float):
        _note_others(scaling, LLAMA_SCALING, notes)
        return {"use_rope_scaling": True, "rope_scaling_factor": factor}
    if decoder.latent is None and kind == "linear" and isinstance(factor, float) and factor.is_integer():
        return {"seq_len_interpolation_factor": int(factor)}
    notes.append(
        f"rope_scaling of type {kind} (factor {factor}) is not in this file: Megatron has no argument for it here"
    )
    return {"rope_type": "rope"} if decoder.latent is not None else {}


def _note_others(scaling: dict[str, str | float], usual: dict[str, float], notes: list[str]) -> None:
    """Note what of the scaling is other than Megatron takes it to be."""
    other = {name: value for name, value in scaling.items() if name in usual and value != usual[name]}
    if other:
        stated, has = (", ".join(f"{name} {values[name]:g}" for name in other) for values in (other, usual))
        notes.append(f"rope_scaling: {stated} cannot be said to Megatron, which has {has}")


def carried_keys(arguments: Arguments) -> dict[str, Any]:
    """Return what the arguments say of these in the keys of a `config.json`, so that another export says it too."""
    keys: dict[str, Any] = {}
    for name, key in (("rotary-base", "rope_theta"), ("norm-epsilon", "rms_norm_eps")):
        if arguments.text(name) is not None:
            keys[key] = arguments.number(name, 0.0)
    if arguments.has("use-rope-scaling"):
        factor = arguments.number("rope-scaling-factor", 8.0)
        keys["rope_scaling"] = {"rope_type": "llama3", "factor": factor, **LLAMA_SCALING}
    return keys | (_router_keys(arguments) if arguments.count("num-experts", least=0) else {})


def _router_keys(arguments: Arguments) -> dict[str, Any]:
    score = arguments.text("moe-router-score-function")
    if score not in ("softmax", "sigmoid"):
        return {}
    normalizes = score == "sigmoid" or not arguments.has("moe-router-pre-softmax")
    keys: dict[str, Any] = {"scoring_func": score, "norm_topk_prob": normalizes}
    if arguments.text("moe-router-topk-scaling-factor") is not None:
        keys["routed_scaling_factor"] = arguments.number("moe-router-topk-scaling-factor", 1.0)
    if arguments.count("moe-router-num-groups") is not None:
        keys |= {
            "n_group": arguments.count("moe-router-num-groups"),
            "topk_group": arguments.count("moe-router-group-topk"),
        }
    return keys | ({"topk_method": "noaux_tc"} if arguments.has("moe-router-enable-expert-bias") else {})


def _plain(value: str | float | None) -> int | float | str | None:
    return int(value) if isinstance(value, float) and value.is_integer() else value
