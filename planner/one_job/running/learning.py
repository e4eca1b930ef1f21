"""What a run teaches the profile store: layer times among busy workers, their contention, points of link tables.

A layer's times go in as measured with as many workers busy as the run had on a machine, so that they never pass for
those of one alone; contention is how much longer they are than those, where the store has both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median

from estimator.communication.fit import fit_alpha_beta, make_table
from estimator.layers.shards import shard_layer
from estimator.profiling.setting import DeviceIdentity, layer_key, low_quantile
from planner.one_job.running.program import Program, StageProgram
from planner.one_job.running.record import RankIteration, RunRecord
from planner.one_job.running.spans import Span, collectives_inside
from profiles.measurements import Measurement
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import CollectiveOp, Infeasible, LinkTable, LocalLayer

FEWEST_SAMPLES = 4
"""Passes of a layer that say something."""

COLLECTIVES: tuple[CollectiveOp, ...] = ("all_reduce", "all_gather", "reduce_scatter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What went into the store: layers with times, the slowdown of so many workers (None: nothing to compare with),
    and points of link tables."""

    layers: int
    workers: int
    slowdown: float | None
    link_points: int


def learn(
    store: ProfileStore,
    program: Program,
    record: RunRecord,
    *,
    identity: DeviceIdentity,
    workers: int,
    link: str,
    backend: str,
    hardware: str,
) -> Learned:
    """Puts what `record` measured into `store`; `workers` were busy on each machine, joined by `link`."""
    layers, ratios = 0, []
    for stage in program.stages:
        for index, measurement in _measure_layers(program, record, stage):
            # Replicas with other shares of the micro-batch are other shards; the first one's stand for the stage.
            shard = program.shard(stage, 0)
            key = layer_key(program.model.layers[index], shard, identity, optimizer=program.optimizer)
            alone = store.get(key)
            if alone is not None:
                busy_s = low_quantile(measurement.forward_s) + low_quantile(measurement.backward_s)
                ratios.append(busy_s / (low_quantile(alone.forward_s) + low_quantile(alone.backward_s)))
                measurement = replace(
                    measurement, saved_bytes=alone.saved_bytes, peak_memory_bytes=alone.peak_memory_bytes
                )
            store.put(replace(key, workers=workers), measurement)
            layers += 1
    slowdown = max(1.0, median(ratios)) if ratios and workers > 1 else None
    if slowdown is not None:
        _store_slowdown(store, identity, workers, slowdown)
    points = list(_link_points(program, record))
    for op, ranks, samples in points:
        _store_points(store, op, ranks, samples, link=link, backend=backend, hardware=hardware)
    return Learned(
        layers=layers,
        workers=workers,
        slowdown=slowdown,
        link_points=sum(len(samples) for _, _, samples in points),
    )


def _store_slowdown(store: ProfileStore, identity: DeviceIdentity, workers: int, slowdown: float) -> None:
    rates = store.rates(identity.device, hardware=identity.hardware, threads=identity.threads)
    if rates is not None:
        contention = dict(rates.contention) | {workers: slowdown}
        store.put_rates(replace(rates, contention=tuple(sorted(contention.items()))))


# Layers


def _measure_layers(program: Program, record: RunRecord, stage: StageProgram) -> Iterator[tuple[int, Measurement]]:
    """Each different layer of the stage with its passes by the ranks of the first replica, without collectives."""
    forward: defaultdict[int, list[float]] = defaultdict(list)
    backward: defaultdict[int, list[float]] = defaultdict(list)
    steps: list[float] = []
    for ranks in record.measured:
        for rank in stage.ranks[: stage.degrees.tp]:
            for index, phase, seconds in _layer_passes(ranks[rank]):
                (forward if phase == "forward" else backward)[index].append(seconds)
            steps.append(sum(span.seconds for span in ranks[rank].spans if span.kind == "optimizer"))
    held = {index: _local(program, stage, index) for index in stage.layer_indices()}
    parameters = sum(local.parameters for local in held.values())
    alike: dict[object, int] = {}
    for index in held:
        first = alike.setdefault(program.model.layers[index], index)
        if first != index:
            forward[first] += forward.pop(index, [])
            backward[first] += backward.pop(index, [])
    for index in alike.values():
        if min(len(forward[index]), len(backward[index])) < FEWEST_SAMPLES or stage.recompute != "none":
            continue
        local = held[index]
        yield (
            index,
            Measurement(
                forward_s=tuple(forward[index]),
                backward_s=tuple(backward[index]),
                # An optimizer steps through all weights at once: each layer's part by its parameters.
                optimizer_s=tuple(step * local.parameters / parameters for step in steps) if stage.zero == 0 else (),
                saved_bytes=local.saved_bytes,
                peak_memory_bytes=local.saved_bytes + local.input_bytes + local.output_bytes,
                parameters=local.parameters,
            ),
        )


