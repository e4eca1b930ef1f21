"""A rank's work in a layer as training frameworks run it: Megatron's and Transformer Engine's kernels, or eager ones.

What a transformer block keeps for backward follows Korthikanti et al. 2022 (section 4, equations 1 to 4): without
parallelism s b h (34 + 5 a s / h) bytes in 16 bits, of which 24 are split by tp and the other 10 by sequence
parallelism; `selective` recomputation drops the quadratic part (section 5). Norms, biases, activations, dropout and
residuals are single passes over memory where `kernels` is fused, one kernel each where it is eager.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from estimator.layers.shards import shard_layer
from estimator.layers.split import Split, Work
from estimator.layers.work_attention import attention_part
from estimator.layers.work_edges import embedding_part, head_part
from estimator.layers.work_experts import experts_part
from estimator.layers.work_parts import Piece, activation_pass, enter, join, leave, linear, memory_pass, norm
from models_zoo.layers import Embedding, Experts, FeedForward, Head, Layer, TransformerBlock
from profiles.vocabulary import Infeasible, Operator, Shard


@lru_cache(maxsize=16384)
def layer_work(layer: Layer, split: Split) -> Work | Infeasible:
    """The work of `layer` for one micro-batch on one rank; Infeasible where a degree does not divide a size.

    Layers that are no transformer's (convolutions, traced modules) run as `estimator.layers.shards` has them, whatever
    the kernels; they know neither context nor expert parallelism.
    """
    match layer:
        case TransformerBlock():
            return _refuse(layer, split) or _finish(_block(layer, split), layer, split)
        case Embedding():
            return _finish(embedding_part(layer, split), layer, split)
        case Head():
            return _finish(head_part(layer, split), layer, split)
        case _:
            return _other(layer, split)


def _refuse(layer: TransformerBlock, split: Split) -> Infeasible | None:
    """The first size that a degree does not divide."""
    mlp = layer.feed_forward
    sizes: list[tuple[str, int, int]] = []
    for name, spec in (("", layer.attention), ("cross-attention ", layer.cross_attention)):
        if spec is None:
            continue
        sizes.append((f"{name}heads", spec.heads, split.tp))
        if spec.latent is None and spec.kv_heads % split.tp and split.tp % spec.kv_heads:
            return Infeasible(
                reason=f"tp {split.tp} neither divides nor is a multiple of {spec.kv_heads} {name}key-value heads",
                lacking="divisibility",
            )
    if isinstance(mlp, Experts):
        sizes += [("experts", mlp.count, split.ep), ("columns of an expert", mlp.expert.hidden, split.etp)]
        sizes.append(("columns of the shared expert", mlp.shared_hidden, split.tp))
    else:
        sizes.append(("feed-forward columns", mlp.hidden, split.tp))
    if split.cp > 1:
        sizes.append(("tokens per sample under context parallelism (two parts a rank)", split.seq_len, 2 * split.cp))
    if split.sequence_parallel:
        sizes.append(("tokens per sample under sequence parallelism", split.seq_len, split.tp * split.cp))
    for name, size, degree in sizes:
        if size % degree:
            return Infeasible(reason=f"{degree} does not divide {size} {name}", lacking="divisibility")
    return None


def _finish(piece: Piece, layer: Layer, split: Split) -> Work:
    """The layer's pieces as one rank's work under the split's recomputation and training of weights."""
    hidden = layer.hidden if isinstance(layer, TransformerBlock | Embedding | Head) else 0
    boundary = split.local_rows * hidden * split.width
    full = split.recompute == "full" and isinstance(layer, TransformerBlock)
    operators = tuple(_frozen(op, split) for op in piece.operators) if split.frozen else piece.operators
    # Where neither this layer nor one before it learns, backward never comes here.
    ends_here = split.frozen and not split.lora_rank and not split.passes_gradient
    again = () if ends_here else operators if full else piece.core if split.recompute == "selective" else ()
    forward = tuple(one for one in piece.collectives if one.phase == "forward")
    saved = piece.saved_bytes
    if ends_here:
        saved = 0
    elif full:
        saved = boundary
    elif split.recompute == "selective":
        saved -= piece.core_saved_bytes
    learning = 0 if split.frozen else piece.parameters
    learning_experts = 0 if split.frozen else piece.expert_parameters
    if split.lora_rank:
        learning, learning_experts = piece.adapter_parameters, 0
    return Work(
        operators=operators,
        again=again,
        collectives=forward if ends_here else piece.collectives,
        again_collectives=forward if full and not ends_here else (),
        parameters=piece.parameters + (piece.adapter_parameters if split.lora_rank else 0),
        expert_parameters=piece.expert_parameters,
        trainable_parameters=learning,
        trainable_expert_parameters=learning_experts,
        frozen=split.frozen,
        is_end=not isinstance(layer, TransformerBlock),
        saved_bytes=saved,
        temporary_bytes=piece.temporary_bytes + (piece.saved_bytes if full else piece.core_saved_bytes if again else 0),
        input_bytes=8 * split.rows if isinstance(layer, Embedding) else boundary,
        output_bytes=4 if isinstance(layer, Head) else boundary,
    )


