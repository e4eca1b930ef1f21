"""What a plan sends in an iteration, from the parts that its estimate is put together from.

The iteration is that of the stage which limits the pipeline, as `TimeBreakdown` sees it: its passes, the messages that
add to them, its bubble, and what comes after the last backward. All groups of an axis, of every stage, send at the same
time as its own. Equal micro-batches are folded: all forward passes, then all backward passes, as often as there are
micro-batches; a sum of spans does not depend on their order, so the end of the iteration is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.traffic import Exchange, Span, Traffic
from estimator.pricing.gradient_sync import early_by_stage_s
from estimator.pricing.parts import PricedSetup, hiding_in, stage_times, sync_by_stage
from estimator.pricing.pass_time import PassTime
from estimator.schedules.closed_form import passes_of_stage
from estimator.traffic.groups import JobGroups, exchanges_of
from estimator.traffic.messages import pipeline_messages, shared_sums
from estimator.traffic.sent import Calls, add_calls, calls_s
from estimator.traffic.spans import NOTHING, Hidden, Passes, blocking_span, hiding_spans, pass_spans, scaled, seconds_of
from estimator.traffic.stage_calls import PassCalls, ShardingCalls, StageCalls, stage_calls
from profiles.records import replace

ROUNDING = 1e-9
"""What is saved of an exchange's time and less than this share of it is rounding."""


def traffic_of(priced: PricedSetup, flops: float) -> Traffic:
    """Return what a priced setup sends in an iteration, which does `flops` on all devices (model FLOPs: Crux, eq. 1).

    Rank r is the r-th of the slots of all stages, one stage after the other. Replayed alone it takes the seconds of the
    setup's evaluation, to rounding. What is to hide behind compute that hides something else already is sent beside
    that; only where that is shorter yet is the replay longer.
    """
    groups = JobGroups(priced.setup)
    limiting = priced.schedule.bottleneck
    forward, backward = _passes(priced, limiting, groups)
    messages, waited = pipeline_messages(priced, groups)
    sums, gathering = _synchronised(priced, groups)
    compute = _Compute(forward=forward, backward=backward, bubble_s=priced.schedule.bubble_s)
    # First all get what they must have, then those that may have more.
    sums, sums_s = compute.hide(sums, LATE)
    messages, messages_s = compute.hide(messages, EARLY)
    gathering, gathering_s = compute.hide(gathering, EARLY)
    sums_s += compute.take_half(sums.most_s - sums_s, LATE)
    gathering_s += compute.take_half(gathering.most_s - gathering_s, EARLY)
    spans = (
        *hiding_spans(gathering, gathering_s),
        *(span for passes in compute.parts["forward"] for span in pass_spans(passes)),
        *hiding_spans(messages, messages_s),
        *waited,
        *(span for passes in compute.parts["backward"] for span in pass_spans(passes)),
        *(span for passes in compute.parts["bubble"] for span in pass_spans(passes)),
        *hiding_spans(sums, sums_s),
        *(blocking_span(0.0, (exchange,)) for exchange in shared_sums(priced, groups)),
        Span(compute_s=priced.after.optimizer_s + max(cost.once.offload_s for cost in priced.costs)),
    )
    return Traffic(
        devices=priced.setup.devices,
        spans=tuple(span for span in spans if span.compute_s > 0 or span.exchanges),
        flops=flops,
    )


LATE, EARLY = ("backward", "bubble", "forward"), ("forward", "bubble", "backward")
"""Behind which compute what belongs to the end of an iteration hides, and what belongs to its beginning."""


