"""Families with linear attention: Qwen3-Next (gated delta rule), Mamba-2, Nemotron-H, Bamba, Granite 4.

Defaults are those of the classes in transformers; tests compare every family with its class.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from models_zoo.hugging_face.chain import (
    MOST_LAYERS,
    Chain,
    Sizes,
    read_attention,
    read_gated,
    read_prediction,
    read_sizes,
    rms_block,
    rms_chain,
)
from models_zoo.hugging_face.experts import qwen_blocks, read_experts
from models_zoo.hugging_face.keys import Keys, describe
from models_zoo.layers import Experts, FeedForward, LinearAttention, Prediction, TransformerBlock
from profiles.records import dataclass

KINDS = {
    "linear_attention": "linear_attention",
    "mamba": "linear_attention",
    "full_attention": "full_attention",
    "attention": "full_attention",
    "mlp": "mlp",
    "moe": "moe",
}
"""What a config calls a layer, and what it is."""

PATTERN = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
"""A letter a layer, as Nemotron-H's configs have it."""

UNLIMITED_POSITIONS = 2**20
"""Where nothing in the model counts positions."""


def qwen3_next(keys: Keys) -> Chain:
    """Three layers of the gated delta rule, then one of gated attention; experts with a gated shared one."""
    sizes = read_sizes(keys, hidden=2048, layers=48, heads=16, vocab=151936, positions=32768)
    plain = read_attention(
        keys, sizes, kv_heads=2, head_dim=256, states_bias=True, query_key_norm="head", rotary_share=0.25
    )
    shared = keys.size("shared_expert_intermediate_size", 512, least=0)
    gated = replace(plain, output_gate=True)
    blocks = qwen_blocks(keys, sizes, gated, dense=5632, expert=512, count=512, top_k=10, shared=shared)
    every = keys.size("full_attention_interval", 4)
    usual = ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(sizes.layers)]
    kinds = _kinds(keys, "layer_types", usual, allowed=("linear_attention", "full_attention"))
    delta = _delta_rule(keys)
    mixed = [
        block if kind == "full_attention" else replace(block, attention=delta)
        for block, kind in zip(blocks, kinds, strict=True)
    ]
    return rms_chain(keys, sizes, mixed, prediction=read_prediction(keys, (blocks[-1],)))


def mamba2(keys: Keys) -> Chain:
    """Nothing but Mamba-2 layers."""
    sizes = Sizes(
        hidden=keys.size("hidden_size", 4096, required=True),
        layers=keys.size("num_hidden_layers", 64, required=True, most=MOST_LAYERS),
        heads=1,
        vocab=keys.size("vocab_size", 32768, required=True),
        positions=UNLIMITED_POSITIONS,
    )
    names = _MambaKeys(heads="num_heads", head_dim="head_dim", state="state_size", act="hidden_act")
    mixer = _mamba(keys, names, heads=128, head_dim=64, groups=8, state=128, chunk=256)
    _check_width(keys, mixer, sizes.hidden, expand="expand", heads="num_heads")
    block = rms_block(sizes, mixer, None)
    return rms_chain(keys, sizes, [block] * sizes.layers)


def nemotron_h(keys: Keys) -> Chain:
    """Each layer one part: Mamba-2, attention without positions, a squared-ReLU feed-forward, or experts."""
    names = keys.spelling("layers_block_type", "layer_types")
    kinds = _pattern(keys, "hybrid_override_pattern", names)
    stated = keys.optional_size("num_hidden_layers")
    if stated is not None and stated != len(kinds):
        raise keys.wrong("num_hidden_layers", stated, f"{len(kinds)}, as many as the layers that the config lists")
    sizes = Sizes(
        hidden=keys.size("hidden_size", 4096, required=True),
        layers=len(kinds),
        heads=keys.size("num_attention_heads", 32, required=True),
        vocab=keys.size("vocab_size", 131072, required=True),
        positions=keys.size("max_position_embeddings", 4096),
    )
    ahead = keys.size("num_nextn_predict_layers", 0, least=0)
    names = keys.spelling("mtp_layers_block_type", "mtp_layer_types")
    usual = ["full_attention", "moe"]
    predicted = _pattern(keys, "mtp_hybrid_override_pattern", names, usual) if ahead else []
    parts = {kind: _nemotron_part(keys, sizes, kind) for kind in dict.fromkeys([*kinds, *predicted])}
    prediction = Prediction(count=ahead, blocks=tuple(parts[kind] for kind in predicted)) if ahead else None
    return rms_chain(keys, sizes, [parts[kind] for kind in kinds], prediction=prediction)


