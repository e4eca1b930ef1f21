"""What each part of the model is worth: the error of every group with that part switched off and nothing fitted anew.

A part is switched off in the inputs of the estimator (parameters, efficiencies, the plan or its links) where they can
express it, else its seconds are taken off the breakdown. In the first table nothing makes up for what is missing; in
the second one constant factor over all rows, the best on the fit half, may.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from statistics import fmean, median

from bench.accuracy.fitting import Values
from bench.accuracy.groups import Group
from bench.accuracy.markdown import percent, table
from bench.accuracy.runs import Run
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.one_job.validation.baselines import best_mfu
from profiles.cluster import Cluster, NodeGroup
from profiles.efficiencies import AttentionEfficiency, OperatorEfficiencies, load_operator_efficiencies
from profiles.training_parameters import TrainingParameters
from profiles.uncertainty import generation_of
from profiles.vocabulary import Link

Seconds = Callable[[Run], float]
ENDLESS = 1e9
"""A share of a rate that leaves no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the model, how it is switched off, and the iteration's seconds without it."""

    name: str
    how: str
    seconds: Seconds


def list_parts(runs: Sequence[Run], values: Values) -> tuple[Part, ...]:
    """All parts, with `values` as the parameters. `runs` (with estimates) decide the constant that stands for the
    products' efficiency by shape: what keeps the seconds of products on each device."""
    constants = values | _constant_gemm_shares(runs, values)
    plain = {name: values["gemm_share"] for name in values if name.startswith("attention_share")}
    streams = {name: ENDLESS for name in values if name.startswith("memory_share")}
    prompt = {name: 1e-12 for name in values if name.partition(".")[0].endswith("_wait_s")}
    exposed = {name: 1.0 for name in values if name.startswith("overlap_cost")}

    def with_parameters(changed: Mapping[str, float]) -> Seconds:
        return lambda run: _evaluate(_setup(run), values | dict(changed)).iteration_time_s

    def without_streams(run: Run) -> float:
        found = _evaluate(_setup(run), values | streams).breakdown
        return found.total_s - found.optimizer_s + _outcome(run).breakdown.optimizer_s

    def all_exposed(run: Run) -> float:
        setup = _setup(run)
        setup = replace(setup, recipe=replace(setup.recipe, overlap=frozenset()))
        return _evaluate(setup, values | exposed).iteration_time_s

    return (
        Part(
            name="efficiency of products by shape",
            how="one tile of one element, no waves, fill, power or alignment; one constant a device",
            seconds=lambda run: _evaluate(_setup(run), constants, _flat_products).iteration_time_s,
        ),
        Part(
            name="attention apart",
            how="attention at the rate of a large product",
            seconds=lambda run: _evaluate(_setup(run), values | plain, _attention_as_product).iteration_time_s,
        ),
        Part(name="memory-bound operators", how="endless bandwidth, but for the optimizer", seconds=without_streams),
        Part(
            name="launching",
            how="all parameters launch_*_s near 0",
            seconds=with_parameters({name: 1e-12 for name in values if _is_launch(name)}),
        ),
        Part(name="bubble", how="bubble_s taken off", seconds=_taken_off("bubble_s", pipelined=False)),
        Part(
            name="collectives again in recomputation",
            how="what they add against the plan without recomputation, taken off",
            seconds=lambda run: _without_repeated_collectives(run, values),
        ),
        Part(name="tensor-parallel communication", how="tp_s taken off", seconds=_taken_off("tp_s")),
        Part(name="context-parallel communication", how="cp_s taken off", seconds=_taken_off("cp_s")),
        Part(name="expert-parallel communication", how="ep_s taken off", seconds=_taken_off("ep_s")),
        Part(name="pipeline transfers", how="pp_s taken off", seconds=_taken_off("pp_s", pipelined=False)),
        Part(name="data-parallel communication", how="dp_s taken off", seconds=_taken_off("dp_s", pipelined=False)),
        Part(name="overlap", how="no overlap declared, overlap_cost 1", seconds=all_exposed),
        Part(
            name="latencies and waiting of collectives",
            how="every link's latencies and startup 0, all parameters *_wait_s near 0",
            seconds=lambda run: _evaluate(_without_latency(_setup(run)), values | prompt).iteration_time_s,
        ),
        Part(
            name="optimizer and the iteration's constant",
            how="optimizer_s taken off",
            seconds=_taken_off("optimizer_s", pipelined=False),
        ),
    )


