"""The projections of multi-head latent attention on one rank, as Megatron Core runs them."""

from __future__ import annotations

from estimator.layers.operators import gemm
from estimator.layers.split import Split
from estimator.layers.work_parts import Piece, enter, join, linear, memory_pass, norm
from models_zoo.layers import Attention, LatentAttention, TransformerBlock


def latent_projections(layer: TransformerBlock, spec: Attention, split: Split) -> Piece:
    """From a block's normed input to queries, keys and values of this rank's heads (DeepSeek-V2, section 2.1).

    The down projections are whole on every tp rank and run on the tokens outside the parallel region; the tp ranks
    gather the low-rank result (query_rank, key_value_rank and the shared rotary key), not the hidden state, so the
    block needs no other way into the parallel region. ValueError if `spec` has no latent part.
    """
    latent = spec.latent
    if latent is None:
        raise ValueError("latent_projections: attention without a latent part; expected Attention.latent")
    queries = spec.heads // split.tp
    hidden, local, rows = layer.hidden, split.local_rows, split.rows
    qk_dim = latent.nope_dim + latent.rope_dim
    pieces: list[Piece] = []
    if latent.query_rank is None:
        pieces.append(enter("attention.query.enter", hidden, split))
        pieces.append(
            linear("attention.query", rows=rows, n=queries * qk_dim, k=hidden, split=split, input_outside=True)
        )
    else:
        rank = latent.query_rank
        pieces += [
            _down("attention.query_down", spec, split, n=rank, k=hidden, saves_input=True),
            norm("attention.query_norm", layer.norm, rows=local, size=rank, split=split, bias=layer.norm_bias),
            enter("attention.query.enter", rank, split),
            linear("attention.query_up", rows=rows, n=queries * qk_dim, k=rank, split=split, input_outside=True),
        ]
    rank = latent.key_value_rank
    pieces += [
        _down("attention.key_value_down", spec, split, n=rank + latent.rope_dim, k=hidden, saves_input=False),
        norm("attention.key_value_norm", layer.norm, rows=local, size=rank, split=split, bias=layer.norm_bias),
        enter("attention.key_value.enter", rank + latent.rope_dim, split),
        linear(
            "attention.key_value_up",
            rows=rows,
            n=queries * (latent.nope_dim + latent.value_dim),
            k=rank,
            split=split,
            input_outside=True,
        ),
        _assembled(latent, split, queries),
    ]
    return join(pieces)


def _down(name: str, spec: Attention, split: Split, *, n: int, k: int, saves_input: bool) -> Piece:
    """A projection down to a rank, held whole; both read the block's normed input, which the first one keeps."""
    local = split.local_rows
    product = gemm(
        name,
        m=local,
        n=n,
        k=k,
        width=split.width,
        bias=spec.qkv_bias,
        input_grad=split.passes_gradient,
        saves_input=saves_input,
    )
    return Piece(
        operators=(product,),
        parameters=n * (k + int(spec.qkv_bias)),
        adapter_parameters=split.lora_rank * (n + k),
        saved_bytes=local * k * split.width if saves_input else 0,
    )


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
