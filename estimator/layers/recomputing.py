"""What backward computes again of a layer: all of it, or the modules that selective recomputation names.

The modules are Megatron Core's (`--recompute-modules`, megatron/core/transformer/transformer_config.py): `core_attn`
attention without its projections; `moe_act` the experts' activation; `layernorm` the norms before attention and
feed-forward; `mla_up_proj` latent attention's up projections with their rotation; `mlp` a dense feed-forward; `moe` a
mixture with its exchanges; `shared_experts` its shared expert. A module that ends in another's input keeps that no
longer; `mlp`, `moe` and `shared_experts` keep their own input alone. `by_operator` is PyTorch's selective
checkpointing as torchtitan sets it (torchtitan, distributed/activation_checkpoint.py): attention's kernel and every
other product of a block keep their results, all else runs again.
"""

from __future__ import annotations

from collections.abc import Iterable

from estimator.layers.parts import Piece
from estimator.layers.split import Split
from profiles.records import dataclass, replace
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
"""All modules but `core_attn`, which pieces tell themselves (`Piece.core`), and the policy `by_operator`."""
PRODUCTS = ("gemm", "grouped_gemm")


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
    if "by_operator" in split.selective:
        return Again() if is_end else _by_operator(piece, operators, split)
    parts = [MODULES[name] for name in split.selective if name in MODULES]
    core = piece.core if "core_attn" in split.selective else ()
    return Again(
        operators=(*core, *(op for op in operators if any(op.name.startswith(part.again) for part in parts))),
        collectives=tuple(each for each in _forward(piece.collectives) if _is_exchange(each, split)),
        freed_bytes=(piece.core_saved_bytes if core else 0)
        + sum(_freed_bytes(op) for op in operators if any(_frees(part, op) for part in parts)),
    )


def _by_operator(piece: Piece, operators: tuple[Operator, ...], split: Split) -> Again:
    """What runs again where every other product keeps its result; nothing after the last product need."""
    attention = next((op for op in operators if op.kind == "attention"), None)
    last = max((place for place, op in enumerate(operators) if op.kind in PRODUCTS), default=-1)
    again: list[Operator] = []
    kept, products = float(piece.input_bytes), 0
    for place, op in enumerate(operators[: last + 1]):
        if op.kind == "attention":
            kept += op.saved_bytes - _freed_bytes(op)
        elif op.kind not in PRODUCTS:
            again.append(op)
        else:
            columns = _columns_of_modules(op, attention)
            dropped = sum(columns[1 - products % 2 :: 2]) / sum(columns)
            products += len(columns)
            kept += (1 - dropped) * op.forward_flops / 2 / op.shape[-1] * split.width
            if dropped and place < last:
                again.append(_part(op, dropped))
    return Again(operators=tuple(again), freed_bytes=max(0, round(piece.saved_bytes - kept)))


def _columns_of_modules(product: Operator, attention: Operator | None) -> tuple[int, ...]:
    """Columns of each product that PyTorch's modules run where one is described here: queries, keys and values; the
    gate and what it gates."""
    columns = product.shape[-2]
    if attention is not None and product.name.endswith(".qkv"):
        _, queries, kv, _, _, qk_dim, v_dim, _ = attention.shape
        return queries * qk_dim, kv * qk_dim, kv * v_dim
    if product.name.endswith(".up"):
        return columns // 2, columns - columns // 2
    return (columns,)


def _part(product: Operator, share: float) -> Operator:
    """`share` of a product's columns, forward."""
    *rows, columns, inner = product.shape
    some = max(1, round(columns * share))
    return replace(
        product,
        shape=(*rows, some, inner),
        forward_flops=product.forward_flops * some // columns,
        forward_bytes=product.forward_bytes * some // columns,
    )


def _needed(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """What of a layer backward needs again: all before its last product, whose result is only added to the residual
    stream. Products of experts stay: the gradient of a token's weight is taken with their result."""
    last = max((place for place, op in enumerate(operators) if op.kind in PRODUCTS), default=None)
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
