"""Transfers that begin together as one."""

from __future__ import annotations

from collections.abc import Sequence

from estimator.network.steps import Mover, Transfer
from profiles.records import replace


def begin_together(transfer: Transfer, others: Sequence[Transfer]) -> Transfer:
    """Return a transfer with others beside each of its turns: it has ended when all of them have.

    One latency passes before all of it, the shortest. Movers of a longer one put the same bytes on their links over as
    much more time, and so do those of others that come several times in a row.
    """
    if not others:
        return transfer
    latency_s = min(transfer.latency_s, *(other.latency_s for other in others))
    movers = _from(latency_s, replace(transfer, times=1))
    for other in others:
        movers += _from(latency_s, other)
    return replace(transfer, movers=movers, latency_s=latency_s)


def _from(latency_s: float, transfer: Transfer) -> tuple[Mover, ...]:
    """The movers of all of a transfer's turns, from so many seconds after they began."""
    movers = []
    for mover in transfer.movers:
        whole_s = transfer.times * (transfer.latency_s + mover.seconds) - latency_s
        share = transfer.times * mover.seconds / whole_s if whole_s > 0 else 0.0
        way = tuple((link, amount * share) for link, amount in mover.way) if share > 0 else ()
        movers.append(replace(mover, way=way, seconds=whole_s))
    return tuple(movers)
