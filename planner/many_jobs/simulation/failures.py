"""When nodes fail and are whole again: drawn with a seed, or a list."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from planner.many_jobs.jobs.records import Pool
from profiles.errors import InputError
from profiles.files import read_text, text_lines
from profiles.numerals import read_number, read_whole
from profiles.records import dataclass

COLUMNS = ("time_s", "pool", "node", "repair_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Node number `node` of `pool` fails at `time_s` and is whole again `repair_s` later."""

    time_s: float
    pool: str
    node: int
    repair_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Every node fails after a time drawn from the exponential distribution of mean `mtbf_s`, is down for `repair_s`,
    and so on; or else exactly those of `listed`. The same seed draws the same failures under every policy."""

    mtbf_s: float | None = None
    repair_s: float = 3600.0
    seed: int = 0
    listed: tuple[Failure, ...] = ()

    def __post_init__(self) -> None:
        if self.mtbf_s is not None and self.listed:
            raise ValueError("failures are either drawn (mtbf_s) or listed, not both")
        if self.mtbf_s is not None and not self.mtbf_s > 0:
            raise ValueError(f"mtbf_s is {self.mtbf_s}, and must be above 0")
        if not self.repair_s > 0:
            raise ValueError(f"repair_s is {self.repair_s}, and must be above 0")


def up_time_s(failures: Failures, pool: str, node: int, number: int) -> float:
    """Seconds that the node works before its failure `number` (from 0): the inverse of the exponential distribution at
    a uniform number hashed from seed, node and count, so that nothing but the count needs to be remembered."""
    assert failures.mtbf_s is not None
    digest = blake2b(f"{failures.seed}|{pool}|{node}|{number}".encode(), digest_size=7).digest()
    uniform = (int.from_bytes(digest, "big") >> 3) / 2**53
    return -failures.mtbf_s * math.log1p(-uniform)


def check_listed(failures: Failures, pools: Mapping[str, Pool], *, where: str = "failures") -> None:
    """InputError unless every failure is of a node that there is and that is not down already."""
    up_from: dict[tuple[str, int], float] = {}
    for failure in sorted(failures.listed, key=lambda listed: listed.time_s):
        pool, node = pools.get(failure.pool), (failure.pool, failure.node)
        if pool is None:
            raise InputError(where=where, key="pool", found=failure.pool, expected="one of " + ", ".join(pools))
        if not 0 <= failure.node < pool.nodes:
            expected = f"a node of {failure.pool}, 0 to {pool.nodes - 1}"
            raise InputError(where=where, key="node", found=failure.node, expected=expected)
        if not (failure.time_s >= 0 and failure.repair_s > 0):
            stated = f"{failure.time_s} and {failure.repair_s}"
            raise InputError(where=where, key="time_s, repair_s", found=stated, expected="0 or more, and above 0")
        if failure.time_s < up_from.get(node, 0.0):
            stated = f"node {failure.node} of {failure.pool} at {failure.time_s:g} s, when it is down already"
            raise InputError(where=where, key="time_s", found=stated, expected=f"{up_from[node]:g} s or later")
        up_from[node] = failure.time_s + failure.repair_s


def read_failures(path: Path) -> Failures:
    """The failures of a CSV file with the columns time_s, pool, node, repair_s; InputError names the line."""
    where = str(path)
    reader = csv.reader(text_lines(read_text(path), where=where), strict=True)
    try:
        header = next(reader, [])
        rows = [(reader.line_num, row) for row in reader if row]
    except csv.Error as error:
        place = f"{where}: line {reader.line_num}"
        raise InputError(where=place, found=f"no CSV ({error})", expected=",".join(COLUMNS)) from None
    for name in COLUMNS:
        if header.count(name) != 1:
            found = "the column twice" if name in header else "no such column"
            raise InputError(where=where, key=name, found=found, expected=",".join(COLUMNS))
    return Failures(listed=tuple(_failure(header, row, place=f"{where}: line {line}") for line, row in rows))


def _failure(header: list[str], row: list[str], *, place: str) -> Failure:
    stated = ",".join(row)
    if len(row) != len(header):
        raise InputError(where=place, found=f"{len(row)} cells", expected=f"{len(header)}, as the header has")
    cells = dict(zip(header, row, strict=True))
    try:
        time_s, repair_s = read_number(cells["time_s"]), read_number(cells["repair_s"])
        node = read_whole(cells["node"])
    except ValueError:
        expected = "a time, a pool, a node's number and a time"
        raise InputError(where=place, found=stated[:80], expected=expected) from None
    if not (math.isfinite(time_s) and math.isfinite(repair_s)):
        raise InputError(where=place, found=f"{time_s}, {repair_s}", expected="finite times")
    return Failure(time_s=time_s, pool=cells["pool"], node=node, repair_s=repair_s)
