"""Traces in what other tools printed: `mtr --json`, `traceroute`.

Every packet of a trace must have the same ports, or switches hash them apart: `mtr --udp --localport PORT --port 4791`,
`traceroute -U --sport=PORT -p 4791`. Neither prints the source port. It is told beside the file, or stands in the
command that goes before each trace in what `sh -x` shows of a script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from estimator.network.probing.hops import Trace
from profiles.errors import InputError

_TOOLS = ("mtr", "traceroute")
_PORT = re.compile(r"(?:--sport|--localport|-L)[= ]\s*(\d{1,5})(?!\d)")
_HEADER = re.compile(r"^\s*traceroute to (\S+) \(([^)\s]+)\)", re.MULTILINE)
_HOP = re.compile(r"^\s*(\d{1,3})\s+(\S.*)$")
_ANSWER = re.compile(r"(?:(\S+) \(([^)\s]+)\)|(?<![\w.:-])([0-9a-fA-F.:]*[.:][0-9a-fA-F.:]+))\s+(?=[\d.]+ ms)")
_NOBODY = ("???", "*", "")


def read_traces(text: str, where: str, port: int | None = None) -> list[Trace]:
    """Return the traces in a text, in their order; `port` is the source port of the only one where no command says it.
    Raise InputError for what is no trace, one without a port, and one whose packets went different ways."""
    traces: list[Trace] = []
    for own_port, part in _parts(text, port):
        if part.lstrip().startswith("{"):
            found = [_mtr(document, where) for document in _documents(part, where)]
        else:
            found = _traceroutes(part, where)
        if found and own_port is None:
            raise _wrong(where, "no source port", "PORT=FILE, or the command before each trace, as `sh -x` shows it")
        if len(found) > 1:
            raise _wrong(where, f"{len(found)} traces of port {own_port}", "one after each command")
        traces += (Trace(port=own_port or 0, hops=hops, arrived=arrived) for hops, arrived in found)
    if not traces:
        raise _wrong(where, "no trace", "what `mtr --json` or `traceroute` prints")
    return traces


def _parts(text: str, port: int | None) -> Iterator[tuple[int | None, str]]:
    """The text after each command, with the source port that the command has; what comes before the first, if
    anything."""
    number, lines = port, list[str]()
    for line in text.splitlines():
        if _is_command(line):
            if any(map(str.strip, lines)):
                yield number, "\n".join(lines)
            said, lines = _PORT.search(line), []
            number = int(said[1]) if said else port
            number = number if number is not None and 1 <= number <= 65535 else None
        else:
            lines.append(line)
    if any(map(str.strip, lines)):
        yield number, "\n".join(lines)


def _is_command(line: str) -> bool:
    """Whether a line is that of a shell which says that it runs one of the tools: after its prompt, `sudo` and the
    like, the tool's name."""
    words = line[:1000].split()[:4]
    tool = next((place for place, word in enumerate(words) if word.rpartition("/")[2] in _TOOLS), None)
    if tool is None or any(word[:1].isdigit() or word[:1] in '{["' for word in words[:tool]):
        return False
    return words[tool + 1 : tool + 2] != ["to"]


def _documents(text: str, where: str) -> Iterator[Any]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        if text[place].isspace():
            place += 1
            continue
        try:
            document, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError) as error:
            raise _wrong(where, f"no JSON ({error})", "what `mtr --json` prints") from None
        yield document


def _mtr(document: Any, where: str) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """The hops of a report of mtr, and whether the last answer is the destination's."""
    report = document.get("report") if isinstance(document, dict) else None
    about = report.get("mtr") if isinstance(report, dict) else None
    hubs = report.get("hubs") if isinstance(report, dict) else None
    if not isinstance(about, dict) or not isinstance(hubs, list) or not all(isinstance(hub, dict) for hub in hubs):
        raise _wrong(where, "no report of mtr", "report with mtr and hubs, as `mtr --json` prints it")
    hops: list[tuple[str, ...]] = []
    for hub in hubs:
        host = hub.get("host")
        if not isinstance(host, str):
            raise _wrong(where, "a hub without a host", "hubs, each with a host")
        hops.append(_names(host))
    return _without_end(hops, {str(about.get("dst"))})


def _names(host: str) -> tuple[str, ...]:
    """`name (address)`, or one of them; empty for nobody."""
    both = re.fullmatch(r"(\S+) \((\S+)\)", host.strip())
    names = (both[1], both[2]) if both else (host.strip(),)
    return tuple(dict.fromkeys(name for name in names if name not in _NOBODY))


def _traceroutes(text: str, where: str) -> list[tuple[tuple[tuple[str, ...], ...], bool]]:
    headers = list(_HEADER.finditer(text))
    ends = [*(header.start() for header in headers[1:]), len(text)] if headers else []
    found = []
    for header, end in zip(headers, ends, strict=True):
        hops: list[tuple[str, ...]] = []
        for line in text[header.end() : end].splitlines()[1:]:
            hop = _HOP.match(line)
            if hop is None:
                continue
            if int(hop[1]) != len(hops) + 1:
                raise _wrong(where, f"hop {hop[1]} after {len(hops)}", "each hop in its turn")
            hops.append(_answers(hop[2], int(hop[1]), where))
        found.append(_without_end(hops, {header[1], header[2]}))
    return found


def _answers(line: str, number: int, where: str) -> tuple[str, ...]:
    """Who answered at a hop, under all names."""
    answers = {tuple(name for name in match.groups() if name) for match in _ANSWER.finditer(line)}
    if len(answers) > 1:
        found = f"{len(answers)} hosts at hop {number}"
        raise _wrong(where, found, "one way: the same ports in every packet (traceroute -U --sport=PORT -p 4791)")
    if not answers and not re.fullmatch(r"(?:\*\s*)+", line):
        raise _wrong(where, f"{line.strip()[:60]!r} at hop {number}", "a host with its time, or *")
    return next(iter(answers), ())


def _without_end(hops: list[tuple[str, ...]], destination: set[str]) -> tuple[tuple[tuple[str, ...], ...], bool]:
    """The hops before the destination, silent ones at the end left out."""
    while hops and not hops[-1]:
        hops.pop()
    arrived = bool(hops) and bool(destination & set(hops[-1]))
    return tuple(hops[:-1] if arrived else hops), arrived


def _wrong(where: str, found: str, expected: str) -> InputError:
    return InputError(where=where, found=found, expected=expected)
