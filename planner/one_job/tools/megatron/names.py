"""What Megatron calls things: tables that are read forwards to read settings and `backwards` to write a plan.

Core's fields are Megatron-LM's arguments with dashes for underscores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any

from estimator.pricing.recipe import OptimizerName, ZeroStage
from profiles.records import dataclass
from profiles.vocabulary import DType

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}

BATCH = {"micro_batch": "micro-batch-size", "global_batch": "global-batch-size", "seq_len": "seq-length"}

OPTIMIZERS: dict[str, OptimizerName] = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}

FP8_RECIPES: dict[str, DType] = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "blockwise": "fp8_block",
    "mxfp8": "mxfp8",
    "custom": "fp8",
}
"""--fp8-recipe; the first is what Megatron takes where none is given."""

STRATEGIES: dict[str, ZeroStage] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""--data-parallel-sharding-strategy of Megatron FSDP."""


def argument(field: str) -> str:
    """Return the argument of a field of Megatron Core.

    >>> argument("context_parallel_size")
    'context-parallel-size'
    """
    return field.replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A size of a part of a model: Core's field, Megatron-LM's argument, the key of a `config.json`, and `of`, which
    reads it from the part. `default` is what Megatron takes where the argument is not given."""

    field: str
    argument: str
    key: str
    of: Callable[[Any], int | None]
    default: int | None = None


def _sizes(*rows: tuple[str, str, str, int | None]) -> tuple[Size, ...]:
    return tuple(
        Size(field=name.replace("-", "_"), argument=name, key=key, of=attrgetter(path), default=default)
        for name, key, path, default in rows
    )


LATENT = _sizes(
    ("q-lora-rank", "q_lora_rank", "query_rank", None),
    ("kv-lora-rank", "kv_lora_rank", "key_value_rank", 32),
    ("qk-head-dim", "qk_nope_head_dim", "nope_dim", 128),
    ("qk-pos-emb-head-dim", "qk_rope_head_dim", "rope_dim", 64),
    ("v-head-dim", "v_head_dim", "value_dim", 128),
)
"""Of latent attention."""

EXPERTS = (
    Size(field="num_moe_experts", argument="num-experts", key="num_experts", of=attrgetter("count"), default=0),
    *_sizes(
        ("moe-ffn-hidden-size", "moe_intermediate_size", "expert.hidden", None),
        ("moe-router-topk", "num_experts_per_tok", "top_k", 2),
        ("moe-shared-expert-intermediate-size", "shared_expert_intermediate_size", "shared_hidden", 0),
    ),
)
"""Of mixtures of experts; without --moe-ffn-hidden-size experts are as wide as dense blocks."""


def fields_of(part: object, sizes: Iterable[Size]) -> dict[str, int | None]:
    """Return the fields of a part's sizes; None for those that it has not."""
    return {size.field: size.of(part) or None for size in sizes}
