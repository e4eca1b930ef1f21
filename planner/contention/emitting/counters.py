"""Bytes by priority off NICs' counters: before and after, or a table.

Ethernet: `rx_prio3_bytes: 12` and `tx_prio3_bytes: 34` of `ethtool -S` count what a port received and sent of priority
3 (mlx5's en_stats of Linux). InfiniBand: `XmtDataSL3:.....12` and `RcvDataSL3:.....34` of `perfquery -X` and `-S` count
by service level, in units of four bytes (PortXmitDataSL, an optional attribute); of 32 bits, they stand still at 17 GB.

A text may hold several NICs and both times; lines may begin with a host and a colon, as pdsh and clush write them. A
table is a CSV of host, priority (or service level) and bytes: what was sent meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from planner.contention.emitting.levels import MOST_LEVELS
from profiles.errors import InputError
from profiles.files import csv_rows, read_text, text_lines
from profiles.records import dataclass

Bytes = dict[tuple[str, int], int]
"""Of each host ("" where the text names none) and priority."""

_TABLE = ("host", "priority", "bytes")

_Section = dict[tuple[str, int], int]
"""Of one NIC at one time, by way (tx, rx) and priority."""


@dataclass(frozen=True, kw_only=True)
class CounterForm:
    """How a tool prints counters: `line` has a host, a way, a priority and a count, `header` a host; `ways` its words
    for ways and ours; `name` is what a counter is called. Counts are of `unit_bytes`, and stand still at `most`."""

    line: re.Pattern[str]
    header: re.Pattern[str]
    ways: tuple[tuple[str, str], ...]
    name: str
    priorities: int
    unit_bytes: int
    most: int
    lacking: str
    expected: str


ETHTOOL = CounterForm(
    line=re.compile(r"(?:([^\s:]+):)?\s*([rt]x)_prio(\d)_bytes\s*:\s*(\d{1,20})\s*$"),
    header=re.compile(r"(?:([^\s:]+):)?\s*NIC statistics:\s*$"),
    ways=(("tx", "tx"), ("rx", "rx")),
    name="{way}_prio{priority}_bytes",
    priorities=MOST_LEVELS,
    unit_bytes=1,
    most=2**64 - 1,
    lacking="no counter by priority",
    expected="lines `tx_prioN_bytes: COUNT` of ethtool -S, or a CSV of host, priority, bytes",
)
PERFQUERY = CounterForm(
    line=re.compile(r"(?:([^\s:]+):)?\s*(Xmt|Rcv)DataSL(\d{1,2}):\.*(\d{1,20})\s*$"),
    header=re.compile(r"(?:([^\s:]+):)?\s*# Port(?:Xmit|Rcv)DataSL counters:"),
    ways=(("Xmt", "tx"), ("Rcv", "rx")),
    name="{way}DataSL{priority}",
    priorities=16,
    unit_bytes=4,
    most=2**32 - 1,
    lacking="no counter by service level",
    expected="lines `XmtDataSLn:...COUNT` of perfquery -X, or a CSV of host, priority, bytes",
)


def read_counters(paths: Sequence[Path], form: CounterForm = ETHTOOL) -> Bytes:
    """Return what was sent between two times: of two files, before and after, or of one that has both, or a table. A
    path `gpu1=before.txt` is of the host gpu1, where its lines name none.

    Raises:
        InputError: a file without such counters, NICs that are in one of the two times alone, a counter that fell or
            is full, more than two files, or nothing sent meanwhile.
    """
    if not 1 <= len(paths) <= 2:
        raise InputError(where="contention", key="--verify", found=f"{len(paths)} files", expected="one or two")
    hosts, files = zip(*map(_host_and_file, paths), strict=True)
    texts = [(str(file), read_text(file)) for file in files]
    if _is_table(texts[0][1]):
        if len(texts) > 1:
            expected = "one: a table says what was sent meanwhile"
            raise InputError(where="contention", key="--verify", found="two files", expected=expected)
        sent = _read_table(*texts[0], form)
    else:
        sections = [_sections(text, where, host, form) for host, (where, text) in zip(hosts, texts, strict=True)]
        sent = _between(sections, texts[-1][0], form)
    if not any(sent.values()):
        expected = "bytes that were sent between the two times"
        raise InputError(where=texts[-1][0], found="counters that stood still", expected=expected)
    return sent


def _host_and_file(path: Path) -> tuple[str, Path]:
    host, named, file = str(path).partition("=")
    return (host, Path(file)) if named and not path.exists() else ("", path)


def _is_table(text: str) -> bool:
    first = text.lstrip().split("\n", 1)[0]
    return [cell.strip().lower() for cell in first.split(",")] == list(_TABLE)


def _read_table(where: str, text: str, form: CounterForm) -> Bytes:
    sent: defaultdict[tuple[str, int], int] = defaultdict(int)
    for number, row in list(csv_rows(text, where=where))[1:]:
        if not any(row):
            continue
        place = f"{where}, line {number}"
        if len(row) != len(_TABLE):
            raise InputError(where=place, found=f"{len(row)} cells", expected=", ".join(_TABLE))
        host, priority, count = row
        if not (count.isascii() and count.isdigit() and len(count) <= 20):
            raise InputError(where=place, key="bytes", found=repr(count), expected="a whole number")
        sent[host, _priority(priority, place, form)] += int(count)
    return dict(sent)


def _priority(word: str, place: str, form: CounterForm) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 2 and int(word) < form.priorities):
        raise InputError(where=place, key="priority", found=repr(word), expected=f"0 to {form.priorities - 1}")
    return int(word)


def _sections(text: str, where: str, unnamed: str, form: CounterForm) -> dict[str, list[_Section]]:
    """Of each host its NICs' counters in the order of the text: a new NIC begins with the tool's header, or where a
    counter comes again."""
    found: defaultdict[str, list[_Section]] = defaultdict(list)
    for number, line in enumerate(text_lines(text, where=where), start=1):
        header = form.header.match(line)
        if header:
            found[header[1] or unnamed].append({})
            continue
        counter = form.line.match(line)
        if counter:
            name = dict(form.ways)[counter[2]], _priority(counter[3], f"{where}, line {number}", form)
            own = found[counter[1] or unnamed]
            if not own or name in own[-1]:
                own.append({})
            own[-1][name] = int(counter[4])
    kept = {host: [section for section in own if section] for host, own in found.items()}
    if not any(kept.values()):
        raise InputError(where=where, found=form.lacking, expected=form.expected)
    return {host: own for host, own in kept.items() if own}


def _between(times: Sequence[dict[str, list[_Section]]], where: str, form: CounterForm) -> Bytes:
    """What each host sent (or where nothing counts that: received) between the two times."""
    before, after = _two_times(times, where)
    way = "tx" if any(name[0] == "tx" for own in after.values() for section in own for name in section) else "rx"
    sent: defaultdict[tuple[str, int], int] = defaultdict(int)
    for host, sections in after.items():
        for first, last in zip(before[host], sections, strict=True):
            for (direction, priority), count in last.items():
                if direction == way:
                    was = first.get((direction, priority), 0)
                    _check_count(was, count, _called(form, way, priority), host, where, form)
                    sent[host, priority] += (count - was) * form.unit_bytes
    return dict(sent)


def _two_times(
    times: Sequence[dict[str, list[_Section]]], where: str
) -> tuple[dict[str, list[_Section]], dict[str, list[_Section]]]:
    """The NICs of each host before and after, the same ones at both times."""
    if len(times) == 1:
        odd = next((host for host, own in times[0].items() if len(own) % 2), None)
        if odd is not None:
            found = f"{len(times[0][odd])} readings{_of(odd)}"
            raise InputError(where=where, found=found, expected="each NIC before and after, or a second file")
        return (
            {host: own[: len(own) // 2] for host, own in times[0].items()},
            {host: own[len(own) // 2 :] for host, own in times[0].items()},
        )
    before, after = times
    counts = [{host: len(own) for host, own in time.items()} for time in times]
    if counts[0] != counts[1]:
        odd = next(host for host in {**counts[0], **counts[1]} if counts[0].get(host) != counts[1].get(host))
        found = f"{counts[0].get(odd, 0)} NICs before and {counts[1].get(odd, 0)} after{_of(odd)}"
        raise InputError(where=where, found=found, expected="the same NICs at both times")
    return before, after


def _check_count(before: int, after: int, name: str, host: str, where: str, form: CounterForm) -> None:
    if after < before:
        found = f"{before} before and {after} after{_of(host)}"
        raise InputError(where=where, key=name, found=found, expected="a counter that grows: not reset between")
    if after >= form.most:
        expected = f"less than {form.most}, where it stands still: reset it and read sooner"
        raise InputError(where=where, key=name, found=f"{after}{_of(host)}", expected=expected)


def _called(form: CounterForm, way: str, priority: int) -> str:
    own = next(word for word, meant in form.ways if meant == way)
    return form.name.format(way=own, priority=priority)


def _of(host: str) -> str:
    return f" of {host}" if host else ""
