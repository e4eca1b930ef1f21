"""Spans from passes: what waits for nobody stands behind compute that hides it, the rest between compute.

A price says how many seconds of an exchange are hidden and what hiding costs; where in the compute it is hidden, it
need not say. Here every exchange that hides gets a window of its own of the compute that can hide it, at least as long
as what is hidden, so that the spans take what the price says and an exchange that grows is first felt when its window
is full.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.network.traffic import Exchange, Span
from profiles.records import dataclass, replace

ROUNDING = 1e-12
"""Shares of time below this are rounding."""


def seconds_of(exchanges: Sequence[Exchange]) -> float:
    """Return the seconds of exchanges, each as often as it says, one after the other."""
    return sum(exchange.times * exchange.alone_s for exchange in exchanges)


@dataclass(frozen=True, kw_only=True)
class Hidden:
    """Exchanges of which `hidden_s` pass behind compute, which takes `cost_s` longer for it. `most_s`: the compute that
    they may pass behind."""

    exchanges: tuple[Exchange, ...]
    hidden_s: float
    cost_s: float
    most_s: float

    @property
    def whole_s(self) -> float:
        """Seconds of the exchanges alone."""
        return seconds_of(self.exchanges)


NOTHING = Hidden(exchanges=(), hidden_s=0.0, cost_s=0.0, most_s=0.0)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """So many alike passes: their compute, what hides in it, and exchanges that stop it; what is sent `beside` all of
    these, where compute alone is too short for it."""

    times: int
    compute_s: float
    hidden: tuple[Hidden, ...] = ()
    stopping: tuple[Exchange, ...] = ()
    beside: tuple[Exchange, ...] = ()

    @property
    def free_s(self) -> float:
        """Compute of all passes that need not hide what hides in them."""
        return self.times * max(0.0, self.compute_s - sum(window.hidden_s for window in self.hidden))

    @property
    def sending_s(self) -> float:
        """Seconds of a pass' exchanges."""
        return seconds_of(self.stopping) + sum(window.whole_s for window in self.hidden)

    def without(self, seconds: float) -> Passes:
        """Return the passes without so many seconds of their compute, all together."""
        return replace(self, compute_s=self.compute_s - seconds / self.times)


def pass_spans(passes: Passes) -> tuple[Span, ...]:
    """Return the spans of alike passes, folded: one for each kind of exchange in them, as often as all passes have it.

    Each window gets what it must have of the compute, then all exchanges share the rest by how long they are. What a
    window lacks, as its compute hides another already, is sent beside the other exchanges.
    """
    rest_s = max(0.0, passes.compute_s - sum(window.hidden_s for window in passes.hidden))
    share = rest_s / passes.sending_s if passes.sending_s else 0.0
    left_s = passes.compute_s
    windows: list[tuple[Hidden, float]] = []
    lacking = [(-1, passes.beside)]
    for number, window in enumerate(passes.hidden):
        window_s = min(left_s, max(window.hidden_s, min(window.hidden_s + share * window.whole_s, window.most_s)))
        left_s -= window_s
        lacking_s = window.hidden_s - window_s
        if lacking_s > ROUNDING * window.whole_s and passes.sending_s > window.whole_s:
            part = lacking_s / window.whole_s
            lacking.append((number, scaled(window.exchanges, part)))
            window = replace(window, exchanges=scaled(window.exchanges, 1 - part), hidden_s=window_s)
        windows.append((window, window_s))

    def carrying(exchanges: tuple[Exchange, ...], number: int) -> tuple[Exchange, ...]:
        for owner, others in lacking:
            if owner != number and others:
                hosts_s = passes.sending_s - (passes.hidden[owner].whole_s if owner >= 0 else 0.0)
                exchanges = send_beside(exchanges, others, hosts_s)
        return exchanges

    spans = [
        span
        for number, (window, window_s) in enumerate(windows)
        for span in hiding_spans(replace(window, exchanges=carrying(window.exchanges, number)), window_s, passes.times)
    ]
    stopping = carrying(passes.stopping, len(windows))
    calls = sum(exchange.times for exchange in stopping)
    for exchange in stopping:
        once = replace(exchange, times=1)
        spans.append(blocking_span(left_s / calls, (once,), exchange.times * passes.times))
    if not calls and left_s > 0:
        spans.append(Span(compute_s=left_s, times=passes.times))
    return tuple(spans)


def send_beside(exchanges: Sequence[Exchange], others: Sequence[Exchange], hosts_s: float) -> tuple[Exchange, ...]:
    """Return exchanges beside which others are sent, each with its share by its seconds of all hosts' `hosts_s`."""
    whole = [replace(scaled((each,), each.times)[0], times=1) for each in others]
    return tuple(replace(host, beside=(*host.beside, *scaled(whole, host.alone_s / hosts_s))) for host in exchanges)


def hiding_spans(window: Hidden, window_s: float, times: int = 1) -> tuple[Span, ...]:
    """Return spans in which exchanges pass behind `window_s` of compute. What is hidden begins with the compute, what
    is waited for stands behind it: where both are there, a part of the bytes of each exchange."""
    whole_s = window.whole_s
    compute_s = window_s + window.cost_s
    if not whole_s:
        return (Span(compute_s=compute_s, times=times),) if compute_s > 0 else ()
    share = min(1.0, max(0.0, window.hidden_s / whole_s))
    if share >= 1 - ROUNDING:
        return (Span(compute_s=compute_s, exchanges=window.exchanges, times=times),)
    if share <= ROUNDING:
        return (blocking_span(compute_s, window.exchanges, times),)
    behind = Span(compute_s=compute_s, exchanges=scaled(window.exchanges, share), times=times)
    return behind, blocking_span(0.0, scaled(window.exchanges, 1 - share), times)


def blocking_span(compute_s: float, exchanges: Sequence[Exchange], times: int = 1) -> Span:
    """Return a span whose exchanges wait for its compute."""
    return Span(compute_s=compute_s, exchanges=tuple(exchanges), begins_s=compute_s, times=times)


def scaled(exchanges: Sequence[Exchange], share: float) -> tuple[Exchange, ...]:
    """Return exchanges with a share of their bytes and seconds."""
    return tuple(
        replace(
            exchange,
            size_bytes=exchange.size_bytes * share,
            alone_s=exchange.alone_s * share,
            latency_s=exchange.latency_s * share,
            beside=scaled(exchange.beside, share),
        )
        for exchange in exchanges
    )
