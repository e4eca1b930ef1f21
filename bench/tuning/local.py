"""Plans of two workers of this machine, all of them really run: the truth that approaches are measured against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.real_runs.__main__ import run_plan, save_stated
from bench.tuning.groups import Group, with_cells
from estimator.cells.cell import CellEstimate
from planner import api
from planner.one_job.cells.request import read_request, search_cells
from planner.one_job.explicit.reading import read_plan
from planner.one_job.tuning.measured import MEASURED_LOG_SPREAD
from planner.one_job.tuning.records import Candidate
from planner.one_job.tuning.traits import traits_of
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan_file import load_plan
from profiles.store import ProfileStore

MODELS = ("gpt-mini", "bert-mini")
GLOBAL_BATCH = 8
PLANS: dict[str, dict[str, Any]] = {
    "dp2, 1 micro-batch": {"dp": 2, "micro_batches": 1},
    "dp2, 4 micro-batches": {"dp": 2, "micro_batches": 4},
    "dp2, 4 micro-batches, ZeRO 1": {"dp": 2, "micro_batches": 4, "zero": 1},
    "tp2, 1 micro-batch": {"tp": 2, "micro_batches": 1},
    "tp2, 4 micro-batches": {"tp": 2, "micro_batches": 4},
    "pp2, 4 micro-batches": {"pp": 2, "micro_batches": 4},
    "pp2, 8 micro-batches": {"pp": 2, "micro_batches": 8},
    "pp2, 4 micro-batches, gpipe": {"pp": 2, "micro_batches": 4, "schedule": "gpipe"},
    "pp2, 4 micro-batches, interleaved": {"pp": 2, "vpp": 2, "micro_batches": 4, "schedule": "interleaved"},
}
"""Every way to share two workers, with the fewest micro-batches and more, and the schedules that can be run."""


_Times = defaultdict[tuple[str, str], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRow:
    """Seconds of one plan, estimated and measured; `noise`: how far the rounds lie apart."""

    model: str
    plan: str
    estimated_s: float
    measured_s: float
    noise: float


def run_local(
    rounds: int, steps: int, progress: Callable[[str], None]
) -> tuple[tuple[Group, ...], tuple[LocalRow, ...]]:
    """Groups of the plans above. Each round measures links, layers and contention anew before it runs the plans; of
    rounds and iterations the fastest counts, as others share the machine."""
    estimated: _Times = defaultdict(list)
    measured: _Times = defaultdict(list)
    with TemporaryDirectory() as name:
        folder = Path(name)
        for turn in range(rounds):
            store = folder / f"{turn}.sqlite"
            # The rates of this machine, which `local` is described by; a budget that allows no more.
            api.profile("gpt-tiny", framework="torch", dtype="fp32", budget=1e-3, store=store)
            api.comm_measure(backend="gloo", ranks=(2,), busy=True, timeout=300.0, store=store)
            for model in MODELS:
                for number, plan in enumerate(PLANS):
                    path = _write(model, plan, folder / f"{model}.{number}.json", store)
                    found = run_plan(path, "torch", steps, store)
                    estimated[model, plan].append(found["estimated"]["iteration_time_s"])
                    measured[model, plan].append(min(found["measured"]["iteration_times_s"]))
                    progress(f"round {turn + 1}, {model} {plan}: {measured[model, plan][-1] * 1e3:.0f} ms")
        described = [_describe(model, folder, store, estimated, measured) for model in MODELS]
    return tuple(group for group, _ in described), tuple(row for _, rows in described for row in rows)


def _describe(
    model: str, folder: Path, store: Path, estimated: _Times, measured: _Times
) -> tuple[Group, list[LocalRow]]:
    candidates = []
    with ProfileStore(store) as opened:
        for number, name in enumerate(PLANS):
            path = folder / f"{model}.{number}.json"
            (setup,) = read_plan(load_plan(path), where=name, store=opened).setups
            candidates.append(
                Candidate(
                    plan=setup,
                    estimated_s=min(estimated[model, name]),
                    log_spread=MEASURED_LOG_SPREAD,
                    traits=traits_of(setup),
                )
            )
        cells = _cells(model, opened)
    group = Group(
        source="local",
        name=f"{model}, 2 workers, batch {GLOBAL_BATCH}",
        candidates=tuple(candidates),
        measured_s=tuple(min(measured[model, name]) for name in PLANS),
    )
    rows = [
        LocalRow(
            model=model,
            plan=name,
            estimated_s=min(estimated[model, name]),
            measured_s=min(measured[model, name]),
            noise=max(measured[model, name]) / min(measured[model, name]) - 1,
        )
        for name in PLANS
    ]
    return with_cells(group, cells), rows


def _write(model: str, name: str, path: Path, store: Path) -> Path:
    fixed: dict[str, Any] = {"dtype": "fp32", "global_batch": GLOBAL_BATCH, "recompute": "none"}
    return save_stated(model, path, store, **(fixed | PLANS[name]))


def _cells(model: str, store: ProfileStore) -> dict[int, CellEstimate]:
    options = EstimateOptions(
        model,
        cluster="local:1x2",
        dtype="fp32",
        global_batch=GLOBAL_BATCH,
        recompute="none",
        micro_batches="best",
        stages=(1, 2),
    )
    request = read_request(options, store=store)
    cells = search_cells(request, store)
    return {len(cell.setup.stages): cell for cell in cells if isinstance(cell, CellEstimate)}


def describe_rows(rows: Sequence[LocalRow]) -> list[dict[str, object]]:
    """For JSON."""
    return [asdict(row) for row in rows]
