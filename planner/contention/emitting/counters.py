"""Bytes by priority off NICs' counters: `ethtool -S` of mlx5 before and after, or a table.

`rx_prio3_bytes: 12` and `tx_prio3_bytes: 34` count what a port received and sent of priority 3 (mlx5's en_stats of
Linux). A text may hold several NICs and both times; lines may begin with a host and a colon, as pdsh and clush write
them. A table is a CSV of host, priority and bytes: what was sent meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from planner.contention.emitting.levels import MOST_LEVELS
from profiles.errors import InputError
from profiles.files import csv_rows, read_text, text_lines

Bytes = dict[tuple[str, int], int]
"""Of each host ("" where the text names none) and priority."""

_COUNTER = re.compile(r"(?:([^\s:]+):)?\s*([rt]x)_prio(\d)_bytes\s*:\s*(\d{1,20})\s*$")
_HEADER = re.compile(r"(?:([^\s:]+):)?\s*NIC statistics:\s*$")
_TABLE = ("host", "priority", "bytes")
EXPECTED = "lines `tx_prioN_bytes: COUNT` of ethtool -S, or a CSV of host, priority, bytes"

_Section = dict[str, int]


def read_counters(paths: Sequence[Path]) -> Bytes:
    """Return what was sent between two times: of two files, before and after, or of one that has both, or a table. A
    path `gpu1=before.txt` is of the host gpu1, where its lines name none.

    Raises:
        InputError: a file without such counters, NICs that are in one of the two times alone, a counter that fell, more
            than two files, or nothing sent meanwhile.
    """
    if not 1 <= len(paths) <= 2:
        raise InputError(where="contention", key="--verify", found=f"{len(paths)} files", expected="one or two")
    hosts, files = zip(*map(_host_and_file, paths), strict=True)
    texts = [(str(file), read_text(file)) for file in files]
    if _is_table(texts[0][1]):
        if len(texts) > 1:
            expected = "one: a table says what was sent meanwhile"
            raise InputError(where="contention", key="--verify", found="two files", expected=expected)
        sent = _read_table(*texts[0])
    else:
        sections = [_sections(text, where, host) for host, (where, text) in zip(hosts, texts, strict=True)]
        sent = _between(sections, texts[0][0])
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


def _read_table(where: str, text: str) -> Bytes:
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
        sent[host, _priority(priority, place)] += int(count)
    return dict(sent)


def _priority(word: str, place: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) == 1 and int(word) < MOST_LEVELS):
        raise InputError(where=place, key="priority", found=repr(word), expected=f"0 to {MOST_LEVELS - 1}")
    return int(word)


def _sections(text: str, where: str, unnamed: str) -> dict[str, list[_Section]]:
    """Of each host its NICs' counters in the order of the text: a new NIC begins with ethtool's header, or where a
    counter comes again."""
    found: defaultdict[str, list[_Section]] = defaultdict(list)
    for number, line in enumerate(text_lines(text, where=where), start=1):
        header = _HEADER.match(line)
        if header:
            found[header[1] or unnamed].append({})
            continue
        counter = _COUNTER.match(line)
        if counter:
            priority = _priority(counter[3], f"{where}, line {number}")
            name = f"{counter[2]}{priority}"
            own = found[counter[1] or unnamed]
            if not own or name in own[-1]:
                own.append({})
            own[-1][name] = int(counter[4])
    kept = {host: [section for section in own if section] for host, own in found.items()}
    if not any(kept.values()):
        raise InputError(where=where, found="no counter by priority", expected=EXPECTED)
    return {host: own for host, own in kept.items() if own}


def _between(times: Sequence[dict[str, list[_Section]]], where: str) -> Bytes:
    """What each host sent (or where nothing counts that: received) between the two times."""
    if len(times) == 1:
        odd = next((host for host, own in times[0].items() if len(own) % 2), None)
        if odd is not None:
            found = f"{len(times[0][odd])} readings{_of(odd)}"
            raise InputError(where=where, found=found, expected="each NIC before and after, or a second file")
        before = {host: own[: len(own) // 2] for host, own in times[0].items()}
        after = {host: own[len(own) // 2 :] for host, own in times[0].items()}
    else:
        before, after = times
        counts = [{host: len(own) for host, own in time.items()} for time in times]
        if counts[0] != counts[1]:
            odd = next(host for host in {**counts[0], **counts[1]} if counts[0].get(host) != counts[1].get(host))
            found = f"{counts[0].get(odd, 0)} NICs before and {counts[1].get(odd, 0)} after{_of(odd)}"
            raise InputError(where=where, found=found, expected="the same NICs at both times")
    sends = any(name.startswith("tx") for own in after.values() for section in own for name in section)
    way = "tx" if sends else "rx"
    sent: defaultdict[tuple[str, int], int] = defaultdict(int)
    for host, sections in after.items():
        for first, last in zip(before[host], sections, strict=True):
            for name, count in last.items():
                if not name.startswith(way):
                    continue
                grown = count - first.get(name, 0)
                if grown < 0:
                    key = f"{way}_prio{name[2:]}_bytes"
                    found = f"{first[name]} before and {count} after{_of(host)}"
                    raise InputError(
                        where=where, key=key, found=found, expected="a counter that grows: not reset between"
                    )
                sent[host, int(name[2:])] += grown
    return dict(sent)


def _of(host: str) -> str:
    return f" of {host}" if host else ""
