"""Rows of a folder of measured kernels (gzip CSV), as the operator model meets them: products, casts and attention.

Products of narrow types were timed with the cast of their activation; `seconds` is the product alone. Where the folder
has the cast of the same sizes apart, that is taken off, else what the model of a memory-bound kernel says of it.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from math import sqrt
from pathlib import Path

from estimator.pricing.operator_time import cast_seconds
from profiles.efficiencies import load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import DType

Row = Mapping[str, str]
DEVICES = {
    "A100 SXM": "a100-80gb",
    "H100 SXM": "h100",
    "H200 SXM": "h200",
    "B200 SXM": "b200",
    "B300 SXM": "b300",
    "GB200 SXM": "gb200",
}
SUSTAINED_BY = "trtllm"
"""The framework of the runs under lasting load whose operands are random, as trained weights are, not constant (which
takes less power: 4% less time on GB200, 0% on B200). Another counts on devices where this one has few rows or none."""
SUSTAINED_BY_OTHERS = ("h200", "b200")
NO_LASTING = ("mxfp8",)
"""Types whose rows under lasting load are of older kernels than all others: they take 1.2 to 1.6 times as long."""
LEAST_LEFT = 0.3
"""A product is at least this part of the time that was measured with its cast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow:
    """One product x(m, k) times weight(k, n), timed forward. `burst`: for milliseconds, not under lasting load;
    `usable`: it says how training runs."""

    device: str
    dtype: DType
    m: int
    n: int
    k: int
    seconds: float
    burst: bool
    usable: bool

    @property
    def held(self) -> bool:
        """Whether the shape is of the half that nothing is fitted to."""
        return is_held(self.m, self.n, self.k)

    @property
    def long(self) -> bool:
        """Whether no size is below 1,024, as in training."""
        return min(self.m, self.n, self.k) >= 1024


def is_held(*sizes: int) -> bool:
    """Return whether a shape is of the held half: where SHA-256 of its sizes, joined by commas, is odd."""
    return int(sha256(",".join(map(str, sizes)).encode()).hexdigest(), 16) % 2 == 1


def read_table(path: Path) -> list[dict[str, str]]:
    """Return the rows of a gzip CSV. Raise OSError if it cannot be read."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def read_products(folder: Path) -> list[ProductRow]:
    """Return all products of `gemm` and `gemm_sustained`, of bursts the mean of two versions of one framework."""
    bursts = read_table(folder / "gemm.csv.gz")
    casts = {
        (row["gpu"], row["m"], row["k"]): float(row["quantize_seconds"]) for row in bursts if row["quantize_seconds"]
    }
    return [
        *_products(bursts, casts, burst=True),
        *_products(read_table(folder / "gemm_sustained.csv.gz"), casts, burst=False),
    ]


def _products(rows: Sequence[Row], casts: Mapping[tuple[str, str, str], float], *, burst: bool) -> Iterator[ProductRow]:
    for row in rows:
        device, seconds = DEVICES[row["gpu"]], float(row["seconds"])
        dtype = _dtype(row["dtype"], device)
        m, n, k = (int(row[name]) for name in "mnk")
        again = row.get("seconds_repeat")
        usable = burst or SUSTAINED_BY in row["software"] or (device in SUSTAINED_BY_OTHERS and dtype == "bf16")
        if not burst and dtype in NO_LASTING:
            continue
        if dtype == "bf16":
            # Only of bf16 do both versions run the same kernels.
            seconds = sqrt(seconds * float(again)) if again else seconds
        elif not usable:
            continue
        elif dtype == "fp8":
            cast_s = casts.get((row["gpu"], row["m"], row["k"]))
            if cast_s is None or cast_s >= seconds * (1 - LEAST_LEFT):
                continue
            seconds -= cast_s
        else:
            seconds -= min(seconds * (1 - LEAST_LEFT), cast_of(device, m, k, dtype))
        yield ProductRow(device=device, dtype=dtype, m=m, n=n, k=k, seconds=seconds, burst=burst, usable=usable)


def _dtype(name: str, device: str) -> DType:
    """Blackwell's block scales are MXFP8's."""
    names: dict[str, DType] = {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
    return (
        "mxfp8"
        if name == "fp8_block" and load_operator_efficiencies(device).architecture == "blackwell"
        else names[name]
    )


def cast_of(device: str, rows: int, columns: int, dtype: DType) -> float:
    """Return the seconds of one cast of an activation in bf16, written once."""
    efficiencies = load_operator_efficiencies(device)
    return cast_seconds(rows * columns, device=load_device(device), dtype=dtype, efficiencies=efficiencies, copies=1)
