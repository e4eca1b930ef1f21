"""What a run trains on: the same samples whoever asks, next tokens as targets, and what is said of files that fail."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from models_zoo.catalogue import load_model
from models_zoo.layers import Classifier, Embedding, Head
from planner.one_job.running.data import Batch, Data, RandomImages, RandomTokens, TokenFile, load_tokens, random_data
from profiles.errors import InputError

GPT, NMT, RESNET = load_model("gpt-tiny"), load_model("nmt-tiny"), load_model("wide-resnet-tiny")
VOCAB = 4096
TOKENS = TokenFile(tokens=np.arange(100) % 13, seq_len=8, decodes=False)
SOURCES: dict[str, Data] = {
    "tokens": random_data(GPT, seq_len=8, seed=3),
    "two sequences": random_data(NMT, seq_len=8, seed=3),
    "images": random_data(RESNET, seq_len=0, seed=3),
    "file": TOKENS,
    "file of two sequences": replace(TOKENS, decodes=True),
}


def arrays(batch: Batch) -> list[Any]:
    return [part for part in (batch.inputs, batch.targets, batch.decoder_inputs) if part is not None]


@pytest.mark.parametrize("name", SOURCES)
@given(cuts=st.lists(st.integers(1, 23), unique=True).map(sorted))
def test_samples_are_the_same_in_whatever_chunks(name: str, cuts: list[int]) -> None:
    data = SOURCES[name]
    whole = arrays(data.samples(0, 24))
    parts = [arrays(data.samples(a, b)) for a, b in zip([0, *cuts], [*cuts, 24], strict=True)]
    for column, joined in enumerate(whole):
        assert_array_equal(np.concatenate([part[column] for part in parts]), joined)


@pytest.mark.parametrize("name", SOURCES)
def test_who_asks_again_gets_the_same(name: str) -> None:
    for one, other in zip(arrays(SOURCES[name].samples(5, 7)), arrays(SOURCES[name].samples(5, 7)), strict=True):
        assert_array_equal(one, other)


def test_samples_differ_by_number_and_by_seed() -> None:
    drawn = random_data(GPT, seq_len=32, seed=0).samples(0, 20).inputs
    assert len({row.tobytes() for row in drawn}) == 20
    other = random_data(GPT, seq_len=32, seed=1).samples(0, 20).inputs
    assert not {row.tobytes() for row in drawn} & {row.tobytes() for row in other}
    images = random_data(RESNET, seq_len=0, seed=0).samples(0, 4).inputs
    assert len({image.tobytes() for image in images}) == 4


@pytest.mark.parametrize("name", ["tokens", "file"])
def test_targets_are_the_next_tokens(name: str) -> None:
    batch = SOURCES[name].samples(3, 9)
    assert batch.inputs.shape == batch.targets.shape == (6, 8)
    assert batch.inputs.dtype == batch.targets.dtype == np.int64
    assert batch.decoder_inputs is None
    assert_array_equal(batch.targets[:, :-1], batch.inputs[:, 1:])


@pytest.mark.parametrize("name", ["two sequences", "file of two sequences"])
def test_an_encoder_decoder_predicts_its_second_sequence(name: str) -> None:
    batch = SOURCES[name].samples(3, 9)
    assert batch.decoder_inputs is not None
    assert batch.inputs.shape == batch.decoder_inputs.shape == batch.targets.shape == (6, 8)
    assert_array_equal(batch.targets[:, :-1], batch.decoder_inputs[:, 1:])


def test_random_tokens_are_of_the_whole_vocabulary() -> None:
    drawn = RandomTokens(seed=0, vocab=7, seq_len=50, decodes=False).samples(0, 10)
    assert set(drawn.inputs.flat) == set(range(7))
    heads = [layer for layer in GPT.layers if isinstance(layer, Embedding | Head)]
    assert {layer.vocab for layer in heads} == {VOCAB}
    assert random_data(GPT, seq_len=64, seed=0) == RandomTokens(seed=0, vocab=VOCAB, seq_len=64, decodes=False)


def test_images_are_as_the_model_takes_them() -> None:
    batch = random_data(RESNET, seq_len=0, seed=0).samples(0, 50)
    head = RESNET.layers[-1]
    assert isinstance(head, Classifier)
    assert (batch.inputs.shape, batch.inputs.dtype) == ((50, 3, 64, 64), np.dtype("float32"))
    assert (batch.targets.shape, batch.targets.dtype) == ((50,), np.dtype("int64"))
    assert set(batch.targets.flat) == set(range(10)) == set(range(head.features[-1]))
    assert abs(float(batch.inputs.mean())) < 0.01
    assert RandomImages(seed=0, shape=(1, 2, 2), classes=3).samples(0, 1).inputs.shape == (1, 1, 2, 2)


# Files


def test_a_file_is_read_window_after_window_and_from_its_start_again(tmp_path: Path) -> None:
    """Of 18 tokens two windows of 8, each with its next token; what is left over is never read."""
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(18, dtype=np.int32))
    data = load_tokens(path, GPT, seq_len=8)
    batch = data.samples(0, 3)
    assert_array_equal(batch.inputs, [range(8), range(8, 16), range(8)])
    assert_array_equal(batch.targets, [range(1, 9), range(9, 17), range(1, 9)])


def test_a_window_of_an_encoder_decoder_is_two_sequences(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.arange(9, dtype=np.uint8))
    batch = load_tokens(path, NMT, seq_len=4).samples(0, 1)
    assert batch.decoder_inputs is not None
    assert_array_equal(batch.inputs, [[0, 1, 2, 3]])
    assert_array_equal(batch.decoder_inputs, [[4, 5, 6, 7]])
    assert_array_equal(batch.targets, [[5, 6, 7, 8]])


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
def test_a_raw_file_holds_what_a_numpy_file_does(tmp_path: Path, dtype: str) -> None:
    tokens = (np.arange(50) * 79 % VOCAB).astype(dtype)
    np.save(tmp_path / "tokens.npy", tokens)
    tokens.tofile(tmp_path / "tokens.bin")
    saved = load_tokens(tmp_path / "tokens.npy", GPT, seq_len=8).samples(0, 6)
    raw = load_tokens(tmp_path / "tokens.bin", GPT, seq_len=8, raw_dtype=dtype).samples(0, 6)
    assert_array_equal(saved.inputs, raw.inputs)
    assert_array_equal(saved.inputs.flat, tokens[:48].astype(np.int64))


def _save(path: Path, tokens: Any) -> Path:
    np.save(path, np.asarray(tokens))
    return path


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def _zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.npy", b"")
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], str]] = {
    "too short": (lambda f: _save(f / "t.npy", [1] * 8), "found 8 tokens, expected at least 9, one sample"),
    "none at all": (lambda f: _save(f / "t.npy", np.zeros(0, dtype=int)), "found 0 tokens, expected at least 9"),
    "empty raw": (lambda f: _write(f / "t.bin", b""), "found 0 bytes, expected whole numbers of uint16"),
    "odd size": (lambda f: _write(f / "t.bin", b"x" * 31), "found 31 bytes, expected whole numbers of uint16"),
    "beyond the vocabulary": (
        lambda f: _save(f / "t.npy", [*range(20), VOCAB]),
        f"found tokens from 0 to {VOCAB}, expected 0 to {VOCAB - 1}, the vocabulary of gpt-tiny",
    ),
    "below 0": (lambda f: _save(f / "t.npy", [-1] * 20), "found tokens from -1 to -1"),
    "float": (
        lambda f: _save(f / "t.npy", np.zeros(20)),
        "found 1 dimensions of float64, expected one dimension of integers",
    ),
    "two dimensions": (lambda f: _save(f / "t.npy", [[1, 2]] * 9), "found 2 dimensions of int64"),
    "one number": (lambda f: _save(f / "t.npy", 3), "found 0 dimensions of int64"),
    "no integers": (lambda f: _save(f / "t.npy", [True] * 20), "found 1 dimensions of bool"),
    "missing": (lambda f: f / "none.npy", "found an error (No such file or directory), expected a file of tokens"),
    "missing raw": (lambda f: f / "none.bin", "found an error (No such file or directory), expected a file of tokens"),
    "a folder": (lambda f: f, "found a folder, expected a file of tokens"),
    "text called .npy": (lambda f: _write(f / "t.npy", b"1 2 3 4"), "expected a NumPy file of integers"),
    "nothing called .npy": (lambda f: _write(f / "t.npy", b""), "expected a NumPy file of integers"),
    "an archive called .npy": (lambda f: _zip(f / "t.npy"), "expected a NumPy file of integers"),
    "half a .npy": (
        lambda f: _write(f / "t.npy", _save(f / "whole.npy", range(99)).read_bytes()[:200]),
        "expected a NumPy file of integers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_cannot_be_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    make, message = REFUSED[name]
    path = make(tmp_path)
    with pytest.raises(InputError) as failure:
        load_tokens(path, GPT, seq_len=8)
    told = str(failure.value)
    assert told.startswith(f"{path}: found ")
    assert message in told
    assert told.count(str(path)) == 1


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("t.npy", "t.bin"):
        os.mkfifo(tmp_path / name)
        with pytest.raises(InputError, match="found a pipe, expected a file of tokens"):
            load_tokens(tmp_path / name, GPT, seq_len=8)


def test_only_tokens_that_are_trained_on_are_looked_at(tmp_path: Path) -> None:
    path = _save(tmp_path / "t.npy", [*range(17), 10**6, 1])
    assert load_tokens(path, GPT, seq_len=8, samples=2).samples(0, 2).inputs.shape == (2, 8)
    with pytest.raises(InputError, match="found tokens from 0 to 1000000"):
        load_tokens(path, GPT, seq_len=8, samples=3)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    path = tmp_path / "tokens.npy"
    np.save(path, np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="expected a NumPy file of integers"):
        load_tokens(path, GPT, seq_len=8)


def test_a_model_of_images_takes_no_tokens_and_a_raw_file_has_a_known_dtype(tmp_path: Path) -> None:
    path = _save(tmp_path / "t.npy", range(20))
    with pytest.raises(InputError, match="found data for wide-resnet-tiny, which takes images, expected no --data"):
        load_tokens(path, RESNET, seq_len=0)
    with pytest.raises(InputError, match="run: --data-dtype: found float32, expected one of uint16, uint32, int32"):
        load_tokens(path, GPT, seq_len=8, raw_dtype="float32")
