"""Jobs that take turns on the same devices, on a network: one job that computes for some of them while it sends for the
others, and then the other way.

What a job sends behind its own compute stays in the slot in which it computes; what blocks it goes to the other slot,
behind the compute of those who take turns with it. So a round that nobody else is in the way of takes what
`planner.many_jobs.scheduling.interleaving` says, and on a network with others what they leave of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from estimator.network.steps import Mover, Step, Transfer
from planner.contention.policies.records import Contender
from planner.many_jobs.jobs.records import Use
from planner.many_jobs.scheduling.interleaving import RESOURCES, best_phases
from profiles.records import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job that takes turns: the steps of its iteration, over links or connections, and how much of it it computes."""

    steps: tuple[Step, ...]
    compute_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    """An iteration taken apart: for `use.compute_s` it computes, and sends what is `hidden` meanwhile; for `waits_s` it
    does neither, and then what it sends is `exposed`."""

    use: Use
    waits_s: float
    hidden: tuple[Transfer, ...]
    exposed: tuple[Transfer, ...]


def steps_in_turns(members: Sequence[Member]) -> tuple[Step, ...]:
    """Return the steps of a round in which each of these jobs makes an iteration, in the best order of their slots."""
    parts = [_take_apart(member) for member in members]
    phases = best_phases([part.use for part in parts])
    steps = []
    for slot in range(RESOURCES):
        computing = [part for part, phase in zip(parts, phases, strict=True) if phase == slot]
        sending = [part for part, phase in zip(parts, phases, strict=True) if phase != slot]
        waits_s = sum(part.waits_s for part in sending)
        transfers = [transfer for part in sending for transfer in part.exposed]
        transfers += [transfer for part in computing for transfer in part.hidden]
        compute_s = max(sum(part.use.compute_s for part in computing), waits_s)
        if compute_s > 0 or transfers:
            steps.append(Step(compute_s=compute_s, transfers=tuple(transfers), begins_s=waits_s))
    return tuple(steps)


def contender_in_turns(contenders: Sequence[Contender], compute_s: Sequence[float]) -> Contender:
    """Return jobs that take turns as one that policies of a network see: with the connections of all of them, what they
    compute in a round, and the seconds of it that no link holds back."""
    first, members = 0, []
    for contender, own_s in zip(contenders, compute_s, strict=True):
        steps = tuple(_from_connection(step, first) for step in contender.steps)
        members.append(Member(steps=steps, compute_s=own_s))
        first += len(contender.paths)
    return replace(
        contenders[0],
        flops=sum(contender.flops for contender in contenders),
        steps=steps_in_turns(members),
        paths=tuple(path for contender in contenders for path in contender.paths),
        now=tuple(choice for contender in contenders for choice in contender.now),
        axes=tuple(axis for each in contenders for axis in each.axes) if all(each.axes for each in contenders) else (),
    )


def _from_connection(step: Step, first: int) -> Step:
    """The step with its connections numbered from `first` on."""

    def moved(mover: Mover) -> Mover:
        return replace(mover, way=tuple((first + number, rate) for number, rate in mover.way))

    return replace(
        step,
        transfers=tuple(replace(transfer, movers=tuple(map(moved, transfer.movers))) for transfer in step.transfers),
    )


def _take_apart(member: Member) -> _Parts:
    hidden: list[Transfer] = []
    exposed: list[Transfer] = []
    lasts_s = hidden_s = exposed_s = 0.0
    for step in member.steps:
        sent_s = sum(map(_lasts_s, step.transfers))
        blocks_s = max(0.0, step.begins_s + sent_s - step.compute_s) if step.transfers else 0.0
        share = min(1.0, blocks_s / sent_s) if sent_s > 0 else 0.0
        blocks_s = share * sent_s
        lasts_s += step.times * (step.compute_s + blocks_s)
        hidden_s += step.times * (sent_s - blocks_s)
        exposed_s += step.times * blocks_s
        hidden += _scaled(step, 1 - share)
        exposed += _scaled(step, share)
    compute_s = min(member.compute_s, lasts_s - exposed_s)
    use = Use(iteration_s=lasts_s, compute_s=compute_s, hidden_s=min(hidden_s, compute_s))
    return _Parts(
        use=use,
        waits_s=max(0.0, lasts_s - exposed_s - compute_s),
        hidden=tuple(_joined(hidden)),
        exposed=tuple(_joined(exposed)),
    )


def _lasts_s(transfer: Transfer) -> float:
    moved_s = max((mover.seconds / mover.most for mover in transfer.movers), default=0.0)
    return transfer.times * (transfer.latency_s + moved_s)


def _scaled(step: Step, share: float) -> Iterator[Transfer]:
    """That share of all that a step sends, each of its transfers once."""
    for transfer in step.transfers if share > 0 else ():
        by = share * step.times * transfer.times
        movers = tuple(replace(mover, seconds=by * mover.seconds) for mover in transfer.movers)
        yield replace(transfer, movers=movers, latency_s=by * transfer.latency_s, times=1)


def _joined(transfers: Iterable[Transfer]) -> Iterator[Transfer]:
    """Those over the same ways as one, in the order in which they first come."""
    same: dict[object, Transfer] = {}
    for transfer in transfers:
        key = (transfer.level, tuple((mover.way, mover.most) for mover in transfer.movers))
        before = same.get(key)
        if before is None:
            same[key] = transfer
            continue
        movers = tuple(
            replace(one, seconds=one.seconds + other.seconds)
            for one, other in zip(before.movers, transfer.movers, strict=True)
        )
        same[key] = replace(before, movers=movers, latency_s=before.latency_s + transfer.latency_s)
    yield from same.values()