def _local(program: Program, stage: StageProgram, index: int) -> LocalLayer:
    local = shard_layer(program.model.layers[index], program.shard(stage, 0))
    assert not isinstance(local, Infeasible), "it has just been run"
    return local


def _layer_passes(rank: RankIteration) -> Iterator[tuple[int, str, float]]:
    """(layer, phase, seconds without collectives) of every pass of a rank's iteration.

    A layer's backward is noted where it begins: it ends where the next one begins, or with the task.
    """
    marks = sorted(
        (span for span in rank.spans if span.kind == "layer" and span.phase == "backward"), key=lambda s: s.start_s
    )
    for span in rank.spans:
        if span.kind == "layer" and span.phase == "forward" and span.layer is not None:
            yield span.layer, "forward", span.seconds - collectives_inside(rank.spans, span.start_s, span.end_s)
        if span.kind == "backward":
            marks_inside = [mark for mark in marks if span.start_s <= mark.start_s <= span.end_s]
            ends = [*(mark.start_s for mark in marks_inside[1:]), span.end_s]
            for mark, end_s in zip(marks_inside, ends, strict=True):
                assert mark.layer is not None
                yield mark.layer, "backward", end_s - mark.start_s - collectives_inside(rank.spans, mark.start_s, end_s)


# Links


def _link_points(
    program: Program, record: RunRecord
) -> Iterator[tuple[CollectiveOp, int, dict[int, tuple[float, ...]]]]:
    """Seconds of each collective by op, ranks and bytes. What the rank that came last waited for is the transfer alone:
    of each call the least over its ranks."""
    samples: defaultdict[tuple[CollectiveOp, int], defaultdict[int, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for together in _calls(program, record):
        first = together[0]
        op = next((name for name in COLLECTIVES if name == first.name), None)
        if op is not None and first.ranks == len(together):
            samples[op, first.ranks][first.bytes].append(min(call.seconds for call in together))
    for (op, count), by_size in sorted(samples.items()):
        yield op, count, {size: tuple(seconds) for size, seconds in by_size.items() if min(seconds) > 0}


def _calls(program: Program, record: RunRecord) -> Iterator[tuple[Span, ...]]:
    """Each collective that carries bytes, as the ranks of its group saw it."""
    for ranks in record.measured:
        for axis, groups in (pair for stage in program.stages for pair in _groups(stage)):
            for members in groups:
                calls = (
                    [span for span in ranks[rank].spans if span.kind == "collective" and span.axis == axis]
                    for rank in members
                )
                yield from zip(*([span for span in spans if span.bytes] for spans in calls), strict=False)


def _groups(stage: StageProgram) -> Iterator[tuple[str, list[list[int]]]]:
    if stage.degrees.tp > 1:
        yield "tp", [[stage.rank_at(d, t) for t in range(stage.degrees.tp)] for d in range(stage.degrees.dp)]
    if stage.degrees.dp > 1:
        yield "dp", [[stage.rank_at(d, t) for d in range(stage.degrees.dp)] for t in range(stage.degrees.tp)]


def _store_points(
    store: ProfileStore,
    op: CollectiveOp,
    ranks: int,
    samples: dict[int, tuple[float, ...]],
    *,
    link: str,
    backend: str,
    hardware: str,
) -> None:
    """The points join the table that there is, in place of its own at the same bytes."""
    stored = next(
        (
            table
            for table in store.link_tables(link)
            if (table.op, table.ranks, table.backend, table.hardware) == (op, ranks, backend, hardware)
        ),
        None,
    )
    if stored is None:
        if len(samples) < 2:
            return
        source = f"{backend} in a training run, the rank that came last"
        made = make_table(link=link, op=op, ranks=ranks, nodes=1, samples=samples, source=source)
        store.put_link_table(replace(made, backend=backend, hardware=hardware))
        return
    points = dict(stored.points) | {size: low_quantile(seconds) for size, seconds in samples.items()}
    store.put_link_table(_refitted(stored, tuple(sorted(points.items()))))


def _refitted(table: LinkTable, points: tuple[tuple[int, float], ...]) -> LinkTable:
    alpha_s, beta_s_per_byte, error = fit_alpha_beta(points)
    said = table.source if "training run" in table.source else f"{table.source}; points of a training run"
    return replace(table, points=points, alpha_s=alpha_s, beta_s_per_byte=beta_s_per_byte, fit_error=error, source=said)
