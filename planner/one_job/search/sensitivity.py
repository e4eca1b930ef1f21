"""What a slightly different cluster or batch would change: each a search of its own, so that the plan may change too.

Percentages are of what the search makes least (the time, unless an objective says otherwise), for each sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

from estimator.pricing.evaluate import evaluate
from estimator.profiling.lookup import LOCAL_DEVICE
from planner.one_job.search.best import Best, Candidate, Progress
from planner.one_job.search.differences import SETTINGS, describe_differences
from planner.one_job.search.links_used import PLACES, LinkUse, links_used
from planner.one_job.search.spaces.request import SearchRequest
from planner.one_job.search.varied import (
    Variant,
    search_again,
    with_batch,
    with_cluster,
    with_device,
    with_memory,
    with_node,
)
from profiles.cluster import Cluster, NodeGroup, map_groups
from profiles.records import dataclass
from profiles.vocabulary import Device, Infeasible, Link, LinkTable

Kind = Literal["link", "flops", "memory_bandwidth", "memory", "least_memory", "nodes", "batch", "constraint"]

MORE = 1.1
MORE_MEMORY_BYTES = 8 * 2**30
UNLIMITED_BYTES = 2**50
CLOSE_BYTES = 2**29
SAME = 1e-9

Step = Callable[[str], None]
"""Called with what is searched next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """The best plan where one thing is other: `change` is that of the objective a sample (below 0: less is needed),
    `differences` what the plan then does otherwise. `proved` False: the search was cut short, the best may be better;
    `bound` is what it cannot fall below."""

    name: str
    kind: Kind
    change: float
    bound: float
    iteration_time_s: float
    differences: tuple[str, ...]
    proved: bool


def sensitivities(
    request: SearchRequest, best: Best, *, step: Step, progress: Progress | None = None
) -> tuple[Sensitivity, ...]:
    """What 10% more of each resource, more memory, a node or a batch twice as large change.

    What was measured is not varied: what faster devices would do to a measured time is not known.
    """
    changes: list[Sensitivity] = []
    roomier = None
    for kind, variant in variants(request, best):
        step(variant.name)
        again = search_again(variant.request, best, progress)
        if again is not None:
            changes.append(compare_best(variant.name, kind, best, again))
            roomier = again if kind == "memory" else roomier
    step("the least memory that changes the plan")
    least = least_memory(request, best, roomier, progress)
    return (*changes, *([] if least is None else [least]))


def variants(request: SearchRequest, best: Best) -> Iterator[tuple[Kind, Variant]]:
    """The searches behind `sensitivities`, but for that of the least memory."""
    winner, device = best.winner, best.winner.space.device
    for use in links_used(winner.setup):
        name = f"10% faster {use.link} {PLACES[use.place]}"
        yield "link", Variant(name=name, request=with_links(request, use))
    if winner.evaluation.compute_provenance == "modelled":
        yield "flops", Variant(name=f"10% more FLOP/s of {device}", request=with_device(request, device, _faster))
        yield (
            "memory_bandwidth",
            Variant(name=f"10% faster memory of {device}", request=with_device(request, device, _wider)),
        )
    yield "memory", Variant(name="8 GiB more memory", request=with_memory(request, device, MORE_MEMORY_BYTES))
    if device != LOCAL_DEVICE:
        grown = with_node(request, winner.space)
        devices = sum(slot.device == device for slot in grown.cluster.free_slots)
        yield "nodes", Variant(name=f"one node more ({devices} {device})", request=grown)
    batch = winner.setup.recipe.global_batch
    yield "batch", Variant(name=f"twice the global batch ({2 * batch})", request=with_batch(request, 2 * batch))


def compare_best(name: str, kind: Kind, best: Best, again: Best) -> Sensitivity:
    """The plan of a changed request beside that of the request."""
    samples = again.winner.setup.recipe.global_batch / best.winner.setup.recipe.global_batch
    whole = best.winner.found.value * samples
    change = again.winner.found.value / whole - 1
    return Sensitivity(
        name=name,
        kind=kind,
        change=0.0 if abs(change) < SAME else change,
        bound=again.lower_bound / whole - 1,
        iteration_time_s=again.winner.evaluation.iteration_time_s,
        differences=plan_changes(best, again),
        proved=again.proved,
    )


def plan_changes(best: Best, again: Best) -> tuple[str, ...]:
    """What another plan does otherwise, without what was asked for or follows from the rest."""
    phrases = {_setting(phrase): phrase for phrase in describe_differences(best.plan, again.plan)}
    batch = again.plan.batch.global_batch != best.plan.batch.global_batch
    return tuple(
        phrase
        for name, phrase in phrases.items()
        if not any(other in phrases for other in IMPLIED.get(name, ()) if other != name)
        and not (batch and name in ("global batch", "micro-batches"))
    )


