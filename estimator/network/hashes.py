"""Hashes by which switches choose among equal ways, of many packets at once.

What a switch hashes is known (addresses, protocol, ports: RFC 2992, RFC 7424), how is not: vendors publish neither the
polynomial nor the seed. The families are those that their documents name. A switch's own seed is drawn from the
fabric's and its number.

`crc16`, `crc32` and `xor-fold` are linear: with another seed every packet's hash changes by the same pattern, so that
two switches in a row with as many ways choose alike (polarisation). Fabrics that are built of them polarise; `jenkins`
does not, nor does `toeplitz`, whose key the seed draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from estimator.network.wires import Integers
from profiles.routing import HashName

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]

UDP, ROCE_PORT = 17, 4791
_MASK32 = np.uint64(0xFFFFFFFF)


def packet_bytes(sources: Integers, destinations: Integers, ports: Integers) -> Bytes:
    """Return the five-tuples of RoCE packets as switches see them, (packets, 13): addresses of 4 bytes, the protocol,
    the source port, the destination port. NIC i has the address 10.0.0.0 + i."""
    fields = (
        (sources + (10 << 24), 4),
        (destinations + (10 << 24), 4),
        (np.full(len(ports), UDP), 1),
        (ports, 2),
        (np.full(len(ports), ROCE_PORT), 2),
    )
    packets = np.empty((len(ports), 13), dtype=np.uint8, order="F")
    column = 0
    for values, width in fields:
        for place in reversed(range(width)):
            packets[:, column] = values >> (8 * place) & 0xFF
            column += 1
    return packets


def switch_seeds(seed: int, switches: Integers) -> Words:
    """Return 32 bits for each switch, drawn from the fabric's seed (splitmix64: Steele, Lea, Flood, 2014)."""
    mixed = switches.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(_mixed(seed))
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) & _MASK32


def _mixed(seed: int) -> int:
    """64 bits of a seed, so that seeds beside each other are far apart."""
    mixed = (seed + 1) * 0xD1342543DE82EF95 & 2**64 - 1
    return (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93 & 2**64 - 1


def _crc(packets: Bytes, register: Words, table: Words) -> Words:
    """A cyclic redundancy check by bytes, low bit first."""
    for column in packets.T:
        register = table[(register ^ column) & np.uint64(0xFF)] ^ (register >> np.uint64(8))
    return register


def _crc_table(polynomial: int) -> Words:
    values = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        values = np.where(
            values & np.uint64(1), (values >> np.uint64(1)) ^ np.uint64(polynomial), values >> np.uint64(1)
        )
    return values


_CRC32, _CRC16 = _crc_table(0xEDB88320), _crc_table(0xA001)


def _crc32(packets: Bytes, seeds: Words) -> Words:
    """Ethernet's, where the seed is 0."""
    return _crc(packets, seeds ^ _MASK32, _CRC32) ^ _MASK32


def _crc16(packets: Bytes, seeds: Words) -> Words:
    """CRC-16/ARC where the seed is 0."""
    return _crc(packets, seeds & np.uint64(0xFFFF), _CRC16)


def _xor_fold(packets: Bytes, seeds: Words) -> Words:
    """All 16-bit halves of the tuple together; the protocol in the low byte."""
    wide = packets.astype(np.uint64)
    pairs = (0, 2, 4, 6, 9, 11)
    folded = wide[:, 8].copy()
    for place in pairs:
        folded ^= wide[:, place] << np.uint64(8) | wide[:, place + 1]
    return folded ^ seeds & np.uint64(0xFFFF)


def _jenkins(packets: Bytes, seeds: Words) -> Words:
    """Bob Jenkins' one at a time (Dr. Dobb's, 1997), which begins with the seed."""
    value = (seeds & _MASK32).astype(np.uint32)
    for column in packets.T:
        value += column
        value += value << np.uint32(10)
        value ^= value >> np.uint32(6)
    value += value << np.uint32(3)
    value ^= value >> np.uint32(11)
    value += value << np.uint32(15)
    return value.astype(np.uint64)


def _toeplitz(packets: Bytes, seeds: Words) -> Words:
    """Of every bit of the tuple that is set, the 32 bits of the key from there on, together (Microsoft's RSS). The key
    is drawn from the seed."""
    bits = np.unpackbits(packets, axis=1).astype(bool)
    value = np.zeros(len(packets), dtype=np.uint64)
    key = [switch_seeds(word, seeds.astype(np.int64)) for word in range(bits.shape[1] // 32 + 2)]
    for place, column in enumerate(bits.T):
        word, shift = divmod(place, 32)
        window = ((key[word] << np.uint64(32) | key[word + 1]) >> np.uint64(32 - shift)) & _MASK32
        value ^= np.where(column, window, np.uint64(0))
    return value


HASHES: Mapping[HashName, Callable[[Bytes, Words], Words]] = {
    "jenkins": _jenkins,
    "crc16": _crc16,
    "crc32": _crc32,
    "xor-fold": _xor_fold,
    "toeplitz": _toeplitz,
}
"""From packets (packets, 13) and the seed of the switch that each is at, (packets,), to hashes of 16 or 32 bits."""
