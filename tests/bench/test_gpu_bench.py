"""The GPU run, tiny and on the CPU: its files, what a failure leaves behind, and the time it keeps to."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as command
from bench.gpu.record import Deadline, Log, OutOfTime, ResultFile, Run
from profiles.hardware import load_device
from profiles.measurements import parse_profile_set

ROOT = Path(__file__).parents[2]
FILES = {"operators.json", "layers.profiles.json", "steps.json", "log.txt"}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that one tiny run leaves."""
    out = tmp_path_factory.mktemp("gpu") / "out"
    arguments = ("--out", str(out), "--tiny", "--device", "cpu", "--seconds", "300")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    log = Log(tmp_path / "log.txt")
    yield Run(out=tmp_path, store=tmp_path / "store.sqlite", device="cpu", tiny=True, log=log, provenance={})
    log.close()


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_tiny_run_leaves_its_four_files_and_nothing_failed(results: Path) -> None:
    assert {path.name for path in results.iterdir()} == FILES
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in FILES)
    assert max(path.stat().st_size for path in results.iterdir()) < 2**24
    assert "failed:" not in (results / "log.txt").read_text(encoding="utf-8")
    for name, schema in (("operators.json", "cellplan.operators/1"), ("steps.json", "cellplan.steps/1")):
        found = read(results / name)
        assert (found["schema"], found["failures"], found["skipped"]) == (schema, [], [])
        assert found["provenance"]["torch"]
        assert found["provenance"]["device"] == "cpu"


def test_operator_rows_carry_shape_time_work_and_rate(results: Path) -> None:
    rows = read(results / "operators.json")["rows"]
    kinds = {"gemm", "batched_gemm", "attention", "conv", "layernorm", "swiglu", "cross_entropy", "adamw", "launch"}
    assert kinds <= {row["kind"] for row in rows}
    for row in rows:
        assert 0 < row["seconds"] <= row["median_s"]
        rate = row["tflops"] * 1e12 if row["flops"] else row["gb_per_s"] * 1e9
        assert rate == pytest.approx((row["flops"] or row["bytes"]) / row["seconds"])
        assert row["efficiency"] is None, "a CPU is in no catalogue"
    wanted = ("attention", "flash", "backward")
    attention = next(row for row in rows if (row["kind"], row["variant"], row["direction"]) == wanted)
    # Scores again, then gradients of values, weights, queries, keys: five products of 2 x 64 x 64 x 32 by 4 heads.
    assert attention["flops"] == 5 * 2 * 4 * 64 * 64 * 32
    gemms = {row["direction"] for row in rows if row["kind"] == "gemm"}
    assert gemms == {"forward", "dgrad", "wgrad"}


def test_the_whole_run_can_be_planned() -> None:
    from bench.gpu.layers_torch import wanted_shards
    from bench.gpu.operators_torch import planned_cases
    from bench.gpu.steps_torch import steps
    from estimator.profiling.plan import plan_profile

    cases = planned_cases(tiny=False, on_gpu=True)
    assert len({case.label for case in cases}) == len(cases) > 2000
    assert [case.priority for case in cases] == sorted(case.priority for case in cases)
    assert all(min(case.shape.values()) >= 0 and case.bytes > 0 for case in cases)
    steps_wanted = {(step.model.name, step.micro_batch, step.dtype) for step in steps(tiny=False)}
    assert steps_wanted <= {(one.model.name, one.micro_batch, one.dtype) for one in wanted_shards(tiny=False)}
    for wanted in wanted_shards(tiny=False):
        tasks = plan_profile(
            wanted.model, degrees=wanted.degrees, micro_batches_per_rank=[wanted.micro_batch], dtype=wanted.dtype
        )
        assert not tasks[0].infeasible


def test_efficiency_is_of_the_peak_of_the_dtype_or_of_the_memory() -> None:
    from bench.gpu.operators_torch import gemm
    from bench.gpu.timing_torch import to_row

    h200 = load_device("h200")
    product = gemm(1000, 1000, 1000, priority=0)
    assert to_row(product, [2e9 / 989e12], h200)["efficiency"] == pytest.approx(1)
    row = to_row(operator("copy", int), [3.0, 1.0, 2.0], h200)
    assert (row["seconds"], row["median_s"], row["samples"]) == (1.0, 2.0, 3)
    assert row["efficiency"] == pytest.approx(1 / 4800e9)