IMPLIED = {
    "layers of the stages": tuple(SETTINGS),
    "micro-batches": ("micro-batch per rank", "dp", "cp"),
    "schedule": ("chunks a stage",),
    "sequence parallelism": ("tp",),
    "overlap": ("ZeRO",),
}
"""Settings of which nobody needs to hear where one of these has changed."""


def _setting(phrase: str) -> str:
    return max((name for name in SETTINGS if phrase.startswith(f"{name} ")), key=len)


def least_memory(
    request: SearchRequest, best: Best, roomier: Best | None = None, progress: Progress | None = None
) -> Sensitivity | None:
    """The least memory more a device that changes the plan, within `CLOSE_BYTES`, and the plan then; where `roomier`
    (the best plan with some more) is no better, the best plan with however much memory.

    More memory is never worse, so that bisection finds it; and a plan that is better than the best one fits with just
    what it lacks. None where a search was cut short.
    """
    device = best.winner.space.device
    if not best.proved:
        return None
    if roomier is None or not _is_better(roomier, best):
        again = search_again(with_memory(request, device, UNLIMITED_BYTES), best, progress)
        if again is None or not again.proved:
            return None
        return compare_best("however much more memory", "least_memory", best, again)
    again, little = roomier, 0
    enough = lacking_bytes(request.cluster, again.winner)
    while enough - little > CLOSE_BYTES:
        middle = (little + enough) // 2
        less = search_again(with_memory(request, device, middle), best, progress)
        if less is None or not less.proved:
            return None
        if _is_better(less, best):
            again, enough = less, lacking_bytes(request.cluster, less.winner)
        else:
            little = middle
    name = f"{enough / 2**30:.1f} GiB more memory, about the least that changes the plan"
    return compare_best(name, "least_memory", best, again)


def lacking_bytes(cluster: Cluster, candidate: Candidate) -> int:
    """Bytes a device that the plan would lack on `cluster`, 0 if it fits."""
    setup = replace(candidate.setup, cluster=cluster)
    evaluation = evaluate(setup, candidate.space.pricing)
    if isinstance(evaluation, Infeasible):
        raise RuntimeError(f"a plan that was found is not possible with other memory: {evaluation.reason}")
    return max(
        0,
        *(
            rank.needed_bytes - size
            for rank, size in zip(evaluation.memory, evaluation.device_memory_bytes, strict=True)
        ),
    )


def _is_better(again: Best, best: Best) -> bool:
    return again.winner.found.value < best.winner.found.value * (1 - SAME)


def with_links(request: SearchRequest, use: LinkUse) -> SearchRequest:
    """The request with 10% more bandwidth of the links at that place of the cluster, measured tables included: what a
    table says beyond its latency takes that much less."""

    def wider(link: Link) -> Link:
        return replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * MORE)

    cluster = request.cluster
    if use.place == "site":
        cluster = replace(
            cluster,
            site_links=tuple(
                replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * MORE) for link in cluster.site_links
            ),
        )
        return with_cluster(request, cluster)

    def changed(group: NodeGroup) -> NodeGroup:
        name = {"island": "island_link", "host": "host_link", "fabric": "nic_link"}[use.place]
        return replace(group, **{name: wider(getattr(group, name))})  # type: ignore[arg-type]

    cluster = map_groups(cluster, changed)
    if use.place == "fabric":
        sites = tuple(replace(site, fabric_link=wider(site.fabric_link)) for site in cluster.sites)
        cluster = replace(cluster, sites=sites)
    return with_cluster(request, cluster, tables=lambda table: _quicker(table) if table.link == use.link else table)


def _quicker(table: LinkTable) -> LinkTable:
    saved = table.beta_s_per_byte * (1 - 1 / MORE)
    return replace(
        table,
        points=tuple((size, max(seconds - saved * size, seconds / MORE)) for size, seconds in table.points),
        beta_s_per_byte=table.beta_s_per_byte / MORE,
        provenance="modelled",
    )


def _faster(device: Device) -> Device:
    return replace(device, peak_flops_per_s=tuple((dtype, rate * MORE) for dtype, rate in device.peak_flops_per_s))


def _wider(device: Device) -> Device:
    return replace(device, memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * MORE)


def spare_bytes(candidate: Candidate) -> tuple[int, ...]:
    """What a device of each stage has left if the allocator keeps nothing that it could give back."""
    device = candidate.space.device
    tight = map_groups(
        candidate.setup.cluster,
        lambda group: (
            replace(group, device=replace(group.device, memory_bytes=1)) if group.device.name == device else group
        ),
    )
    setup = replace(candidate.setup, cluster=tight)
    evaluation = evaluate(setup, candidate.space.pricing)
    if isinstance(evaluation, Infeasible):
        return tuple(math.nan for _ in candidate.setup.stages)  # type: ignore[misc]
    return tuple(
        size - rank.needed_bytes
        for rank, size in zip(evaluation.memory, candidate.evaluation.device_memory_bytes, strict=True)
    )
