"""What single equations of a traced function are: matrix products with their FLOPs, collectives, lookups, the rest.

FLOPs follow torch's counter, as everywhere here: 2 per multiply-add, a convolution's zeros not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Literal

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.extend.core import Literal as LiteralAtom

from estimator.frontends.jax_equations import inner_jaxprs
from estimator.frontends.jax_neutral import CASTS, COLLECTIVES, GATHERS, SCATTERS, SUMS
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp, OperatorKind

EquationKind = Literal["product", "lookup", "collective", "layout", "composite", "alone", "ending", "fused"]
"""`layout` moves nothing (readers take the operand as it lies); `alone` is a kernel of its own; `fused` and `ending`
join their neighbours in one kernel, which an `ending` one, a sum over other than the last axes, finishes."""

_LAYOUT = {
    "reshape",
    "squeeze",
    "expand_dims",
    "transpose",
    "broadcast_in_dim",
    "copy",
    "copy_p",
    "stop_gradient",
} | CASTS
_LOOKUPS = {"gather", "scatter", "scatter-add", "scatter_add", "scatter_mul", "scatter_min", "scatter_max"}
_PRODUCTS = {"dot_general", "conv_general_dilated", "ragged_dot_general", "ragged_dot"}
_LOOPS = {"scan", "while", "cond"}
_ALONE = {
    *("sort", "top_k", "approx_top_k", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "argmax", "argmin"),
    *("reduce_window", "reduce_window_sum", "reduce_window_max", "select_and_scatter", "select_and_scatter_add"),
    *("select_and_gather_add", "fft", "cholesky", "eigh", "qr", "lu", "svd", "triangular_solve", "rng_bit_generator"),
}
_REDUCTIONS = {
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "reduce_and",
    "reduce_or",
    "reduce_xor",
    "reduce",
}
_FOREIGN = re.compile(r"pallas|custom_call|ffi_call|triton|mosaic|dot_product_attention|callback")
_HARMLESS = {"debug_callback", "debug_print"}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]{6,}")


class UncountableError(ValueError):
    """An equation whose work cannot be known from its trace."""


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product or convolution, done `times` times; `shape` as `profiles.vocabulary.Operator` has it."""

    kind: OperatorKind
    shape: tuple[int, ...]
    flops: int
    times: int = 1


@dataclass(frozen=True, slots=True)
class Message:
    """A collective over a tensor of `elements` of `dtype`: the larger of what a rank puts in and takes out."""

    op: CollectiveOp
    elements: int
    dtype: Any


_KINDS: dict[str, EquationKind] = {
    "axis_index": "layout",
    **dict.fromkeys(_PRODUCTS, "product"),
    **dict.fromkeys(_LOOKUPS, "lookup"),
    **dict.fromkeys(COLLECTIVES, "collective"),
    **dict.fromkeys(_LAYOUT, "layout"),
    **dict.fromkeys(_LOOPS, "composite"),
    **dict.fromkeys(_ALONE, "alone"),
}
"""What equations are by the names of their primitives alone."""


def kind_of(eqn: JaxprEqn) -> EquationKind:
    """What `eqn` is. UncountableError for a kernel from elsewhere, whose work its trace does not say."""
    name = eqn.primitive.name
    if _FOREIGN.search(name) and name not in _HARMLESS:
        raise UncountableError(f"{name}, a kernel whose work cannot be counted")
    if name in _REDUCTIONS:
        axes, dims = eqn.params.get("axes", eqn.params.get("dimensions", ())), eqn.invars[0].aval.ndim
        return "fused" if sorted(map(int, axes)) == list(range(dims - len(axes), dims)) else "ending"
    return _KINDS.get(name) or _kind_of_bodies(eqn)


def _kind_of_bodies(eqn: JaxprEqn) -> EquationKind:
    """What an equation is by the traced functions that it calls; without any it is element by element."""
    inside = bodies(eqn)
    kinds = {kind_of(inner) for body in inside for inner in body.eqns}
    if inside and kinds <= {"layout"}:
        return "layout"  # Megatron's f: nothing forward, a sum backward
    if inside and kinds <= {"layout", "collective"}:
        return "collective"
    if kinds & {"product", "collective", "composite"}:
        return "composite"
    if kinds & {"lookup", "alone"}:
        return "alone"
    return "ending" if "ending" in kinds else "fused"


def bodies(eqn: JaxprEqn) -> list[Jaxpr]:
    """The traced functions among the parameters of `eqn`, but not those that say how a reduction combines two."""
    if eqn.primitive.name in _LOOKUPS | _REDUCTIONS | _ALONE:
        return []
    return inner_jaxprs(eqn.params)


def products_in(eqns: Sequence[JaxprEqn], times: int = 1) -> Iterator[Product]:
    """All products that `eqns` do, in loops and calls too; of branches those of the one that does most."""
    for eqn in eqns:
        if eqn.primitive.name in _PRODUCTS:
            kind, shape, flops = _product(eqn)
            yield Product(kind, shape, flops, times)
            continue
        if kind_of(eqn) != "composite":
            continue
        inner = [
            list(products_in(body.eqns, times * (eqn.params["length"] if eqn.primitive.name == "scan" else 1)))
            for body in bodies(eqn)
        ]
        if eqn.primitive.name == "while" and any(inner):
            raise UncountableError("a product in a loop whose length depends on values (while)")
        if eqn.primitive.name == "cond":
            inner = [max(inner, key=lambda products: sum(product.flops * product.times for product in products))]
        for products in inner:
            yield from products


