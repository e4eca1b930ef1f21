"""Writes `profiles/data/kernels/`: measured products, smoothed over their sizes, on a grid on which times never fall.

    python -m bench.accuracy.kernel_tables --data DIR

from the root of the repository; DIR/kernels holds the measured kernels. At each point of the grid stands the product
model's time under lasting load, times what rows near it say of that model: a Gaussian process over the logarithms of
the sizes (kriging) of the logarithm of measured over modelled time. A burst is compared with the model's burst, so that
its row says nothing of clocks that training does not have. What then still falls along a size is levelled.
"""

from __future__ import annotations

import argparse
import gzip
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from bench.accuracy.kernel_fit import in_bursts, modelled_at, without_tables
from bench.accuracy.kernel_rows import DEVICES, ProductRow, read_products
from estimator.pricing.product_time import gemm_seconds
from profiles.efficiencies import load_operator_efficiencies
from profiles.files import write_atomically
from profiles.hardware import load_device
from profiles.kernels import KernelGrid, read_kernels, write_kernels
from profiles.vocabulary import DType

FOLDER = Path(__file__).parents[2] / "profiles" / "data" / "kernels"
SOURCE = (
    "ai-dynamo/aiconfigurator (NVIDIA), aic-core/src/aiconfigurator_core/systems/data: TensorRT-LLM's linear layers"
)
COMMIT = "095f58a51c4c"
LICENCE = "Apache-2.0"
ROWS = (1, 16, 64, 128, 256, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768)
COLUMNS = (32, 64, 128, 256, 512, 768, 1024, 1536, 2048, 2560, 3072, 3584, 4096, 5120, 6144, 7168, 8192)
LONG_COLUMNS = (*COLUMNS, 10240, 12288, 16384, 24576, 32768, 51200, 65536)
AXES = {"m": ROWS, "n": LONG_COLUMNS, "k": LONG_COLUMNS}
REACH = 1.5
"""Over how many doublings of a size a row speaks for others (the process' length scale)."""
SPREAD = 0.1
NOISE = {True: 0.08, False: 0.05}
"""How far the model is off, and how far rows of like sizes differ, of bursts (whose clock the model tells) and under
lasting load: standard deviations of logarithms."""
MOST_ROWS = 6000
"""So many rows at most make a grid: every so-manieth of more."""


def smooth_grid(rows: Sequence[ProductRow], axes: Mapping[str, Sequence[int]] = AXES) -> dict[tuple[float, ...], float]:
    """Return the seconds under lasting load at all points of `axes`, from rows of one device and dtype."""
    device, dtype = load_device(rows[0].device), rows[0].dtype
    model = without_tables(load_operator_efficiencies(device.name))
    bursts = in_bursts(model)
    thinned = list(rows)[:: math.ceil(len(rows) / MOST_ROWS)]
    said = np.array([math.log(row.seconds / modelled_at(row, bursts if row.burst else model)) for row in thinned])
    points = list(product(*axes.values()))
    noise = np.array([NOISE[row.burst] for row in thinned])
    near = _kriged(
        np.log2([(row.m, row.n, row.k) for row in thinned]), said, np.log2(np.array(points, dtype=float)), noise
    )
    modelled = [gemm_seconds(*point, device=device, dtype=dtype, efficiencies=model) for point in points]
    level = _levelled((np.log(modelled) + near).reshape([len(axis) for axis in axes.values()]))
    return {
        tuple(map(float, point)): float(seconds) for point, seconds in zip(points, np.exp(level).ravel(), strict=True)
    }


def _kriged(places: np.ndarray, values: np.ndarray, wanted: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """The process' mean at `wanted`; far from all rows the rows' median."""
    middle = float(np.median(values))
    among = _covariance(places, places) + np.diag(noise**2)
    weights = np.linalg.solve(among, values - middle)
    chunks = [_covariance(part, places) @ weights for part in np.array_split(wanted, 1 + len(wanted) // 2000)]
    return np.asarray(middle + np.concatenate(chunks))


def _covariance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    square = np.sum(a**2, axis=1)[:, None] + np.sum(b**2, axis=1)[None, :] - 2 * a @ b.T
    return np.asarray(SPREAD**2 * np.exp(-np.maximum(square, 0.0) / (2 * REACH**2)))


def _levelled(log_s: np.ndarray) -> np.ndarray:
    """The middle of the least never-falling times above and the greatest below: never falling itself."""
    above, below = log_s, log_s
    for axis in range(log_s.ndim):
        above = np.maximum.accumulate(above, axis=axis)
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis=axis), axis)
    return np.asarray((above + below) / 2)


def grid_of(rows: Sequence[ProductRow]) -> KernelGrid:
    """Return the grid of rows of one device and dtype as the package would read it."""
    data = _file({(rows[0].dtype,): smooth_grid(rows)}, rows)
    grid = read_kernels(gzip.decompress(data).decode("utf-8").splitlines()).grid(rows[0].dtype)
    assert grid is not None
    return grid


def _file(grids: Mapping[tuple[str, ...], Mapping[tuple[float, ...], float]], rows: Sequence[ProductRow]) -> bytes:
    counts = {dtype: sum(row.dtype == dtype for row in rows) for (dtype,) in grids}
    about = {
        "source": SOURCE,
        "commit": COMMIT,
        "licence": LICENCE,
        "device": rows[0].device,
        "rows": ", ".join(f"{count} of {dtype}" for dtype, count in counts.items()),
        "basis": "forward products with bf16 results under lasting load, smoothed; of narrow types without their casts",
        "written by": "python -m bench.accuracy.kernel_tables",
        **{
            f"measured {name}": f"{min(getattr(row, name) for row in rows)} {max(getattr(row, name) for row in rows)}"
            for name in AXES
        },
    }
    return write_kernels(about, ("dtype",), AXES, grids)


def write_products(rows: Iterable[ProductRow], device: str) -> bytes:
    """Return the file of a device's products, all dtypes that were measured on it."""
    members = [row for row in rows if row.device == device and row.usable]
    dtypes: list[DType] = sorted({row.dtype for row in members})
    grids: dict[tuple[str, ...], Mapping[tuple[float, ...], float]] = {
        (dtype,): smooth_grid([row for row in members if row.dtype == dtype]) for dtype in dtypes
    }
    return _file(grids, members)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds kernels/")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder to write to (the package's)")
    options = parser.parse_args(arguments)
    rows = read_products(options.data / "kernels")
    for device in DEVICES.values():
        if load_operator_efficiencies(device).kernels == device:
            content = write_products(rows, device)
            write_atomically(options.out / f"product-{device}.csv.gz", content)
            print(f"product-{device}.csv.gz: {len(content) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