def bamba(keys: Keys) -> Chain:
    """Mamba-2 with a gated feed-forward; attention in the layers of `attn_layer_indices`."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=128000, positions=262144)
    attention = read_attention(keys, sizes, kv_heads=8, states_bias=True, rotary_share=0.5)
    gated = read_gated(keys, 14336, bias=keys.flag("mlp_bias", False))
    mixer, full = _ibm_mamba(keys, sizes), set(keys.sizes("attn_layer_indices"))
    if full and max(full) >= sizes.layers:
        raise keys.wrong("attn_layer_indices", max(full), f"layers below {sizes.layers}")
    kinds = ["full_attention" if i in full else "linear_attention" for i in range(sizes.layers)]
    plain = rms_block(sizes, attention, gated)
    return rms_chain(keys, sizes, _mixed(plain, mixer, kinds))


def granite_hybrid(keys: Keys) -> Chain:
    """Mamba-2 or attention, then experts beside a feed-forward that every token visits, or that one alone."""
    sizes = read_sizes(keys, hidden=4096, layers=32, heads=32, vocab=32000, positions=2048)
    attention = read_attention(keys, sizes, states_bias=True)
    if keys.get("position_embedding_type", None) != "rope":
        attention = replace(attention, rotary_dim=0)
    shared = keys.size("shared_intermediate_size", 1024)
    feed_forward: FeedForward | Experts = FeedForward(
        hidden=shared, gated=True, activation=keys.activation("hidden_act", "silu")
    )
    count = keys.size("num_local_experts", 8, least=0)
    if count:
        hidden = keys.size("intermediate_size", 11008, required=True)
        feed_forward = read_experts(keys, hidden=hidden, count=count, top_k=2, shared=shared)
    kinds = _kinds(
        keys, "layer_types", ["linear_attention"] * sizes.layers, allowed=("linear_attention", "full_attention")
    )
    plain = rms_block(sizes, attention, feed_forward)
    return rms_chain(keys, sizes, _mixed(plain, _ibm_mamba(keys, sizes), kinds))


def _mixed(plain: TransformerBlock, mixer: LinearAttention, kinds: Sequence[str]) -> list[TransformerBlock]:
    linear = replace(plain, attention=mixer)
    return [plain if kind == "full_attention" else linear for kind in kinds]


def _kinds(keys: Keys, key: str, usual: list[str], *, allowed: tuple[str, ...]) -> list[str]:
    """The kind of each of as many layers as `usual` has, by the list under `key` if there is one."""
    stated = keys.get(key, None)
    if stated is None:
        return usual
    kinds = _known(keys, key, stated, allowed)
    if len(kinds) != len(usual):
        raise keys.wrong(key, f"{len(kinds)} entries", f"{len(usual)} entries, one for each layer")
    return kinds


def _known(keys: Keys, key: str, stated: object, allowed: tuple[str, ...]) -> list[str]:
    kinds = [KINDS.get(str(kind), "") for kind in stated] if isinstance(stated, list) else []
    if not kinds or len(kinds) > MOST_LAYERS or any(kind not in allowed for kind in kinds):
        raise keys.wrong(key, describe(stated), f"a list of {' or '.join(allowed)}")
    return kinds


def _pattern(keys: Keys, letters: str, names: str, usual: list[str] | None = None) -> list[str]:
    """The kinds of a part's layers, as names under one key or as letters under another; `usual` where neither is."""
    stated = keys.get(names, None)
    if stated is not None:
        return _known(keys, names, stated, tuple(PATTERN.values()))
    pattern = keys.get(letters, None)
    if pattern is None and usual is not None:
        return usual
    if not isinstance(pattern, str) or not pattern or len(pattern) > MOST_LAYERS or set(pattern) - PATTERN.keys():
        raise keys.wrong(letters, "nothing" if pattern is None else describe(pattern), "a letter M, *, - or E a layer")
    return [PATTERN[letter] for letter in pattern]