def messages_in(eqns: Sequence[JaxprEqn]) -> Iterator[Message]:
    """All collectives over more than one rank that `eqns` do."""
    for eqn in eqns:
        name = eqn.primitive.name
        if name in COLLECTIVES:
            for source, made in zip(eqn.invars, eqn.outvars, strict=True):
                larger = max(source.aval, made.aval, key=lambda aval: aval.size)
                yield Message(_collective_op(name), larger.size, larger.dtype)
            continue
        for body in bodies(eqn):
            inner = list(messages_in(body.eqns))
            for _ in range(eqn.params["length"] if name == "scan" else 1):
                yield from inner


def _collective_op(name: str) -> CollectiveOp:
    if name in SUMS:
        return "all_reduce"
    if name in GATHERS:
        return "all_gather"
    if name in SCATTERS:
        return "reduce_scatter"
    return "all_to_all" if name == "all_to_all" else "send_recv"


def _product(eqn: JaxprEqn) -> tuple[OperatorKind, tuple[int, ...], int]:
    if eqn.primitive.name == "conv_general_dilated":
        return _convolution(eqn)
    if eqn.primitive.name == "dot_general":
        (contracted, contracted2), (batched, batched2) = eqn.params["dimension_numbers"]
        left, right = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape
        groups, k = prod(left[dim] for dim in batched), prod(left[dim] for dim in contracted)
        m = prod(size for dim, size in enumerate(left) if dim not in (*contracted, *batched))
        n = prod(size for dim, size in enumerate(right) if dim not in (*contracted2, *batched2))
        flops = 2 * groups * m * n * k
        return ("batched_gemm", (groups, m, n, k), flops) if groups > 1 else ("gemm", (m, n, k), flops)
    left, right, made = (atom.aval.shape for atom in (eqn.invars[0], eqn.invars[1], eqn.outvars[0]))
    if len(left) != 2 or len(right) != 3:
        raise UncountableError(f"{eqn.primitive.name} of shapes {left} and {right}")
    (rows, k), (groups, _, n) = left, right
    return "grouped_gemm", (groups, -(-rows // groups), n, k), 2 * prod(made) * k


def _convolution(eqn: JaxprEqn) -> tuple[OperatorKind, tuple[int, ...], int]:
    numbers, params = eqn.params["dimension_numbers"], eqn.params
    x, weight, made = eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, eqn.outvars[0].aval.shape
    batch, c_in, *spatial = (x[dim] for dim in numbers.lhs_spec)
    c_out, c_group, *kernel = (weight[dim] for dim in numbers.rhs_spec)
    places = [made[dim] for dim in numbers.out_spec[2:]]
    if prod(params["lhs_dilation"]) > 1:  # a transposed convolution: each element of the input meets the whole kernel
        places = spatial
    flops = 2 * batch * prod(places) * c_out * c_group * prod(kernel) // params["batch_group_count"]
    first, *more = [made[dim] for dim in numbers.out_spec[2:]]
    stride = params["window_strides"][0]
    return "conv", (batch, c_in, c_out, first, prod(more), kernel[0], prod(kernel[1:]), stride), flops


def equation_text(eqn: JaxprEqn) -> str:
    """One text for all equations that do the same with values of the same types, whatever constants they have."""
    types = [f"{'=' if isinstance(atom, LiteralAtom) else ''}{type_text(atom)}" for atom in eqn.invars]
    made = [type_text(var) for var in eqn.outvars]
    params = [
        f"{name}={_plain(value)}"
        for name, value in sorted(eqn.params.items())
        if name not in ("sharding", "out_sharding") and not callable(value)
    ]
    return f"{eqn.primitive.name}[{';'.join(params)}]({','.join(types)})->({','.join(made)})"


def type_text(atom: Any) -> str:
    """Type of a value: dtype, shape, and over which ranks it differs."""
    return _aval_text(atom.aval)


@lru_cache(maxsize=4096)
def _aval_text(aval: Any) -> str:
    return str(aval).replace("~", "")


def _plain(value: Any) -> str:
    if isinstance(value, ClosedJaxpr):
        value = value.jaxpr
    if isinstance(value, Jaxpr):
        numbers: dict[Any, int] = {}
        return "{" + "|".join(wired_text(eqn, numbers) for eqn in value.eqns) + "}"
    if isinstance(value, tuple | list):
        return f"({','.join(map(_plain, value))})"
    return _ADDRESS.sub("", str(value))


def wired_text(eqn: JaxprEqn, numbers: dict[Any, int], outside: Any = None) -> str:
    """`equation_text` with the numbers of the values that it reads, in order of appearance in `numbers`; values made
    elsewhere get what `outside` says of them."""
    read = []
    for atom in eqn.invars:
        if isinstance(atom, LiteralAtom):
            continue
        if atom not in numbers and outside is not None:
            read.append(f"{outside(atom)}")
        read.append(str(numbers.setdefault(atom, len(numbers))))
    for var in eqn.outvars:
        numbers.setdefault(var, len(numbers))
    return f"{equation_text(eqn)}<{','.join(read)}>"