def write_ablation(
    runs: Sequence[Run], groups: Sequence[Group], values: Values, progress: Callable[[str], None]
) -> str:
    """Both tables over those of `runs` (with estimates and measured times) that are in a group with a target."""
    everything = Part(name="nothing: the whole model", how="", seconds=lambda run: _outcome(run).iteration_time_s)
    aimed = [group for group in groups if group.target.mean is not None]
    runs = [run for run in runs if any(group.holds(run) for group in aimed)]
    held = [(group, [run for run in runs if group.holds(run)]) for group in aimed]
    held = [(group, members) for group, members in held if members]
    raw: list[tuple[str, ...]] = []
    scaled: list[tuple[str, ...]] = []
    how: list[str] = []
    for part in (everything, *list_parts(runs, values)):
        progress(f"ablation: {part.name}")
        ratio = {run.row.id: part.seconds(run) / _measured_s(run) for run in runs}
        pairs = [(ratio[run.row.id], 1.0) for run in runs if run.fitted and ratio[run.row.id] > 0]
        columns = [runs, *(members for _, members in held)]
        for rows, by in ((raw, 1.0), (scaled, 1 / best_mfu(pairs) if pairs else 1.0)):
            errors = [fmean(abs(ratio[run.row.id] * by - 1) for run in members) for members in columns]
            rows.append((part.name, *map(percent, errors)))
        if part.how:
            how.append(f"- {part.name}: {part.how}")
    header = ("switched off", "all", *(group.name for group, _ in held))
    return "\n\n".join(
        (
            "Mean absolute error of the groups with a target, nothing fitted anew (VTS thinned to one row a cell):",
            table(header, raw),
            "The same with one constant factor over all rows, the best on the fit half:",
            table(header, scaled),
            "\n".join(["How each is switched off:", "", *how]),
        )
    )


def _is_launch(name: str) -> bool:
    """Whether a parameter is seconds of launching; `launch_norm` is none."""
    return name.startswith("launch") and name.partition(".")[0].endswith("_s")


def _setup(run: Run) -> Setup:
    if run.setup is None:
        raise ValueError(f"{run.row.id} has no plan, expected a run with an estimate")
    return run.setup


def _outcome(run: Run) -> Evaluation:
    if run.outcome is None:
        raise ValueError(f"{run.row.id} has no estimate, expected one")
    return run.outcome


def _measured_s(run: Run) -> float:
    if run.result.measured_iteration_time_s is None:
        raise ValueError(f"{run.row.id} has no measured time, expected one")
    return run.result.measured_iteration_time_s


def _evaluate(
    setup: Setup,
    values: Mapping[str, float],
    efficiencies_of: Callable[[str], OperatorEfficiencies] = load_operator_efficiencies,
) -> Evaluation:
    parameters = TrainingParameters(values=dict(values))
    found = evaluate(setup, Pricing(parameters=parameters, efficiencies_of=efficiencies_of))
    if not isinstance(found, Evaluation):
        raise ValueError(f"{setup.model.name}: {found.reason}; expected a plan that can be evaluated")
    return found


def _taken_off(field: str, *, pipelined: bool = True) -> Seconds:
    """The iteration without the seconds of a part of the breakdown, and without what they add to the bubble where each
    micro-batch has them."""

    def seconds(run: Run) -> float:
        found = _outcome(run)
        return _without(found, getattr(found.breakdown, field), pipelined=pipelined)

    return seconds


