"""Models of any size for tests, as Hugging Face configs of their families."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from models_zoo.hugging_face import config_model
from models_zoo.model import Model, TokenInput


def gpt(name: str, *, hidden: int, layers: int, heads: int, vocab: int, seq_len: int) -> Model:
    """GPT-2 or GPT-3."""
    return _model(name, "gpt2", hidden, layers, heads, vocab, seq_len)


def llama(
    name: str, *, hidden: int, layers: int, heads: int, kv_heads: int, ffn_hidden: int, vocab: int, seq_len: int
) -> Model:
    """Llama 2 or 3."""
    sizes = {"num_key_value_heads": kv_heads, "intermediate_size": ffn_hidden}
    return _model(name, "llama", hidden, layers, heads, vocab, seq_len, **sizes)


def mixtral(
    name: str,
    *,
    hidden: int,
    layers: int,
    heads: int,
    kv_heads: int,
    ffn_hidden: int,
    experts: int,
    top_k: int,
    vocab: int,
    seq_len: int,
) -> Model:
    """Mixtral."""
    sizes = {"num_key_value_heads": kv_heads, "intermediate_size": ffn_hidden}
    experts_of = {"num_local_experts": experts, "num_experts_per_tok": top_k}
    return _model(name, "mixtral", hidden, layers, heads, vocab, seq_len, **sizes, **experts_of)


def _model(name: str, kind: str, hidden: int, layers: int, heads: int, vocab: int, seq_len: int, **more: Any) -> Model:
    sizes = {"hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads, "vocab_size": vocab}
    config = {"model_type": kind, **sizes, "max_position_embeddings": seq_len, **more}
    return replace(config_model(config, where=name, name=name), input=TokenInput(seq_len=seq_len))