def _frozen(op: Operator, split: Split) -> Operator:
    """`op` without its weight's gradient: that of the input alone, or nothing where nothing before it learns."""
    if not split.passes_gradient and not split.lora_rank:
        return replace(op, backward_flops=0, backward_bytes=0, backward_kernels=0, saved_bytes=0)
    if op.kind not in ("gemm", "grouped_gemm") or ".lora_" in op.name:
        return op
    return replace(op, backward_flops=op.forward_flops, backward_bytes=op.backward_bytes // 2, backward_kernels=1)


def _block(layer: TransformerBlock, split: Split) -> Piece:
    """Attention and feed-forward, each with norm(s), tensor-parallel edges, and bias, dropout and residual in one."""
    branches = _branches(layer, split)
    if layer.parallel:
        return _parallel_block(layer, split, branches)
    hidden, rows = layer.hidden, split.local_rows
    norms = 2 if layer.placement == "sandwich" else 1
    pieces: list[Piece] = []
    for branch in branches:
        pieces += [_norm(layer, branch.name, split)] * norms
        pieces += [enter(f"{branch.name}.enter", hidden, split)] if branch.enters else []
        pieces.append(branch.piece)
        pieces += [leave(f"{branch.name}.leave", hidden, split)] if branch.leaves else []
        pieces.append(_residual(branch.name, rows * hidden, split, biased=branch.biased, dropped=layer.dropout))
        pieces += [Piece(parameters=hidden)] if branch.biased else []
    return join(pieces)


def _parallel_block(layer: TransformerBlock, split: Split, branches: list[_Branch]) -> Piece:
    """Branches from the same input (PaLM, section 2), whose partial results are added before one way out; with a shared
    norm they share one way in too."""
    hidden = layer.hidden
    pieces: list[Piece] = []
    for number, branch in enumerate(branches):
        if number == 0 or not layer.shared_norm:
            pieces.append(_norm(layer, branch.name, split))
            pieces += [enter(f"{branch.name}.enter", hidden, split)] if branch.enters else []
        pieces.append(branch.piece)
        pieces += [Piece(parameters=hidden)] if branch.biased else []
    pieces.append(memory_pass("block.branches", split.rows * hidden, split, forward=3.0, backward=2.0))
    pieces += [leave("block.leave", hidden, split)] if any(branch.leaves for branch in branches) else []
    biased = any(branch.biased for branch in branches)
    pieces.append(_residual("block", split.local_rows * hidden, split, biased=biased, dropped=layer.dropout))
    return join(pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Branch:
    """One part of a block between norm and residual, and which tensor-parallel edges stand around it."""

    name: str
    piece: Piece
    enters: bool
    leaves: bool
    biased: bool


def _branches(layer: TransformerBlock, split: Split) -> list[_Branch]:
    """A block's parts. Latent attention gathers its narrow latents itself; Megatron's experts dispatch from the
    sequence-parallel slice and have no tensor-parallel edges."""
    found = [
        _Branch(
            name="attention",
            piece=attention_part(layer, layer.attention, split),
            enters=layer.attention.latent is None,
            leaves=True,
            biased=layer.attention.output_bias,
        )
    ]
    if cross := layer.cross_attention:
        found.append(
            _Branch(
                name="cross_attention",
                piece=attention_part(layer, cross, split),
                enters=True,
                leaves=True,
                biased=cross.output_bias,
            )
        )
    mlp = layer.feed_forward
    dense = not isinstance(mlp, Experts)
    found.append(
        _Branch(
            name="mlp",
            piece=experts_part(split, mlp, layer.hidden)
            if isinstance(mlp, Experts)
            else _feed_forward(mlp, layer.hidden, split),
            enters=dense,
            leaves=dense,
            biased=not isinstance(mlp, Experts) and mlp.bias,
        )
    )
    return found


def _norm(layer: TransformerBlock, name: str, split: Split) -> Piece:
    return norm(f"{name}.norm", layer.norm, rows=split.local_rows, size=layer.hidden, split=split, bias=layer.norm_bias)


def _residual(name: str, elements: int, split: Split, *, biased: bool, dropped: bool) -> Piece:
    """Bias, dropout and residual in one kernel (fused), or one each; the mask is a byte an element."""
    mask = elements if dropped else 0
    if split.kernels == "fused":
        # Forward: read the branch and the residual, write the sum; backward: the branch's gradient by the mask, the
        # sum of both branches' gradients where the norm's backward adds to it.
        return memory_pass(
            f"{name}.residual",
            elements,
            split,
            forward=3.0,
            backward=(2.0 if dropped else 0.0) + 3.0,
            extra_bytes=mask,
            saved_bytes=mask,
            forward_kernels=1,
            backward_kernels=2 if dropped else 1,
        )
    kernels = 1 + int(biased) + int(dropped)
    return memory_pass(
        f"{name}.residual",
        elements,
        split,
        forward=3.0 + 2.0 * (kernels - 1),
        backward=3.0 + (2.0 if dropped else 0.0) + (1.0 if biased else 0.0),
        extra_bytes=mask,
        saved_bytes=mask,
        forward_kernels=kernels,
        backward_kernels=kernels + 1,
    )


def _feed_forward(spec: FeedForward, hidden: int, split: Split) -> Piece:
    """Column-split, activation with bias in one pass (fused), row-split; one product for gate and up."""
    inner, rows = spec.hidden // split.tp, split.rows
    columns = inner * (2 if spec.gated else 1)
    return join(
        (
            linear("mlp.up", rows=rows, n=columns, k=hidden, split=split, bias=spec.bias, input_outside=True),
            activation_pass("mlp.activation", spec, rows * inner, split),
            linear("mlp.down", rows=rows, n=hidden, k=inner, split=split),
        )
    )


def _other(layer: Layer, split: Split) -> Work | Infeasible:
    if split.cp > 1 or split.ep > 1:
        return Infeasible(reason=f"{type(layer).__name__} knows no context or expert parallelism", lacking="support")
    shard = Shard(
        tp=split.tp,
        sequence_parallel=split.sequence_parallel,
        micro_batch_per_rank=split.samples,
        seq_len=split.seq_len,
        dtype=split.dtype,
        attention=split.attention,
    )
    local = shard_layer(layer, shard)
    if isinstance(local, Infeasible):
        return local
    full = split.recompute == "full"
    learning = 0 if split.frozen or split.lora_rank else local.parameters
    return Work(
        operators=local.operators,
        again=local.operators if full else (),
        collectives=tuple(one for one in local.collectives if one.phase != "step"),
        parameters=local.parameters,
        trainable_parameters=learning,
        saved_bytes=local.input_bytes if full else local.saved_bytes,
        temporary_bytes=local.saved_bytes if full else 0,
        input_bytes=local.input_bytes,
        output_bytes=local.output_bytes,
    )
