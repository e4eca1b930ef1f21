"""What follows from a job's steps and the paths of its connections, whoever it is and whichever paths it takes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from estimator.network.steps import Step
from estimator.network.wires import Floats, Integers
from profiles.records import dataclass

Path = tuple[tuple[int, float], ...]
"""Links that a connection crosses, by number, each once, and the share of its bytes on each (1 on a single path)."""

Choice = int | None
"""Which of a connection's paths it takes, by number; None: all of them evenly, as fabrics do that spray packets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Sent:
    """Bytes on links: `sizes[i]` on `links[place[i]]`, connection after connection. `numbers` are the links as an
    array."""

    links: tuple[int, ...]
    numbers: Integers
    place: Integers
    sizes: Floats


@dataclass(frozen=True, kw_only=True, eq=False)
class Sending:
    """Of a job whose connections may take `paths`; each figure is worked out when it is first asked for."""

    steps: tuple[Step, ...]
    paths: tuple[tuple[Path, ...], ...]

    @cached_property
    def bytes_of_connections(self) -> tuple[float, ...]:
        """The bytes of an iteration on each connection."""
        sums = [0.0] * len(self.paths)
        for step in self.steps:
            for transfer in step.transfers:
                for mover in transfer.movers:
                    for connection, bytes_per_s in mover.way:
                        sums[connection] += step.times * transfer.times * mover.seconds * bytes_per_s
        return tuple(sums)

    @cached_property
    def evenly(self) -> tuple[Path, ...]:
        """Of each connection all its paths together, the bytes shared out evenly among them."""
        return tuple(map(shared_evenly, self.paths))

    @cached_property
    def evenly_sent(self) -> Sent:
        """The bytes of an iteration on links where each connection shares them out evenly among its paths."""
        places: dict[int, int] = {}
        entries = [
            (places.setdefault(link, len(places)), size * share)
            for path, size in zip(self.evenly, self.bytes_of_connections, strict=True)
            if size > 0
            for link, share in path
        ]
        place, sizes = zip(*entries, strict=True) if entries else ((), ())
        return Sent(
            links=tuple(places),
            numbers=np.array(list(places), dtype=np.int64),
            place=np.array(place, dtype=np.int64),
            sizes=np.array(sizes, dtype=np.float64),
        )

    @cached_property
    def on_all_paths(self) -> tuple[tuple[int, ...], ...]:
        """Of each connection the links that it takes whichever path it gets, in the order of its first path."""
        return tuple(_links_of_all(options) for options in self.paths)


def shared_evenly(options: Sequence[Path]) -> Path:
    """Return all paths of a connection together, its bytes shared out evenly among them."""
    if len(options) == 1:
        return options[0]
    count = len(options)
    whole = 1.0 / count
    shares: dict[int, float] = {}
    for path in options:
        for link, share in path:
            shares[link] = shares.get(link, 0.0) + (whole if share == 1.0 else share / count)
    return tuple(sorted(shares.items()))


def _links_of_all(options: tuple[Path, ...]) -> tuple[int, ...]:
    first = [link for link, _ in options[0]]
    common = set(first)
    for path in options[1:]:
        common.intersection_update([link for link, _ in path])
        if not common:
            return ()
    return tuple(link for link in first if link in common)
