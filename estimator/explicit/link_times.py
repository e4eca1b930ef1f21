"""Seconds of a plan's collectives in a running training, and what they rest on."""

from __future__ import annotations

from dataclasses import dataclass, field

from estimator.collectives import CollectiveTime, time_collective
from estimator.communication.groups import Group, describe_group
from estimator.explicit.gradient_sync import TimeOnAxis
from estimator.explicit.rank_groups import axis_groups
from estimator.explicit.recipe import StageSetup
from profiles.cluster import Cluster
from profiles.training_parameters import TrainingParameters
from profiles.vocabulary import CollectiveOp, LinkTable, Provenance, combine_provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTimes:
    """Times collectives of one plan, once each. The only state is that cache, of which the sources are read.

    What a link's record gives is divided by the share of it that runs in training reach (`collective_share`,
    `send_share`); a measured table is taken as it stands.
    """

    cluster: Cluster
    parameters: TrainingParameters
    tables: tuple[LinkTable, ...] = ()
    _known: dict[tuple[object, ...], CollectiveTime] = field(default_factory=dict)

    def on_axes_of(self, stage: StageSetup) -> TimeOnAxis:
        """Times collectives on the slowest group of one of `stage`'s axes, all groups like it being busy."""

        def seconds(op: CollectiveOp, size_bytes: float, axis: str) -> float:
            found = axis_groups(self.cluster, stage, axis)  # type: ignore[arg-type]
            return self._seconds(op, size_bytes, found.group, found.concurrent)

        return seconds

    def message_s(self, sender: StageSetup, receiver: StageSetup, size_bytes: float) -> float:
        """Seconds of a message from every rank of `sender` to one of `receiver`."""
        pair = describe_group(self.cluster, (sender.slots[0], receiver.slots[0]))
        return self._seconds("send_recv", size_bytes, pair, len(sender.slots) if pair.nodes > 1 else 1)

    def pair_sum_s(self, one: StageSetup, other: StageSetup, size_bytes: float) -> float:
        """Seconds of an all-reduce between every rank of `one` and its partner in `other`."""
        pair = describe_group(self.cluster, (one.slots[0], other.slots[0]))
        return self._seconds("all_reduce", size_bytes, pair, len(one.slots))

    def provenance(self) -> Provenance | None:
        """Where the times come from; None if nothing had to be sent."""
        kinds = tuple(time.provenance for time in self._known.values())
        return combine_provenance(kinds) if kinds else None

    def table_ids(self) -> tuple[str, ...]:
        """The link tables that were used."""
        return tuple(sorted({name for time in self._known.values() for name in time.table_ids}))

    def measured(self, group: Group) -> bool:
        """Whether all collectives timed on `group` so far came from measured tables."""
        found = [time for key, time in self._known.items() if key[2] == group]
        return bool(found) and all(time.table_ids for time in found)

    def message_link(self, sender: StageSetup, receiver: StageSetup) -> str:
        """The outermost link between two stages."""
        return describe_group(self.cluster, (sender.slots[0], receiver.slots[0])).levels[-1].link

    def _seconds(self, op: CollectiveOp, size_bytes: float, group: Group, concurrent: int) -> float:
        if group.ranks == 1 or size_bytes <= 0:
            return 0.0
        key = (op, size_bytes, group, concurrent)
        found = self._known.get(key)
        if found is None:
            found = time_collective(op, size_bytes, group, tables=self.tables, concurrent_groups=concurrent)
            self._known[key] = found
        if found.table_ids:
            return found.seconds
        share = "send_share" if op == "send_recv" else "collective_share"
        wait_s = self.parameters.of("collective_wait_s") if op != "send_recv" else 0.0
        return wait_s + found.seconds / self.parameters.of(share, group.levels[-1].link)
