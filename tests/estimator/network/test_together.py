"""Transfers that begin together: every byte of both, and the later end."""

from __future__ import annotations

import pytest

from estimator.network.steps import Mover, Transfer
from estimator.network.together import begin_together


def ends_s(transfer: Transfer) -> float:
    return transfer.times * (transfer.latency_s + max(mover.seconds for mover in transfer.movers))


def bytes_on(transfer: Transfer, link: int) -> float:
    return transfer.times * sum(
        amount * mover.seconds for mover in transfer.movers for number, amount in mover.way if number == link
    )


def test_what_begins_together_ends_with_the_later_and_sends_all_bytes() -> None:
    host = Transfer(movers=(Mover(way=((0, 8.0),), seconds=2.0),), latency_s=0.5, times=3)
    other = Transfer(movers=(Mover(way=((1, 6.0), (0, 1.0)), seconds=0.9),), latency_s=0.1, times=2)
    both = begin_together(host, [other])
    assert ends_s(both) == pytest.approx(max(3 * 2.5, 3 * 2 * 1.0))
    assert bytes_on(both, 0) == pytest.approx(bytes_on(host, 0) + 3 * bytes_on(other, 0))
    assert bytes_on(both, 1) == pytest.approx(3 * bytes_on(other, 1))


def test_alone_a_transfer_stays_what_it_is() -> None:
    host = Transfer(movers=(Mover(way=((0, 8.0),), seconds=2.0),), latency_s=0.5, times=3)
    assert begin_together(host, []) is host
