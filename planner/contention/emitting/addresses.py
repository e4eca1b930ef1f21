"""Addresses of hosts, as /etc/hosts has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from pathlib import Path

from profiles.errors import InputError
from profiles.files import read_text, text_lines


def read_addresses(path: Path | None, known: Iterable[tuple[str, str]] = ()) -> dict[str, Sequence[str]]:
    """Return the addresses of each name: those of `known` (address and name, as a cluster file has them), and those of
    the file, whose lines are an address, its names, and a comment behind `#`.

    Raise InputError for a line that begins with no address, or that names nobody.
    """
    found: defaultdict[str, list[str]] = defaultdict(list)
    for address, name in known:
        found[name].append(address)
    if path is not None:
        for number, line in enumerate(text_lines(read_text(path), where=str(path)), start=1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            place = f"{path}, line {number}"
            try:
                address = str(ip_address(words[0]))
            except ValueError:
                raise InputError(where=place, found=repr(words[0]), expected="an address, then names") from None
            if len(words) < 2:
                raise InputError(where=place, found=f"{address} alone", expected="names behind the address")
            for name in words[1:]:
                found[name].append(address)
    return {name: tuple(dict.fromkeys(own)) for name, own in found.items()}
