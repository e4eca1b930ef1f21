"""Hash families: published check values, and what linear ones do from switch to switch."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from estimator.network.hashes import HASHES, packet_bytes, switch_seeds
from profiles.routing import HASH_NAMES, HashName


def hashed(name: HashName, text: bytes, seed: int = 0) -> int:
    packets = np.frombuffer(text, dtype=np.uint8).reshape(1, -1)
    return int(HASHES[name](packets, np.array([seed], dtype=np.uint64))[0])


def random_packets(count: int) -> np.ndarray:
    rng = np.random.default_rng(1)
    ends = rng.integers(0, 2**16, (2, count))
    return packet_bytes(ends[0], ends[1], rng.integers(49152, 65536, count))


def test_check_values() -> None:
    """Of the catalogue of parametrised CRC algorithms, and of Jenkins' own page."""
    assert hashed("crc16", b"123456789") == 0xBB3D
    assert hashed("crc32", b"123456789") == zlib.crc32(b"123456789") == 0xCBF43926
    assert hashed("jenkins", b"a") == 0xCA2E9442
    assert hashed("jenkins", b"The quick brown fox jumps over the lazy dog") == 0x519E91F5
    assert hashed("xor-fold", bytes([1, 2, 4, 8, 16, 32, 64, 128, 17, 0xC0, 1, 0x12, 0xB7])) == (
        0x0102 ^ 0x0408 ^ 0x1020 ^ 0x4080 ^ 17 ^ 0xC001 ^ 0x12B7
    )


def test_five_tuples() -> None:
    (packet,) = packet_bytes(np.array([258]), np.array([3]), np.array([0xC123]))
    assert bytes(packet) == bytes([10, 0, 1, 2, 10, 0, 0, 3, 17, 0xC1, 0x23, 4791 >> 8, 4791 & 0xFF])


@pytest.mark.parametrize("name", HASH_NAMES)
def test_every_family_spreads_packets_evenly(name: HashName) -> None:
    packets = random_packets(20_000)
    counts = np.bincount(HASHES[name](packets, np.full(20_000, 12345, np.uint64)).astype(int) % 8, minlength=8)
    assert ((counts - 2500) ** 2 / 2500).sum() < 30


@pytest.mark.parametrize("name", HASH_NAMES)
def test_linear_families_polarise_and_others_do_not(name: HashName) -> None:
    """Of the packets that one switch sends one way, the next switch uses one way of eight, or all of them."""
    packets = random_packets(4000)
    first, second = (np.full(4000, seed, np.uint64) for seed in switch_seeds(0, np.array([1, 2])))
    here = packets[HASHES[name](packets, first).astype(int) % 8 == 3]
    onward = set((HASHES[name](here, second[: len(here)]).astype(int) % 8).tolist())
    assert len(onward) == (1 if name in ("crc16", "crc32", "xor-fold") else 8)


def test_toeplitz_is_the_sum_over_bits_that_are_set() -> None:
    one, two = (
        b"\x80\x00\x01\x10\x00\x00\x00\x40\x00\x00\x02\x00\x00",
        b"\x00\x04\x00\x00\x00\xff\x00\x00\x00\x08\x00\x00\x01",
    )
    both = bytes(a ^ b for a, b in zip(one, two, strict=True))
    assert hashed("toeplitz", both, 7) == hashed("toeplitz", one, 7) ^ hashed("toeplitz", two, 7)
    assert hashed("toeplitz", one, 7) != hashed("toeplitz", one, 8)


def test_seeds_of_switches_differ() -> None:
    seeds = np.concatenate([switch_seeds(seed, np.arange(1000)) for seed in range(20)])
    assert len(np.unique(seeds)) == 20_000
