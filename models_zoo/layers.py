"""Layer specifications: what a layer is, in numbers. Frozen and hashable, so equal specs are the same layer.

A model is a chain of these. The estimator turns a spec and a `Shard` into a `LocalLayer` (FLOPs, bytes, collectives);
`models_zoo.torch_layers` builds the same shard as a runnable module. Sizes are counts of elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.vocabulary import Operator

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "relu", "silu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): low-rank query and key-value projections."""

    query_rank: int | None
    key_value_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self- or cross-attention. `kv_heads` < `heads` is grouped-query; `rotary_dim` 0 means no rotary embedding.

    `window` limits causal attention to that many tokens; the kernels here compute the full square all the same.
    """

    heads: int
    kv_heads: int
    head_dim: int
    causal: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    query_key_norm: Literal["none", "head", "full"] = "none"
    rotary_dim: int = 0
    window: int | None = None
    latent: LatentAttention | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForward:
    """Two-matrix MLP, or three with a gate (SwiGLU and kin)."""

    hidden: int
    gated: bool = False
    activation: Activation = "gelu"
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture-of-experts feed-forward with static capacity: each expert takes capacity_factor * top_k / experts of the tokens.

    `shared_hidden` > 0 adds a dense expert that every token visits, `shared_gate` its scalar gate.
    """

    count: int
    top_k: int
    expert: FeedForward
    capacity_factor: float = 1.0
    shared_hidden: int = 0
    shared_gate: bool = False
    router_correction_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Token embedding with optional learned positions (`positions` rows), token types and norm (BERT)."""

    vocab: int
    hidden: int
    positions: int = 0
    token_types: int = 0
    norm: Norm | None = None
    dropout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlock:
    """One transformer layer.

    `placement`: pre (GPT, Llama), post (BERT), sandwich (norm before and after each part, Gemma 2/3).
    `parallel` adds attention and feed-forward to the same residual (GPT-NeoX: two norms; Phi: `shared_norm`, one).
    `cross_attention` makes it a decoder layer of an encoder-decoder; `memory_len_ratio` is encoder tokens per token.
    """

    hidden: int
    attention: Attention
    feed_forward: FeedForward | Experts
    norm: Norm = "layernorm"
    norm_bias: bool = True
    placement: Literal["pre", "post", "sandwich"] = "pre"
    parallel: bool = False
    shared_norm: bool = False
    cross_attention: Attention | None = None
    dropout: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Output layer over the vocabulary with the loss: optional final norm, BERT's transform, projection, cross-entropy.

    A `tied` projection shares the embedding's weight: counted once in the model, held twice if stages part them.
    `vocab` 0 means no projection (a bare encoder). `pooler` is BERT's.
    """

    hidden: int
    vocab: int
    norm: Norm | None = "layernorm"
    norm_bias: bool = True
    tied: bool = False
    bias: bool = False
    transform: bool = False
    pooler: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvUnit:
    """Convolution, optional batch norm, optional ReLU, optional max-pool; input of `height` x `width`.

    `first` marks the model's first layer: its input needs no gradient.
    """

    c_in: int
    c_out: int
    height: int
    width: int
    kernel: int
    stride: int = 1
    padding: int = 0
    batch_norm: bool = True
    bias: bool = False
    relu: bool = True
    pool: int = 0
    pool_stride: int = 0
    pool_padding: int = 0
    first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """ResNet bottleneck: 1x1 to `width_channels`, 3x3 (with the stride), 1x1 to `c_out`, and a shortcut."""

    c_in: int
    width_channels: int
    c_out: int
    height: int
    width: int
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Global average pool (or flatten), fully connected layers `features` (input first), cross-entropy loss."""

    features: tuple[int, ...]
    height: int
    width: int
    average_pool: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """A piece of a user's own torch module, as extracted: operators at `traced_batch` samples, runnable via `factory`.

    `collectives_by_degree` holds (tp, operators, collectives, parameters, replicated parameters) for each degree that
    the user's own tensor-parallel plan gives; degree 1 always stands in the first fields. Bytes are for `traced_dtype`.
    """

    factory: str
    index: int
    operators: tuple[Operator, ...]
    parameters: int
    input_bytes: int
    output_bytes: int
    traced_batch: int
    traced_dtype: str


Layer = Embedding | TransformerBlock | Head | ConvUnit | Bottleneck | Classifier | TracedLayer
