"""A run in the middle, as a JSON file from which it goes on exactly as if it had not been stopped.

What follows from the rest is not in it: which devices are free, who shares what and how fast that makes jobs alone, and
when running jobs end. A predictor learns again from the same jobs in the same order.
"""

from __future__ import annotations

import json
import math
import sys
import time
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, replace
from hashlib import sha256
from typing import Any

from planner.many_jobs.jobs.records import Grant, Reservation
from planner.many_jobs.simulation.applying import expect_end, sit_down
from planner.many_jobs.simulation.placing import Pieces
from planner.many_jobs.simulation.run_state import FAIL, REPAIR, RESTARTED, RunState
from planner.many_jobs.simulation.settings import Steering
from planner.many_jobs.simulation.states import ActiveJob
from planner.many_jobs.simulation.totals import FINISHED, JobTable, Totals
from planner.many_jobs.simulation.zones import bar_nodes, resume_announcements
from profiles.errors import InputError
from profiles.files import read_json, write_atomically
from profiles.limits import LIMITS

SCHEMA = "cellplan.simulation-checkpoint/4"
SCHEMAS = ("cellplan.simulation-checkpoint/2", "cellplan.simulation-checkpoint/3", SCHEMA)
"""Those that are read. Up to the third nothing was counted of nodes. In the second there were no reservations and no
nodes named in grants, and no predictor said intervals."""

_STATE_FIELDS = tuple(
    name
    for name in ActiveJob.__slots__
    if name not in ("alone_s", "clock", "grant", "index", "job", "placement", "predicted_interval_s")
)
"""What of a job is a plain figure."""
_LATER_FIELDS = ("place_by_s",)
"""Those of them that earlier files of this version lack."""
_LATER_COLUMNS = ("busy_device_s", "contended_s", "flops", "lost_to_others_s", "progress_s")
"""Of the table of jobs, likewise: what was not counted is not known."""
_LATER_TOTALS = ("reopening_device_s",)
"""Of the totals: without a policy of the network, which earlier versions had not, nobody waits for it."""


class CheckpointWriter:
    """Writes the file when it is time."""

    def __init__(self, run: RunState) -> None:
        assert run.settings.checkpoint is not None
        self.run, self.file = run, run.settings.checkpoint
        self.fingerprint = fingerprint(run)
        self.written_s = time.monotonic()

    def write(self, *, now: bool = False) -> None:
        """Write if the last time is long enough ago, or `now`; MachineError if that fails."""
        if now or time.monotonic() - self.written_s >= self.file.every_s:
            write_atomically(self.file.path, _sealed(_document(self.run, self.fingerprint)))
            self.written_s = time.monotonic()


def fingerprint(run: RunState) -> str:
    """A hash of all that must be the same for a run to go on: jobs, pools, the names of policy and placer, and
    what settings bear on the result. The Cells, the networks, the prices and a truth of one's own are taken on
    trust."""
    settings, digest = run.settings, sha256()
    kept = (
        settings.round_s,
        settings.restart_s,
        settings.start_s,
        settings.storage_bandwidth_bytes_per_s,
        settings.checkpoint_interval_s,
        settings.until_s,
        settings.failures,
        settings.series,
        settings.slices,
        settings.predictor is not None,
        settings.site_links,
        settings.sharing is not None,
        settings.checkpoint.label if settings.checkpoint else "",
    )
    digest.update(repr((run.policy.name, sorted(run.pools.items()), kept)).encode())
    if settings.defragment_s is not None:
        digest.update(f"moves {settings.defragment_s!r}".encode())
    if settings.placer is not None:
        digest.update(settings.placer.name.encode())
    for job in run.jobs:
        digest.update(repr(job).encode())
        if job.planned is not None or job.preemptible:
            digest.update(repr((job.planned, job.preemptible)).encode())
        if job.hosts:
            digest.update(repr(job.hosts).encode())
    return digest.hexdigest()


