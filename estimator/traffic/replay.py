"""A job's iteration played back alone, span after span."""

from __future__ import annotations

import math

from estimator.network.traffic import Exchange, Span, Traffic


def replay_s(traffic: Traffic) -> float:
    """Return the seconds of an iteration of a job that is alone: each span ends when its compute and its exchanges, one
    after the other, have."""
    return math.fsum(span.times * span_s(span) for span in traffic.spans)


def span_s(span: Span) -> float:
    """Return the seconds of a span of a job that is alone, once."""
    if not span.exchanges:
        return span.compute_s
    return max(span.compute_s, span.begins_s + exchanges_s(span.exchanges))


def exchanges_s(exchanges: tuple[Exchange, ...]) -> float:
    """Return the seconds of exchanges, each as often as it says, one after the other."""
    return math.fsum(exchange.times * exchange.together_s for exchange in exchanges)