class _Compute:
    """The compute of an iteration, out of which windows are cut for what hides beyond a pass; local to one call."""

    def __init__(self, *, forward: tuple[Passes, ...], backward: tuple[Passes, ...], bubble_s: float) -> None:
        bubble = (Passes(times=1, compute_s=bubble_s),) if bubble_s > 0 else ()
        self.parts = {"forward": forward, "backward": backward, "bubble": bubble}

    def hide(self, window: Hidden, order: Sequence[str]) -> tuple[Hidden, float]:
        """Cut a window out for what must be hidden, of the parts in this order. Return what hides in it and its
        seconds. Where other exchanges hide behind the first part's compute already, or stop it, it is sent beside
        those before it goes elsewhere."""
        first, *others = order
        taken_s = self.take(window.hidden_s, [first])
        hosts = self.parts[first]
        hosts_s = sum(passes.times * passes.sending_s for passes in hosts)
        lacking_s = min(window.hidden_s - taken_s, hosts_s)
        if lacking_s > ROUNDING * window.whole_s:
            share = lacking_s / window.whole_s
            self.parts[first] = tuple(
                replace(passes, beside=(*passes.beside, *scaled(window.exchanges, share * passes.sending_s / hosts_s)))
                for passes in hosts
            )
            window = replace(
                window, exchanges=scaled(window.exchanges, 1 - share), hidden_s=window.hidden_s - lacking_s
            )
        return window, taken_s + self.take(window.hidden_s - taken_s, others)

    def take(self, wanted_s: float, order: Sequence[str]) -> float:
        """Cut out so many seconds, of each part in this order, of its passes in equal shares of what is free; return
        what there was."""
        left_s = wanted_s
        for name in order:
            free_s = sum(passes.free_s for passes in self.parts[name])
            taken_s = min(left_s, free_s)
            if taken_s > 0:
                share = taken_s / free_s
                self.parts[name] = tuple(passes.without(share * passes.free_s) for passes in self.parts[name])
                left_s -= taken_s
        return wanted_s - left_s

    def take_half(self, wanted_s: float, order: Sequence[str]) -> float:
        """Cut out up to so many seconds of the first part in this order, up to half of what is free."""
        free_s = sum(passes.free_s for passes in self.parts[order[0]])
        return self.take(max(0.0, min(wanted_s, free_s / 2)), order[:1])


def _passes(priced: PricedSetup, number: int, groups: JobGroups) -> tuple[tuple[Passes, ...], tuple[Passes, ...]]:
    """The forward and the backward passes of a stage's chunks."""
    cost, sent = priced.costs[number], stage_calls(priced, number)
    times = passes_of_stage(priced.setup.recipe.schedule, priced.setup.micro_batches)
    assert times == int(times), "DualPipe takes an even number of micro-batches"
    forward, backward = [], []
    for chunk, (out_s, back_s) in enumerate(cost.offload_s):
        sharding = sent.sharding[chunk]
        added_s = cost.sharding_s[chunk] - sharding.copied_s
        ahead = _pass(cost.forward[chunk], sent.forward[chunk], sent, groups, times=int(times), besides_s=out_s)
        back = _pass(
            cost.backward[chunk],
            sent.backward[chunk],
            sent,
            groups,
            times=int(times),
            besides_s=back_s + sharding.copied_s,
        )
        ahead, back = _with_sharding(ahead, back, sharding, added_s, sent.sharding_overlap_cost, groups)
        forward.append(ahead)
        backward.append(back)
    return tuple(forward), tuple(backward)


def _pass(
    priced: PassTime, calls: PassCalls, sent: StageCalls, groups: JobGroups, *, times: int, besides_s: float
) -> Passes:
    """A pass of a chunk with its collectives: what its price says that they add is less than they take where some of
    it hides."""
    compute_s = priced.total_s - priced.communication_s
    added_s = {"tp": priced.tp_s, "cp": priced.cp_s, "ep": priced.ep_s}
    cover_s = {"tp": priced.gemm_s, "cp": priced.attention_s, "ep": compute_s}
    hidden: list[Hidden] = []
    stopping: tuple[Exchange, ...] = ()
    for axis, here in calls.items():
        exchanges = exchanges_of(here, groups)
        hidden_s = _hidden_s(here, added_s[axis], sent.overlap_cost)
        if not hidden_s:
            stopping += exchanges
            continue
        # Where a part of it cannot hide, what hides does so behind something of its own length.
        whole = hidden_s >= calls_s(here) * (1 - ROUNDING)
        cost_s = hidden_s * sent.overlap_cost
        most_s = max(hidden_s, cover_s[axis]) if whole else hidden_s
        hidden.append(Hidden(exchanges=exchanges, hidden_s=hidden_s, cost_s=cost_s, most_s=most_s))
    return Passes(times=times, compute_s=compute_s + besides_s, hidden=tuple(hidden), stopping=stopping)


