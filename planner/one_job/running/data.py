"""What a run trains on: random samples that every rank draws alike, or tokens from a file. No framework needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from models_zoo.layers import Classifier, Embedding, Head
from models_zoo.model import ImageInput, Model, TokenInput
from profiles.errors import InputError
from profiles.opening import check_regular
from profiles.records import dataclass

Array = NDArray[Any]

RAW_DTYPES = ("uint16", "uint32", "int32", "int64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some samples. Tokens: `inputs`, `targets` (n, seq_len) int64, and `decoder_inputs` of an encoder-decoder. Images:
    `inputs` (n, channels, height, width) float32, `targets` (n,) int64."""

    inputs: Array
    targets: Array
    decoder_inputs: Array | None = None


class Data(Protocol):
    """Samples by number: the k-th of a training is the same whoever asks for it."""

    def samples(self, first: int, end: int) -> Batch:
        """Samples [first, end) of the training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomTokens:
    """Tokens drawn evenly from the vocabulary; each target is the next token."""

    seed: int
    vocab: int
    seq_len: int
    decodes: bool

    def samples(self, first: int, end: int) -> Batch:
        drawn = np.stack([self._draw(number) for number in range(first, end)])
        return _next_tokens(drawn, self.seq_len, decodes=self.decodes)

    def _draw(self, number: int) -> Array:
        count = self.seq_len * (1 + self.decodes) + 1
        return _generator(self.seed, number).integers(0, self.vocab, size=count, dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomImages:
    """Normal noise and an even choice of a class."""

    seed: int
    shape: tuple[int, int, int]
    classes: int

    def samples(self, first: int, end: int) -> Batch:
        drawn = [self._draw(number) for number in range(first, end)]
        return Batch(inputs=np.stack([image for image, _ in drawn]), targets=np.array([label for _, label in drawn]))

    def _draw(self, number: int) -> tuple[Array, int]:
        generator = _generator(self.seed, number)
        image = generator.standard_normal(self.shape, dtype=np.float32)
        return image, int(generator.integers(0, self.classes))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFile:
    """Windows of a file of tokens one after another, from the start again at its end."""

    tokens: Array
    seq_len: int
    decodes: bool

    def samples(self, first: int, end: int) -> Batch:
        length = self.seq_len * (1 + self.decodes)
        windows = (len(self.tokens) - 1) // length
        starts = [number % windows * length for number in range(first, end)]
        read = np.stack([np.asarray(self.tokens[start : start + length + 1], dtype=np.int64) for start in starts])
        return _next_tokens(read, self.seq_len, decodes=self.decodes)


def _next_tokens(read: Array, seq_len: int, *, decodes: bool) -> Batch:
    encoded, tokens = (read[:, :seq_len], read[:, seq_len:]) if decodes else (None, read)
    current, targets = tokens[:, :seq_len], tokens[:, 1 : seq_len + 1]
    if encoded is None:
        return Batch(inputs=current, targets=targets)
    return Batch(inputs=encoded, targets=targets, decoder_inputs=current)


def random_data(model: Model, *, seq_len: int, seed: int) -> Data:
    """Random samples of what `model` takes in."""
    if isinstance(model.input, ImageInput):
        head = model.layers[-1]
        classes = head.features[-1] if isinstance(head, Classifier) else 2
        shape = (model.input.channels, model.input.height, model.input.width)
        return RandomImages(seed=seed, shape=shape, classes=classes)
    return RandomTokens(seed=seed, vocab=_vocabulary(model), seq_len=seq_len, decodes=_decodes(model))


def load_tokens(
    path: Path, model: Model, *, seq_len: int, raw_dtype: str = "uint16", samples: int | None = None
) -> Data:
    """Return the tokens in `path`: a NumPy file (.npy, one dimension of integers), or raw numbers of `raw_dtype`, as
    nanoGPT writes them.

    Raise InputError for a model without tokens, a file that is none, too short for one sample, or with tokens beyond
    the model's vocabulary among those of the first `samples` samples (None: among all). Of a file larger than memory
    no more is read than that.
    """
    where = str(path)
    if not isinstance(model.input, TokenInput):
        raise InputError(where=where, found=f"data for {model.name}, which takes images", expected="no --data")
    if raw_dtype not in RAW_DTYPES:
        raise InputError(where="run", key="--data-dtype", found=raw_dtype, expected=f"one of {', '.join(RAW_DTYPES)}")
    tokens = _read(path, raw_dtype)
    decodes = _decodes(model)
    needed = seq_len * (1 + decodes) + 1
    if len(tokens) < needed:
        raise InputError(where=where, found=f"{len(tokens)} tokens", expected=f"at least {needed}, one sample")
    used = tokens if samples is None else tokens[: samples * (needed - 1) + 1]
    low, high, vocab = int(used.min()), int(used.max()), _vocabulary(model)
    if low < 0 or high >= vocab:
        stated = f"tokens from {low} to {high}"
        raise InputError(where=where, found=stated, expected=f"0 to {vocab - 1}, the vocabulary of {model.name}")
    return TokenFile(tokens=tokens, seq_len=seq_len, decodes=decodes)


def _read(path: Path, raw_dtype: str) -> Array:
    where = str(path)
    size = check_regular(path, expected="a file of tokens")
    try:
        if path.suffix == ".npy":
            tokens: Array = np.lib.format.open_memmap(path, mode="r")
        else:
            width = np.dtype(raw_dtype).itemsize
            if size == 0 or size % width:
                raise InputError(where=where, found=f"{size} bytes", expected=f"whole numbers of {raw_dtype}")
            tokens = np.memmap(path, dtype=raw_dtype, mode="r")
    except InputError:
        raise
    except OSError as error:
        raise InputError(where=where, found=error.strerror or str(error), expected="a file of tokens") from error
    except ValueError as error:
        stated = f"no array to be read ({error})"
        raise InputError(where=where, found=stated, expected="a NumPy file of integers") from error
    if tokens.ndim != 1 or not np.issubdtype(tokens.dtype, np.integer):
        stated = f"{tokens.ndim} dimensions of {tokens.dtype}"
        raise InputError(where=where, found=stated, expected="one dimension of integers")
    return tokens


def _vocabulary(model: Model) -> int:
    tables = (layer.vocab for layer in model.layers if isinstance(layer, Embedding | Head))
    return min(vocab for vocab in tables if vocab)


def _decodes(model: Model) -> bool:
    return isinstance(model.input, TokenInput) and model.input.decoder_start is not None


def _generator(seed: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=(seed << 64) + number))
