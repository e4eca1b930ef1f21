"""Time of a collective on a group of devices: from link tables where they fit, else from the links' own records.

Every algorithm on a group costs a line in bytes, and the fastest one is taken, as NCCL does: a time is continuous in
bytes and never falls with them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from estimator.communication.algorithms import Line, algorithm_lines, halving_doubling_lines
from estimator.communication.groups import Group, describe_group, nic_bytes_per_s, pair_key
from estimator.communication.tables import METHODS, Method
from estimator.communication.uplinks import doors_above, shares_uplinks
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace
from profiles.vocabulary import CollectiveOp, LinkTable, Provenance, combine_provenance

__all__ = ["CollectiveTime", "Group", "StageTransfer", "describe_group", "time_collective", "time_stage_transfer"]

RING_OPS: frozenset[CollectiveOp] = frozenset({"all_reduce", "all_gather", "reduce_scatter"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTime:
    """Seconds of a collective; `how` names the table or the algorithm that gave them, `table_ids` the tables,
    `algorithm` that of the model (`Line.algorithm`, in any protocol)."""

    seconds: float
    provenance: Provenance
    how: str
    table_ids: tuple[str, ...] = ()
    algorithm: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTransfer:
    """Seconds from one pipeline stage to the next: messages between ranks, then the gather inside the receiver."""

    send_s: float
    gather_s: float
    provenance: Provenance
    how: str
    table_ids: tuple[str, ...]

    @property
    def total_s(self) -> float:
        return self.send_s + self.gather_s


def time_collective(
    op: CollectiveOp,
    size_bytes: float,
    group: Group,
    *,
    tables: Sequence[LinkTable] = (),
    concurrent_groups: int = 1,
    method: Method = "interpolate",
    algorithm: str | None = None,
    as_placed: bool = False,
) -> CollectiveTime:
    """Return the seconds of `op` with `size_bytes` (as in `Collective.bytes`) on `group`. One rank takes none.

    In this order: the table of the group's outermost link for the same op, ranks and nodes, as it stands (marked
    modelled where the bytes lie beyond its points, as no table measures what it extrapolates, and where nodes have
    different numbers of ranks, as no table says of which it was measured on); the nearest table of other ranks, or of
    another op of all_reduce, all_gather and reduce_scatter, rescaled by the ring formula (alpha by the latency of the
    hops, the rest by the bytes that pass the thinnest link) and marked modelled; the fastest algorithm by the links'
    records, modelled. A table is taken as measured inside one part of a fabric: what a group over several parts loses
    on their uplinks rescales it as well. Not so `as_placed`: tables were then measured on this very group, while all
    that shares its uplinks was busy.

    `concurrent_groups` groups like this one are busy at the same time; those that a node hosts share its NICs.

    `algorithm` names the only one, by the links' records whatever tables there are: "ring", "tree" or "exchange" of
    NCCL, or "halving-doubling", which gloo has and NCCL has not, with its ranks in the order that takes least.

    Raises:
        ValueError: negative bytes, no group, send_recv between more than two ranks, or an algorithm that has no form
            of `op`.
    """
    if size_bytes < 0 or concurrent_groups < 1:
        raise ValueError(f"{op}: found {size_bytes} bytes, {concurrent_groups} groups; expected >= 0 and >= 1")
    if op == "send_recv" and group.ranks > 2:
        raise ValueError(f"send_recv: found {group.ranks} ranks, expected 2")
    if group.ranks == 1:
        return CollectiveTime(seconds=0.0, provenance="modelled", how="one rank: nothing to send")
    if algorithm is not None:
        return _fastest(_lines_of(algorithm, op, group, concurrent_groups), size_bytes, group)
    lines = algorithm_lines(op, group, concurrent_groups)
    donors = [
        (table, donor if as_placed else donor.inside_one_part())
        for table in tables
        if (donor := _donor(op, group, table)) is not None
    ]
    if donors:
        table, donor = min(donors, key=lambda pair: _distance(op, group, pair[0]))
        table_time = _from_table(op, size_bytes, lines[0], table, algorithm_lines(table.op, donor, 1)[0], method)
        if group.even:
            return table_time
        return replace(
            table_time, provenance="modelled", how=f"{table_time.how}; nodes have different numbers of its ranks"
        )
    return _fastest(lines, size_bytes, group)


def _lines_of(algorithm: str, op: CollectiveOp, group: Group, concurrent_groups: int) -> tuple[Line, ...]:
    """What the algorithm of that name costs, in each protocol; ValueError where it has no form of `op`."""
    if algorithm == "halving-doubling":
        return halving_doubling_lines(op, group, concurrent_groups)
    lines = algorithm_lines(op, group, concurrent_groups)
    named = tuple(line for line in lines if line.algorithm.removeprefix("quick ") == algorithm)
    if not named:
        expected = ", ".join(dict.fromkeys(line.algorithm.removeprefix("quick ") for line in lines))
        raise ValueError(f"{op} by {algorithm}; expected one of {expected}, halving-doubling")
    return named


def _fastest(lines: Sequence[Line], size_bytes: float, group: Group) -> CollectiveTime:
    best = min(lines, key=lambda line: line.seconds(size_bytes))
    links = " + ".join(level.link for level in group.levels)
    return CollectiveTime(
        seconds=best.seconds(size_bytes),
        provenance="modelled",
        how=f"model: {best.algorithm} over {links}",
        algorithm=best.algorithm.removeprefix("quick "),
    )


def time_stage_transfer(
    cluster: Cluster,
    from_slots: Sequence[DeviceSlot],
    to_slots: Sequence[DeviceSlot],
    size_bytes: float,
    *,
    to_tp: int,
    gather: bool = True,
    tables: Sequence[LinkTable] = (),
    method: Method = "interpolate",
) -> StageTransfer:
    """Return the seconds to bring a micro-batch's boundary activation from one stage to the next.

    `size_bytes` is the whole activation, over all replicas; slots are in rank order, tp the faster axis. Every byte is
    sent once: rank i of n senders holds the i-th n-th of the activation (of its replica's samples, the part that
    belongs to its tp rank), rank j of m receivers wants the j-th m-th, and they exchange the overlap, whatever dp and
    tp are on either side. The receiver's tp ranks then all-gather their replica's samples (the scatter/gather
    optimisation of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM", 2021, section 4.1; send/recv and all_gather between stages: Crius section 5.1). `gather` is False
    for a receiver in sequence parallelism, whose layers gather themselves.

    A rank's messages follow each other; those that leave a node, enter one, or pass from site to site share its NICs or
    the link between the sites, and take at least as long as these need for all of their bytes.

    Raises:
        ValueError: `to_tp` does not divide the receivers, or no senders.
    """
    if not from_slots or not to_slots or len(to_slots) % to_tp:
        raise ValueError(
            f"stage transfer: found {len(from_slots)} senders, {len(to_slots)} receivers, to_tp={to_tp};"
            " expected to_tp to divide the receivers, and at least one of each"
        )
    parts = [_send_all(cluster, from_slots, to_slots, size_bytes, tables, method)]
    if gather and to_tp > 1:
        replicas = [tuple(to_slots[start : start + to_tp]) for start in range(0, len(to_slots), to_tp)]
        groups = dict.fromkeys(describe_group(cluster, replica) for replica in replicas)
        each = size_bytes / len(replicas)
        times = (
            time_collective("all_gather", each, group, tables=tables, concurrent_groups=len(replicas), method=method)
            for group in groups
        )
        parts.append(max(times, key=lambda time: time.seconds))
    moving = [part for part in parts if part.seconds > 0] or parts[:1]
    return StageTransfer(
        send_s=parts[0].seconds,
        gather_s=sum(part.seconds for part in parts[1:]),
        provenance=combine_provenance(tuple(part.provenance for part in moving)),
        how="; ".join(part.how for part in moving),
        table_ids=_table_ids(moving),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """A message with its links and uplinks to itself: its time, the part of it that does not grow with bytes, and its
    rate; the rate of what it shares with others, over the level `over`, and what spread tables leave of such rates."""

    time: CollectiveTime
    floor_s: float
    bytes_per_s: float
    shared_bytes_per_s: float
    reach: float
    over: str


def _send_all(
    cluster: Cluster,
    from_slots: Sequence[DeviceSlot],
    to_slots: Sequence[DeviceSlot],
    size_bytes: float,
    tables: Sequence[LinkTable],
    method: Method,
) -> CollectiveTime:
    """The messages of the rank, sender or receiver, or of the shared link that is busy longest."""
    messages: dict[Hashable, _Message] = {}
    by_rank: defaultdict[tuple[str, DeviceSlot], list[CollectiveTime]] = defaultdict(list)
    by_door: defaultdict[tuple[str, ...], list[tuple[_Message, float]]] = defaultdict(list)
    for i, j, share in overlaps(len(from_slots), len(to_slots)):
        sender, receiver = from_slots[i], to_slots[j]
        if sender == receiver:
            continue
        key = (pair_key(cluster, sender, receiver), share)
        if key not in messages:
            messages[key] = _message(cluster, sender, receiver, size_bytes * share, tables, method)
        message = messages[key]
        by_rank["send", sender].append(message.time)
        by_rank["receive", receiver].append(message.time)
        for door, capacity in _doors(cluster, sender, receiver, message):
            by_door[door].append((message, capacity))
    if not by_rank:
        return CollectiveTime(seconds=0.0, provenance="modelled", how="same devices: nothing to send")
    slowest = max(by_rank.values(), key=lambda times: math.fsum(time.seconds for time in times))
    seconds = math.fsum(time.seconds for time in slowest)
    provenance = combine_provenance(tuple(time.provenance for time in slowest))
    how = "; ".join(dict.fromkeys(time.how for time in slowest))
    crowd = max(by_door.values(), key=_door_seconds, default=[])
    if _door_seconds(crowd) > seconds * (1 + 1e-12):
        slowest = [message.time for message, _ in crowd]
        seconds, provenance = _door_seconds(crowd), "modelled"
        how = "; ".join(dict.fromkeys(time.how for time in slowest)) + f"; {len(crowd)} messages share what they pass"
    return CollectiveTime(seconds=seconds, provenance=provenance, how=how, table_ids=_table_ids(slowest))


def _message(
    cluster: Cluster,
    sender: DeviceSlot,
    receiver: DeviceSlot,
    size_bytes: float,
    tables: Sequence[LinkTable],
    method: Method,
) -> _Message:
    pair = describe_group(cluster, (sender, receiver))
    time, empty = (time_collective("send_recv", size, pair, tables=tables, method=method) for size in (size_bytes, 0.0))
    top = pair.levels[-1]
    alone_bytes_per_s = top.available(1, message=True)
    if top.above is not None and top.above.message:
        alone_bytes_per_s = min(alone_bytes_per_s, 1 / top.above.message)
    return _Message(
        time=time,
        floor_s=min(empty.seconds, time.seconds),
        bytes_per_s=alone_bytes_per_s,
        shared_bytes_per_s=top.shared_bytes_per_s,
        reach=top.message_reach,
        over=top.kind,
    )


def _doors(
    cluster: Cluster, sender: DeviceSlot, receiver: DeviceSlot, message: _Message
) -> Iterator[tuple[tuple[str, ...], float]]:
    """What a message passes that others share, and how many like it pass at full rate at once."""
    if message.over in ("fabric", "site"):
        for way, slot in (("out", sender), ("in", receiver)):
            nics = message.shared_bytes_per_s if message.over == "fabric" else nic_bytes_per_s(cluster, slot)
            yield (way, slot.site, str(slot.node)), nics * message.reach / message.bytes_per_s
    if message.over in ("fabric", "site") and shares_uplinks(cluster):
        for uplink, rate in doors_above(cluster, sender, receiver):
            yield uplink, rate / message.bytes_per_s
    if message.over == "site":
        shared_bytes_per_s = message.shared_bytes_per_s * message.reach
        yield ("between", sender.site, receiver.site), shared_bytes_per_s / message.bytes_per_s


def _door_seconds(messages: Sequence[tuple[_Message, float]]) -> float:
    """Seconds until the last of `messages` is through a door that lets so many like each pass at once."""
    if not messages:
        return 0.0
    floor_s = max(message.floor_s for message, _ in messages)
    return floor_s + math.fsum((message.time.seconds - message.floor_s) / capacity for message, capacity in messages)


def _table_ids(times: Sequence[CollectiveTime]) -> tuple[str, ...]:
    return tuple(sorted({name for time in times for name in time.table_ids}))


def overlaps(senders: int, receivers: int) -> Iterator[tuple[int, int, float]]:
    """Yield (sender, receiver, share of the whole) where the senders' equal intervals meet the receivers'."""
    i = j = start = 0
    while i < senders and j < receivers:
        sender_end, receiver_end = (i + 1) * receivers, (j + 1) * senders
        end = min(sender_end, receiver_end)
        yield i, j, (end - start) / (senders * receivers)
        i, j, start = i + (end == sender_end), j + (end == receiver_end), end


# Tables


def _donor(op: CollectiveOp, group: Group, table: LinkTable) -> Group | None:
    """The group that `table` was measured on, if it differs from `group` only in the outermost level's members. A group
    whose nodes have different numbers of ranks takes that of as many ranks and nodes alone."""
    top = group.levels[-1]
    members, rest = divmod(table.ranks, top.ranks_inside)
    related = table.op == op or {table.op, op} <= RING_OPS
    if not related or table.link != top.link:
        return None
    if not group.even:
        return group if (table.ranks, table.nodes) == (group.ranks, group.nodes) else None
    if rest or members < 2:
        return None
    if top.kind == "fabric" and table.nodes * group.ranks != group.nodes * table.ranks:
        return None
    inner = (replace(level, crossings=level.crossings * table.ranks // group.ranks) for level in group.levels[:-1])
    outer = replace(top, members=members, crossings=members - 1)
    return replace(group, ranks=table.ranks, nodes=table.nodes, levels=(*inner, outer))


def _distance(op: CollectiveOp, group: Group, table: LinkTable) -> tuple[bool, float, bool]:
    """How far a table is from what is asked: its op, then its ranks, then whether it was itself derived."""
    return table.op != op, abs(math.log(table.ranks / group.ranks)), table.provenance != "measured"


def _from_table(
    op: CollectiveOp, size_bytes: float, wanted: Line, table: LinkTable, measured: Line, method: Method
) -> CollectiveTime:
    seconds = METHODS[method](table, size_bytes)
    how = f"table: {table.op} over {table.link}, {table.ranks} ranks, {table.source}"
    inside = table.points[0][0] <= size_bytes <= table.points[-1][0]
    if not inside:
        how += f"; extrapolated beyond {table.points[0][0]} to {table.points[-1][0]} bytes"
    if table.op == op and wanted == measured:
        provenance = table.provenance if inside else "modelled"
        return CollectiveTime(seconds=seconds, provenance=provenance, how=how, table_ids=(table.id,))
    alpha_s = min(table.alpha_s, seconds)
    latency_ratio = wanted.latency_s / measured.latency_s if measured.latency_s else 1.0
    volume_ratio = wanted.seconds_per_byte / measured.seconds_per_byte
    return CollectiveTime(
        seconds=alpha_s * latency_ratio + (seconds - alpha_s) * volume_ratio,
        provenance="modelled",
        how=f"{how}; rescaled by the ring formula",
        table_ids=(table.id,),
    )
