"""The ranks of a job that talk with each other: numbered through its stages, in the order of each stage's slots."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import cast, get_args

from estimator.network.traffic import Exchange
from estimator.pricing.rank_groups import GroupAxis, group_ranks
from estimator.pricing.recipe import Setup, StageSetup
from estimator.traffic.sent import Calls
from profiles.cluster import DeviceSlot
from profiles.records import dataclass
from profiles.vocabulary import Axis

Ranks = tuple[tuple[int, ...], ...]
"""Groups of ranks."""

AXIS_OF: dict[str, Axis] = {
    "tp": "tp",
    "cp": "cp",
    "ep": "ep",
    "etp": "etp",
    "dp": "dp",
    "expert_dp": "dp",
    "shard": "dp",
    "replicate": "dp",
}
"""The axis that groups of a stage belong to; those of so many consecutive ranks are tensor-parallel."""


@dataclass(frozen=True, kw_only=True)
class StageGroups:
    """The groups of a stage whose ranks are numbered from `first`."""

    stage: StageSetup
    first: int

    def on_axis(self, axis: str | int) -> Ranks:
        """Return the groups of an axis, those of one rank left out."""
        return tuple(
            tuple(self.first + rank for rank in group) for group in _groups_in(self.stage, axis) if len(group) > 1
        )


class JobGroups:
    """The groups of a setup's ranks, each axis' made once. All stages' groups of an axis send at once."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.firsts: list[int] = []
        ranks = 0
        for stage in setup.stages:
            self.firsts.append(ranks)
            ranks += len(stage.slots)
        self._known: dict[Hashable, Ranks] = {}

    @property
    def slots(self) -> tuple[DeviceSlot, ...]:
        """Where each of the job's ranks sits."""
        return tuple(slot for stage in self.setup.stages for slot in stage.slots)

    def on_axis(self, axis: str | int) -> Ranks:
        """Return the groups of an axis in all stages, those of one rank left out."""
        if axis not in self._known:
            self._known[axis] = tuple(self._groups(axis))
        return self._known[axis]

    def of_stage(self, number: int) -> StageGroups:
        """Return the groups of one stage alone."""
        return StageGroups(stage=self.setup.stages[number], first=self.firsts[number])

    def across(self, stages: Sequence[int]) -> Ranks:
        """Return one rank of each of the stages together, ranks of stages of other sizes in proportion."""
        key = ("across", *stages)
        if key not in self._known:
            sizes = [len(self.setup.stages[number].slots) for number in stages]
            most = max(sizes)
            self._known[key] = tuple(
                tuple(self.firsts[number] + i * size // most for number, size in zip(stages, sizes, strict=True))
                for i in range(most)
            )
        return self._known[key]

    def _groups(self, axis: str | int) -> Iterator[tuple[int, ...]]:
        for number in range(len(self.firsts)):
            yield from self.of_stage(number).on_axis(axis)


def _groups_in(stage: StageSetup, axis: str | int) -> Iterator[tuple[int, ...]]:
    if isinstance(axis, int):
        for first in range(0, len(stage.slots) - axis + 1, axis):
            yield tuple(range(first, first + axis))
        return
    if axis not in get_args(GroupAxis):
        raise ValueError(f"groups of {axis!r}; expected one of {', '.join(get_args(GroupAxis))}")
    yield from group_ranks(stage, cast("GroupAxis", axis))


def exchanges_of(calls: Calls, groups: JobGroups | StageGroups, share: float = 1.0) -> tuple[Exchange, ...]:
    """Return collectives as exchanges, each with `share` of its bytes and seconds; what is called a broken number of
    times is called as often as the next whole one, with so much less each."""
    made = []
    for call, count in calls.items():
        times = max(1, -int(-count // 1)) if count - int(count) > 1e-9 else max(1, int(count))
        each = share * count / times
        made.append(
            Exchange(
                axis="tp" if isinstance(call.axis, int) else AXIS_OF[call.axis],
                op=call.op,
                size_bytes=call.size_bytes * each,
                groups=groups.on_axis(call.axis),
                alone_s=call.alone_s * each,
                latency_s=call.latency_s * each,
                times=times,
                algorithm=call.algorithm,
            )
        )
    return tuple(made)
