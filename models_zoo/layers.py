"""Layer specifications: what a layer is, in numbers. Frozen and hashable, so equal specs are the same layer.

A model is a chain of these. The estimator turns a spec and a `Shard` into a `LocalLayer` (FLOPs, bytes, collectives);
`models_zoo.torch_layers` builds the same shard as a runnable module. Sizes are counts of elements.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field
from math import ceil
from typing import Literal

from models_zoo.user_code import UserFactory
from profiles.records import dataclass
from profiles.vocabulary import LocalLayer

Norm = Literal["layernorm", "rmsnorm"]
Activation = Literal["gelu", "relu", "relu2", "silu"]
"""`relu2` is the square of ReLU (So et al. 2021, Primer)."""


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
    causal attention to that many tokens; the kernels here compute the full square all the same. `output_gate` scales
    the heads' results by the sigmoid of one more projection of the input, as wide as they are (Qwen3-Next).
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
    output_gate: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearAttention:
    """A mixer of tokens whose heads each carry a state of key_dim x value_dim along the sequence, in chunks.

    `state_space`: Mamba-2 (Dao & Gu 2024, section 6): keys, queries and values are its B, C and x; a state decays by
    exp(-exp(log_rate) step) and takes in step key value^T, step = softplus(projection + bias); a skip from value to
    result for each head. `delta`: the gated delta rule (Yang et al. 2024, Gated Delta Networks): queries and keys of
    length 1, a state first forgets the share beta of what it holds under the key.

    Queries and keys have `groups` heads, each for heads / groups values. Queries, keys and values pass a causal
    convolution over `kernel` tokens of each channel, and SiLU. The result is normed over `norm_size` elements and gated
    by SiLU of one more projection (Mamba-2 gates first, with a norm weight for every channel; the delta rule norms
    first, with one weight of value_dim for all heads). No projection has a bias.
    """

    rule: Literal["state_space", "delta"]
    heads: int
    groups: int
    key_dim: int
    value_dim: int
    norm_size: int
    chunk: int
    kernel: int = 4
    convolution_bias: bool = False

    def __post_init__(self) -> None:
        if self.heads % self.groups or self.heads * self.value_dim % self.norm_size:
            raise ValueError(
                f"linear attention: {self.heads} heads in {self.groups} groups, {self.heads * self.value_dim} elements"
                f" normed by {self.norm_size}; expected whole heads in a group and a divisor of the elements"
            )

    @property
    def columns(self) -> tuple[tuple[str, int], ...]:
        """What passes the convolution, by name, and the width of each."""
        keys = self.groups * self.key_dim
        return ("query", keys), ("key", keys), ("value", self.heads * self.value_dim)

    @property
    def rates(self) -> tuple[str, ...]:
        """The projections that have one column for each head."""
        return ("step",) if self.rule == "state_space" else ("step", "beta")

    def refuses(self, tp: int) -> str | None:
        """Return why `tp` ranks cannot share its heads; None where they can."""
        if self.heads % tp:
            return f"tp={tp} does not divide {self.heads} heads of linear attention"
        if self.groups % tp and tp % self.groups:
            return f"tp={tp} neither divides nor is a multiple of {self.groups} groups of linear attention"
        if self.heads * self.value_dim // tp % self.norm_size:
            return f"tp={tp} cuts the {self.norm_size} elements that linear attention norms together"
        return None


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
    without biases; `shared_gate` its scalar gate (hidden x 1, no bias). `latent` > 0: routed experts work on tokens of
    that width, between a hidden x latent and a latent x hidden matrix without biases, whole on every tp rank
    (Nemotron 3, LatentMoE); the router and the shared expert see the token itself.
    """

    count: int
    top_k: int
    expert: FeedForward
    capacity_factor: float = 1.0
    shared_hidden: int = 0
    shared_gate: bool = False
    latent: int = 0

    def capacity(self, tokens: int) -> int:
        """Return the slots of each expert for `tokens` tokens: its share, rounded up."""
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
    """One transformer layer: a mixer of tokens and a feed-forward, or (in hybrids such as Nemotron-H) one of the two.

    `placement`: pre (GPT, Llama), post (BERT), sandwich (norm before and after each part, Gemma 2/3).
    `parallel` adds attention and feed-forward to the same residual (GPT-NeoX: two norms; Phi: `shared_norm`, one).
    `cross_attention` makes it a decoder layer of an encoder-decoder, with a third norm and as many encoder tokens as
    decoder tokens. `norm_bias` means something for layernorm alone.
    """

    hidden: int
    attention: Attention | LinearAttention | None
    feed_forward: FeedForward | Experts | None
    norm: Norm = "layernorm"
    norm_bias: bool = True
    placement: Literal["pre", "post", "sandwich"] = "pre"
    parallel: bool = False
    shared_norm: bool = False
    cross_attention: Attention | None = None
    dropout: bool = False

    @property
    def self_attention(self) -> Attention:
        """Its attention. Raise ValueError where another mixer of tokens takes its place, or none."""
        if not isinstance(self.attention, Attention):
            raise ValueError(f"found {type(self.attention).__name__} as a block's mixer of tokens, expected Attention")
        return self.attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Multi-token prediction (DeepSeek-V3, section 2.2): `count` modules, each for one more token ahead.

    A module norms the state before it and the embedding of the next token, brings both together by a (2 hidden x
    hidden) matrix without bias, passes `blocks`, a final norm, and the model's own vocabulary projection. Norms are of
    the first block's kind; norms and matrix are whole on every tp rank. It holds the model's token table again, but for
    a head that has it anyway.
    """

    count: int
    blocks: tuple[TransformerBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Output layer over the vocabulary with the loss: optional final norm, BERT's transform, projection, cross-entropy.

    A `tied` projection shares the embedding's weight: counted once in the model, held twice if stages part them.
    `LocalLayer.parameters` of a tied layer includes the shared weight; who adds layers up takes it off again.
    `vocab` 0 means no projection (a bare encoder). `transform` is a hidden x hidden matrix with bias, gelu and a
    layernorm; `pooler` a hidden x hidden matrix with bias; both BERT's. `factor` > 0 puts a (hidden x factor) matrix
    without bias, whole on every tp rank, before a (factor x vocab) projection (OPT-350m). `predicted` positions of a
    sample alone are projected and predicted, as masked language models may (0: all; the modules here predict all).
    With `prediction` further tokens are predicted here too, so that no stage boundary falls between.
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
    prediction: Prediction | None = None

    def __post_init__(self) -> None:
        if self.prediction and (not self.vocab or self.factor or self.transform or self.predicted):
            raise ValueError("found further predicted tokens on a head that is no plain vocabulary projection")

    @property
    def holds_table(self) -> bool:
        """Whether the model's token table is among its weights."""
        return self.tied or self.prediction is not None


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
    factory: UserFactory = field(compare=False)
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


def experts_of(layer: Layer) -> tuple[Experts, ...]:
    """Return the mixtures of experts in `layer`: its feed-forward, or those of the blocks that predict further
    tokens."""
    blocks = layer.prediction.blocks if isinstance(layer, Head) and layer.prediction else (layer,)
    parts = (block.feed_forward for block in blocks if isinstance(block, TransformerBlock))
    return tuple(part for part in parts if isinstance(part, Experts))


def without_jax(layers: Iterable[Layer]) -> str | None:
    """Return what of `layers` has no function in `models_zoo.jax_layers`, in words; None where all have one."""
    for layer in layers:
        if isinstance(layer, Head) and layer.prediction:
            return "multi-token prediction"
        if isinstance(layer, TransformerBlock):
            if isinstance(layer.attention, LinearAttention):
                return "linear attention"
            if layer.attention and layer.attention.output_gate:
                return "attention with an output gate"
            if isinstance(layer.feed_forward, Experts) and layer.feed_forward.latent:
                return "experts of a latent width"
    return None
