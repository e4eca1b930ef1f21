"""What stages of a pipeline send each other: activations and gradients, and the gradients of weights that they share.

A slot is the time of a message: in each all boundaries between stages carry one, forward or backward, as in the middle
of an iteration they do. A path through the pipeline is longer than a stage's own slots where it fills and drains; then
some of the messages of each boundary are told of alone, so that the bytes of each and the seconds of the path are true.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

from estimator.communication.collectives import overlaps
from estimator.network.traffic import Exchange, Span
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.parts import PricedSetup, shared_groups, split_alike, whole_boundary_bytes
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_cost import StageCost
from estimator.pricing.stage_work import boundary_bytes, tied_bytes
from estimator.schedules.closed_form import passes_of_stage
from estimator.traffic.groups import JobGroups, exchanges_of
from estimator.traffic.sent import calls_of, latency_within, remembering
from estimator.traffic.spans import NOTHING, Hidden, blocking_span, scaled, send_beside
from models_zoo.layers import TracedLayer
from profiles.records import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """What passes a boundary for a micro-batch: an activation and its gradient, `alone_s` each. `share`: of how many of
    the slots it has one."""

    forward: tuple[Exchange, ...]
    backward: tuple[Exchange, ...]
    alone_s: float
    share: float = 1.0


def pipeline_messages(priced: PricedSetup, groups: JobGroups) -> tuple[Hidden, tuple[Span, ...]]:
    """Return the messages of an iteration that pass behind compute, and spans of those that all wait for; they add to
    the iteration what the schedule says that messages do."""
    boundaries = tuple(_boundaries(priced, groups))
    slot_s = max((boundary.alone_s for boundary in boundaries), default=0.0)
    if not slot_s:
        return NOTHING, ()
    setup = priced.setup
    chunks = 1 if setup.recipe.schedule == "dualpipe" else len(setup.stages[0].chunks)
    rounds = passes_of_stage(setup.recipe.schedule, setup.micro_batches) * chunks
    # Where stages do not stand still for messages, activations and gradients may pass each other; they do where there
    # is no other time for them, as a stage between two others sends both.
    schedule = priced.schedule
    pressed = 2 * rounds * slot_s - schedule.transfer_s > schedule.busy_s + schedule.bubble_s
    ways = 1 if priced.transfers.overlapped and pressed else 2
    slots = rounds * ways
    together = _together(boundaries, rounds, slot_s, ways)
    whole_s, waited_s = slots * slot_s, priced.schedule.transfer_s
    if waited_s <= whole_s:
        hidden_s = whole_s - waited_s
        return Hidden(exchanges=together, hidden_s=hidden_s, cost_s=0.0, most_s=hidden_s), ()
    # Slots of one boundary alone: as many fewer of all of them together.
    one_by_one = min(slots, (waited_s / slot_s - slots) / max(1, len(boundaries) - 1))
    spans = [blocking_span(0.0, scaled(together, 1 - one_by_one / slots))]
    spans += [blocking_span(0.0, _together([each], one_by_one / ways, slot_s, ways)) for each in boundaries]
    left_s = waited_s - whole_s - one_by_one * slot_s * (len(boundaries) - 1)
    return NOTHING, (*spans, Span(compute_s=max(0.0, left_s)))


def _together(boundaries: Sequence[Boundary], pairs: float, slot_s: float, ways: int) -> tuple[Exchange, ...]:
    """So many activations over all boundaries at once, and as many gradients, each in `slot_s`: in slots of their own,
    or (one of the `ways`) in the same. Boundaries with fewer messages are left out of some of the slots."""
    times = max(1, math.ceil(pairs - 1e-9))
    most = max(boundary.share for boundary in boundaries)
    forward: list[Exchange] = []
    backward: list[Exchange] = []
    before = 0.0
    for share in sorted({boundary.share for boundary in boundaries}):
        part, before = (share / most - before) * pairs / times, share / most
        sending = [boundary for boundary in boundaries if boundary.share >= share]
        for found, messages in (
            (forward, [boundary.forward for boundary in sending]),
            (backward, [boundary.backward for boundary in sending]),
        ):
            for each in scaled(_in_a_slot(messages, slot_s), part):
                found.append(replace(each, size_bytes=each.size_bytes * most, times=times))
    if ways == 2:
        return (*forward, *backward)
    first, *others = forward
    return (send_beside((first,), backward, first.times * first.alone_s)[0], *others)


def _in_a_slot(messages: Sequence[tuple[Exchange, ...]], slot_s: float) -> tuple[Exchange, ...]:
    """Messages at the same time, those of one size together, then what receivers gather of them."""
    hosts: list[Exchange] = []
    for is_message in (True, False):
        alike: dict[Hashable, list[Exchange]] = {}
        for part in (part for message in messages for part in message if (part.op == "send_recv") == is_message):
            alike.setdefault((part.axis, part.size_bytes), []).append(part)
        joined = [
            replace(
                max(same, key=lambda part: part.alone_s),
                groups=tuple(dict.fromkeys(group for part in same for group in part.groups)),
            )
            for same in alike.values()
        ]
        if joined:
            slowest, *others = sorted(joined, key=lambda part: -part.alone_s)
            hosts.append(replace(slowest, beside=tuple(others)))
    stretch = slot_s / sum(host.alone_s for host in hosts)
    stretched = (replace(host, alone_s=host.alone_s * stretch) for host in hosts)
    return tuple(replace(host, latency_s=min(host.latency_s, host.alone_s)) for host in stretched)


def _boundaries(priced: PricedSetup, groups: JobGroups) -> Iterator[Boundary]:
    setup, hops_s = priced.setup, priced.transfers.forward_s
    last = len(setup.stages) - 1
    for number, alone_s in enumerate(hops_s[:last]):
        both = (_message(priced, groups, *ends, alone_s) for ends in ((number, number + 1), (number + 1, number)))
        forward, backward = both
        if setup.recipe.schedule == "dualpipe":
            forward, backward = (*forward, *backward), (*forward, *backward)
        yield Boundary(forward=forward, backward=backward, alone_s=alone_s)
    if last and hops_s[last]:
        chunks = len(setup.stages[0].chunks)
        yield Boundary(
            forward=_message(priced, groups, last, 0, hops_s[last]),
            backward=_message(priced, groups, 0, last, hops_s[last]),
            alone_s=hops_s[last],
            share=(chunks - 1) / chunks,
        )


def _message(priced: PricedSetup, groups: JobGroups, here: int, there: int, alone_s: float) -> tuple[Exchange, ...]:
    """A micro-batch's activation or gradient between two stages: to each rank from its partner, each tensor-parallel
    one its part where those then gather the whole; or what each has of what each needs, where stages are split
    differently."""
    setup, links = priced.setup, replace(priced.links, account=None)
    # A gradient takes as long as its activation.
    sender, receiver = setup.stages[min(here, there)], setup.stages[max(here, there)]
    if not split_alike(sender, receiver):
        return _redistribution(setup, groups, here, there, alone_s)
    size = float(boundary_bytes(setup, sender))
    if not size or not alone_s:
        return ()
    gathered: tuple[Exchange, ...] = ()
    sent = size
    if receiver.tp > 1 and not receiver.sequence_parallel:
        sent = size / receiver.tp
        seconds = remembering(links, receiver)("all_gather", size, "tp")
        gathered = exchanges_of(calls_of(seconds), groups.of_stage(there))
        alone_s -= seconds
    pairs = links.pairs(sender.slots, receiver.slots)
    senders = len(receiver.slots)
    latency_s = latency_within(lambda size: links.messages_s(pairs, size, senders=senders), sent, alone_s)
    message = Exchange(
        axis="pp",
        op="send_recv",
        size_bytes=sent,
        groups=groups.across((here, there)),
        alone_s=alone_s,
        latency_s=latency_s,
    )
    return (message, *gathered)


def _redistribution(setup: Setup, groups: JobGroups, here: int, there: int, alone_s: float) -> tuple[Exchange, ...]:
    """Parts of equal size at once; different sizes one after the other, each for its share of the time."""
    size = whole_boundary_bytes(setup, setup.stages[min(here, there)])
    first, second = groups.firsts[here], groups.firsts[there]
    by_share: dict[float, list[tuple[int, int]]] = {}
    for i, j, share in overlaps(len(setup.stages[here].slots), len(setup.stages[there].slots)):
        by_share.setdefault(share, []).append((first + i, second + j))
    return tuple(
        Exchange(
            axis="pp",
            op="send_recv",
            size_bytes=size * share,
            groups=tuple(pairs),
            alone_s=alone_s * share / sum(by_share),
        )
        for share, pairs in by_share.items()
    )


def shared_sums(priced: PricedSetup, groups: JobGroups) -> tuple[Exchange, ...]:
    """Return the sums of gradients of weights that stages share, and of DualPipe's two copies of each stage's."""
    setup, after, links = priced.setup, priced.after, replace(priced.links, account=None)
    found: list[Exchange] = []
    stages, width = len(setup.stages), GRAD_WIDTH[setup.recipe.grad_dtype]
    pair_sum_s = partial(links.pair_sum_s, setup.stages[0], setup.stages[-1])
    if after.shared_s and not any(isinstance(layer, TracedLayer) for layer in setup.model.layers):
        found.append(_sum_across(groups.across((0, stages - 1)), tied_bytes(setup), after.shared_s, pair_sum_s))
    elif after.shared_s:
        for numbers, size in shared_groups(setup):
            holding = [setup.stages[number] for number in numbers]
            alone_s = links.stages_sum_s(holding, size)
            found.append(_sum_across(groups.across(numbers), size, alone_s, partial(links.stages_sum_s, holding)))
    if after.mirrored_s:
        pairs = [groups.across((number, stages - 1 - number)) for number in range(stages // 2)]
        every = tuple(pair for each in pairs for pair in each)
        size = width * max(_learning(cost) for cost in priced.costs)
        found.append(_sum_across(every, size, after.mirrored_s, pair_sum_s))
    return tuple(found)


def _learning(cost: StageCost) -> int:
    """Parameters of a rank that learn."""
    return sum(chunk.counted.dense_learning + chunk.counted.experts_learning for chunk in cost.chunks)


def _sum_across(
    groups: tuple[tuple[int, ...], ...], size_bytes: float, alone_s: float, seconds_of: Callable[[float], float]
) -> Exchange:
    return Exchange(
        axis="pp",
        op="all_reduce",
        size_bytes=size_bytes,
        groups=groups,
        alone_s=alone_s,
        latency_s=latency_within(seconds_of, size_bytes, alone_s),
    )
