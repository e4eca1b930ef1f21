"""The tables of the testbed of machines, and what came of its aims; Titan's figures beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import mean
from typing import Any

from bench.testbed.machines.cases import IN_NODE_ORDER, ORDERED, PAPERS, SENDING_ONLY, Case
from bench.testbed.machines.seats import SAMPLES, Occupied
from profiles.records import dataclass

APART = 0.05
IMAGES, EPOCHS = 50_000, 200
"""Of an epoch of Cifar-100, and of a job of the paper's."""

PAPER = {
    "machine-hours, vgg-16, 8 workers (Exp#5)": (8.67, 11.11, 11.12, 12.33),
    "images/s, resnet-50, 12 workers (Exp#6)": (4389, 4422, 4208, 2610),
    "communication of an epoch in s, vgg-16, 8 workers (Exp#7)": (8.7, 8.4, 8.3, 12.0),
}
"""Titan, ElasticFlow, Tiresias, HiveD."""
COLUMNS = ("titan", "elasticflow", "tiresias", "hived")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A job: seconds of an iteration on the true clock, measured and estimated; `cpu_share` of the machine's cores is
    what its workers took."""

    case: Case
    measured_s: float
    walked_s: float
    of_group_s: float
    compute_s: float
    cpu_share: float

    @property
    def workers(self) -> int:
        return len(self.case.job.nodes)

    @property
    def error(self) -> float:
        """Of the phases walked over the seats."""
        return self.walked_s / self.measured_s - 1

    @property
    def of_group_error(self) -> float:
        """Of the group, whose ranks are taken to sit in the order that takes least."""
        return self.of_group_s / self.measured_s - 1

    def to_json(self) -> dict[str, Any]:
        """As a line of JSON."""
        return {
            "model": self.case.job.model,
            "workers": self.workers,
            "way": self.case.way,
            "nodes": self.case.job.nodes,
            "rules": self.case.rules,
            "measured_s": self.measured_s,
            "walked_s": self.walked_s,
            "of_group_s": self.of_group_s,
            "cpu_share": self.cpu_share,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PairRow:
    """A job alone and beside another on a node's NIC: seconds of an iteration, measured (the mean, and from least to
    most, over when the other one began) and as each sharing says."""

    name: str
    alone_s: float
    measured_s: float
    range_s: tuple[float, float]
    even_s: float
    by_load_s: float

    def to_json(self) -> dict[str, Any]:
        """As a line of JSON."""
        return {
            "pair": self.name,
            "alone_s": self.alone_s,
            "measured_s": self.measured_s,
            "range_s": self.range_s,
            "even_s": self.even_s,
            "by_load_s": self.by_load_s,
        }


def print_rows(rows: Sequence[Row]) -> None:
    """A line for each job."""
    print(
        "\n| model | workers | way | on nodes | measured | phases walked | error | of the group | error | CPU | rules |"
    )
    print("| :-- | --: | :-- | :-- | --: | --: | --: | --: | --: | --: | :-- |")
    for row in rows:
        job = row.case.job
        print(
            f"| {job.model} | {row.workers} | {row.case.way} | {' + '.join(map(str, job.counts))} |"
            f" {row.measured_s * 1e3:.1f} ms | {row.walked_s * 1e3:.1f} | {row.error:+.1%} |"
            f" {row.of_group_s * 1e3:.1f} | {row.of_group_error:+.1%} | {row.cpu_share:.0%} |"
            f" {', '.join(row.case.rules)} |"
        )


def print_pairs(rows: Sequence[PairRow]) -> None:
    """A line for each of two jobs."""
    print("\n| two jobs on a NIC | alone | beside | from, to | divided evenly | error | by load | error |")
    print("| :-- | --: | --: | --: | --: | --: | --: | --: |")
    for row in rows:
        print(
            f"| {row.name} | {row.alone_s * 1e3:.1f} ms | {row.measured_s * 1e3:.1f} |"
            f" {row.range_s[0] * 1e3:.1f}, {row.range_s[1] * 1e3:.1f} |"
            f" {row.even_s * 1e3:.1f} | {row.even_s / row.measured_s - 1:+.1%} |"
            f" {row.by_load_s * 1e3:.1f} | {row.by_load_s / row.measured_s - 1:+.1%} |"
        )


def verdicts(rows: Sequence[Row], pairs: Sequence[PairRow]) -> Iterator[str]:
    """Return what came of the aims, a line each."""
    train = [row for row in pairs if not row.name.partition(",")[2].startswith(SENDING_ONLY)]
    for what, shared in (
        ("NIC divided evenly", [abs(row.even_s / row.measured_s - 1) for row in train]),
        ("NIC shared by load", [abs(row.by_load_s / row.measured_s - 1) for row in train]),
    ):
        if shared:
            yield f"{what}: error {mean(shared):.1%} in the mean, {max(shared):.1%} at worst of {len(train)} jobs"
    for what, estimates in (
        ("phases walked", {row.case: row.walked_s for row in rows}),
        ("of the group, its ranks in the best order", {row.case: row.of_group_s for row in rows}),
    ):
        errors = [abs(estimates[row.case] / row.measured_s - 1) for row in rows]
        if not errors:
            return
        yield f"\n{what}: error {mean(errors):.1%} in the mean, {max(errors):.1%} at worst of {len(rows)}"
        apart = [
            (one, other)
            for one, other in combinations(rows, 2)
            if _kind(one) == _kind(other) and abs(one.measured_s / other.measured_s - 1) > APART
        ]
        right = sum(
            (estimates[one.case] < estimates[other.case]) == (one.measured_s < other.measured_s) for one, other in apart
        )
        yield f"{what}: order right of {right} of {len(apart)} pairs that differ by more than {APART:.0%}"


def _kind(row: Row) -> tuple[str, int, str]:
    return row.case.job.model, row.workers, row.case.way


def print_paper(rows: Sequence[Row], nodes: Occupied) -> None:
    """Titan's experiments 5 to 7 beside ours, where they were run."""
    figures = (_machine_hours(rows, nodes), _images_per_s(rows), _communication_s(rows))
    print(f"\n| {IMAGES:,} images an epoch, {EPOCHS} epochs | {' | '.join(COLUMNS)} |")
    print("| :-- | --: | --: | --: | --: |")
    for (name, paper), by_way in zip(PAPER.items(), figures, strict=True):
        print(f"| {name}: paper | {' | '.join(f'{value:,g}' for value in paper)} |")
        for way, found in by_way.items():
            if len(found) == len(PAPERS):
                print(f"| ours, {way} | {' | '.join(f'{found[rule]:,.4g}' for rule in COLUMNS)} |")


