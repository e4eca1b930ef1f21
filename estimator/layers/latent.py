"""The projections of multi-head latent attention on one rank, as Megatron Core and the zoo's modules run them."""

from __future__ import annotations

from estimator.layers.operators import gemm
from estimator.layers.parts import Piece, enter, gradient_sum, held, join, linear, memory_pass, norm
from estimator.layers.split import Split
from models_zoo.layers import Attention, LatentAttention, TransformerBlock


def latent_projections(layer: TransformerBlock, spec: Attention, split: Split) -> Piece:
    """From a block's normed input to queries, keys and values of this rank's heads (DeepSeek-V2, section 2.1).

    The down projections are whole on every tp rank. Megatron runs them on the tokens outside the parallel region; the
    tp ranks gather the low-rank result (query_rank, key_value_rank and the shared rotary key), not the hidden state, so
    the block needs no other way into the parallel region. The zoo runs them inside it, on all tokens. ValueError if
    `spec` has no latent part.
    """
    latent = spec.latent
    if latent is None:
        raise ValueError("latent_projections: attention without a latent part; expected Attention.latent")
    queries, hidden, rank = spec.heads // split.tp, layer.hidden, latent.key_value_rank
    key_values = queries * (latent.nope_dim + latent.value_dim)
    return join(
        (
            *_queries(layer, spec, latent, split, columns=queries * (latent.nope_dim + latent.rope_dim)),
            _down("key_value", layer, spec, split, rank=rank, beside=latent.rope_dim, saves_input=False),
            _gathered("key_value", rank + latent.rope_dim, split),
            _up("attention.key_value_up", key_values, rank, split),
            gradient_sum("attention.input", split.rows * hidden, split, consumers=2),
            _assembled(latent, split, queries),
        )
    )


def _queries(
    layer: TransformerBlock, spec: Attention, latent: LatentAttention, split: Split, *, columns: int
) -> list[Piece]:
    """Down to the queries' rank and up again, or one product where they have none."""
    rank = latent.query_rank
    if rank is None:
        return [_gathered("query", layer.hidden, split), _up("attention.query", columns, layer.hidden, split)]
    return [
        _down("query", layer, spec, split, rank=rank, beside=0, saves_input=True),
        _gathered("query", rank, split),
        _up("attention.query_up", columns, rank, split),
    ]


def _gathered(part: str, width: int, split: Split) -> Piece:
    """The way into the parallel region of what is handed on; the zoo's block has entered it before."""
    return Piece() if split.zoo else enter(f"attention.{part}.enter", width, split)


def _up(name: str, columns: int, k: int, split: Split) -> Piece:
    return linear(name, rows=split.rows, n=columns, k=k, split=split, input_outside=True)


def _down(
    part: str, layer: TransformerBlock, spec: Attention, split: Split, *, rank: int, beside: int, saves_input: bool
) -> Piece:
    """A projection down to `rank` (and `beside`), held whole, and the norm of the rank's part.

    Both down projections read the block's normed input, which the first one keeps. The zoo's norm keeps its input, a
    view of the whole product.
    """
    rows, n, k = split.rows if split.zoo else split.local_rows, rank + beside, layer.hidden
    product = gemm(
        f"attention.{part}_down",
        m=rows,
        n=n,
        k=k,
        width=split.width,
        bias=spec.qkv_bias,
        input_grad=split.passes_gradient,
        saves_input=saves_input,
    )
    narrow = Piece(
        operators=(product,),
        adapter_parameters=split.lora_rank * (n + k),
        saved_bytes=round(rows * k * split.kept_width) if saves_input and (split.lora_rank or not split.frozen) else 0,
    )
    normed = norm(
        f"attention.{part}_norm",
        layer.norm,
        rows=rows,
        size=rank,
        split=split,
        gradient_ranks=split.tp,
        bias=layer.norm_bias,
        input_bytes=rows * n * split.width if split.zoo else None,
    )
    return join((narrow, held(n * (k + int(spec.qkv_bias)), split.tp), normed))


def _assembled(latent: LatentAttention, split: Split, queries: int) -> Piece:
    """Turned and unturned parts put together: queries and keys are written anew, values made contiguous."""
    columns = queries * (2 * (latent.nope_dim + latent.rope_dim) + latent.value_dim)
    return memory_pass(
        "attention.assemble",
        split.rows * columns,
        split,
        forward=2.0,
        backward=2.0,
        forward_kernels=3,
        backward_kernels=3,
    )