def _without(found: Evaluation, removed_s: float, *, pipelined: bool) -> float:
    parts = found.breakdown
    busy_s = parts.total_s - parts.bubble_s - parts.optimizer_s - parts.dp_s - parts.pp_s
    share = removed_s / busy_s if pipelined and busy_s > 0 else 0.0
    return parts.total_s - removed_s - parts.bubble_s * share


def _without_repeated_collectives(run: Run, values: Values) -> float:
    setup, found = _setup(run), _outcome(run)
    once = replace(setup, stages=tuple(replace(stage, recompute="none") for stage in setup.stages))
    if once == setup:
        return found.iteration_time_s
    parts, less = found.breakdown, _evaluate(once, values).breakdown
    repeated = sum(getattr(parts, name) - getattr(less, name) for name in ("tp_s", "cp_s", "ep_s"))
    return _without(found, max(0.0, repeated), pipelined=True)


def _constant_gemm_shares(runs: Sequence[Run], values: Values) -> Values:
    """The share of the peak for each device that keeps its seconds of products: the median over the fit half."""
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    for run in runs:
        if not run.fitted:
            continue
        flat = _evaluate(_setup(run), values, _flat_products).breakdown.gemm_s
        shaped = _outcome(run).breakdown.gemm_s
        if flat > 0 and shaped > 0:
            ratios[run.device].append(flat / shaped)
    every = median([ratio for found in ratios.values() for ratio in found]) if ratios else 1.0
    known = TrainingParameters(values=values)
    shares = {
        f"gemm_share.{name}": known.of("gemm_share", name, generation_of(name)) * median(found)
        for name, found in ratios.items()
    }
    return {"gemm_share": values["gemm_share"] * every} | shares


@cache
def _flat_products(device: str) -> OperatorEfficiencies:
    known = load_operator_efficiencies(device)
    flat = replace(
        known.gemm,
        tiles=((1, 1, 1.0),),
        fill=0.0,
        wave_loss=0.0,
        stall=0.0,
        group_stall=0.0,
        power_loss=0.0,
        weight_grad_loss=0.0,
        group_floor_s=0.0,
        unaligned_share=1.0,
    )
    return replace(known, gemm=flat, narrow_gemm=(), kernels="")


@cache
def _attention_as_product(device: str) -> OperatorEfficiencies:
    known = load_operator_efficiencies(device)
    share = known.gemm.peak_share
    plain = AttentionEfficiency(
        forward_shares=(share, share, share),
        backward_ratios=(1.0, 1.0, 1.0),
        forward_rows=1,
        backward_rows=1,
        forward_overhead=0.0,
        backward_overhead=0.0,
        forward_tail=0.0,
        backward_tail=0.0,
        forward_alone=1.0,
        backward_alone=1.0,
    )
    gemm = replace(known.gemm, batch_stall=known.gemm.stall, batch_bandwidth=1.0, plain_share=1.0)
    return replace(known, gemm=gemm, attention_share=1.0, attention=tuple((name, plain) for name, _ in known.attention))


def _without_latency(setup: Setup) -> Setup:
    return replace(setup, cluster=_quick_cluster(setup.cluster))


@lru_cache(maxsize=256)
def _quick_cluster(cluster: Cluster) -> Cluster:
    def quick(link: Link) -> Link:
        return replace(
            link, latency_s=0.0, startup_s=0.0, quick_latency_s=None if link.quick_latency_s is None else 0.0
        )

    def quick_nodes(group: NodeGroup) -> NodeGroup:
        links = (group.island_link, group.host_link, group.nic_link)
        island, host, nic = (quick(link) for link in links)
        return replace(group, island_link=island, host_link=host, nic_link=nic)

    sites = tuple(
        replace(site, fabric_link=quick(site.fabric_link), nodes=tuple(quick_nodes(group) for group in site.nodes))
        for site in cluster.sites
    )
    site_links = tuple(replace(link, latency_s=0.0) for link in cluster.site_links)
    return replace(cluster, sites=sites, site_links=site_links)
