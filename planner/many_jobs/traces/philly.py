"""Microsoft Philly's `cluster_job_log` (github.com/msr-fiddle/philly-traces): JSON, one list of jobs, each with

    status           Pass, Killed or Failed
    vc, user, jobid  hashes and an id
    submitted_time   a date like 2017-10-07 01:11:39, local
    attempts         a list of {"start_time", "end_time", "detail": [{"ip", "gpus": ["gpu0", ...]}, ...]}

As in the notebook that comes with that trace: a job's GPUs are those of its first attempt, its duration goes from the
start of its first attempt to the end of its last, and it queued until its first attempt. A job without attempts, or
whose first start was not recorded, never ran; one whose last attempt has no end had not ended.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from sys import intern
from typing import Any, TextIO

from planner.many_jobs.traces.cells import BadCell, date_s, status_of
from planner.many_jobs.traces.collect import NEVER_RAN, NO_GPUS, UNFINISHED, Collector
from planner.many_jobs.traces.records import Trace, TraceRow
from profiles.errors import InputError
from profiles.limits import LIMITS

_SPACE = " \t\r\n"
_USUAL_ENTRY, _LONGEST_TOKEN = 2**14, 2**13


def read(text: TextIO, into: Collector) -> Trace:
    """The trace; InputError where it is no JSON list, or (unless lenient) where an entry is wrong. Line numbers are of
    where an entry begins."""
    whole = text.read(LIMITS.philly_bytes.most + 1)
    LIMITS.philly_bytes.check(len(whole), where=into.where)
    for line, place, entry in _entries(whole, into):
        try:
            _add(line, entry, into)
        except BadCell as bad:
            key = f"job {place}" if bad.key is None else f"job {place}, {bad.key}"
            into.malformed(line, BadCell(key, bad.found, bad.expected))
    return into.trace("philly")


def _entries(text: str, into: Collector) -> Iterator[tuple[int, int, Any]]:
    """Line, place in the list (from 1), and value of each entry."""
    decoder = json.JSONDecoder(object_pairs_hook=_each_once)
    at = _after_space(text, 0)
    if text[at : at + 1] != "[":
        into.refuse(repr(text[at : at + 20]) if text[at:] else "nothing", "a JSON list of jobs", line=1)
    at, counted, line, place = _after_space(text, at + 1), 0, 1, 0
    while text[at : at + 1] != "]":
        line, counted, place = line + text.count("\n", counted, at), at, place + 1
        try:
            entry, at = _decode(decoder, text, at)
        except json.JSONDecodeError as error:
            problem = f"no JSON in column {error.colno} ({error.msg})"
            if error.pos >= len(text):
                problem = "a file that ends too early"
            into.refuse(problem, f"job {place} of the list", line=error.lineno)
        except InputError as error:
            into.refuse(str(error.found), error.expected, line=line)
        except (ValueError, RecursionError) as error:
            into.refuse(f"no readable JSON ({error})", f"job {place} of the list", line=line)
        yield line, place, entry
        at = _after_space(text, at)
        if text[at : at + 1] == ",":
            at = _after_space(text, at + 1)
        elif text[at : at + 1] != "]":
            line += text.count("\n", counted, at)
            into.refuse("a file that ends too early" if at == len(text) else repr(text[at]), "',' or ']'", line=line)


def _decode(decoder: json.JSONDecoder, text: str, at: int) -> tuple[Any, int]:
    """The value that begins at `at` and where it ends; of a piece of the text, so that no entry takes much memory."""
    for length in (_USUAL_ENTRY, LIMITS.line_bytes.most):
        piece = text[at : at + length]
        try:
            entry, end = decoder.raw_decode(piece)
        except json.JSONDecodeError as error:
            if at + length >= len(text) or error.pos < len(piece) - _LONGEST_TOKEN:
                return decoder.raw_decode(text, at)  # fails at the same place, and names it in the whole text
            continue
        return entry, at + end
    raise LIMITS.line_bytes.error(where="")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (twice, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise InputError(where="", found=f"the key {twice[:40]!r} twice in one object", expected="each key once")
    return values


def _after_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _add(line: int, entry: Any, into: Collector) -> None:
    if not isinstance(entry, dict):
        raise BadCell(None, type(entry).__name__, "an object with jobid, submitted_time and attempts")
    job_id = _text(entry, "jobid")
    if not job_id:
        raise BadCell("jobid", "nothing", "an id")
    submit_s = date_s(_text(entry, "submitted_time"), "submitted_time")
    attempts = [_object(attempt, "attempts") for attempt in _list(entry, "attempts")]
    if not attempts or _unknown(attempts[0].get("start_time")):
        return into.skip(line, NEVER_RAN)
    if _unknown(attempts[-1].get("end_time")):
        return into.skip(line, UNFINISHED)
    details = [_object(detail, "detail") for detail in _list(attempts[0], "detail")]
    gpus = sum(len(_list(detail, "gpus")) for detail in details)
    if gpus == 0:
        return into.skip(line, NO_GPUS)
    start_s = date_s(_text(attempts[0], "start_time"), "start_time")
    duration_s = date_s(_text(attempts[-1], "end_time"), "end_time") - start_s
    if duration_s < 0:
        raise BadCell("end_time", repr(attempts[-1]["end_time"]), "a time after the first start_time")
    if duration_s == 0:
        return into.skip(line, NEVER_RAN)
    return into.add(
        TraceRow(
            line=line,
            job_id=job_id,
            submit_time_s=into.since_first(submit_s),
            duration_s=duration_s,
            gpus=gpus,
            nodes=len({str(detail.get("ip")) for detail in details if detail["gpus"]}),
            user=intern(_text(entry, "user")),
            vc_or_department=intern(_text(entry, "vc")),
            status=intern(status_of(_text(entry, "status"))),
            queue_s=start_s - submit_s if start_s >= submit_s else None,
        )
    )


def _unknown(value: object) -> bool:
    return value in (None, "", "None")


def _text(entry: dict[str, Any], key: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadCell(key, type(value).__name__, "text")
    return value


def _list(entry: dict[str, Any], key: str) -> list[Any]:
    value = entry.get(key)
    if not isinstance(value, list):
        raise BadCell(key, "nothing" if value is None else type(value).__name__, "a list")
    return value


def _object(value: Any, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadCell(key, type(value).__name__, "objects")
    return value
