"""Plans on several groups of equal devices: which segments a pipeline can be made of.

A group is the devices of one type at one site. A segment is some stages of a pipeline that are shared alike: on one
group, or on several at once, whose replicas then have shares of the micro-batch by the speed of their devices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import combinations, product

from estimator.bulk.places import whole_groups
from estimator.pricing.build import refuse_degrees
from estimator.pricing.layer_times import nothing_measured
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import StageSetup
from models_zoo.layers import Experts
from models_zoo.model import Model
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import DeviceSpace
from planner.one_job.search.spaces.space import MOST_SAMPLES, MOST_TOKENS, MOST_TP, divisors
from planner.one_job.tools.base.shape import experts_of
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass
from profiles.vocabulary import Degrees, Device


@dataclass(frozen=True, kw_only=True)
class Group:
    """The free devices of one type at one site, and the space of that type."""

    site: str
    slots: tuple[DeviceSlot, ...]
    own: DeviceSpace

    @property
    def device(self) -> Device:
        """What the devices are."""
        return self.own.cluster.group_of(self.slots[0]).device

    @property
    def memory_bytes(self) -> int:
        """What a plan may need of each of them."""
        below = self.own.space.memory_below
        return self.device.memory_bytes if below is None else min(self.device.memory_bytes, below - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a replica's ranks share the layers, and how experts are spread."""

    tp: int
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """`pp` stages shared alike. Of each of `groups` (by number) a stage has `replicas`, of which each takes at most
    `samples` of a micro-batch; together they take `micro_batch`."""

    groups: tuple[int, ...]
    layout: Layout
    pp: int
    replicas: tuple[int, ...]
    samples: tuple[int, ...]
    micro_batch: int

    @property
    def dp(self) -> int:
        """Replicas of a stage."""
        return sum(self.replicas)

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return self.pp * self.dp * self.layout.tp

    @property
    def shares(self) -> tuple[int, ...] | None:
        """Each replica's samples, None where they are even. What a group's fullest replicas leave is missing at the
        segment's last replicas."""
        if self.micro_batch % self.dp == 0 and set(self.samples) == {self.micro_batch // self.dp}:
            return None
        shares = [most for most, count in zip(self.samples, self.replicas, strict=True) for _ in range(count)]
        for place in range(1, sum(shares) - self.micro_batch + 1):
            shares[-place] -= 1
        return tuple(shares)


@dataclass(frozen=True, kw_only=True)
class MixedSpace:
    """Groups of a cluster, and what is open of plans on several of them; what these are priced by keeps what has been
    computed."""

    cluster: Cluster
    groups: tuple[Group, ...]
    pricing: Pricing

    @property
    def first(self) -> DeviceSpace:
        """The space of the first group, for what is the same in all."""
        return self.groups[0].own

    @property
    def model(self) -> Model:
        """What is trained."""
        return self.first.space.model

    @property
    def constraints(self) -> Constraints:
        """What the user leaves open."""
        return self.first.space.constraints

    @cached_property
    def most_samples(self) -> int:
        """Samples of a rank's micro-batch at most, unless the user says."""
        seq_len = self.first.space.seq_len
        return max(1, MOST_TOKENS // seq_len if seq_len else MOST_SAMPLES)

    @cached_property
    def _experts(self) -> Experts | None:
        return experts_of(self.model)

    @property
    def parties(self) -> tuple[tuple[int, ...], ...]:
        """Groups that can make up a segment together: any of at most two types of device."""
        numbers = range(len(self.groups))
        every = (party for size in range(1, len(self.groups) + 1) for party in combinations(numbers, size))
        return tuple(party for party in every if len({self.groups[number].own.device for number in party}) <= 2)

    def places(self, number: int, tp: int) -> tuple[DeviceSlot, ...]:
        """Return the slots of group `number` in the order in which ranks take them: no group of `tp` straddles nodes,
        if nodes hold one."""
        return self.pricing.remember(self._places, number, tp)

    def _places(self, number: int, tp: int) -> tuple[DeviceSlot, ...]:
        slots = self.groups[number].slots
        return whole_groups(slots, tp) or slots

    def slots_of(self, segment: Segment) -> tuple[DeviceSlot, ...]:
        """The devices of all of its stages."""
        return tuple(slot for number in range(segment.pp) for slot in self.stage_slots(segment, number))

    def stage_slots(self, segment: Segment, number: int) -> tuple[DeviceSlot, ...]:
        """The devices of its stage `number`: every group's in turn."""
        tp = segment.layout.tp
        slots: list[DeviceSlot] = []
        for group, replicas in zip(segment.groups, segment.replicas, strict=True):
            slots += self.places(group, tp)[number * replicas * tp : (number + 1) * replicas * tp]
        return tuple(slots)

    def stage(self, segment: Segment, number: int) -> StageSetup:
        """Its stage `number`, as if it held all layers."""
        layout = segment.layout
        return StageSetup(
            chunks=((0, len(self.model.layers)),),
            slots=self.stage_slots(segment, number),
            tp=layout.tp,
            dp=segment.dp,
            ep=layout.ep,
            etp=layout.etp,
            sequence_parallel=layout.sequence_parallel,
            shares=segment.shares,
        )

    def segments(self, party: tuple[int, ...], micro_batch: int) -> tuple[tuple[Segment, ...], ...]:
        """All segments on the groups of `party` for micro-batches of so many samples; those together that differ in
        nothing but the shares, the first type's rising and the second's falling."""
        return self.pricing.remember(self._every_segment, party, micro_batch)

    def _every_segment(self, party: tuple[int, ...], micro_batch: int) -> tuple[tuple[Segment, ...], ...]:
        return tuple(self._segments(party, micro_batch))

    def _segments(self, party: tuple[int, ...], micro_batch: int) -> Iterator[tuple[Segment, ...]]:
        limits = self.constraints
        shared: dict[tuple[int, ...], list[tuple[tuple[int, ...], list[tuple[int, ...]]]]] = {}
        for tp in self._tps(party):
            places = [len(self.places(number, tp)) // tp for number in party]
            for pp in range(1, min(*places, len(self.model.layers)) + 1):
                most = tuple(count // pp for count in places)
                if most not in shared:
                    shared[most] = list(self._shared(party, most, micro_batch))
                for replicas, choices in shared[most]:
                    if not limits.permits("dp", sum(replicas)):
                        continue
                    kept = [shares for shares in choices if all(limits.permits("micro_batch", each) for each in shares)]
                    for layout in self._layouts(party, tp, sum(replicas)) if kept else ():
                        yield tuple(
                            Segment(
                                groups=party,
                                layout=layout,
                                pp=pp,
                                replicas=replicas,
                                samples=samples,
                                micro_batch=micro_batch,
                            )
                            for samples in kept
                        )

    def _tps(self, party: tuple[int, ...]) -> list[int]:
        limits, most = self.constraints, MOST_TP
        for number in party:
            group = self.groups[number]
            nodes = group.own.evaluator.cluster.group_of(group.slots[0])
            island = min(nodes.island_size, nodes.devices)
            most = min(most, len(group.slots), MOST_TP if limits.allows_tp_beyond(island) else island)
        return [tp for tp in range(1, most + 1) if limits.permits("tp", tp)]

    def _shared(
        self, party: tuple[int, ...], most: tuple[int, ...], micro_batch: int
    ) -> Iterator[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
        """(replicas, ways to share: samples of a rank at most) by group, where these have `most` replicas for a stage.

        One group: as many replicas as divide the micro-batch, and, where these leave devices idle, as many as the share
        of a rank then needs. Several: all that they have. Those of the second type take what the first's leave.
        """
        cap = micro_batch if "micro_batch" in self.constraints.fix else self.most_samples
        if len(party) == 1:
            for dp in self._replicas(most[0], micro_batch):
                if _parts(micro_batch, dp) <= cap:
                    yield (dp,), [(_parts(micro_batch, dp),)]
            return
        ways = [shares for shares in self._shares(party, most, micro_batch, cap) if max(shares) <= cap]
        if ways:
            yield most, ways

    def _replicas(self, most: int, micro_batch: int) -> Iterator[int]:
        """How many replicas a stage on one group may have."""
        even = [dp for dp in divisors(micro_batch) if dp <= most]
        # On the only group all even shares are those of the search on one type of device.
        yield from even if len(self.groups) > 1 else ()
        share = _parts(micro_batch, most)
        if not self.constraints.alike and share < micro_batch // even[-1]:
            yield _parts(micro_batch, share)

    def _shares(
        self, party: tuple[int, ...], most: tuple[int, ...], micro_batch: int, cap: int
    ) -> Iterator[tuple[int, ...]]:
        """Samples of a rank at most, by group, where all replicas take part; none above `cap` of the first type."""
        types = [self.groups[number].own.device for number in party]
        first = sum(count for count, name in zip(most, types, strict=True) if name == types[0])
        second, alike = sum(most) - first, types.count(types[0])
        if not second:
            pairs = [(_parts(micro_batch, first), 1)] if micro_batch >= first else []
        else:
            shares = range(1, min(cap, (micro_batch - second) // first) + 1)
            pairs = [(share, _parts(micro_batch - first * share, second)) for share in shares]
        for mine, other in pairs:
            even = micro_batch % sum(most) == 0 and (mine == other or not second)
            if even or not self.constraints.alike:
                yield (mine,) * alike + (other,) * (len(party) - alike)

    def _layouts(self, party: tuple[int, ...], tp: int, dp: int) -> Iterator[Layout]:
        limits, space = self.constraints, self.first.space
        experts = self._experts
        # Experts are not spread over ranks of different speed.
        ranks = tp if len(party) > 1 else tp * dp
        splits = tp > 1 and space.seq_len > 0 and space.seq_len % tp == 0
        spreads = range(1, min(ranks, experts.count) + 1) if experts else (1,)
        for ep, etp in product(spreads, dict.fromkeys((1, tp)) if experts else (1,)):
            if ranks % (ep * etp) or not (limits.permits("ep", ep) and limits.permits("etp", etp)):
                continue
            if not self.pricing.remember(self._can_hold, tp, ep, etp):
                continue
            for shares in (True, False) if splits else (False,):
                free = not splits and (tp == 1 or not limits.shares_tokens)
                if free or (splits and shares in limits.open_sequence_parallel):
                    yield Layout(tp=tp, ep=ep, etp=etp, sequence_parallel=shares)

    def _can_hold(self, tp: int, ep: int, etp: int) -> bool:
        """Whether layers can be held so, by however many replicas hold all experts."""
        degrees = Degrees(tp=tp, dp=ep * etp, ep=ep, etp=etp)
        return refuse_degrees(self.model, degrees, seq_len=self.first.space.seq_len) is None


def _parts(whole: int, size: int) -> int:
    """How many parts of `size` hold the whole."""
    return -(-whole // size)


def groups_of(spaces: Sequence[DeviceSpace]) -> tuple[Group, ...]:
    """Return the groups of the devices that may be used."""
    groups = []
    for part in spaces:
        by_site: dict[str, list[DeviceSlot]] = {}
        for slot in part.space.slots:
            by_site.setdefault(slot.site, []).append(slot)
        groups += [Group(site=site, slots=tuple(slots), own=part) for site, slots in by_site.items()]
    return tuple(groups)


def pricing_of(spaces: Sequence[DeviceSpace]) -> Pricing:
    """Return what plans on all of them are priced by: the link tables of every type, and no measured layer times,
    which are of one type each."""
    tables = {table.id: table for part in spaces for table in part.pricing.link_tables}
    first = spaces[0].pricing
    if first.lookup is nothing_measured and len(tables) == len(first.link_tables):
        return first
    return first.but(link_tables=tuple(tables.values()), lookup=nothing_measured)
