"""Layer specifications: what a layer is, in numbers. Frozen and hashable, so equal specs are the same layer.

A model is a chain of these. The estimator turns a spec and a `Shard` into a `LocalLayer` (FLOPs, bytes, collectives);
`models_zoo.torch_layers` builds the same shard as a runnable module. Sizes are counts of elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

from profiles.vocabulary import LocalLayer

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "relu", "silu"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, section 2.1): low-rank query and key-value projections.

    Matrices: hidden x query_rank, a norm, query_rank x heads (nope_dim + rope_dim); with `query_rank` None one matrix
    hidden x heads (nope_dim + rope_dim) and no norm. Then hidden x (key_value_rank + rope_dim), a norm over
    key_value_rank, key_value_rank x heads (nope_dim + value_dim); output heads value_dim x hidden. The norms are of the
    block's kind. `Attention.qkv_bias` puts biases on the two projections from hidden down to a rank, and on no other.
    The down projections and their norms are whole on every tp rank; the others split by heads.
    """

    query_rank: int | None
    key_value_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """Self- or cross-attention. `kv_heads` < `heads` is grouped-query; `rotary_dim` 0 means no rotary embedding.

    `query_key_norm` puts a norm of the block's kind (with the block's `norm_bias`) on queries and another on keys:
    `head` one weight of head_dim each for all heads, `full` one weight over all of a rank's heads. `window` limits
    causal attention to that many tokens; the kernels here compute the full square all the same.
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
    """A mixture-of-experts feed-forward with static capacity.

    Each expert takes capacity_factor * top_k / count of the tokens. The router is one hidden x count matrix without
    bias. `shared_hidden` > 0 adds a dense expert that every token visits, gated and activated as `expert` is and
    without biases; `shared_gate` its scalar gate (hidden x 1, no bias).
    """

    count: int
    top_k: int
    expert: FeedForward
    capacity_factor: float = 1.0
    shared_hidden: int = 0
    shared_gate: bool = False

    def capacity(self, tokens: int) -> int:
        """Slots of each expert for `tokens` tokens: its share, rounded up."""
        return ceil(self.capacity_factor * self.top_k * tokens / self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """Token embedding with optional learned positions (`positions` rows), token types and norm (BERT).

    `factor` > 0: table rows have that many elements and a (factor x hidden) matrix without bias, whole on every tp
    rank, follows the lookup (OPT-350m). `tied`: this is the decoder's embedding of an encoder-decoder and shares the
    first embedding's table, as `Head.tied` does.
    """

    vocab: int
    hidden: int
    positions: int = 0
    token_types: int = 0
    norm: Norm | None = None
    dropout: bool = False
    factor: int = 0
    tied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerBlock:
    """One transformer layer.

    `placement`: pre (GPT, Llama), post (BERT), sandwich (norm before and after each part, Gemma 2/3).
    `parallel` adds attention and feed-forward to the same residual (GPT-NeoX: two norms; Phi: `shared_norm`, one).
    `cross_attention` makes it a decoder layer of an encoder-decoder, with a third norm and as many encoder tokens as
    decoder tokens. `norm_bias` means something for layernorm alone.
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
    `LocalLayer.parameters` of a tied layer includes the shared weight; who adds layers up takes it off again.
    `vocab` 0 means no projection (a bare encoder). `transform` is a hidden x hidden matrix with bias, gelu and a
    layernorm; `pooler` a hidden x hidden matrix with bias; both BERT's. `factor` > 0 puts a (hidden x factor) matrix
    without bias, whole on every tp rank, before a (factor x vocab) projection (OPT-350m). `predicted` positions of a
    sample alone are projected and predicted, as masked language models may (0: all; the modules here predict
    all).
    """

    hidden: int
    vocab: int
    norm: Norm | None = "layernorm"
    norm_bias: bool = True
    tied: bool = False
    bias: bool = False
    transform: bool = False
    pooler: bool = False
    factor: int = 0
    predicted: int = 0


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
    """ResNet bottleneck: 1x1 to `reduced_channels`, 3x3 (with stride) to `width_channels`, 1x1 to `c_out`, shortcut.

    `reduced_channels` 0 means `width_channels`, as in ResNet-50; Alpa's wide ResNet widens in the 3x3 alone.
    """

    c_in: int
    width_channels: int
    c_out: int
    height: int
    width: int
    stride: int = 1
    reduced_channels: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """Global average pool (or flatten), fully connected layers `features` (input first), cross-entropy loss."""

    features: tuple[int, ...]
    height: int
    width: int
    average_pool: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWeights:
    """Weights that several layers of a model use: how many one rank holds, and the layers' indices, ascending."""

    parameters: int
    holders: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedShard:
    """One rank's part of a traced layer when `tp` ranks share it, at four corners between which all figures are linear.

    The corners are micro-batches of `TracedLayer.batch` samples with 2 and with 4 bytes per element of the module's own
    dtype, then of twice as many samples with 2 and with 4. Other dtypes keep their width. `shared` are the weights that
    later layers of the model hold too and no earlier one does (an embedding's table, which the head uses).
    """

    tp: int
    corners: tuple[LocalLayer, LocalLayer, LocalLayer, LocalLayer]
    shared: tuple[SharedWeights, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedLayer:
    """A piece of a user's own torch module or JAX function, as it was seen to run.

    Layers with the same `fingerprint` do the same work on one rank, wherever they stand and whoever made them; they are
    equal if they do when split too (`split_fingerprint`). The former alone names a profile, which is of one rank: a
    tensor-parallel plan, added later, leaves it valid.
    `places` are the calls of submodules, or the equations of the function, that the piece consists of; with `factory`
    they find it again to run it. Layers of different frameworks have different fingerprints.
    `shards` holds tp = 1 and every degree that the module's own tensor-parallel plan can have, `refused` why it cannot
    have the others.
    """

    fingerprint: str
    split_fingerprint: str = field(compare=False)
    factory: str = field(compare=False)
    batch: int = field(compare=False)
    places: tuple[str, ...] = field(compare=False)
    shards: tuple[TracedShard, ...] = field(compare=False)
    refused: tuple[tuple[int, str], ...] = field(compare=False)
    framework: Literal["torch", "jax"] = field(default="torch", compare=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TracedLayer):
            return NotImplemented
        return (self.fingerprint, self.split_fingerprint) == (other.fingerprint, other.split_fingerprint)

    def __hash__(self) -> int:
        return hash((self.fingerprint, self.split_fingerprint))


Layer = Embedding | TransformerBlock | Head | ConvUnit | Bottleneck | Classifier | TracedLayer