def _of(rows: Sequence[Row], model: str, workers: int) -> Iterator[tuple[str, str, Row]]:
    for row in rows:
        if (row.case.job.model, row.workers) == (model, workers) and row.case.way in (ORDERED, IN_NODE_ORDER):
            for rule in PAPERS:
                if rule in row.case.rules:
                    yield row.case.way, rule, row


def _machine_hours(rows: Sequence[Row], nodes: Occupied) -> dict[str, dict[str, float]]:
    """Nodes in use, those that others hold in among them, for as long as the job lasts."""
    found: dict[str, dict[str, float]] = {}
    for way, rule, row in _of(rows, "vgg-16", 8):
        in_use = {node for node, held in enumerate(nodes.held) if held} | set(row.case.job.nodes)
        hours = row.measured_s * EPOCHS * IMAGES / (SAMPLES * row.workers) / 3600
        found.setdefault(way, {})[rule] = len(in_use) * hours
    return found


def _images_per_s(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for way, rule, row in _of(rows, "resnet-50", 12):
        found.setdefault(way, {})[rule] = SAMPLES * row.workers / row.measured_s
    return found


def _communication_s(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for way, rule, row in _of(rows, "vgg-16", 8):
        iterations = IMAGES / (SAMPLES * row.workers)
        found.setdefault(way, {})[rule] = (row.measured_s - row.compute_s) * iterations
    return found