def _document(run: RunState, run_hash: str) -> dict[str, Any]:
    of_nodes = (event for event in run.events if event[1] in (FAIL, REPAIR))
    return {
        "schema": SCHEMA,
        "fingerprint": run_hash,
        "now_s": run.clock.now_s,
        "next_arrival": run.next_arrival,
        "next_round": run.next_round,
        "stalled": run.stalled,
        "totals": {name: _or_none(getattr(run.totals, name)) for name in Totals.__slots__},
        "violations": {name: nodes.violations for name, nodes in run.nodes.items()},
        "waiting": [_write_state(state) for state in run.waiting.values()],
        "running": [_write_state(state) for state in run.running.values()],
        "arrived": run.arrived,
        "departed": run.departed,
        "node_events": sorted(of_nodes, key=lambda event: event[:4]),
        "table": {name: write_column(getattr(run.table, name)) for name in JobTable.__slots__},
        "ended": write_column(array("q", run.ended)),
        "ended_after": write_column(array("q", run.ended_after)),
        "granted": sorted(run.granted),
        "given_up": [[number, reason] for number, reason in run.given_up.items()],
        "series": [write_column(array("d", column)) for column in run.series],
        "slices": run.slices,
        "moves": run.moves,
        "sent_up": [[*key, _or_none(sent)] for key, sent in run.sent_up.items()],
        "reservations": [asdict(zone) for zone in run.reservations.values()],
        "policy": run.policy.state(),
        **({"turns": run.turns.counted()} if run.turns.sharers else {}),
        **({"network": sharing.state()} if isinstance(sharing := run.settings.sharing, Steering) else {}),
    }


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sealed(document: dict[str, Any]) -> str:
    """The document's text with a hash of it in front: of a run that stands in the middle, most figures have no bounds
    by which a changed one could be told."""
    text = json.dumps(document, allow_nan=False)
    return f'{{"sha256": "{sha256(text.encode()).hexdigest()}", {text[1:]}'


def _write_state(state: ActiveJob) -> dict[str, Any]:
    grant = state.grant
    return {
        "job": state.index,
        "grant": None if grant is None else _write_grant(grant),
        "placement": dict(state.placement),
        **{name: getattr(state, name) for name in _STATE_FIELDS},
        "predicted_interval_s": state.predicted_interval_s
        and [None if math.isinf(time_s) else time_s for time_s in state.predicted_interval_s],
    }


def _write_grant(grant: Grant) -> dict[str, Any]:
    """Files of runs without turns are what they were before there were any."""
    written = asdict(grant)
    if not grant.turns:
        del written["turns"]
    return written


def write_column(values: array[Any] | bytearray) -> str:
    """Return the bytes of 8-byte figures, the lowest first, as base64: exact, and short for a million jobs."""
    if isinstance(values, array) and sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    return b64encode(bytes(values)).decode("ascii")


def read_column(text: str, kind: str) -> array[Any]:
    """Return the figures of `write_column`, of that type code of `array`. Raise ValueError for another text."""
    column = array(kind)
    column.frombytes(b64decode(text, validate=True))
    if sys.byteorder == "big":
        column.byteswap()
    return column


def resume(run: RunState) -> bool:
    """Bring a fresh run to where its checkpoint file left off; whether there was one and it was to be used. InputError
    where the file is of another run, or none."""
    file = run.settings.checkpoint
    if file is None or not file.resume or not file.path.exists():
        return False
    document, where = read_json(file.path, limit=LIMITS.checkpoint_bytes), str(file.path)
    if not isinstance(document, dict) or document.get("schema") not in SCHEMAS:
        stated = document.get("schema") if isinstance(document, dict) else "something else"
        raise InputError(where=where, key="schema", found=stated, expected=SCHEMA)
    stated_hash = document.pop("sha256", None)
    if sha256(json.dumps(document).encode()).hexdigest() != stated_hash:
        raise InputError(where=where, key="sha256", found="a checkpoint that was changed", expected="it as written")
    if document.get("fingerprint") != fingerprint(run):
        stated = "a run of other jobs, pools, policy or settings"
        raise InputError(where=where, key="fingerprint", found=stated, expected="a checkpoint of this run")
    try:
        _restore(run, document)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            where=where, found=f"{type(error).__name__}: {error}", expected="a whole checkpoint"
        ) from error
    return True


