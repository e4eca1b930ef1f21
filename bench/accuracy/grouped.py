"""How far grouped products are from measured mixtures of experts, as one kernel and as one kernel each.

    python -m bench.accuracy.grouped --data DIR [--fit]

from the root of the repository; DIR holds kernels/moe.csv.gz (its README.md there). A row is the feed-forward of one
rank's experts without their exchange: two grouped products, and the kernels that route, permute and activate, which are
counted as passes over memory. Balanced rows alone, of each shape the fastest software; with ep > 1 TensorRT-LLM alone,
as others walk over other ranks' copies. Three shapes in ten (by a hash of all sizes) are held: parameters rest on the
others. "streams" is what stood before: a kernel each, with a floor a group. `--fit` (needs scipy) fits architectures
anew and prints the errors with that; profiles/data/efficiencies.toml is edited by hand.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, get_args

from bench.accuracy.kernel_rows import DEVICES, read_table
from estimator.pricing.product_time import gemm_seconds
from profiles.efficiencies import OperatorEfficiencies, load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import Device, DType

INSTEAD = {"fp8_block": "mxfp8"}
SIZES = ("tokens", "hidden", "ffn_hidden", "experts", "topk", "tp", "ep", "gated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a row holds beside its products: seconds of routing, and what its passes reach of the bandwidth."""

    start_s: float
    bandwidth_share: float


BESIDE = {
    "ampere": Beside(start_s=1e-6, bandwidth_share=1.0),
    "hopper": Beside(start_s=26e-6, bandwidth_share=0.6),
    "blackwell": Beside(start_s=31e-6, bandwidth_share=0.6),
}
"""By architecture, fitted with the products on the fitted rows (`--fit`): start_s of one and of the other add up, of
which a product's is taken as 5 us, as that of the seven or so kernels beside is 3 to 5. Their passes reach at least
what the operator model gives reads and writes by an index (`gather_share`): with less, products come out too fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A measured feed-forward, the fastest of its shape; `sizes` by the names of `SIZES`."""

    id: str
    device: Device
    dtype: DType
    sizes: Mapping[str, int]
    measured_s: float
    software: str

    @property
    def held(self) -> bool:
        """Whether no parameter may rest on the row."""
        return sha256(" ".join(str(self.sizes[name]) for name in SIZES).encode()).digest()[0] % 10 < 3


def read_rows(path: Path) -> tuple[Row, ...]:
    """Return the balanced rows of `path` in dtypes of ours: of each device, dtype and shape the fastest software."""
    fastest: dict[tuple[object, ...], Row] = {}
    for row in read_table(path):
        if row["workload"] != "balanced" or row["dtype"] not in get_args(DType) or row["gpu"] not in DEVICES:
            continue
        if row["ep"] != "1" and not row["software"].startswith("trtllm"):
            continue
        device = load_device(DEVICES[row["gpu"]])
        # Blackwell runs the products of block scales in MXFP8.
        rates = dict(device.peak_flops_per_s)
        dtype: Any = next((name for name in (row["dtype"], INSTEAD.get(row["dtype"])) if name in rates), None)
        if dtype is None:
            continue
        read = Row(
            id=row["id"],
            device=device,
            dtype=dtype,
            sizes={name: int(row[name]) for name in SIZES},
            measured_s=float(row["seconds"]),
            software=row["software"],
        )
        key = (row["gpu"], row["dtype"], *read.sizes.values())
        if key not in fastest or read.measured_s < fastest[key].measured_s:
            fastest[key] = read
    return tuple(fastest.values())


