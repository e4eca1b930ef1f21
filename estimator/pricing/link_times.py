"""Seconds of a plan's collectives in a running training, and what they rest on."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import field
from functools import lru_cache
from itertools import accumulate, pairwise

from estimator.communication.algorithms import algorithm_lines
from estimator.communication.collectives import CollectiveTime, time_collective, time_stage_transfer
from estimator.communication.groups import Group, describe_group, pair_key, with_above
from estimator.communication.levels import Level
from estimator.communication.renumbered import nodes_in_a_row
from estimator.communication.uplinks import above_pairs, shares_uplinks
from estimator.pricing.company import Company
from estimator.pricing.gradient_sync import TimeOnAxis
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import AxisGroup, GroupAxis, axis_groups, first_of_run, repeats_after
from estimator.pricing.recipe import StageSetup
from profiles.cluster import Cluster, DeviceSlot, NodeGroup
from profiles.dispatchers import Dispatcher, load_dispatcher
from profiles.hardware import load_link
from profiles.records import dataclass, replace
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import CollectiveOp, Link, Provenance, combine_provenance


class LinkAccount:
    """What was timed for one estimate, and on what its times rest."""

    def __init__(self) -> None:
        self._times: dict[tuple[CollectiveOp, Group | None], set[CollectiveTime]] = {}

    def note(self, op: CollectiveOp, group: Group | None, time: CollectiveTime) -> None:
        """Add a collective on `group`; None: a transfer between stages that are split differently."""
        self._times.setdefault((op, group), set()).add(time)

    def add(self, other: LinkAccount) -> None:
        """Add all that `other` noted."""
        for key, times in other._times.items():
            self._times.setdefault(key, set()).update(times)

    def provenance(self) -> Provenance | None:
        """Return where the times come from; None if nothing had to be sent."""
        kinds = tuple(time.provenance for times in self._times.values() for time in times)
        return combine_provenance(kinds) if kinds else None

    def table_ids(self) -> tuple[str, ...]:
        """Return the link tables that were used."""
        return tuple(sorted({name for times in self._times.values() for time in times for name in time.table_ids}))

    def measured(self, group: Group) -> bool:
        """Return whether all collectives timed on `group` came from measured tables."""
        times = [time for (_, here), own in self._times.items() if here == group for time in own]
        return bool(times) and all(time.table_ids for time in times)

    def messages_measured(self) -> bool:
        """Return whether all messages between stages came from measured tables."""
        times = [time for (op, _), own in self._times.items() if op == "send_recv" for time in own]
        return bool(times) and all(time.table_ids for time in times)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTimes:
    """Times the collectives of plans on `cluster`.

    Of a link's record, runs in training reach a share (`share_in_training`, `send_share`); a measured table is taken
    as it stands. `experts_a_token`: how many a token goes to where the software sends one copy of it to those on the
    same node or rank (`Software.dispatch`); 1 where each of them gets its own. `dispatcher`: whose kernels bound their
    exchange beside the links. `account`: who notes what was asked. `company`: whose groups are busy beside those of a
    stage, on a cluster whose uplinks are shared; `beside` are its stages where they differ.
    """

    pricing: Pricing
    cluster: Cluster
    experts_a_token: int = 1
    dispatcher: Dispatcher = field(default_factory=lambda: load_dispatcher("all_to_all"))
    account: LinkAccount | None = None
    company: Company | None = None
    beside: tuple[StageSetup, ...] = ()

    def on_axes_of(self, stage: StageSetup) -> TimeOnAxis:
        """Return who times collectives on the slowest group of one of `stage`'s axes, or of so many consecutive
        tensor-parallel ranks, all groups like it being busy."""
        groups: dict[str | int, tuple[AxisGroup, Group]] = {}
        timed: dict[tuple[CollectiveOp, float, str | int], float] = {}

        def seconds(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
            key = (op, size_bytes, axis)
            if key not in timed:
                timed[key] = price(op, size_bytes, axis)
            return timed[key]

        def price(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
            if axis not in groups:
                reached_cluster = cluster_in_training(self.cluster, self.pricing.parameters, exchanging=axis == "ep")
                ways = [self.cluster, reached_cluster]
                if axis == "ep" and not (self.dispatcher.rack or self.dispatcher.once):
                    ways = [without_racks(cluster) for cluster in ways]
                plain, reached = (self._axis(cluster, stage, axis) for cluster in ways)
                groups[axis] = (plain, reached.group)
            plain, group = groups[axis]
            if op == "all_to_all" and axis == "ep" and group.ranks > 1 and self.experts_a_token > 1:
                sent = size_bytes / copies_of_one(group, group.levels[-1], self.experts_a_token)
                if time_collective(op, sent, plain.group, tables=self.pricing.link_tables).table_ids:
                    return self._seconds(op, sent, plain.group, group, plain.concurrent)
                once = deduplicated(group, self.experts_a_token)
                over_links_s = self._seconds(op, size_bytes, plain.group, once, plain.concurrent)
                if not self.dispatcher.once or size_bytes <= 0:
                    return over_links_s
                wait_s = self.pricing.parameters.of("collective_wait_s")
                if len(group.levels) == 1:
                    # Its kernels were timed on such links: what the library's reach in training is not theirs.
                    once = deduplicated(plain.group, self.experts_a_token)
                return wait_s + dispatched_s(self.dispatcher, size_bytes, once, plain.concurrent, self.experts_a_token)
            return self._seconds(op, size_bytes, plain.group, group, plain.concurrent)

        return seconds

    def groups_of(self, stage: StageSetup, axis: GroupAxis) -> AxisGroup:
        """Return the slowest group of one of `stage`'s axes."""
        return self._axis(self.cluster, stage, axis)

    def _axis(self, cluster: Cluster, stage: StageSetup, axis: str | int) -> AxisGroup:
        return axis_groups(cluster, stage, axis, beside=self.beside, company=self.company)  # type: ignore[arg-type]

    def place_of(self, stage: StageSetup, axis: GroupAxis) -> Hashable:
        """Return what decides how long collectives on one of the stage's axes take: where its group sits, by the links
        as they are and as training and the exchange of experts reach them; the same on any cluster."""
        nodes = self.cluster.group_of(stage.slots[0])
        reached = cluster_in_training(self.cluster, self.pricing.parameters, exchanging=axis == "ep")
        groups = (self._axis(cluster, stage, axis) for cluster in (self.cluster, reached))
        return axis, nodes.island_size, nodes.devices, *groups

    def messages_s(self, pairs: Sequence[Group], size_bytes: float, *, senders: int) -> float:
        """Return seconds of messages between so many pairs, which sit as `pairs` do."""
        return max(
            self._seconds("send_recv", size_bytes, pair, pair, senders if pair.nodes > 1 else 1) for pair in pairs
        )

    def split_message_s(
        self, pairs: Sequence[Group], size_bytes: float, receiver: StageSetup, on_axis: TimeOnAxis
    ) -> float:
        """Return seconds to bring an activation of so many bytes a rank to `receiver`, which is split as its sender.

        Each tensor-parallel rank sends its 1/tp over the network and the receivers gather the whole inside the node
        (Narayanan et al. 2021, section 4.1); under sequence parallelism a rank holds no more than that anyway.
        """
        senders = len(receiver.slots)
        if receiver.tp == 1 or receiver.sequence_parallel:
            return self.messages_s(pairs, size_bytes, senders=senders)
        sent_s = self.messages_s(pairs, size_bytes / receiver.tp, senders=senders)
        return sent_s + on_axis("all_gather", size_bytes, "tp")

    def stage_transfer_s(self, sender: StageSetup, receiver: StageSetup, size_bytes: float) -> float:
        """Return seconds to bring a whole micro-batch's activation between stages that are split differently."""
        timed = time_stage_transfer(
            self.cluster,
            sender.slots,
            receiver.slots,
            size_bytes,
            to_tp=receiver.tp,
            gather=not receiver.sequence_parallel,
            tables=self.pricing.link_tables,
        )
        if self.account is not None:
            whole = CollectiveTime(
                seconds=timed.total_s, provenance=timed.provenance, how=timed.how, table_ids=timed.table_ids
            )
            self.account.note("send_recv", None, whole)
        return timed.total_s / (1.0 if timed.table_ids else self.pricing.parameters.of("send_share"))

    def pair_sum_s(self, one: StageSetup, other: StageSetup, size_bytes: float, *, beside: int = 1) -> float:
        """Return seconds of an all-reduce between every rank of `one` and its partner in `other`, while so many pairs
        of stages, this one among them, do the same on the same links."""
        reached = cluster_in_training(self.cluster, self.pricing.parameters)
        plain, fast = (self.pairs(one.slots, other.slots, cluster) for cluster in (self.cluster, reached))
        return self.sums_s(plain, fast, size_bytes, pairs=len(one.slots) * beside)

    def stages_sum_s(self, stages: Sequence[StageSetup], size_bytes: float) -> float:
        """Return the seconds of an all-reduce between one rank of each of `stages`, all ranks of the largest at once;
        ranks of stages of other sizes are paired in proportion."""
        ranks = max(len(stage.slots) for stage in stages)
        partners = [tuple(stage.slots[i * len(stage.slots) // ranks] for stage in stages) for i in range(ranks)]
        reached = cluster_in_training(self.cluster, self.pricing.parameters)
        groups = dict.fromkeys(
            (describe_group(self.cluster, slots), describe_group(reached, slots)) for slots in partners
        )
        return max(self._seconds("all_reduce", size_bytes, plain, fast, ranks) for plain, fast in groups)

    def sums_s(self, plain: Sequence[Group], reached: Sequence[Group], size_bytes: float, *, pairs: int) -> float:
        """Return seconds of an all-reduce in each of so many pairs, that sit as `plain` do (`reached`: in training)."""
        return max(
            self._seconds("all_reduce", size_bytes, pair, fast, pairs)
            for pair, fast in zip(plain, reached, strict=True)
        )

    def pairs(
        self, one: Sequence[DeviceSlot], other: Sequence[DeviceSlot], cluster: Cluster | None = None
    ) -> list[Group]:
        """Return the different ways between partners of two stages' slots."""
        here = cluster or self.cluster
        if shares_uplinks(here):
            above = above_pairs(here, one, other, self.company.chains(here) if self.company else None)
            plain, alike = nodes_in_a_row(here, (*one, *other))
            ways = replace(self, cluster=plain, company=None, beside=()).pairs(alike[: len(one)], alike[len(one) :])
            return list(dict.fromkeys(with_above(pair, above) for pair in ways))
        period = repeats_after(self.cluster)
        if period is not None and all(first_of_run(self.cluster, slots) is not None for slots in (one, other)):
            one, other = one[:period], other[:period]
        partners = {pair_key(self.cluster, *pair): pair for pair in zip(one, other, strict=False)}
        return [describe_group(cluster or self.cluster, pair) for pair in partners.values()]

    def message_link(self, sender: StageSetup, receiver: StageSetup) -> str:
        """Return the outermost link between two stages."""
        return describe_group(self.cluster, (sender.slots[0], receiver.slots[0])).levels[-1].link

    def _seconds(self, op: CollectiveOp, size_bytes: float, group: Group, reached: Group, concurrent: int) -> float:
        if group.ranks == 1 or size_bytes <= 0:
            return 0.0
        timed = self.pricing.collective_time(op, size_bytes, group, reached, concurrent)
        if self.account is not None:
            self.account.note(op, group, timed)
        if timed.table_ids:
            return timed.seconds
        if op == "send_recv":
            return timed.seconds / self.pricing.parameters.of("send_share")
        return self.pricing.parameters.of("collective_wait_s") + timed.seconds


def copies_of_one(group: Group, level: Level, experts: int) -> float:
    """How many of the copies that a token of `experts` experts needs in another part of `level` one stands for, if the
    experts are equally likely: expected copies over expected parts that any of them goes to."""
    parts = group.ranks / level.ranks_inside
    return experts / parts / (1 - (1 - 1 / parts) ** experts)


def dispatched_s(dispatcher: Dispatcher, size_bytes: float, once: Group, concurrent_groups: int, experts: int) -> float:
    """Return the seconds of an exchange by a dispatcher's own kernels on a group that tokens cross `once`
    (`deduplicated`): its startup in place of the library's steps, then the longer of what links and kernel take.

    `size_bytes` holds a copy of a token for each of `experts`; a rank moves one for each rank that any of them is
    likely on, itself among them. Where an island joins several nodes, a dispatcher that does not use racks is taken for
    one that does: no training runs it there.
    """
    lines = algorithm_lines("all_to_all", once, concurrent_groups)
    over_links_s = size_bytes * min(line.seconds_per_byte for line in lines)
    if once.nodes > 1 and once.levels[-1].kind == "island" and not dispatcher.rack:
        return dispatcher.startup_s + over_links_s
    ranks_reached = once.ranks * (1 - (1 - 1 / once.ranks) ** experts)
    return dispatcher.startup_s + max(over_links_s, dispatcher.copying_s(size_bytes * ranks_reached / experts))


@lru_cache(maxsize=1024)
def deduplicated(group: Group, experts: int) -> Group:
    """`group` as an exchange sees it that crosses each level once for each part, not for each expert, that a token
    goes to. What a node's ranks pass on to each other meanwhile is hidden: their links are the faster ones."""
    levels = (
        replace(level, exchange_share=level.exchange_share * copies_of_one(group, level, experts))
        for level in group.levels
    )
    return replace(group, levels=tuple(levels))


@lru_cache(maxsize=64)
def without_racks(cluster: Cluster) -> Cluster:
    """Return `cluster` with islands that end with their node."""
    sites = (
        replace(
            site, nodes=tuple(replace(node, island_size=min(node.island_size, node.devices)) for node in site.nodes)
        )
        for site in cluster.sites
    )
    return replace(cluster, sites=tuple(sites))


@lru_cache(maxsize=64)
def cluster_in_training(cluster: Cluster, parameters: TrainingParameters, *, exchanging: bool = False) -> Cluster:
    """Return `cluster` with the rates that collectives of a running training, or the exchange of experts, reach on its
    links."""

    def reached(link: Link) -> Link:
        share = share_in_training(parameters, link, exchanging=exchanging)
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * share)

    def nodes(group: NodeGroup) -> NodeGroup:
        # Of a host link only copies between devices are scaled: its line rate bounds what NICs get.
        host, share = group.host_link, share_in_training(parameters, group.host_link, exchanging=exchanging)
        names = ("efficiency", "quick_efficiency", "exchange_efficiency", "in_network_efficiency")
        stated = {name: getattr(host, name) for name in names if getattr(host, name) is not None}
        return replace(
            group,
            island_link=reached(group.island_link),
            nic_link=reached(group.nic_link),
            host_link=replace(host, **{name: min(1.0, value * share) for name, value in stated.items()}),
        )

    plain = parameters.of("collective_share")
    return replace(
        cluster,
        sites=tuple(
            replace(site, nodes=tuple(map(nodes, site.nodes)), fabric_link=reached(site.fabric_link))
            for site in cluster.sites
        ),
        site_links=tuple(
            replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * plain) for link in cluster.site_links
        ),
    )


def share_in_training(parameters: TrainingParameters, link: Link, *, exchanging: bool = False) -> float:
    """Return what collectives of a running training, or the exchange of experts, reach of the record of `link`.

    Links with a `collective_share` of their own are points of a curve of their technology, bytes/s reached by bytes/s
    of the record. Between two points it is a line, beyond the ends the share stays; it never falls, so that the faster
    of two links is not the slower one in an estimate. The exchange takes an `exchange_share` of such a link instead,
    where there is one: nobody waits for a slower rank's gradients there. A variant of such a link, as nvswitch4-h800
    is of nvswitch4 with fewer of its lines, reaches what that does.
    """
    whole, _, variant = link.name.rpartition("-")
    if variant and f"collective_share.{whole}" in parameters.values:
        share = parameters.of("collective_share", whole)
        return parameters.values.get(f"exchange_share.{whole}", share) if exchanging else share
    points = _points(parameters, exchanging).get(_technology(link))
    if not points:
        return parameters.of("collective_share")
    record = link.bandwidth_bytes_per_s * link.efficiency
    (first, low), (last, high) = points[0], points[-1]
    if record <= first:
        return low / first
    if record >= last:
        return high / last
    for (left, at_left), (right, at_right) in pairwise(points):
        if record <= right:
            return (at_left + (at_right - at_left) * (record - left) / (right - left)) / record
    raise AssertionError("unreachable: the points enclose the record")


@lru_cache(maxsize=8)
def _points(parameters: TrainingParameters, exchanging: bool) -> dict[str, list[tuple[float, float]]]:
    """By technology, (bytes/s of the record, bytes/s reached) of the links that runs tell of, slowest first."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name in parameters.values:
        base, _, known = name.partition(".")
        if base == "collective_share" and known:
            link = load_link(known)
            record = link.bandwidth_bytes_per_s * link.efficiency
            share = parameters.of(base, known)
            if exchanging:
                share = parameters.values.get(f"exchange_share.{known}", share)
            found.setdefault(_technology(link), []).append((record, record * share))
    for points in found.values():
        points.sort()
        reached = accumulate((each for _, each in points), max)
        points[:] = [(record, most) for (record, _), most in zip(points, reached, strict=True)]
    return found


def _technology(link: Link) -> str:
    """What a link is: its kind, or Omni-Path, whose messages the host copies."""
    return "omni-path" if link.name.startswith("omni-path") else link.kind
