"""What a trace found: the hops that a connection from one source port passes."""

from __future__ import annotations

from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The hops that packets from `port` pass, in their order, each under all names that it was told by (its address and
    what that is called); none where nobody answered. `arrived`: the last answer was the destination's, which is not
    among the hops."""

    port: int
    hops: tuple[tuple[str, ...], ...]
    arrived: bool
