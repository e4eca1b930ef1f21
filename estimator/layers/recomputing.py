"""What backward computes again of a layer: all of it, or the modules that selective recomputation names.

The modules are Megatron Core's (`--recompute-modules`, megatron/core/transformer/transformer_config.py): `core_attn`
attention without its projections; `moe_act` the experts' activation; `layernorm` the norms before attention and
feed-forward; `mla_up_proj` latent attention's up projections with their rotation; `mlp` a dense feed-forward; `moe` a
mixture with its exchanges; `shared_experts` its shared expert. A module that ends in another's input keeps that no
longer; `mlp`, `moe` and `shared_experts` keep their own input alone.

`every_second_product` is torchtitan's selective checkpointing by operator (its models' parallelize, _save_list): what
attention and every second matrix product give is kept, all else of a block runs again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from estimator.layers.parts import Piece
from estimator.layers.split import Split
from profiles.vocabulary import Collective, Operator, RecomputeModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What runs once more in backward, and the saved bytes that it makes unnecessary."""

    operators: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()
    freed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Module:
    """The operators of a module by what their names begin with, but for `beside`, and those whose kept tensors it makes
    again."""

    again: tuple[str, ...]
    frees: tuple[str, ...]
    beside: tuple[str, ...] = ()


MODULES: dict[RecomputeModule, _Module] = {
    "moe_act": _Module(again=("experts.activation",), frees=("experts.down",)),
    "layernorm": _Module(
        again=("attention.norm", "mlp.norm"),
        frees=("attention.qkv", "attention.query_down", "experts.router", "mlp.up"),
    ),
    "mla_up_proj": _Module(
        again=("attention.query_up", "attention.key_value_up", "attention.assemble", "attention.rotary"),
        frees=("attention.flash",),
    ),
    "mlp": _Module(again=("mlp.up", "mlp.activation", "mlp.down"), frees=("mlp.activation", "mlp.down")),
    "moe": _Module(again=("experts.",), frees=("experts.",), beside=("experts.router",)),
    "shared_experts": _Module(
        again=("experts.shared.",), frees=("experts.shared.activation", "experts.shared.down", "experts.shared.gating")
    ),
}
"""All modules but `core_attn`, which pieces tell themselves (`Piece.core`)."""


LOG_SUM_BYTES = 4
"""The fused attention kernel's log-sum-exp of a row and head, in fp32."""


def computed_again(piece: Piece, operators: tuple[Operator, ...], split: Split, *, is_end: bool) -> Again:
    """Return what of `piece`, which runs as `operators`, backward computes again under the split's recomputation; an
    embedding or a head is never run again as a whole."""
    if split.recompute == "full" and not is_end:
        needed = _needed(operators) if split.recomputes_needed else operators
        left_out = operators[len(needed) :]
        return Again(
            operators=needed,
            collectives=tuple(each for each in _forward(piece.collectives) if not _left_out(each, left_out)),
            freed_bytes=piece.saved_bytes - piece.input_bytes,
        )
    if split.recompute != "selective":
        return Again()
    if "every_second_product" in split.selective and not is_end:
        return _every_second(piece, operators, split)
    parts = [MODULES[name] for name in split.selective if name in MODULES]
    core = piece.core if "core_attn" in split.selective else ()
    return Again(
        operators=(*core, *(op for op in operators if any(op.name.startswith(part.again) for part in parts))),
        collectives=tuple(each for each in _forward(piece.collectives) if _is_exchange(each, split)),
        freed_bytes=(piece.core_saved_bytes if core else 0)
        + sum(_freed_bytes(op) for op in operators if any(_frees(part, op) for part in parts)),
    )


def _every_second(piece: Piece, operators: tuple[Operator, ...], split: Split) -> Again:
    """Of products in turn the result of one is kept, the next runs again; of gate and up, which are one product here,
    half does. The last one's result nobody needs again."""
    kept, again, number = piece.input_bytes, list[Operator](), 0
    for op in operators:
        if op.kind == "attention":
            batch, queries, _, q_len, _, _, v_dim, _ = op.shape
            kept += batch * q_len * queries * (v_dim * split.width + LOG_SUM_BYTES)
        elif op.kind != "gemm":
            again.append(op)
        elif op.name.endswith(".up"):
            kept += op.shape[0] * op.shape[1] * split.width // 2
            again.append(_half(op))
        elif not op.name.endswith(".down"):
            kept += 0 if number % 2 else op.shape[0] * op.shape[1] * split.width
            again += [op] if number % 2 else []
            number += 1
    freed = max(0, piece.saved_bytes - kept)
    # What is reduced and scattered is kept, what is gathered is not.
    gathers = tuple(each for each in _forward(piece.collectives) if each.op != "reduce_scatter")
    return Again(operators=tuple(again), collectives=gathers, freed_bytes=freed)


def _half(op: Operator) -> Operator:
    """The product with half of its columns."""
    m, n, k = op.shape
    return replace(
        op,
        shape=(m, n // 2, k),
        forward_flops=op.forward_flops // 2,
        forward_bytes=op.forward_bytes // 2,
        saved_bytes=0,
    )


def _needed(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What of a layer backward needs again: all before its last product, whose result is only added to the residual
    stream. Products of experts stay: the gradient of a token's weight is taken with their result."""
    last = max((place for place, op in enumerate(operators) if op.kind in ("gemm", "grouped_gemm")), default=None)
    return operators if last is None or operators[last].kind != "gemm" else operators[:last]


def _left_out(collective: Collective, operators: tuple[Operator, ...]) -> bool:
    """Whether `collective` sums the result of one of `operators`, the products that do not run again."""
    branches = {op.name.rsplit(".", 1)[0] for op in operators if op.kind == "gemm"}
    return collective.name.endswith(".leave") and collective.name.rsplit(".", 1)[0] in branches


def _forward(collectives: Iterable[Collective]) -> tuple[Collective, ...]:
    return tuple(each for each in collectives if each.phase == "forward")


def _is_exchange(collective: Collective, split: Split) -> bool:
    return "moe" in split.selective and collective.name.startswith("experts.")


def _frees(part: _Module, op: Operator) -> bool:
    return op.name.startswith(part.frees) and op.name not in part.beside


def _freed_bytes(op: Operator) -> int:
    """What an operator keeps; of attention, which keeps its result too, the queries', keys' and values' part."""
    if op.kind != "attention":
        return op.saved_bytes
    _, queries, kv, _, _, qk_dim, v_dim, _ = op.shape
    inputs = queries * qk_dim + kv * (qk_dim + v_dim)
    return op.saved_bytes * inputs // (inputs + queries * v_dim)
