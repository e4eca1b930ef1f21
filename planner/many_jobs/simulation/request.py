"""A simulation in words, plain values that go over to another process: a trace, a cluster, a policy, and how to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from planner.many_jobs.simulation.settings import CHECKPOINT_INTERVAL_S, RESTART_S, STORAGE_BANDWIDTH_BYTES_PER_S
from planner.many_jobs.traces.collect import Fractional
from planner.many_jobs.traces.places import Counts, Oversize, UnknownDevice
from planner.many_jobs.traces.read import Format
from profiles.errors import InputError

OptionValue = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where jobs, pools and Cells come from.

    `trace` and `cluster` as on the command line. Of the trace `window_s` [first, last) and then the first `head` jobs
    are taken, arriving `load` times as fast. `seed` draws what rows do not state, and, where `deadlines` (two factors
    of the duration) are given, deadlines. `cells_file` (or this cluster's in that folder) holds Cells from earlier
    runs, and gets those of this one. `store`: profiles and link tables that count where they are; None: all modelled.
    """

    trace: str
    cluster: str
    format: Format = "auto"
    lenient: bool = False
    fractional: Fractional = "round-up"
    counts: Counts = "keep"
    oversize: Oversize = "refuse"
    unknown_device: UnknownDevice = "refuse"
    window_s: tuple[float, float] | None = None
    head: int | None = None
    load: float = 1.0
    seed: int = 0
    deadlines: tuple[float, float] | None = None
    cells_file: str | None = None
    store: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run. `options` of the policy by name; `failures` is `MTBF_S:REPAIR_S` (drawn with the source's seed) or the
    path of a CSV file. `jct` predicts durations for policies that ask: "online" learns from the jobs as they end, else
    the path of a model of `cellplan jct train`, which then learns on; None: policies see the trace's own durations. The
    rest as in `planner.many_jobs.simulation.settings.Settings`."""

    source: Source
    policy: str
    options: tuple[tuple[str, OptionValue], ...] = ()
    round_s: float | None = None
    restart_s: float = RESTART_S
    storage_bandwidth_bytes_per_s: float = STORAGE_BANDWIDTH_BYTES_PER_S
    failures: str | None = None
    checkpoint_interval_s: float = CHECKPOINT_INTERVAL_S
    until_s: float | None = None
    jct: str | None = None


class SimulateOptions(TypedDict, total=False):
    """What `simulate` takes besides trace, cluster and policy: the fields of `Source` and `Request`."""

    format: Format
    lenient: bool
    fractional: Fractional
    counts: Counts
    oversize: Oversize
    unknown_device: UnknownDevice
    window_s: tuple[float, float] | None
    head: int | None
    load: float
    seed: int
    deadlines: tuple[float, float] | None
    cells_file: str | None
    store: str | None
    round_s: float | None
    restart_s: float
    storage_bandwidth_bytes_per_s: float
    failures: str | None
    checkpoint_interval_s: float
    until_s: float | None
    jct: str | None


def make_request(
    trace: str,
    *,
    cluster: str,
    policy: str,
    options: Mapping[str, OptionValue],
    rest: SimulateOptions,
) -> Request:
    """The request that these arguments mean; InputError for one that there is not."""
    of_source = {field.name for field in fields(Source)}
    of_run = {field.name for field in fields(Request)} - {"source", "policy", "options"}
    for name in rest:
        if name not in of_source | of_run:
            expected = "one of " + ", ".join(SimulateOptions.__annotations__)
            raise InputError(where="simulate", key=name, found="no such option", expected=expected)
    source: dict[str, Any] = {name: value for name, value in rest.items() if name in of_source}
    run: dict[str, Any] = {name: value for name, value in rest.items() if name in of_run}
    return Request(
        source=Source(trace=trace, cluster=cluster, **source), policy=policy, options=tuple(options.items()), **run
    )
