"""What a config says beside its layers, for the launchers that a plan is written for: rotary base and scaling, the
norms' epsilon, how a router chooses."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

from models_zoo.hugging_face.keys import Keys
from models_zoo.model import ModelTraits, RouterTraits

EPSILONS = (
    "rms_norm_eps",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "norm_eps",
    "norm_epsilon",
    "layernorm_epsilon",
    "eps",
)
BASES = ("rope_theta", "rotary_emb_base", "rotary_base")

SIGMOID = RouterTraits(score="sigmoid", normalizes=True, balancing_bias=True)
ROUTERS: dict[str, RouterTraits] = {
    "mixtral": RouterTraits(score="softmax", normalizes=True),
    "phimoe": RouterTraits(score="softmax"),
    "qwen2_moe": RouterTraits(score="softmax"),
    "qwen3_moe": RouterTraits(score="softmax"),
    "qwen3_next": RouterTraits(score="softmax"),
    "olmoe": RouterTraits(score="softmax"),
    "flex_olmo": RouterTraits(score="softmax"),
    "granitemoe": RouterTraits(score="softmax", normalizes=True),
    "granitemoeshared": RouterTraits(score="softmax", normalizes=True),
    "granitemoehybrid": RouterTraits(score="softmax", normalizes=True),
    "gpt_oss": RouterTraits(score="softmax", normalizes=True),
    "llama4_text": RouterTraits(score="sigmoid", normalizes=False),
    "deepseek_v2": RouterTraits(score="softmax"),
    **dict.fromkeys(
        (
            "deepseek_v3",
            "glm4_moe",
            "glm4_moe_lite",
            "dots1",
            "exaone_moe",
            "solar_open",
            "minimax_m2",
            "nemotron_h",
            "hy_v3",
        ),
        SIGMOID,
    ),
}
"""What the class of a family does where its config does not say otherwise."""


def read_traits(keys: Keys, family: str) -> ModelTraits:
    """Return what the config says beside the layers; None for what it leaves to the class. Raise InputError for a value
    of the wrong kind."""
    rope = keys.part("rope_parameters") if _is_object(keys, "rope_parameters") else None
    if rope is not None:
        # By kind of layer (Gemma 3, OLMo 3): the full ones are what launchers mean.
        for kind in ("full_attention", "sliding_attention"):
            if isinstance(rope.values.get(kind), Mapping):
                rope = rope.part(kind)
                break
    base = None if rope is None else _number(rope, BASES)
    return ModelTraits(
        rope_base=_number(keys, BASES) if base is None else base,
        rope_scaling=_scaling(keys, rope),
        norm_eps=_number(keys, EPSILONS),
        router=_router(keys, family),
    )


def _is_object(keys: Keys, key: str) -> bool:
    return isinstance(keys.get(key, None), Mapping)


def _number(keys: Keys, names: tuple[str, ...]) -> float | None:
    stated = (keys.number(name, above=name in BASES) for name in names)
    return next((value for value in stated if value is not None), None)


def _scaling(keys: Keys, rope: Keys | None) -> tuple[tuple[str, str | float], ...]:
    """The settings of rotary positions that stretch them, under `rope_scaling` or among `rope_parameters`."""
    part = keys.part("rope_scaling") if _is_object(keys, "rope_scaling") else rope
    if part is None:
        return ()
    stated: dict[str, Any] = {"rope_type" if name == "type" else name: part.values[name] for name in part.values}
    plain = {
        name: value
        for name, value in stated.items()
        if name not in (*BASES, "partial_rotary_factor")
        and (
            isinstance(value, str)
            or (isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value))
        )
    }
    if plain.get("rope_type", "default") == "default":
        return ()
    return tuple(sorted((name, value if isinstance(value, str) else float(value)) for name, value in plain.items()))


def _router(keys: Keys, family: str) -> RouterTraits | None:
    usual = ROUTERS.get(family)
    stated = keys.get("scoring_func", keys.get("expert_selection_fn", None))
    if usual is None and stated is None:
        return None
    usual = usual or RouterTraits()
    groups = keys.optional_size("n_group")
    return RouterTraits(
        score=stated if stated in ("softmax", "sigmoid") else usual.score,
        groups=groups if groups != 1 else None,
        chosen_groups=keys.optional_size("topk_group") if groups not in (None, 1) else None,
        normalizes=usual.normalizes if keys.get("norm_topk_prob", None) is None else keys.flag("norm_topk_prob", False),
        scale=_number(keys, ("routed_scaling_factor", "router_scaling_factor")),
        balancing_bias=True if keys.get("topk_method", None) == "noaux_tc" else usual.balancing_bias,
    )
