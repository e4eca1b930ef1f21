"""Which links a setup's collectives and messages cross, axis by axis."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from estimator.communication.groups import describe_group, pair_key
from estimator.communication.levels import Level
from estimator.pricing.rank_groups import GroupAxis, axis_groups
from estimator.pricing.recipe import Setup
from profiles.records import dataclass

LinkPlace = Literal["island", "host", "fabric", "site"]

AXES: dict[str, tuple[GroupAxis, ...]] = {
    "tp": ("tp", "etp"),
    "cp": ("cp",),
    "ep": ("ep",),
    "dp": ("dp", "expert_dp"),
}
"""The groups whose collectives a `TimeBreakdown` counts to an axis."""

PLACES: dict[LinkPlace, str] = {
    "island": "inside islands",
    "host": "host link",
    "fabric": "between nodes",
    "site": "between sites",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """A kind of link at one place of the cluster, and the axes of a plan that cross it."""

    place: LinkPlace
    link: str
    axes: tuple[str, ...]


def links_used(setup: Setup) -> tuple[LinkUse, ...]:
    """The kinds of links that the plan's ranks talk over, from inside out; the host's also for what is held there."""
    axes_of: dict[tuple[LinkPlace, str], dict[str, None]] = {}

    def add(level: Level, axis: str) -> None:
        axes_of.setdefault((level.kind, level.link), {})[axis] = None

    for stage in setup.stages:
        for axis, groups in AXES.items():
            for name in groups:
                for level in axis_groups(setup.cluster, stage, name).group.levels:
                    add(level, axis)
        if stage.offload:
            link = setup.cluster.group_of(stage.slots[0]).host_link.name
            axes_of.setdefault(("host", link), {})["offload"] = None
    for level in _between_stages(setup):
        add(level, "pp")
    order = list(PLACES)
    return tuple(
        LinkUse(place=place, link=link, axes=tuple(axes))
        for (place, link), axes in sorted(axes_of.items(), key=lambda item: order.index(item[0][0]))
    )


def outermost_link(uses: tuple[LinkUse, ...], axis: str) -> LinkUse | None:
    """The link of the axis that is farthest out, which limits it."""
    crossed = [use for use in uses if axis in use.axes]
    return crossed[-1] if crossed else None


def _between_stages(setup: Setup) -> list[Level]:
    stages = setup.stages
    around = [(stages[-1], stages[0])] if setup.recipe.schedule == "interleaved" and len(stages) > 1 else []
    pairs = {
        pair_key(setup.cluster, sender, other): (sender, other)
        for here, there in [*pairwise(stages), *around]
        for sender, other in zip(here.slots, there.slots, strict=False)
    }
    return [level for pair in pairs.values() for level in describe_group(setup.cluster, pair).levels]