def _restore(run: RunState, document: Mapping[str, Any]) -> None:
    run.clock.now_s = document["now_s"]
    run.next_arrival, run.next_round = document["next_arrival"], document["next_round"]
    run.stalled = document["stalled"]
    # Files that lack them are of runs in which nobody was moved.
    run.moves.extend(tuple(row) for row in document.get("moves", ()))
    uncounted = document["schema"] != SCHEMA
    for name in Totals.__slots__:
        if name in _LATER_TOTALS and name not in document["totals"]:
            continue
        value = document["totals"].get(name) if uncounted else document["totals"][name]
        setattr(run.totals, name, math.nan if value is None else value)
    run.arrived, run.departed = document["arrived"], document["departed"]
    run.table.status = bytearray(b64decode(document["table"]["status"], validate=True))
    for name in JobTable.__slots__:
        kind = "" if name == "status" else getattr(run.table, name).typecode
        if kind and (name in document["table"] or not (uncounted or name in _LATER_COLUMNS)):
            setattr(run.table, name, read_column(document["table"][name], kind))
        elif kind == "d":
            setattr(run.table, name, array(kind, [math.nan]) * len(run.jobs))
    run.ended = read_column(document["ended"], "q").tolist()
    run.ended_after = read_column(document["ended_after"], "q").tolist()
    run.given_up = dict(document["given_up"])
    run.granted = {tuple((pool, count) for pool, count in parts) for parts in document["granted"]}
    for column, text in zip(run.series, document["series"], strict=not uncounted):
        column.extend(read_column(text, "d"))
    for column in run.series[len(document["series"]) :]:
        column.extend([math.nan] * len(run.series[0]))
    # What an earlier version did not count is not known.
    if uncounted:
        run.sent_up["", 0, 0] = math.nan
    for site, level, part, sent in () if uncounted else document["sent_up"]:
        run.sent_up[site, level, part] = math.nan if sent is None else sent
    run.slices.extend(tuple(row) for row in document["slices"])
    for time_s, kind, number, version, (pool, node, repair_s) in document["node_events"]:
        run.push(time_s, kind, number, version, (pool, node, repair_s))
        if kind == REPAIR:
            run.nodes[pool].fail(node)
            size = run.nodes[pool].size
            run.free[pool] -= size
            run.pools[pool] = replace(run.pools[pool], devices=run.pools[pool].devices - size)
    for name, count in document["violations"].items():
        run.nodes[name].violations = count
    resume_announcements(run)
    for written in document.get("reservations", ()) if uncounted else document["reservations"]:
        zone = Reservation(**(written | {"nodes": tuple(written["nodes"])}))
        run.reservations[zone.job] = zone
    bar_nodes(run)
    for written in document["waiting"]:
        state = _read_state(run, written)
        run.waiting[state.job.id] = state
        if state.place_by_s is not None and state.place_by_s > run.clock.now_s:
            run.place_by_s[state.job.id] = state.place_by_s
    for written in document["running"]:
        state = _read_state(run, written)
        run.running[state.job.id] = state
        _hold(run, state)
    run.count_nodes()
    run.turns.restore(document.get("turns"))
    if run.shared is not None:
        run.shared.changed.clear()
        if isinstance(run.shared.sharing, Steering):
            run.shared.sharing.restore(document["network"], run.shared.seated)
    run.policy.restore(document["policy"])
    _teach(run)


def _read_state(run: RunState, written: Mapping[str, Any]) -> ActiveJob:
    state = ActiveJob(run.jobs[written["job"]], written["job"], run.clock, reference_s=0.0, jobs_before=0.0)
    for name in _STATE_FIELDS:
        if name not in _LATER_FIELDS or name in written:
            setattr(state, name, written[name])
    interval = written.get("predicted_interval_s")
    if interval is not None:
        low_s, high_s = interval
        state.predicted_interval_s = low_s, math.inf if high_s is None else high_s
    if written["grant"] is not None:
        parts = tuple((pool, count) for pool, count in written["grant"]["parts"])
        nodes = tuple((pool, tuple(map(tuple, counts))) for pool, counts in written["grant"].get("nodes", ()))
        state.grant = Grant(**(written["grant"] | {"parts": parts, "nodes": nodes}))
    placement: dict[str, Pieces] = {}
    for pool, pieces in written["placement"].items():
        placement[pool] = tuple((node, mask) for node, mask in pieces)
    state.placement = placement
    return state


def _hold(run: RunState, state: ActiveJob) -> None:
    """What a running job holds, and when it ends. Devices on which several take turns are held once."""
    grant = state.grant
    if grant is None:
        raise ValueError(f"job {state.job.id} runs without a grant")
    for pool, pieces in state.placement.items() if grant.turns not in run.turns.groups else ():
        run.nodes[pool].hold(pieces)
        run.free[pool] -= sum(mask.bit_count() for _, mask in pieces)
    if not state.producing:
        run.push(state.progress_from_s, RESTARTED, state.index, state.version, state)
    expect_end(run, state)
    state.alone_s = state.iteration_time_s
    if grant.turns:
        alone_s = run.iteration_s(state.job, grant, state.placement)
        state.alone_s = state.iteration_time_s if alone_s is None else alone_s
    sit_down(run, state, grant)


def _teach(run: RunState) -> None:
    """Show a fresh predictor what it had seen."""
    predictor = run.settings.predictor
    if predictor is None:
        return
    shown = 0
    for number, arrived in zip(run.ended, run.ended_after, strict=True):
        for job in run.jobs[shown:arrived]:
            predictor.submitted(job, job.submit_s)
        shown = max(shown, arrived)
        if run.table.status[number] == FINISHED:
            predictor.finished(run.jobs[number], run.table.end_s[number])
    for job in run.jobs[shown : run.next_arrival]:
        predictor.submitted(job, job.submit_s)
