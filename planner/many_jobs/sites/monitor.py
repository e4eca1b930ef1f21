"""The bandwidth monitor: measurements of links between sites, smoothed and aged.

SpiderFlow's monitor probes the links and records what it finds (section 4.1.2); it does not say how figures age. Here a
measurement weighs `2 ** (-age / half_life)`, and what the cluster file says weighs as much as one measurement that is
`4 * half_life` old, always: a link that nobody measures any more goes back to the file's figures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import LinkTable

FILE_WEIGHT = 2.0**-4
Basis = Literal["measured", "file", "down"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkMeasurement:
    """What a probe of a link between two sites found at a time: bytes/s (0: nothing came through) and one way's
    latency (None: it was not measured)."""

    between: tuple[str, str]
    at_s: float
    bandwidth_bytes_per_s: float
    latency_s: float | None = None

    def __post_init__(self) -> None:
        figures = (self.at_s, self.bandwidth_bytes_per_s, self.latency_s or 0.0)
        first, second = self.between
        if first == second or not all(map(math.isfinite, figures)) or min(figures[1:]) < 0:
            raise InputError(
                where="link measurement", found=self, expected="two sites, and finite figures of at least 0"
            )


def figures_at(
    measurements: Sequence[LinkMeasurement], filed: tuple[float, float] | None, now_s: float, *, half_life_s: float
) -> tuple[float, float, Basis]:
    """Return bytes/s and s of a link at a time, and where they come from, by its measurements in any order and what the
    cluster file says (None: it has no such link).

    A measurement of 0 bytes/s says that the link is down: it stays so until a later one of more, and what was measured
    up to then is forgotten.
    """
    down_s = max((down.at_s for down in measurements if not down.bandwidth_bytes_per_s), default=-math.inf)
    counted = [measured for measured in measurements if measured.at_s > down_s]
    filed_width, filed_far = filed or (None, None)
    if not counted:
        return (filed_width or 0.0, filed_far or 0.0, "file") if down_s < 0 else (0.0, filed_far or 0.0, "down")
    widths = [(measured.at_s, measured.bandwidth_bytes_per_s) for measured in counted]
    fars = [(measured.at_s, measured.latency_s) for measured in counted if measured.latency_s is not None]
    # Where clocks differ the latest measurement is of now.
    now_s = max(now_s, *(at_s for at_s, _ in widths))
    width = _smoothed(widths, filed_width or None, now_s, half_life_s)
    return width, _smoothed(fars, filed_far, now_s, half_life_s), "measured"


def _smoothed(rows: Sequence[tuple[float, float]], filed: float | None, now_s: float, half_life_s: float) -> float:
    """The mean of figures of these times, weighted by their ages, with the file's figure where there is one."""
    if not rows:
        return filed or 0.0
    latest_s = max(at_s for at_s, _ in rows)
    weights = [math.pow(2.0, (at_s - latest_s) / half_life_s) for at_s, _ in rows]
    whole = math.fsum(weights)
    mean = math.fsum(weight * figure for weight, (_, figure) in zip(weights, rows, strict=True)) / whole
    if filed is None:
        return mean
    whole *= math.pow(2.0, (latest_s - now_s) / half_life_s)
    return (mean * whole + filed * FILE_WEIGHT) / (whole + FILE_WEIGHT)


def measurement_of(table: LinkTable, between: tuple[str, str], at_s: float) -> LinkMeasurement:
    """What a link table of `cellplan comm measure`, with its ranks at two sites, says of their link at a time.

    Of its line alpha + beta * bytes: bytes/s are the bus bandwidth of nccl-tests, factor / beta (2 (r - 1) / r for
    all_reduce, (r - 1) / r for the other collectives, 1 for send_recv), latency is alpha over the steps of a ring.
    """
    ranks = table.ranks
    steps = {"all_reduce": 2 * (ranks - 1), "send_recv": 1}.get(table.op, ranks - 1)
    factor = 1.0 if table.op == "send_recv" else steps / ranks
    beta, largest = table.beta_s_per_byte, table.points[-1]
    if beta <= 0:
        beta = largest[1] / largest[0]
    return LinkMeasurement(
        between=between,
        at_s=at_s,
        bandwidth_bytes_per_s=factor / beta,
        latency_s=max(table.alpha_s, 0.0) / max(steps, 1),
    )


def measurements_of(
    tables: Sequence[LinkTable], times_s: Mapping[str, float], names: Sequence[str]
) -> tuple[LinkMeasurement, ...]:
    """Measurements from the tables whose link is called after two sites, as `north--south`; others are passed over.

    `times_s` says when a table was measured, by its id; one that is not in it was measured at 0 s. Of a link's tables
    that of send_recv counts, else that of the fewest ranks.
    """
    tables_of: dict[tuple[str, str], list[LinkTable]] = {}
    for table in tables:
        first, _, second = table.link.partition("--")
        if first in names and second in names and first != second:
            low, high = sorted((first, second))
            tables_of.setdefault((low, high), []).append(table)
    chosen = []
    for pair, of_pair in sorted(tables_of.items()):
        for at_s in sorted({times_s.get(table.id, 0.0) for table in of_pair}):
            best = min(
                (table for table in of_pair if times_s.get(table.id, 0.0) == at_s),
                key=lambda table: (table.op != "send_recv", table.ranks, table.op, table.id),
            )
            chosen.append(measurement_of(best, pair, at_s))
    return tuple(chosen)
