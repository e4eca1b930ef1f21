"""Reader of `data/kernels/`: measured times of single kernels on a grid of their sizes, by device.

A file `KIND-DEVICE.csv.gz` holds the times of one kind of kernel on one device. It is text: lines `# NAME: VALUE` say
where the times come from (`source`, `commit`, `licence`, `rows`, `basis`) and, as `# measured AXIS: FIRST LAST`,
between which sizes anything was measured; then follow a header and rows of CSV. The header names the columns that tell
grids apart (strings, such as a dtype), the axes (`m`, `n`), and in its last cells the points of the last axis
(`k=32`, `64`, ...); a row holds a grid's names, a point of every axis but the last, and the seconds along that one.

    dtype,m,n,k=32,64,128
    bf16,256,64,2.9e-06,3.0e-06,3.1e-06

Files are read when first asked for. Who writes them: `python -m bench.accuracy.kernel_tables`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from math import exp, log, prod

from profiles.records import dataclass
from profiles.tables import DATA

MEASURED = "measured "


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelGrid:
    """Seconds of a kernel at every combination of the points of its axes.

    `log_points` holds the natural logarithms of each axis' sizes, ascending; `log_seconds` those of the times, the
    last axis running fastest; `measured` the first and last size of each axis at which anything was measured.
    """

    log_points: tuple[tuple[float, ...], ...]
    log_seconds: tuple[float, ...]
    measured: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if len(self.log_seconds) != prod(len(points) for points in self.log_points) or not self.log_points:
            raise ValueError(
                f"kernel grid: {len(self.log_seconds)} times for axes of {[len(points) for points in self.log_points]}"
                " points, expected one for each combination"
            )
        if any(points != tuple(sorted(set(points))) for points in self.log_points):
            raise ValueError("kernel grid: expected the points of an axis to ascend")

    def seconds(self, *sizes: float, carried: Callable[..., float] | None = None) -> float:
        """Return the time at `sizes`, one above 0 an axis: straight lines between logarithms; below the first point of
        an axis as there, beyond the last in proportion. Where the grid's times never fall, neither do these.

        `carried` gives the factor by which another device's time at the sizes of a point differs from the grid's.
        """
        offsets: list[tuple[int, float, tuple[float, ...]]] = [(0, 1.0, ())]
        beyond = 0.0
        for points, size in zip(self.log_points, sizes, strict=True):
            at, last = log(size), len(points) - 1
            beyond += max(0.0, at - points[last])
            low = min(max(bisect_right(points, at) - 1, 0), max(last - 1, 0))
            share = min(1.0, max(0.0, (at - points[low]) / (points[low + 1] - points[low]))) if last else 0.0
            ends = [(index, part) for index, part in ((low, 1 - share), (low + 1, share)) if part > 0]
            offsets = [
                (offset * (last + 1) + index, weight * part, (*node, points[index]))
                for offset, weight, node in offsets
                for index, part in ends
            ]
        log_s = sum(self.log_seconds[offset] * weight for offset, weight, _ in offsets) + beyond
        if carried is not None:
            log_s += sum(weight * log(carried(*map(exp, node))) for _, weight, node in offsets)
        return exp(log_s)

    def covers(self, *sizes: float) -> bool:
        """Return whether `sizes` lie between sizes that were measured."""
        return all(low <= size <= high for (low, high), size in zip(self.measured, sizes, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """One file: what it says of itself, and its grids by the names that tell them apart, as rows of text.

    A grid is made of its rows when it is asked for: a file holds several, of which a plan needs one or two.
    """

    about: Mapping[str, str]
    rows: Mapping[tuple[str, ...], Sequence[str]]
    last_points: tuple[float, ...]
    measured: tuple[tuple[float, float], ...]

    def grid(self, *names: str) -> KernelGrid | None:
        """Return the grid called `names`, None where there is none. Raise ValueError where it is not whole."""
        rows = self.rows.get(names)
        return None if rows is None else _grid(rows, len(self.measured) - 1, self.last_points, self.measured)


@cache
def load_kernels(kind: str, device: str) -> KernelTable | None:
    """Return the measured times of `kind` (`product`, ...) on `device`, None where the package holds none."""
    path = DATA / "kernels" / f"{kind}-{device}.csv.gz"
    if not path.is_file():
        return None
    import gzip

    return read_kernels(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())


@cache
def kernel_grid(kind: str, device: str, *names: str) -> KernelGrid | None:
    """Return the grid called `names` of a device's measured times, None where there is none."""
    table = load_kernels(kind, device) if device else None
    return None if table is None else table.grid(*names)


def read_kernels(lines: Iterable[str]) -> KernelTable:
    """Return the table that the lines of a file hold."""
    about: dict[str, str] = {}
    body = []
    for line in lines:
        if line.startswith("#"):
            name, _, value = line[1:].strip().partition(": ")
            about[name] = value
        else:
            body.append(line)
    header, *rows = body
    cells = header.split(",")
    last = next(index for index, cell in enumerate(cells) if "=" in cell)
    last_name, _, first_point = cells[last].partition("=")
    axes = [name for name in cells[:last] if MEASURED + name in about]
    keys = last - len(axes)
    parts: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        *names, numbers = row.split(",", keys)
        parts.setdefault(tuple(names), []).append(numbers)
    boxes = [about[MEASURED + name].split() for name in (*axes, last_name)]
    return KernelTable(
        about=about,
        rows=parts,
        last_points=(float(first_point), *map(float, cells[last + 1 :])),
        measured=tuple((float(low), float(high)) for low, high in boxes),
    )


def _grid(
    rows: Sequence[str], axes: int, last_points: Sequence[float], box: tuple[tuple[float, float], ...]
) -> KernelGrid:
    """One grid from its rows, in whatever order they stand."""
    width = axes + len(last_points)
    if any(row.count(",") != width - 1 for row in rows):
        raise ValueError(f"kernel grid: found rows of other lengths, expected {width} numbers in each")
    cells = list(map(float, ",".join(rows).split(",")))
    ordered = sorted(cells[first : first + width] for first in range(0, len(cells), width))
    points = [sorted({row[axis] for row in ordered}) for axis in range(axes)]
    return KernelGrid(
        log_points=tuple(tuple(map(log, axis)) for axis in (*points, last_points)),
        log_seconds=tuple(map(log, chain.from_iterable(row[axes:] for row in ordered))),
        measured=box,
    )


def write_kernels(
    about: Mapping[str, str],
    keys: Sequence[str],
    axes: Mapping[str, Sequence[float]],
    grids: Mapping[tuple[str, ...], Mapping[tuple[float, ...], float]],
) -> bytes:
    """Return a file's bytes: `about` it, the names of `keys` and the points of `axes` by name, and for each grid its
    seconds by point. The same arguments give the same bytes."""
    *outer, last = axes
    lines = [f"# {name}: {value}" for name, value in about.items()]
    first, *others = axes[last]
    lines.append(",".join([*keys, *outer, f"{last}={first:.12g}", *(f"{point:.12g}" for point in others)]))
    for names, seconds in grids.items():
        heads: list[tuple[float, ...]] = [()]
        for name in outer:
            heads = [(*head, point) for head in heads for point in axes[name]]
        for head in heads:
            values = [f"{seconds[(*head, point)]:.4g}" for point in axes[last]]
            lines.append(",".join([*names, *(f"{point:.12g}" for point in head), *values]))
    import gzip

    return gzip.compress(("\n".join(lines) + "\n").encode("utf-8"), mtime=0)