def _hidden_s(calls: Calls, added_s: float, overlap_cost: float) -> float:
    """What of collectives hides, which add so much to their pass: all that they do not add, and what its hiding costs
    instead."""
    whole_s = calls_s(calls)
    saved_s = whole_s - added_s
    if saved_s <= ROUNDING * whole_s or overlap_cost >= 1:
        return 0.0
    return min(whole_s, saved_s / (1 - overlap_cost))


def _with_sharding(
    ahead: Passes, back: Passes, sharding: ShardingCalls, added_s: float, overlap_cost: float, groups: JobGroups
) -> tuple[Passes, Passes]:
    """Passes between which sharded weights come and gradients go: forward hides as much as its compute allows of its
    share, backward the rest."""
    both = add_calls(sharding.forward, sharding.backward)
    if not both:
        return ahead, back
    hidden_s = _hidden_s(both, added_s, overlap_cost)
    forward_s, backward_s = calls_s(sharding.forward), calls_s(sharding.backward)
    early_s = min(hidden_s * forward_s / (forward_s + backward_s), ahead.free_s / ahead.times)
    late_s = min(hidden_s - early_s, backward_s)
    parts = []
    for passes, calls, part_s in ((ahead, sharding.forward, hidden_s - late_s), (back, sharding.backward, late_s)):
        window = Hidden(
            exchanges=exchanges_of(calls, groups),
            hidden_s=part_s,
            cost_s=part_s * overlap_cost,
            most_s=max(part_s, passes.compute_s),
        )
        parts.append(replace(passes, hidden=(*passes.hidden, window)))
    return parts[0], parts[1]


def _synchronised(priced: PricedSetup, groups: JobGroups) -> tuple[Hidden, Hidden]:
    """The sums of gradients and the gathering of weights of the stage that is done with them last: what passes while
    stages still compute, at what cost."""
    setup, costs = priced.setup, priced.costs
    hiding = hiding_in(setup)
    times = [stage_times(cost) for cost in costs]
    backward_s = np.array([time.backward_s for time in times])
    forward_s, whole_backward_s = np.array([sum(time.forward_s) for time in times]), backward_s.sum(axis=1)
    reduce_s, gather_s = sync_by_stage(setup, costs, times, np.array([cost.once.partial_s for cost in costs]))
    early_s = early_by_stage_s(setup.recipe.schedule, backward_s)
    added_s = np.maximum(0.0, reduce_s - early_s)
    latest = int(np.argmax(added_s + gather_s))
    sent = stage_calls(priced, latest)
    beside_s, ahead_s = 0.0, 0.0
    if hiding is not None:
        beside_s = float((np.broadcast_to(hiding.sums, whole_backward_s.shape) * whole_backward_s)[latest])
        ahead_s = float(hiding.gathers * forward_s[latest])
    once = costs[latest].once
    sums = _once(
        exchanges_of(sent.reduced, groups) + exchanges_of(sent.partial, groups),
        added_s=float(added_s[latest]),
        cost_s=once.overlap_cost * min(once.reduce_s, beside_s),
        most_s=beside_s + float(early_s[latest]),
    )
    gathering = _once(
        exchanges_of(sent.gathered, groups),
        added_s=float(gather_s[latest]),
        cost_s=once.overlap_cost * min(once.gather_s, ahead_s),
        most_s=ahead_s,
    )
    return sums, gathering


def _once(exchanges: tuple[Exchange, ...], *, added_s: float, cost_s: float, most_s: float) -> Hidden:
    """Exchanges that add so much to an iteration, up to `cost_s` of it because others hide."""
    if not exchanges:
        # Copies alone: no ranks but this one has a part in them.
        return replace(NOTHING, cost_s=added_s)
    whole_s = seconds_of(exchanges)
    cost_s = min(added_s, cost_s)
    hidden_s = max(0.0, whole_s - (added_s - cost_s))
    return Hidden(exchanges=exchanges, hidden_s=hidden_s, cost_s=cost_s, most_s=max(hidden_s, most_s))
