"""The model that Megatron-LM's arguments describe: a zoo model, or the keys of a `config.json`.

A zoo name is kept where all layers are the same, so that the plan needs no file beside it. Vocabularies are counted
before padding (`--make-vocab-size-divisible-by` is an option of the plan); NullTokenizer's own token for the end of a
document is not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models_zoo.catalogue import load_model, model_names
from models_zoo.layers import Attention, Embedding, Experts, FeedForward
from models_zoo.model import Model
from planner.one_job.tools.base.import_records import NamedModel, describe_model
from planner.one_job.tools.base.shape import blocks_of
from planner.one_job.tools.megatron.arguments import Arguments
from planner.one_job.tools.megatron.expressions import evaluate_expression
from planner.one_job.tools.megatron.names import EXPERTS, LATENT, Size
from planner.one_job.tools.megatron.traits import carried_keys

TOKENIZERS = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000}
"""Tokens of the tokenizers whose files are the same everywhere (GPT-2's release; Llama 2's, which Mixtral shares)."""

DEFAULT_TOKENIZER = "GPT2BPETokenizer"
"""What pretrain_gpt.py sets where no --tokenizer-type is given."""

MODEL_ARGUMENTS = ("num-layers", "encoder-num-layers", "hidden-size", "num-attention-heads")


def find_model(arguments: Arguments, notes: list[str]) -> NamedModel:
    """Return the model that the arguments describe; adds to `notes` what was taken for granted or is left out. Raise
    InputError for sizes that do not go together, or are missing."""
    vocab = _vocabulary(arguments, notes)
    config = describe_config(arguments, vocab=vocab or 1, notes=notes)
    name = f"megatron-{config['num_hidden_layers']}x{config['hidden_size']}"
    if vocab is not None:
        return describe_model(config, where=arguments.setting, name=name)
    firsts = (load_model(zoo).layers[0] for zoo in model_names())
    for tokens in dict.fromkeys(first.vocab for first in firsts if isinstance(first, Embedding)):
        named = describe_model({**config, "vocab_size": tokens}, where=arguments.setting, name=name)
        if named.reference is not None:
            said = f"a vocabulary of {tokens}: that of {named.reference}, whose layers these are (--vocab-size)"
            notes.append(said)
            return named
    tokenizer = arguments.text("tokenizer-type")
    raise arguments.wrong("vocab-size", f"nothing, and {tokenizer}", "the tokens that this tokenizer has")


def _vocabulary(arguments: Arguments, notes: list[str]) -> int | None:
    """Tokens, None where the tokenizer's file alone tells."""
    stated = arguments.count("padded-vocab-size") or arguments.count("vocab-size")
    if stated is not None:
        return stated
    tokenizer = arguments.text("tokenizer-type") or DEFAULT_TOKENIZER
    tokens = TOKENIZERS.get(tokenizer)
    if tokens is not None:
        notes.append(f"a vocabulary of {tokens}: {tokenizer}'s (--vocab-size)")
    return tokens


