"""Measured beside estimated: the same figures of a run and of its estimate, and where they part."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, fields
from statistics import mean
from typing import Any

from estimator.pricing.headroom import memory_fit
from estimator.pricing.outcome import Evaluation, TimeBreakdown
from planner.one_job.running.program import Program, StageProgram
from planner.one_job.running.record import RankIteration, RunRecord
from planner.shared.words import RUN_PARTS
from profiles.records import dataclass

WORTH_SAYING = 0.02
"""Of the iteration: smaller differences are noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A stage's iteration by kind, the fields sum to it. `waiting_s` is for other stages: transfers and bubbles;
    `dp_s` what replicas exchange; `other_s` what nothing else names."""

    compute_s: float
    tp_s: float
    waiting_s: float
    dp_s: float
    optimizer_s: float
    other_s: float

    @property
    def total_s(self) -> float:
        """The iteration."""
        return math.fsum(getattr(self, part.name) for part in fields(self))


def measured_parts(record: RunRecord, stage: StageProgram) -> Parts:
    """The mean over the stage's ranks, in the typical iteration."""
    total = record.iteration_time_s
    parts_of_ranks = [_rank_parts(record.typical[rank], total) for rank in stage.ranks]
    return Parts(**{part.name: mean(getattr(parts, part.name) for parts in parts_of_ranks) for part in fields(Parts)})


def _rank_parts(rank: RankIteration, total_s: float) -> Parts:
    seconds: defaultdict[str, float] = defaultdict(float)
    syncs = [span for span in rank.spans if span.kind == "sync"]
    tp_in_tasks_s = tp_in_sync_s = 0.0
    for span in rank.spans:
        seconds[span.kind] += span.seconds
        if span.kind == "collective" and span.axis == "tp":
            if any(sync.start_s <= span.start_s < sync.end_s for sync in syncs):
                tp_in_sync_s += span.seconds
            else:
                tp_in_tasks_s += span.seconds
    tasks_s = seconds["forward"] + seconds["backward"]
    named_s = tasks_s + seconds["wait"] + seconds["sync"] + seconds["optimizer"]
    return Parts(
        compute_s=tasks_s - tp_in_tasks_s,
        tp_s=tp_in_tasks_s + tp_in_sync_s,
        waiting_s=seconds["wait"],
        dp_s=seconds["sync"] - tp_in_sync_s,
        optimizer_s=seconds["optimizer"],
        other_s=total_s - named_s,
    )


def estimated_parts(breakdown: TimeBreakdown) -> Parts:
    """The estimate's breakdown, which is that of the stage that limits, in the same kinds."""
    seconds_by_name = asdict(breakdown)
    named_parts = {"tp_s": ("tp_s", "ep_s", "cp_s"), "waiting_s": ("pp_s", "bubble_s"), "dp_s": ("dp_s",)}
    named_parts |= {"optimizer_s": ("optimizer_s",), "other_s": ("offload_s",)}
    taken = [name for names in named_parts.values() for name in names]
    return Parts(
        compute_s=sum(value for name, value in seconds_by_name.items() if name not in taken),
        **{part: sum(seconds_by_name[name] for name in names) for part, names in named_parts.items()},
    )