def _delta_rule(keys: Keys) -> LinearAttention:
    heads, groups = keys.size("linear_num_value_heads", 32), keys.size("linear_num_key_heads", 16)
    if heads % groups:
        raise keys.wrong("linear_num_key_heads", groups, f"a divisor of the {heads} value heads")
    _check_silu(keys, "hidden_act")
    value_dim = keys.size("linear_value_head_dim", 128)
    return LinearAttention(
        rule="delta",
        heads=heads,
        groups=groups,
        key_dim=keys.size("linear_key_head_dim", 128),
        value_dim=value_dim,
        norm_size=value_dim,
        chunk=keys.size("linear_chunk_size", 64),  # fixed in the class: the zoo's tiny model has smaller ones
        kernel=keys.size("linear_conv_kernel_dim", 4),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _MambaKeys:
    """What a family calls the sizes of its Mamba-2 layers."""

    heads: str
    head_dim: str
    state: str
    act: str
    groups: str = "n_groups"
    kernel: str = "conv_kernel"
    chunk: str = "chunk_size"
    convolution_bias: str = "use_conv_bias"
    bias: tuple[str, ...] = ("use_bias",)


def _mamba(
    keys: Keys, names: _MambaKeys, *, heads: int, head_dim: int, groups: int, state: int, chunk: int
) -> LinearAttention:
    """Mamba-2's mixer, its norm by groups; the sizes given are the class's defaults."""
    for name in names.bias:
        keys.refuse(name, default=False, meaning="a projection with bias in linear attention")
    _check_silu(keys, names.act)
    heads, groups = keys.size(names.heads, heads), keys.size(names.groups, groups)
    if heads % groups:
        raise keys.wrong(names.groups, groups, f"a divisor of the {heads} heads")
    value_dim = head_dim if keys.get(names.head_dim, "auto") == "auto" else keys.size(names.head_dim)
    return LinearAttention(
        rule="state_space",
        heads=heads,
        groups=groups,
        key_dim=keys.size(names.state, state),
        value_dim=value_dim,
        norm_size=heads * value_dim // groups,
        chunk=keys.size(names.chunk, chunk),
        kernel=keys.size(names.kernel, 4),
        convolution_bias=keys.flag(names.convolution_bias, True),
    )


def _ibm_mamba(keys: Keys, sizes: Sizes) -> LinearAttention:
    names = _MambaKeys(
        heads="mamba_n_heads",
        head_dim="mamba_d_head",
        state="mamba_d_state",
        act="hidden_act",
        groups="mamba_n_groups",
        kernel="mamba_d_conv",
        chunk="mamba_chunk_size",
        convolution_bias="mamba_conv_bias",
        bias=("mamba_proj_bias",),
    )
    inner = keys.size("mamba_expand", 2) * sizes.hidden
    head_dim = max(1, inner // keys.size("mamba_n_heads", 128))
    mixer = _mamba(keys, names, heads=128, head_dim=head_dim, groups=1, state=256, chunk=256)
    _check_width(keys, mixer, sizes.hidden, expand="mamba_expand", heads="mamba_n_heads")
    return mixer


def _check_width(keys: Keys, mixer: LinearAttention, hidden: int, *, expand: str, heads: str) -> None:
    inner = keys.size(expand, 2) * hidden
    if mixer.heads * mixer.value_dim != inner:
        said = f"{mixer.heads} heads of {mixer.value_dim}"
        raise keys.wrong(heads, said, f"heads that fill {inner}, which is {expand} times the hidden size")


def _check_silu(keys: Keys, key: str) -> None:
    if keys.activation(key, "silu") != "silu":
        raise keys.wrong(key, describe(keys.get(key, None)), '"silu", the one that linear attention is modelled with')


def _nemotron_part(keys: Keys, sizes: Sizes, kind: str) -> TransformerBlock:
    act = keys.activation("mlp_hidden_act", "relu2")
    if kind == "linear_attention":
        names = _MambaKeys(
            heads="mamba_num_heads",
            head_dim="mamba_head_dim",
            state="ssm_state_size",
            act="mamba_hidden_act",
            groups=keys.spelling("n_groups", "mamba_n_groups"),
            kernel=keys.spelling("conv_kernel", "mamba_d_conv"),
            chunk=keys.spelling("chunk_size", "mamba_chunk_size"),
            convolution_bias=keys.spelling("use_conv_bias", "mamba_conv_bias"),
            bias=("use_bias", "mamba_proj_bias"),
        )
        mixer = _mamba(keys, names, heads=128, head_dim=64, groups=8, state=128, chunk=128)
        return rms_block(sizes, mixer, None)
    if kind == "full_attention":
        attention = read_attention(keys, sizes, kv_heads=8, head_dim=128, states_bias=True)
        return rms_block(sizes, replace(attention, rotary_dim=0), None)
    if kind == "mlp":
        hidden, bias = keys.size("intermediate_size", 21504, required=True), keys.flag("mlp_bias", False)
        return rms_block(sizes, None, FeedForward(hidden=hidden, activation=act, bias=bias))
    keys.refuse("mlp_bias", default=False, meaning="a shared expert with biases")
    experts = read_experts(
        keys,
        hidden=keys.size("moe_intermediate_size", 7688, required=True),
        count=keys.size(keys.spelling("n_routed_experts", "num_local_experts"), 8, required=True),
        top_k=2,
        shared=keys.size("moe_shared_expert_intermediate_size", 7688, least=0),
    )
    latent = keys.optional_size("moe_latent_size") or 0
    expert = replace(experts.expert, gated=False, activation=act)
    return rms_block(sizes, None, replace(experts, expert=expert, latent=latent))
