"""What the tests of `cellplan run` share: made-up rates of this machine, plans run at once, a look at processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from estimator.frontends.load import load_file_model
from estimator.pricing.outcome import Evaluation
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.setting import Setting
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.reading import read_plan
from planner.one_job.running.lines import Lines
from planner.one_job.running.program import Program, program_of
from planner.one_job.running.record import Orders, RunRecord
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json
from profiles.measurements import DeviceRates
from profiles.store import ProfileStore
from tests.running_driver import run_grid


def put_own_rates(path: Path) -> Path:
    """A store that has rates of this machine, made up, so that nobody has to measure them."""
    own = identify_device(Setting())
    rates = DeviceRates(
        device="cpu",
        hardware=own.hardware,
        software=own.software,
        threads=1,
        memory_bytes=2**34,
        memory_bandwidth_bytes_per_s=1e10,
        flops_per_s=(("fp32", 5e10),),
        flash_attention=True,
    )
    with ProfileStore(path) as store:
        store.put_rates(rates)
    return path


def estimate_of(plan: Plan, store: Path) -> tuple[Program, Evaluation]:
    """The program of a plan and its estimate on this machine's workers, as `run` makes it: without dropout."""
    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    with ProfileStore(store) as opened:
        request = read_plan(plan, where="plan", store=opened)
        found = evaluate_with_store(replace(request.setups[0], model=program.model), store=opened)
    assert isinstance(found, Evaluation), found
    return program, found


def run_together(plans: Mapping[str, Plan], *, steps: int) -> dict[str, RunRecord]:
    """Plans of two ranks run one after another by two workers, so that processes are paid for once."""
    lines = {name: Lines(2, steps, None) for name in plans}
    orders = {name: orders_of(plan, steps=steps) for name, plan in plans.items()}
    run_grid(orders, dict.fromkeys(plans, 2), lambda value: lines[value["run"]].take(value["rank"], value))
    return {name: own.record(0) for name, own in lines.items()}


def orders_of(plan: Plan, *, steps: int, timeout_s: float = 60.0) -> Orders:
    """To train `plan` for so many steps on random samples."""
    return Orders(
        plan=plan_to_json(plan),
        steps=steps,
        warm_ups=0,
        seed=0,
        learning_rate=1e-3,
        backend="gloo",
        timeout_s=timeout_s,
        threads=1,
        data=None,
        data_dtype="uint16",
    )
