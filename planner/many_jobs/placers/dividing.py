"""How a job's devices are divided over nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def partitions(devices: int, caps: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield every way to write `devices` as a sum of as many parts as there are `caps`, none growing, each within its
    cap, which do not grow either; those with large parts first.

    >>> list(partitions(6, (4, 3, 2)))
    [(4, 1, 1), (3, 2, 1), (2, 2, 2)]
    """

    def go_on(left: int, number: int, most: int) -> Iterator[tuple[int, ...]]:
        if number == len(caps):
            if not left:
                yield ()
            return
        after = len(caps) - number - 1
        for part in range(min(most, caps[number], left - after), 0, -1):
            if left - part > sum(min(part, cap) for cap in caps[number + 1 :]):
                return
            for rest in go_on(left - part, number + 1, part):
                yield (part, *rest)

    yield from go_on(devices, 0, devices)


def fullest(devices: int, caps: Sequence[int]) -> tuple[int, ...]:
    """Return the first of the `partitions`. The caller knows that there is one.

    >>> fullest(6, (4, 3, 2))
    (4, 1, 1)
    """
    parts = list[int]()
    for number, cap in enumerate(caps):
        parts.append(min(cap, devices - sum(parts) - (len(caps) - number - 1)))
    return tuple(parts)


def evenest(devices: int, caps: Sequence[int]) -> tuple[int, ...]:
    """Return the last of the `partitions`, whose parts are as equal as can be. The caller knows that there is one.

    >>> evenest(7, (6, 3, 1))
    (3, 3, 1)
    """
    parts = list[int]()
    left = devices
    for number in range(len(caps), 0, -1):
        parts.append(min(caps[number - 1], left // number))
        left -= parts[-1]
    return tuple(reversed(parts))
