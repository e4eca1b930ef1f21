"""Memory of published runs against the model: `python -m bench.accuracy.memory --data DIR [--rows]`.

By source: rows, mean absolute error, bias, worst. What a source calls memory decides what it is held against: the
allocator's peak (`allocated`), what the process holds (`reserved`: with reserve), or parameters, optimizer state and
activations of the blocks alone (`required`, the formulas of Korthikanti et al. 2022, whose figure it is). Out-of-memory
rows are counted: told, missed, and runs that went through called out of memory.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.accuracy.adapters.published import prepare, read_published
from estimator.pricing.memory import rank_memory
from estimator.pricing.outcome import RankMemory
from estimator.pricing.recipe import Setup
from estimator.pricing.stage_work import stage_chunks
from estimator.schedules.in_flight import in_flight
from models_zoo.layers import Embedding, Head
from planner.one_job.validation.columns import RunRow
from planner.one_job.validation.measured import measured_of
from planner.one_job.validation.prepared import PreparedRun, Skipped
from planner.one_job.validation.run import MEMORY_SLACK
from profiles.vocabulary import Infeasible

GIB = 2**30
PUBLISHED_PARTS = re.compile(r"params\+optimizer ([\d.]+) and activations ([\d.]+)")
PARTS = ("weight", "gradient", "optimizer", "activation", "temporary", "communication", "reserve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One row: bytes measured (None: only that it ran out) and estimated, and the estimate's fullest rank."""

    id: str
    source: str
    kind: str
    measured_bytes: float | None
    estimated_bytes: float
    fullest: RankMemory
    capacity_bytes: int
    ran_out: bool

    @property
    def error(self) -> float:
        """Signed, relative to the measured; ValueError without one."""
        if self.measured_bytes is None:
            raise ValueError(f"{self.id}: no memory was measured")
        return self.estimated_bytes / self.measured_bytes - 1


def memory_of(setup: Setup) -> tuple[RankMemory, ...] | Infeasible:
    """Memory of a rank of each stage."""
    ranks = []
    for stage in range(len(setup.stages)):
        chunks = stage_chunks(setup, stage)
        if isinstance(chunks, Infeasible):
            return chunks
        flying = in_flight(
            setup.recipe.schedule,
            stage=stage,
            stages=len(setup.stages),
            chunks=len(chunks),
            micro_batches=setup.micro_batches,
        )
        ranks.append(rank_memory(setup, stage, chunks, flying))
    return tuple(ranks)


def without_ends(setup: Setup) -> Setup:
    """The same plan of the blocks alone."""
    model = setup.model
    kept = [i for i, layer in enumerate(model.layers) if not isinstance(layer, Embedding | Head)]
    blocks = replace(
        model,
        layers=tuple(model.layers[i] for i in kept),
        layer_names=tuple(model.layer_names[i] for i in kept),
    )
    stages = tuple(
        replace(
            stage,
            chunks=tuple((sum(i < first for i in kept), sum(i < end for i in kept)) for first, end in stage.chunks),
        )
        for stage in setup.stages
    )
    return replace(setup, model=blocks, stages=stages)


def taken_setup(prepared: PreparedRun) -> Setup:
    """The first of a row's setups that fits, as `cellplan validate` takes it; the last one where none does."""
    for setup in (prepared.setup, *prepared.instead):
        ranks = memory_of(setup)
        if isinstance(ranks, Infeasible) or all(
            each.needed_bytes <= capacity_of(setup, each.stage) * (1 + MEMORY_SLACK) for each in ranks
        ):
            return setup
    return setup


def capacity_of(setup: Setup, stage: int) -> int:
    """Bytes of a device of the stage."""
    return setup.cluster.group_of(setup.stages[stage].slots[0]).device.memory_bytes


def compare(row: RunRow) -> Compared | str:
    """The row against the model, or why it cannot be compared."""
    prepared = prepare(row)
    if isinstance(prepared, Skipped):
        return prepared.reason
    setup = taken_setup(prepared)
    measured = measured_of(row, setup)
    if measured.memory_bytes is None and measured.iteration_time_s is None and not measured.out_of_memory:
        return "nothing measured"
    required = measured.memory_kind == "required"
    memory = memory_of(without_ends(setup) if required else setup)
    if isinstance(memory, Infeasible):
        return memory.reason
    if required:
        sizes = [_state_bytes(each) + each.activation_bytes for each in memory]
    else:
        sizes = [each.peak_bytes if measured.memory_kind == "allocated" else each.needed_bytes for each in memory]
    most = len(memory) - 1 if measured.of_last_stage else max(range(len(memory)), key=lambda stage: sizes[stage])
    return Compared(
        id=row.id,
        source=row.source,
        kind=measured.memory_kind,
        measured_bytes=measured.memory_bytes,
        estimated_bytes=sizes[most],
        fullest=memory[most],
        capacity_bytes=capacity_of(setup, most),
        ran_out=measured.out_of_memory,
    )


