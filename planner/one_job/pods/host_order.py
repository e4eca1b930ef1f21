"""The order in which managers number hosts: by name, numbers in it as numbers, as Slurm sorts them."""

from __future__ import annotations

import re

HostKey = tuple[tuple[str, int], ...]


def host_key(name: str) -> HostKey:
    """Return the key by which a host is sorted.

    >>> sorted(["gpu10", "gpu9", "login"], key=host_key)
    ['gpu9', 'gpu10', 'login']
    """
    return tuple((text, int(digits or -1)) for text, digits in re.findall(r"(\D*)(\d*)", name))
