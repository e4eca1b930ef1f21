"""Lists of host names as Slurm writes them: `gpu[01-03,7],login`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import product

from profiles.errors import InputError
from profiles.limits import LIMITS

HOST_NAMES = "names of nodes: letters, digits, and . _ - : in between"


def is_host_name(name: str) -> bool:
    """Return whether a node may be called so: nothing in it means something to a host list, a shell or a table."""
    return re.fullmatch(r"\w[\w.:-]*", name) is not None


def expand_hosts(text: str, where: str, key: str) -> tuple[str, ...]:
    """Return the names that a Slurm host list means. Raise InputError about `key` at `where` for what is none, or is
    beyond the limit.

    >>> expand_hosts("gpu[01-03,7],login", "here", "NODELIST")
    ('gpu01', 'gpu02', 'gpu03', 'gpu7', 'login')
    """
    names: list[str] = []
    for part in split_outside_brackets(text):
        pieces = re.findall(r"([^\[\]]+)|\[([^\[\]]*)\]", part)
        if not re.fullmatch(r"(?!$)[^\[\]]*(?:\[[^\[\]]*\][^\[\]]*)*", part):
            raise _no_hosts(text, where, key)
        choices = [[(plain, plain)] if plain else _ranges(inside, text, where, key) for plain, inside in pieces]
        count = 1
        for ranges in choices:
            count *= sum(_length(*ends) for ends in ranges)
            if len(names) + count > LIMITS.nodes.most:
                raise LIMITS.nodes.error(where=where, key=key)
        names += map("".join, product(*([name for ends in ranges for name in _names(*ends)] for ranges in choices)))
    return tuple(names)


def fold_hosts(names: Iterable[str]) -> str:
    """Return the host list of `names`, in their order: runs of one stem and numbers of one width are a range.

    >>> fold_hosts(["gpu01", "gpu02", "gpu03", "gpu7", "login"])
    'gpu[01-03],gpu7,login'
    """
    folded: list[tuple[str, str, str]] = []
    for name in names:
        match = re.fullmatch(r"(.*?)(\d{1,15})", name, re.ASCII)
        stem, digits = (match[1], match[2]) if match else (name, "")
        if folded and digits:
            before, first, last = folded[-1]
            follows = last and int(digits) == int(last) + 1 and digits == str(int(last) + 1).zfill(len(first))
            if before == stem and follows and len(digits) == len(first):
                folded[-1] = (stem, first, digits)
                continue
        folded.append((stem, digits, digits))
    return ",".join(f"{stem}[{first}-{last}]" if first != last else f"{stem}{first}" for stem, first, last in folded)


def host_list(names: Iterable[str]) -> str:
    """Return the host list of `names`, in their order, as short as Slurm writes it: neighbours of one stem share their
    brackets.

    >>> host_list(["gpu01", "gpu02", "gpu03", "gpu07", "login"])
    'gpu[01-03,07],login'
    """
    groups: list[tuple[str, list[str]]] = []
    for part in split_outside_brackets(fold_hosts(names)):
        match = re.fullmatch(r"(.*?)\[?(\d{1,15}(?:-\d{1,15})?)\]?", part, re.ASCII)
        stem, inside = (match[1], match[2]) if match else (part, "")
        if groups and inside and groups[-1][0] == stem and groups[-1][1] != [""]:
            groups[-1][1].append(inside)
        else:
            groups.append((stem, [inside]))
    return ",".join(
        f"{stem}[{','.join(inside)}]" if len(inside) > 1 or "-" in inside[0] else stem + inside[0]
        for stem, inside in groups
    )


def split_outside_brackets(text: str) -> list[str]:
    """Return the parts between the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _ranges(inside: str, text: str, where: str, key: str) -> list[tuple[str, str]]:
    """The first and last of each part between brackets: `01-03,7` as (01, 03), (7, 7)."""
    ranges = []
    for piece in inside.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18}))?", piece, re.ASCII)
        if match is None or (match[2] and int(match[2]) < int(match[1])):
            raise _no_hosts(text, where, key)
        ranges.append((match[1], match[2] or match[1]))
    return ranges


def _length(first: str, last: str) -> int:
    return 1 if first == last else int(last) - int(first) + 1


def _names(first: str, last: str) -> list[str]:
    """`01` to `03` as 01, 02, 03."""
    if first == last:
        return [first]
    return [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]


def _no_hosts(text: str, where: str, key: str) -> InputError:
    return InputError(where=where, key=key, found=repr(text), expected="node names such as gpu[01-04,07]")