def _state_bytes(memory: RankMemory) -> int:
    return memory.weight_bytes + memory.gradient_bytes + memory.optimizer_bytes


def print_sources(compared: Sequence[Compared]) -> None:
    """A line for each source and kind of figure."""
    print(f"{'source':8}{'kind':12}{'rows':>5}{'mean |error|':>14}{'bias':>8}{'worst':>8}  worst row")
    for source, kind in dict.fromkeys((each.source, each.kind) for each in compared if each.measured_bytes):
        rows = [each for each in compared if (each.source, each.kind) == (source, kind) and each.measured_bytes]
        errors = [each.error for each in rows]
        worst = max(rows, key=lambda each: abs(each.error))
        print(
            f"{source:8}{kind:12}{len(rows):5}{_mean(abs(e) for e in errors):14.2%}{_mean(errors):+8.2%}"
            f"{worst.error:+8.2%}  {worst.id}"
        )


def print_parts(compared: Iterable[Compared]) -> None:
    """GiB of every part on each row's fullest rank."""
    print(f"{'row':12}{'measured':>9}{'est.':>8}{'error':>9}  " + "".join(f"{part[:10]:>11}" for part in PARTS))
    for each in compared:
        if each.measured_bytes is None:
            continue
        parts = "".join(f"{getattr(each.fullest, part + '_bytes') / GIB:11.2f}" for part in PARTS)
        print(
            f"{each.id:12}{each.measured_bytes / GIB:9.2f}{each.estimated_bytes / GIB:8.2f}{each.error:+9.2%}  {parts}"
        )


def print_published_parts(rows: Iterable[RunRow], compared: Iterable[Compared]) -> None:
    """State and activations beside those that a source gives apart."""
    estimated = {each.id: each.fullest for each in compared}
    for row in rows:
        parts = PUBLISHED_PARTS.search(row.notes)
        if not parts or row.id not in estimated:
            continue
        state, activations = (float(group) for group in parts.groups())
        ours = estimated[row.id]
        print(
            f"{row.id}: parameters and optimizer {state:.2f} GiB, estimated {_state_bytes(ours) / GIB:.2f};"
            f" activations {activations:.2f} GiB, estimated {ours.activation_bytes / GIB:.2f}"
        )


def print_fit(compared: Sequence[Compared]) -> None:
    """Rows that ran out of memory, and rows that ran, by what the model says of them."""
    told = [each.id for each in compared if each.ran_out and each.fullest.needed_bytes > each.capacity_bytes]
    missed = [each.id for each in compared if each.ran_out and each.fullest.needed_bytes <= each.capacity_bytes]
    ran = [each for each in compared if not each.ran_out and each.kind != "required"]
    false = [each.id for each in ran if each.fullest.needed_bytes > each.capacity_bytes]
    print(f"out of memory: {len(told)} told ({', '.join(told)}), {len(missed)} missed ({', '.join(missed)})")
    print(f"{len(ran)} runs went through, {len(false)} of them called out of memory")
    for source in dict.fromkeys(each.source for each in ran):
        wrong = [name for name in false if name.startswith(f"{source}-")]
        if wrong:
            total = sum(each.source == source for each in ran)
            print(f"  {source}: {len(wrong)} of {total}: {', '.join(wrong[:8])}{' ...' if len(wrong) > 8 else ''}")


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads train_runs.csv in `--data` and prints the tables; 0, or 2 where there is no such file."""
    parser = argparse.ArgumentParser(prog="python -m bench.accuracy.memory", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with train_runs.csv")
    parser.add_argument("--rows", action="store_true", help="also every row with its parts")
    options = parser.parse_args(arguments)
    path = options.data / "train_runs.csv"
    if not path.is_file():
        print(f"{path}: no such file; expected the published runs", file=sys.stderr)
        return 2
    rows = read_published(path)
    outcomes = [(row.explicit, compare(row.explicit)) for row in rows]
    compared = [outcome for _, outcome in outcomes if isinstance(outcome, Compared)]
    print_sources(compared)
    print()
    print_published_parts([row.published for row in rows], compared)
    print()
    print_fit(compared)
    for row, outcome in outcomes:
        if isinstance(outcome, str) and row.peak_mem_gb is not None:
            print(f"not compared: {row.id}: {outcome}")
    if options.rows:
        print()
        print_parts(compared)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
