"""A model: a chain of layers and what its input looks like."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Literal

from models_zoo.layers import Embedding, Head, Layer, TransformerBlock
from models_zoo.user_code import UserFactory
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInput:
    """Token ids of shape (batch, seq_len).

    `decoder_start` is the index of an encoder-decoder's first decoder layer, which is its (tied) embedding: from there
    on the encoder's output travels along, over every cut up to the last layer with cross-attention.
    """

    seq_len: int
    decoder_start: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageInput:
    """Images of shape (batch, channels, height, width)."""

    channels: int
    height: int
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedInput:
    """Whatever the user's factory gives; the first dimension is the batch."""

    factory: UserFactory


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterTraits:
    """How experts are chosen, as far as it is known; None where nobody says it.

    `score` of a token for an expert; `groups` of experts, of which a token visits `chosen_groups`; whether the chosen
    scores are made to sum to 1 and then scaled; whether a bias for each expert, learned without gradient, balances the
    load (DeepSeek-V3, section 2.1.2).
    """

    score: Literal["softmax", "sigmoid"] | None = None
    groups: int | None = None
    chosen_groups: int | None = None
    normalizes: bool | None = None
    scale: float | None = None
    balancing_bias: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """What a config says that no estimate needs and every launcher must be told; None where it does not say it.

    `rope_scaling` holds the settings of rotary positions beside the base, by the names that transformers gives them.
    """

    rope_base: float | None = None
    rope_scaling: tuple[tuple[str, str | float], ...] = ()
    norm_eps: float | None = None
    router: RouterTraits | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Layers in order, with a name for each. `published_parameters` is None where nobody published a count.

    `tokens_from` says whose choice the tokens of a sample are; `notes` what of a config the layers leave out, a
    sentence each; `traits` what launchers are told of it beside the layers.
    """

    name: str
    family: str
    layers: tuple[Layer, ...]
    layer_names: tuple[str, ...]
    input: TokenInput | ImageInput | TracedInput
    global_batch: int | None = None
    published_parameters: float | None = None
    source: str = ""
    kind: Literal["zoo", "config", "module"] = "zoo"
    tokens_from: str = "the model's own"
    notes: tuple[str, ...] = ()
    traits: ModelTraits = ModelTraits()
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.layers) != len(self.layer_names) or not self.layers:
            raise ValueError(
                f"model {self.name}: {len(self.layers)} layers and {len(self.layer_names)} names; expected as many"
                " names as layers, and at least one"
            )
        object.__setattr__(self, "_hash", hash((self.name, self.family, self.layers, self.input, self.global_batch)))

    def __hash__(self) -> int:
        # Part of the key of much that is computed once: of all layers it would cost more than what it looks up.
        return self._hash

    @property
    def seq_len(self) -> int:
        """Tokens per sample; 0 for a model without tokens."""
        return self.input.seq_len if isinstance(self.input, TokenInput) else 0


def decoder_names(blocks: int) -> tuple[str, ...]:
    """Return the layer names of an embedding, `blocks` transformer blocks and a head."""
    return ("embedding", *(f"block.{i}" for i in range(blocks)), "head")


def without_dropout(model: Model) -> Model:
    """Return the model with no layer that drops anything; itself where none does."""
    layers = tuple(map(undropped, model.layers))
    return model if layers == model.layers else replace(model, layers=layers)


def undropped(layer: Layer) -> Layer:
    """Return the layer without dropout, blocks that predict further tokens included; itself where it has none."""
    if isinstance(layer, Embedding | TransformerBlock) and layer.dropout:
        return replace(layer, dropout=False)
    if isinstance(layer, Head) and layer.prediction:
        blocks = tuple(
            replace(block, dropout=False) if isinstance(block, TransformerBlock) and block.dropout else block
            for block in layer.prediction.blocks
        )
        return replace(layer, prediction=replace(layer.prediction, blocks=blocks))
    return layer