def stage_compute_s(record: RunRecord, program: Program, stage: StageProgram) -> float:
    """Forward and backward of one micro-batch through all of the stage's chunks without collectives: the mean over its
    ranks and micro-batches."""
    return measured_parts(record, stage).compute_s / program.shape.micro_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What ranks exchanged in an iteration, by axis and kind: how often, how much and for how long on the rank that
    took longest. Bytes follow nccl-tests."""

    axis: str
    op: str
    count: int
    bytes: int
    seconds: float


def measured_traffic(record: RunRecord) -> tuple[Traffic, ...]:
    """Collectives and messages of the typical iteration."""
    traffic: dict[tuple[str, str], Traffic] = {}
    for rank in record.typical:
        calls_of_rank: defaultdict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
        for span in rank.spans:
            if span.kind == "collective" or (span.kind == "wait" and span.bytes):
                op = span.name if span.kind == "collective" else "send_recv"
                calls_of_rank[span.axis, op].append((span.bytes, span.seconds))
        for (axis, op), calls in calls_of_rank.items():
            seconds = sum(taken for _, taken in calls)
            if (axis, op) not in traffic or traffic[axis, op].seconds < seconds:
                size = sum(size for size, _ in calls)
                traffic[axis, op] = Traffic(axis=axis, op=op, count=len(calls), bytes=size, seconds=seconds)
    return tuple(traffic[key] for key in sorted(traffic))


def describe_measured(record: RunRecord, program: Program) -> dict[str, Any]:
    """The figures of a run, for JSON."""
    tokens = program.global_batch * program.seq_len
    return {
        "iteration_time_s": record.iteration_time_s,
        "median_iteration_time_s": record.median_iteration_time_s,
        "iteration_times_s": list(record.iteration_times_s),
        "samples_per_s": program.global_batch / record.iteration_time_s,
        "tokens_per_s_per_device": tokens / record.iteration_time_s / program.ranks if tokens else None,
        "peak_memory_bytes": max(record.peak_memory_bytes),
        "process_peak_bytes": max(record.process_peak_bytes),
        "stages": [
            {
                "stage": stage.number,
                "compute_s": stage_compute_s(record, program, stage),
                "peak_memory_bytes": max(record.peak_memory_bytes[rank] for rank in stage.ranks),
                "breakdown": asdict(measured_parts(record, stage)),
            }
            for stage in program.stages
        ],
        "communication": [asdict(traffic) for traffic in measured_traffic(record)],
        "software": record.software,
    }


def describe_estimated(evaluation: Evaluation, program: Program) -> dict[str, Any]:
    """The figures of the estimate under the same names."""
    tokens = program.global_batch * program.seq_len
    seconds = evaluation.iteration_time_s
    assert evaluation.pipeline is not None
    return {
        "iteration_time_s": seconds,
        "interval_90_s": list(evaluation.interval_90_s),
        "samples_per_s": program.global_batch / seconds,
        "tokens_per_s_per_device": tokens / seconds / program.ranks if tokens else None,
        "peak_memory_bytes": evaluation.peak_memory_bytes,
        "memory_interval_90_bytes": list(evaluation.memory_interval_90_bytes),
        "memory_fit": asdict(memory_fit(evaluation)),
        "limiting_stage": evaluation.pipeline.bottleneck,
        "breakdown": asdict(estimated_parts(evaluation.breakdown)),
        "stages": [
            {"stage": number, "compute_s": compute_s, "peak_memory_bytes": memory.peak_bytes}
            for number, (compute_s, memory) in enumerate(
                zip(evaluation.stage_compute_s, evaluation.memory, strict=True)
            )
        ],
        "compute": evaluation.compute_provenance,
        "communication": evaluation.communication_provenance,
    }


def differences(record: RunRecord, program: Program, evaluation: Evaluation) -> list[dict[str, Any]]:
    """Where measured and estimated part in the stage that limits the estimate, the largest difference first."""
    assert evaluation.pipeline is not None
    measured = measured_parts(record, program.stages[evaluation.pipeline.bottleneck])
    estimated = estimated_parts(evaluation.breakdown)
    rows = [
        {
            "part": part.name,
            "measured_s": getattr(measured, part.name),
            "estimated_s": getattr(estimated, part.name),
            "difference_s": getattr(estimated, part.name) - getattr(measured, part.name),
        }
        for part in fields(Parts)
    ]
    return sorted(rows, key=lambda row: -abs(row["difference_s"]))


def say_differences(rows: Sequence[dict[str, Any]], iteration_time_s: float) -> list[str]:
    """Sentences about the differences that are worth one."""
    return [
        f"{RUN_PARTS[row['part']]}: estimated {abs(row['difference_s']) / iteration_time_s:.0%} of the iteration too"
        f" {'slow' if row['difference_s'] > 0 else 'fast'}"
        for row in rows
        if abs(row["difference_s"]) >= WORTH_SAYING * iteration_time_s
    ]
