"""Measurements of links between sites as files: what `cellplan comm measure --json` prints, and the monitor's state.

Two forms are read. The state (`"schema": "cellplan.links/1"`) lists what was measured of which link when; it is what
`cellplan place --links FILE` keeps:

    {"schema": "cellplan.links/1", "measurements": [
      {"between": ["north", "south"], "at_s": 1790000000, "bandwidth_bytes_per_s": 1.1e9, "latency_s": 0.005},
      {"between": ["north", "west"], "at_s": 1790000100, "bandwidth_bytes_per_s": 0}]}

`at_s` is seconds since 1970, 0 bytes/s a link through which nothing came. The other form is a list of link tables whose
link is called after two sites (`cellplan comm measure --link north--south --json`), measured when the file was written
last.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from planner.many_jobs.sites.monitor import Basis, LinkMeasurement, figures_at, measurements_of
from planner.many_jobs.sites.topology import Topology, make_topology
from profiles.cluster_schema import Delay
from profiles.errors import InputError
from profiles.files import read_json, write_atomically
from profiles.records import dataclass
from profiles.schema import FileModel, to_input_error, validate
from profiles.vocabulary import LinkTable

LINKS_SCHEMA: Literal["cellplan.links/1"] = "cellplan.links/1"
HALF_LIFE_S = 3600.0
"""A measurement counts half as much as one an hour newer, unless the user says otherwise."""
CLOCKS_DIFFER_S = 300.0
"""By so much the clock of who measured may be ahead of ours."""
KEPT_HALF_LIVES = 64
"""Older ones weigh nothing, and are dropped from the state when it is written."""


class _MeasurementModel(FileModel):
    between: list[str] = Field(min_length=2, max_length=2)
    at_s: float = Field(ge=0, allow_inf_nan=False)
    bandwidth_bytes_per_s: float = Field(ge=0, le=1e18)
    latency_s: Delay | None = None


class _LinksModel(FileModel):
    schema_name: Literal["cellplan.links/1"] = Field(alias="schema")
    measurements: list[_MeasurementModel]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkNow:
    """A link at a time: bytes/s and s, where they come from, how many seconds ago it was last measured (None: never),
    and what the cluster file says (None: it has no such link)."""

    between: tuple[str, str]
    bandwidth_bytes_per_s: float
    latency_s: float
    basis: Basis
    age_s: float | None
    filed: tuple[float, float] | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "between": list(self.between),
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "latency_s": self.latency_s,
            "basis": self.basis,
            "age_s": self.age_s,
            "file_bandwidth_bytes_per_s": None if self.filed is None else self.filed[0],
            "file_latency_s": None if self.filed is None else self.filed[1],
        }


def load_measurements(path: Path, names: Sequence[str]) -> tuple[LinkMeasurement, ...]:
    """Return the measurements in a file of either form. Raise InputError for another form, or where none is of a link
    between two of the sites `names`."""
    data = read_json(path)
    stated = _of_tables(data, path, names) if isinstance(data, list) else _of_state(data, path)
    usable = [measured for measured in stated if set(measured.between) <= set(names)]
    if stated and not usable:
        called = "; ".join(sorted({" and ".join(measured.between) for measured in stated}))
        raise InputError(where=str(path), found=called, expected=f"links between two of {_brief(names)}")
    return tuple(usable)


def save_measurements(
    path: Path, measurements: Iterable[LinkMeasurement], *, now_s: float, half_life_s: float = HALF_LIFE_S
) -> None:
    """Write the state: each measurement once, by time, but for those so old that they weigh nothing. The last one of
    each link stays, since it may say that the link is down."""
    ordered = sorted(
        dict.fromkeys(measurements),
        key=lambda measured: (measured.at_s, measured.between, measured.bandwidth_bytes_per_s),
    )
    last = {frozenset(measured.between): measured for measured in ordered}
    kept = [
        measured
        for measured in ordered
        if now_s - measured.at_s <= KEPT_HALF_LIVES * half_life_s or last[frozenset(measured.between)] is measured
    ]
    rows = [
        {
            "between": list(measured.between),
            "at_s": measured.at_s,
            "bandwidth_bytes_per_s": measured.bandwidth_bytes_per_s,
            "latency_s": measured.latency_s,
        }
        for measured in kept
    ]
    lines = ",\n  ".join(json.dumps(row, allow_nan=False) for row in rows)
    write_atomically(path, f'{{"schema": "{LINKS_SCHEMA}", "measurements": [\n  {lines}\n]}}\n')


def links_now(
    topology: Topology, measurements: Iterable[LinkMeasurement], *, now_s: float, half_life_s: float = HALF_LIFE_S
) -> tuple[Topology, tuple[LinkNow, ...]]:
    """Return the topology as measured between its sites, smoothed and aged to `now_s`, and each of its links. A link
    that it does not have is added. Raise InputError for a measurement of a later time, by more than clocks differ."""
    measured = list(measurements)
    latest = max(measured, key=lambda measurement: measurement.at_s, default=None)
    if latest is not None and latest.at_s > now_s + CLOCKS_DIFFER_S:
        what = f"{' and '.join(latest.between)} measured at {latest.at_s:.0f} s, now being {now_s:.0f} s"
        raise InputError(where="link measurements", key="at_s", found=what, expected="a time that has been")
    names, number = topology.names, topology.number
    widths, fars = topology.bandwidth_bytes_per_s.tolist(), topology.latency_s.tolist()
    ends = [(min(pair), max(pair)) for pair in topology.ends.tolist()]
    filed = dict(zip(ends, zip(widths, fars, strict=True), strict=True))
    of_link: dict[tuple[int, int], list[LinkMeasurement]] = {pair: [] for pair in ends}
    for measurement in measured:
        first, second = sorted(number[name] for name in measurement.between)
        of_link.setdefault((first, second), []).append(measurement)
    links = {}
    for pair, rows in sorted(of_link.items()):
        width, far, basis = figures_at(rows, filed.get(pair), now_s, half_life_s=half_life_s)
        links[pair] = LinkNow(
            between=(names[pair[0]], names[pair[1]]),
            bandwidth_bytes_per_s=width,
            latency_s=far,
            basis=basis,
            age_s=max(0.0, now_s - max(row.at_s for row in rows)) if rows else None,
            filed=filed.get(pair),
        )
    if measured:
        edges = [(*pair, link.bandwidth_bytes_per_s, link.latency_s) for pair, link in links.items()]
        topology = make_topology(names, edges)
    return topology, tuple(links.values())


def _of_state(data: Any, path: Path) -> list[LinkMeasurement]:
    if not isinstance(data, dict) or data.get("schema") != LINKS_SCHEMA:
        keys = ", ".join(data) if isinstance(data, dict) else type(data).__name__
        expected = f"the schema {LINKS_SCHEMA}, or the list of link tables of `cellplan comm measure --json`"
        raise InputError(where=str(path), key="schema", found=keys or "nothing", expected=expected)
    written: _LinksModel = validate(_LinksModel, data, where=str(path))
    measurements = []
    for number, row in enumerate(written.measurements):
        first, second = row.between
        if first == second:
            key = f"measurements[{number}].between"
            raise InputError(where=str(path), key=key, found=f"{first} twice", expected="two sites")
        if 0 < row.bandwidth_bytes_per_s < 1:
            key, found = f"measurements[{number}].bandwidth_bytes_per_s", f"{row.bandwidth_bytes_per_s:g}"
            raise InputError(where=str(path), key=key, found=found, expected="0 (nothing came through), or 1 and more")
        measurements.append(
            LinkMeasurement(
                between=(first, second),
                at_s=row.at_s,
                bandwidth_bytes_per_s=row.bandwidth_bytes_per_s,
                latency_s=row.latency_s,
            )
        )
    return measurements


def _of_tables(data: list[Any], path: Path, names: Sequence[str]) -> list[LinkMeasurement]:
    try:
        rows = [{key: value for key, value in row.items() if key not in ("size", "seconds")} for row in data]
        tables = TypeAdapter(list[LinkTable]).validate_python(rows)
    except (ValidationError, AttributeError) as error:
        if isinstance(error, ValidationError):
            raise to_input_error(error, data, where=str(path)) from None
        expected = "the list of link tables of `cellplan comm measure --json`"
        raise InputError(where=str(path), found="a list of other things", expected=expected) from None
    at_s = path.stat().st_mtime
    measurements = measurements_of(tables, {table.id: at_s for table in tables}, names)
    if tables and not measurements:
        called = ", ".join(sorted({table.link for table in tables}))
        expected = f"a link called after two of the sites, as {'--'.join(names[:2])} (`cellplan comm measure --link`)"
        raise InputError(where=str(path), key="link", found=called, expected=expected)
    return list(measurements)


def _brief(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown if len(names) <= 8 else f"{shown} and {len(names) - 8} more"
