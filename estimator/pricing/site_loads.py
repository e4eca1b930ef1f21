"""What a pipeline's messages put on the links between sites, which those over several boundaries pass.

A boundary's time is that of its own messages alone. The links between sites are few and thin: of an interleaved
pipeline over two sites what goes on in the middle and what goes round pass the same one in the same direction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

from estimator.communication.groups import routes_of
from estimator.pricing.recipe import StageSetup
from estimator.schedules.records import SharedLink
from profiles.cluster import Cluster, DeviceSlot, SiteLink
from profiles.training_parameters import TrainingParameters

Direction = tuple[str, SiteLink]
"""The site that is left, and the link."""
Occupied = tuple[Mapping[Direction, float], Mapping[Direction, float]]
"""Seconds for which a message over a boundary, and one the other way, occupies links between sites."""
NOWHERE: Occupied = ({}, {})


def partners_occupied_s(
    cluster: Cluster,
    here: Sequence[DeviceSlot],
    there: Sequence[DeviceSlot],
    sent_bytes: float,
    hop_s: float,
    parameters: TrainingParameters,
) -> Occupied:
    """Return what messages of `sent_bytes` from each of `here` to its partner in `there` occupy, of the `hop_s` seconds
    that all of them take."""
    sites = Counter((one.site, other.site) for one, other in zip(here, there, strict=True))
    return _occupied_s(cluster, {pair: count * sent_bytes for pair, count in sites.items()}, hop_s, parameters)


def redistributed_occupied_s(
    cluster: Cluster,
    here: Sequence[DeviceSlot],
    there: Sequence[DeviceSlot],
    size_bytes: float,
    hop_s: float,
    parameters: TrainingParameters,
) -> Occupied:
    """Return what a whole activation of `size_bytes` between stages that are split differently occupies, whose ranks
    exchange what they have of what the others want (`time_stage_transfer`), of the `hop_s` seconds that it takes."""
    edges = sorted({i * len(there) for i in range(len(here) + 1)} | {j * len(here) for j in range(len(there) + 1)})
    sent: Counter[tuple[str, str]] = Counter()
    for begin, end in pairwise(edges):
        sent[here[begin // len(there)].site, there[begin // len(here)].site] += end - begin
    whole = len(here) * len(there)
    by_sites = {pair: size_bytes * share / whole for pair, share in sent.items()}
    return _occupied_s(cluster, by_sites, hop_s, parameters)


def shared_links(occupied: Sequence[Occupied]) -> tuple[SharedLink, ...]:
    """Return the links that messages pass, from what is occupied by those over each boundary, the last of them from the
    last stage back to the first."""
    found = dict.fromkeys(direction for both in occupied for each in both for direction in each)
    return tuple(
        SharedLink(
            up_s=tuple(up.get(direction, 0.0) for up, _ in occupied),
            down_s=tuple(down.get(direction, 0.0) for _, down in occupied),
        )
        for direction in found
    )


def _occupied_s(
    cluster: Cluster, sent_bytes: Mapping[tuple[str, str], float], hop_s: float, parameters: TrainingParameters
) -> Occupied:
    """Messages follow the sites' routes, at the share of a link's rate that messages reach. A measured message may take
    less: then it occupies no link for longer than it takes."""
    share, routes = parameters.of("send_share"), routes_of(cluster)
    both: tuple[dict[Direction, float], dict[Direction, float]] = ({}, {})
    for (origin, target), size_bytes in sent_bytes.items():
        if origin == target:
            continue
        for seconds, ends in zip(both, ((origin, target), (target, origin)), strict=True):
            site = ends[0]
            for link in routes.route(*ends) or ():
                took_s = size_bytes / (link.bandwidth_bytes_per_s * share)
                seconds[site, link] = seconds.get((site, link), 0.0) + took_s
                site = link.between[1] if link.between[0] == site else link.between[0]
    ahead, back = ({key: min(took_s, hop_s) for key, took_s in seconds.items()} for seconds in both)
    return ahead, back


def sent_bytes_of(stage: StageSetup, size_bytes: float) -> float:
    """Return what each rank sends of an activation of so many bytes a rank to `stage`, split as its sender
    (`LinkTimes.split_message_s`)."""
    return size_bytes if stage.tp == 1 or stage.sequence_parallel else size_bytes / stage.tp
