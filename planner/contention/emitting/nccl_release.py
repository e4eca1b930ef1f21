"""What NCCL's releases can be told of levels, by the number that the user declares."""

from __future__ import annotations

import re

from profiles.errors import InputError

Release = tuple[int, int, int]

FIFO_SINCE: Release = (2, 22, 3)
"""NCCL_IB_FIFO_TC, a class for the short messages by which receivers say where data may go."""
AXES_SINCE: Release = (2, 26, 0)
"""`ncclConfig_t.trafficClass`, a class for each communicator."""

_NUMBER = re.compile(r"v?(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+].*)?")


def read_release(word: str, *, where: str = "contention", key: str = "--nccl") -> Release:
    """Return the release that is called so.

    Raise InputError for what is no release of NCCL's.

    >>> read_release("2.22.3"), read_release("2.26")
    ((2, 22, 3), (2, 26, 0))
    """
    found = _NUMBER.fullmatch(word.strip())
    if found is None:
        expected = "a release of NCCL, such as 2.22.3"
        raise InputError(where=where, key=key, found=repr(word)[:80], expected=expected)
    return int(found[1]), int(found[2]), int(found[3] or 0)


def release_name(release: Release) -> str:
    """Return how a release is called.

    >>> release_name((2, 22, 3))
    '2.22.3'
    """
    return ".".join(map(str, release))