def modelled_s(row: Row, efficiencies: OperatorEfficiencies, beside: Beside) -> float:
    """Return the seconds that the operator model gives the row."""
    size = row.sizes
    copies = size["tokens"] * size["topk"] / size["ep"]
    groups = max(1, min(size["experts"] // size["ep"], round(copies)))
    m, inner, wide = max(1, round(copies / groups)), size["ffn_hidden"] // size["tp"], 1 + size["gated"]
    products = (
        gemm_seconds(m, n, k, groups=groups, device=row.device, dtype=row.dtype, efficiencies=efficiencies)
        for n, k in ((inner * wide, size["hidden"]), (size["hidden"], inner))
    )
    # The tables are of bursts; parameters are of lasting load, as training is (`GemmEfficiency`).
    rates = efficiencies.gemm_of(row.dtype)
    products_s = sum(
        seconds * (1 + rates.burst_gain * seconds / (seconds + rates.burst_half_s)) / (1 + rates.burst_gain)
        for seconds in products
    )
    # Tokens are gathered into copies, activated, and summed again; 16 bits each.
    passes = 2 * (2 * (size["tokens"] + copies) * size["hidden"] + (1 + wide) * copies * inner)
    if row.dtype != "bf16":
        # Cast to 8 bits before either product: two bytes read, one written.
        passes += 3 * copies * (size["hidden"] + inner)
    stream_s = passes / (row.device.memory_bandwidth_bytes_per_s * beside.bandwidth_share)
    return products_s + beside.start_s + stream_s


def error(row: Row, efficiencies: Mapping[str, OperatorEfficiencies], beside: Mapping[str, Beside]) -> float:
    """Return modelled / measured - 1."""
    known = efficiencies[row.device.name]
    return modelled_s(row, known, beside[known.architecture]) / row.measured_s - 1


FREE = (
    ("fill", 1.0, 2000.0),
    ("stall", 0.01, 1.5),
    ("bandwidth_share", 0.3, 1.0),
    ("start_s", 1e-6, 3e-5),
    ("beside start_s", 1e-6, 1e-4),
    ("beside bandwidth_share", 0.6, 1.0),
)
LARGEST_SHARE = 0.87
"""Of the peak, in a fit: the best that any row reaches (0.86, B300)."""


def fit(
    rows: Sequence[Row], efficiencies: Mapping[str, OperatorEfficiencies], architecture: str
) -> tuple[dict[str, OperatorEfficiencies], Beside]:
    """Return the efficiencies of an architecture's devices, and what comes beside, that make the logarithm of modelled
    over measured small on the rows that are not held."""
    from scipy.optimize import least_squares

    mine = [row for row in rows if not row.held and efficiencies[row.device.name].architecture == architecture]
    dtypes = sorted({row.dtype for row in mine})
    free = (*FREE, *((f"share {dtype}", 0.2, LARGEST_SHARE) for dtype in dtypes))
    lows, highs = ([math.log(part[side]) for part in free] for side in (1, 2))  # type: ignore[arg-type]

    def put(logs: Sequence[float]) -> tuple[dict[str, OperatorEfficiencies], Beside]:
        values = {name: math.exp(log) for (name, _, _), log in zip(free, logs, strict=True)}
        shares = tuple((dtype, values.pop(f"share {dtype}")) for dtype in dtypes)
        beside = {name: values.pop(f"beside {name}") for name in ("start_s", "bandwidth_share")}
        changed: dict[str, Any] = {**values, "shares": shares}
        return {
            name: replace(known, grouped=replace(known.grouped, **changed))
            for name, known in efficiencies.items()
            if known.architecture == architecture and known.grouped is not None
        }, Beside(**beside)

    def log_errors(logs: Sequence[float]) -> list[float]:
        known, beside = put(logs)
        return [math.log1p(error(row, known, {architecture: beside})) for row in mine]

    start = [low + 0.6 * (high - low) for low, high in zip(lows, highs, strict=True)]
    best = least_squares(log_errors, start, bounds=(lows, highs), loss="soft_l1", f_scale=0.1, max_nfev=60)
    print(f"{architecture}: " + ", ".join(f"{part[0]} {math.exp(x):.3g}" for part, x in zip(free, best.x, strict=True)))
    return put(best.x)


def report(rows: Sequence[Row], efficiencies: Mapping[str, OperatorEfficiencies], beside: Mapping[str, Beside]) -> None:
    """Print a line for each device, dtype and part of the rows: errors as one kernel, and beside them in streams."""
    streams = {name: known.in_streams() for name, known in efficiencies.items()}
    head = f"{'device':12} {'dtype':10} {'part':5} {'rows':>5} {'mean':>7} {'median':>7} {'bias':>7}"
    print(f"{head}   in streams: mean    bias")
    for device in DEVICES.values():
        for dtype in sorted({row.dtype for row in rows}):
            for part, held in (("fit", False), ("held", True)):
                mine = [r for r in rows if (r.device.name, r.dtype, r.held) == (device, dtype, held)]
                if not mine:
                    continue
                now, before = ([error(row, known, beside) for row in mine] for known in (efficiencies, streams))
                sizes = [abs(each) for each in now]
                print(
                    f"{device:12} {dtype:10} {part:5} {len(mine):5d} {statistics.mean(sizes):7.1%}"
                    f" {statistics.median(sizes):7.1%} {statistics.mean(now):+7.1%}"
                    f" {statistics.mean(map(abs, before)):18.1%} {statistics.mean(before):+7.1%}"
                )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0, or 2 where DIR has no kernels/moe.csv.gz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds kernels/moe.csv.gz")
    parser.add_argument("--fit", action="store_true", help="fit the parameters anew and take them")
    options = parser.parse_args(arguments)
    path = options.data / "kernels" / "moe.csv.gz"
    if not path.is_file():
        print(f"skipped: no {path}")
        return 2
    rows = read_rows(path)
    efficiencies = {row.device.name: load_operator_efficiencies(row.device.name) for row in rows}
    beside = dict(BESIDE)
    if options.fit:
        for architecture in BESIDE:
            changed, beside[architecture] = fit(rows, efficiencies, architecture)
            efficiencies |= changed
    report(rows, efficiencies, beside)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