def test_every_operator_can_be_made_and_does_the_flops_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from bench.gpu.operators_torch import planned_cases

    # Kernels that only a GPU has, and steps that wait for one, have no twin on tensors without data.
    needs_gpu = {"efficient", "cudnn", "graph", "fused", "foreach", "plain"}
    for case in planned_cases(tiny=False, on_gpu=True):
        if case.variant in needs_gpu or case.kind == "launch":
            continue
        step = case.make(torch.device("meta"))
        with FlopCounterMode(display=False) as counted:
            step()
        expected: float = counted.get_total_flops()
        if (case.kind, case.variant, case.direction) == ("attention", "flash", "backward"):
            expected *= 5 / 4  # without data torch takes the plain kernel, which does not compute the scores again
        assert case.flops == expected or case.variant == "grouped_mm", case.label  # which torch does not count


def test_the_layers_can_be_imported_as_profiles(results: Path) -> None:
    path = results / "layers.profiles.json"
    found = parse_profile_set(path.read_text(encoding="utf-8"), where=path.name)
    assert sorted({profile.key.shard.tp for profile in found.profiles}) == [1, 2]
    assert found.rates[0].device == "cpu"


def test_steps_have_estimates_beside_them_that_rest_on_the_layers(results: Path) -> None:
    rows = read(results / "steps.json")["rows"]
    assert [row["optimizer"] for row in rows] == ["adamw fused", "adamw foreach"]
    for row in rows:
        estimates = row["estimates"]
        assert estimates["modelled"]["provenance"] == "modelled"
        assert estimates["measured"]["provenance"] == "measured"
        assert row["iteration_s"] > 0
        assert row["forward_s"] < row["zero_s"] + row["forward_s"] + row["backward_s"] + row["optimizer_s"]
        # bf16 weights and gradients, fp32 masters and two states, and a count in fp32 for each tensor.
        assert 16 * row["parameters"] <= row["resident_bytes"] < 16 * row["parameters"] + 4096


def operator(name: str, step: Callable[[], object]) -> Any:
    from bench.gpu.timing_torch import Case

    return Case(kind=name, dtype="fp32", direction="forward", shape={"n": 1}, make=lambda _: step, bytes=1)


def run_operators(path: Path, log: Log, cases: list[Any], deadline: Deadline) -> dict[str, Any]:
    import torch

    from bench.gpu.timing_torch import run_cases

    file = ResultFile(path, schema="test", provenance={}, planned=[case.label for case in cases])
    run_cases(cases, file, deadline, device=torch.device("cpu"), log=log)
    return read(path)


def test_an_operator_that_raises_is_recorded_and_the_next_one_measured(run: Run) -> None:
    def explode() -> None:
        raise RuntimeError("CUDA out of memory\nand pages more")

    cases = [operator("bad", explode), operator("good", lambda: sum(range(1000)))]
    found = run_operators(run.out / "x.json", run.log, cases, Deadline(at_s=time.monotonic() + 60))
    assert [row["kind"] for row in found["rows"]] == ["good"]
    assert found["failures"] == [{"what": "bad fp32 forward n=1", "error": "RuntimeError: CUDA out of memory"}]
    assert found["skipped"] == []


def test_operators_after_the_deadline_are_listed_and_not_run(run: Run) -> None:
    deadline = Deadline(at_s=time.monotonic() + 0.2)
    ran: list[str] = []

    def slow() -> None:
        ran.append("slow")
        time.sleep(0.1)

    cases = [operator("slow", slow), operator("late", lambda: ran.append("late"))]
    found = run_operators(run.out / "x.json", run.log, cases, deadline)
    assert [row["kind"] for row in found["rows"]] == ["slow"]
    assert found["skipped"] == ["late fp32 forward n=1"]
    assert set(ran) == {"slow"}


def test_without_time_every_section_lists_what_it_did_not_do(run: Run) -> None:
    command.measure_all(run, start_s=time.monotonic(), seconds=0.0)
    assert {path.name for path in run.out.iterdir()} >= FILES
    for name in ("operators.json", "steps.json"):
        found = read(run.out / name)
        assert not found["rows"]
        assert found["skipped"]
    assert "no time for layers of gpt-tiny" in (run.out / "log.txt").read_text(encoding="utf-8")


def test_a_section_that_fails_does_not_stop_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from bench.gpu import layers_torch

    def explode(*_: object) -> None:
        raise ImportError("no module named pydantic")

    monkeypatch.setattr(layers_torch, "measure_layers", explode)
    command.measure_all(run, start_s=time.monotonic(), seconds=0.0)
    assert (run.out / "steps.json").exists()
    log = (run.out / "log.txt").read_text(encoding="utf-8")
    assert "failed: layers: ImportError: no module named pydantic" in log


def run_into_the_alarm() -> None:
    with command.alarm(0.05):
        for _ in range(1000):
            try:
                time.sleep(0.01)
            except Exception:  # what goes on after failures must not go on after this
                continue


def test_the_alarm_ends_what_overruns_even_where_exceptions_are_caught() -> None:
    with pytest.raises(OutOfTime):
        run_into_the_alarm()