def describe_config(arguments: Arguments, *, vocab: int, notes: list[str]) -> dict[str, Any]:
    """The keys of a `config.json` (models_zoo/hugging_face/megatron.py). Adds to `notes` what is left out.

    Defaults are those of Megatron-LM's arguments.py and its `validate_args`.
    """
    hidden, layers, heads = _sizes(arguments)
    gated = arguments.has("swiglu", "quick-geglu")
    dense = arguments.count("ffn-hidden-size") or (4 * hidden * 2 // 3 // 64 * 64 if gated else 4 * hidden)
    rope = arguments.has("use-rotary-position-embeddings")
    kinds = ("learned_absolute", "rope", "mrope", "relative", "none")
    positions = "rope" if rope else arguments.choice("position-embedding-type", kinds)
    if positions in ("mrope", "relative"):
        raise arguments.wrong("position-embedding-type", positions, "learned_absolute, rope or none")
    bias = not arguments.has("disable-bias-linear")
    values: dict[str, Any] = {
        "model_type": "megatron",
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _groups(arguments, heads, notes),
        "intermediate_size": dense,
        "hidden_act": "silu" if arguments.has("swiglu") else "relu" if arguments.has("squared-relu") else "gelu",
        "gated": gated,
        "max_position_embeddings": arguments.count("max-position-embeddings") or seq_length(arguments),
        "position_embedding_type": positions,
        "normalization": arguments.choice("normalization", ("LayerNorm", "RMSNorm")),
        "linear_bias": bias,
        "attention_bias": bias or arguments.has("add-qkv-bias"),
        "dropout": max(arguments.number("hidden-dropout", 0.1), arguments.number("attention-dropout", 0.1)) > 0,
        "tie_word_embeddings": not arguments.has("untie-embeddings-and-output-weights"),
    }
    return (
        values
        | _attention(arguments, hidden, heads)
        | _windows(arguments, layers)
        | _experts(arguments, layers, dense)
        | carried_keys(arguments)
    )


def seq_length(arguments: Arguments) -> int:
    """Tokens of a sample."""
    return arguments.count("encoder-seq-length") or arguments.required("seq-length")


def layer_count(arguments: Arguments) -> int:
    """Transformer blocks."""
    return arguments.count("encoder-num-layers") or arguments.required("num-layers")


def _sizes(arguments: Arguments) -> tuple[int, int, int]:
    hidden = arguments.required("hidden-size")
    heads = arguments.required("num-attention-heads")
    if hidden % heads and not arguments.has("kv-channels", "multi-latent-attention"):
        raise arguments.wrong("num-attention-heads", heads, f"a divisor of --hidden-size {hidden}")
    layers = layer_count(arguments)
    if layers > 10_000:
        raise arguments.wrong("num-layers", layers, "at most 10000")
    return hidden, layers, heads


def _groups(arguments: Arguments, heads: int, notes: list[str]) -> int:
    """Key-value heads, which Megatron takes from --num-query-groups under --group-query-attention alone."""
    stated = arguments.count("num-query-groups")
    if not arguments.has("group-query-attention"):
        if stated is not None:
            notes.append("--num-query-groups has no effect without --group-query-attention")
        return heads
    groups = stated or 1
    if heads % groups:
        raise arguments.wrong("num-query-groups", groups, f"a divisor of --num-attention-heads {heads}")
    return groups


def _attention(arguments: Arguments, hidden: int, heads: int) -> dict[str, Any]:
    if arguments.has("multi-latent-attention"):
        return {size.key: arguments.count(size.argument) or size.default for size in LATENT}
    share = arguments.number("rotary-percent", 1.0)
    return {
        "head_dim": arguments.count("kv-channels") or hidden // heads,
        "partial_rotary_factor": share if share <= 1 else share / 100,
        "query_key_norm": arguments.has("qk-layernorm"),
    }


def _windows(arguments: Arguments, layers: int) -> dict[str, Any]:
    """Sliding windows: --window-size is the tokens to the left and the right of one, -1 for all."""
    text = arguments.text("window-size")
    if text is None:
        return {}
    sizes = text.strip("()").split(",")
    if not sizes[0].strip().removeprefix("-").isdigit():
        raise arguments.wrong("window-size", repr(text), "tokens to the left and to the right, such as 4095,0")
    left = int(sizes[0])
    if left < 0:
        return {}
    slides = _pattern(arguments, "window-attn-skip-freq", layers, [True] * layers, first_of=False)
    return {
        "sliding_window": left + 1,
        "layer_types": ["sliding_attention" if slide else "full_attention" for slide in slides],
    }


def _pattern(arguments: Arguments, name: str, layers: int, default: list[bool], *, first_of: bool) -> list[bool]:
    """A flag for each layer: N means 1 on each N-th layer (`first_of`: counted from the first), or 0 on it."""
    text = arguments.text(name)
    if text is None:
        return default
    frequency = evaluate_expression(text.strip("'\""))
    if isinstance(frequency, int) and frequency > 0:
        return [number % frequency == 0 if first_of else (number + 1) % frequency > 0 for number in range(layers)]
    if isinstance(frequency, list) and len(frequency) == layers and set(frequency) <= {0, 1}:
        return [bool(value) for value in frequency]
    expected = f"a number, or a list of 0 and 1 for each of the {layers} layers such as ([0]*1+[1]*{layers - 1})"
    raise arguments.wrong(name, repr(text), expected)


def _experts(arguments: Arguments, layers: int, dense: int) -> dict[str, Any]:
    sizes = {
        size.key: arguments.count(size.argument, least=0 if size.default == 0 else 1) or size.default
        for size in EXPERTS
    }
    count, chosen = sizes["num_experts"] or 0, sizes["num_experts_per_tok"] or 0
    if not count:
        return {}
    if chosen > count:
        raise arguments.wrong("moe-router-topk", chosen, f"at most --num-experts {count}")
    sparse = _pattern(arguments, "moe-layer-freq", layers, [True] * layers, first_of=True)
    return {
        **sizes,
        "moe_intermediate_size": sizes["moe_intermediate_size"] or dense,
        "expert_layers": [number for number, flag in enumerate(sparse) if flag],
        "shared_expert_gate": arguments.has("moe-shared-expert-gate"),
    }


def check_model(model: Model, arguments: Arguments) -> None:
    """Raise InputError where an argument states another size than `model` has."""
    for name, sizes in {**_block_sizes(model), **_attention_sizes(model, arguments)}.items():
        stated = arguments.count(name, least=0)
        if stated is not None and sizes and sizes != {stated}:
            has = " and ".join(str(size) for size in sorted(sizes))
            raise arguments.wrong(name, stated, f"{has}, as {model.name} has")


def _block_sizes(model: Model) -> dict[str, set[int]]:
    """By argument, what the model's layers and feed-forwards have."""
    blocks = blocks_of(model)
    experts = [block.feed_forward for block in blocks if isinstance(block.feed_forward, Experts)]
    dense = [block.feed_forward for block in blocks if isinstance(block.feed_forward, FeedForward)]
    return {
        "num-layers": {len(blocks)},
        "encoder-num-layers": {len(blocks)},
        "hidden-size": {block.hidden for block in blocks},
        "ffn-hidden-size": {part.hidden for part in dense or [part.expert for part in experts]},
        "vocab-size": {layer.vocab for layer in model.layers if isinstance(layer, Embedding)},
        **_sizes_of(experts, EXPERTS),
        **({} if experts else {"num-experts": {0}}),
    }


def _attention_sizes(model: Model, arguments: Arguments) -> dict[str, set[int]]:
    """By argument, what the model's attention has."""
    attention = [block.attention for block in blocks_of(model) if isinstance(block.attention, Attention)]
    grouped = {mixer.kv_heads for mixer in attention} if arguments.has("group-query-attention") else set()
    return {
        "num-attention-heads": {mixer.heads for mixer in attention},
        "num-query-groups": grouped,
        "kv-channels": {mixer.head_dim for mixer in attention if mixer.latent is None},
        **_sizes_of([mixer.latent for mixer in attention if mixer.latent is not None], LATENT),
    }


def _sizes_of(parts: Sequence[object], sizes: Sequence[Size]) -> dict[str, set[int]]:
    return {size.argument: {has for part in parts if (has := size.of(part)) is not None} for size in sizes}
