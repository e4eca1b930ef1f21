"""Spans played back alone."""

from __future__ import annotations

import pytest

from estimator.network.traffic import Exchange, Span, Traffic
from estimator.traffic.replay import replay_s


def exchange(seconds: float, times: int = 1, beside: tuple[Exchange, ...] = ()) -> Exchange:
    return Exchange(
        axis="dp", op="all_reduce", size_bytes=1.0, groups=((0, 1),), alone_s=seconds, times=times, beside=beside
    )


@pytest.mark.parametrize(
    ("span", "seconds"),
    [
        (Span(compute_s=2.0), 2.0),
        (Span(compute_s=2.0, times=3), 6.0),
        (Span(compute_s=2.0, exchanges=(exchange(1.0),)), 2.0),
        (Span(compute_s=2.0, exchanges=(exchange(1.0), exchange(1.5))), 2.5),
        (Span(compute_s=2.0, exchanges=(exchange(1.0, times=3),), begins_s=0.5), 3.5),
        (Span(compute_s=2.0, exchanges=(exchange(1.0),), begins_s=2.0, times=2), 6.0),
        (Span(compute_s=0.0, exchanges=(exchange(1.0, beside=(exchange(0.5, times=3),)),)), 1.5),
        (Span(compute_s=0.0, exchanges=(exchange(1.0, times=2, beside=(exchange(0.5),)),)), 2.0),
    ],
)
def test_a_span_ends_when_compute_and_exchanges_have(span: Span, seconds: float) -> None:
    assert replay_s(Traffic(devices=2, spans=(span,), flops=1.0)) == pytest.approx(seconds)
