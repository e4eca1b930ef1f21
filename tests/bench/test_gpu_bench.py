"""The GPU run, tiny and on the CPU: its one file, what a failure leaves behind, and the time it keeps to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.gpu import __main__ as command
from bench.gpu import worker
from bench.gpu.bench_file import BenchFile, BenchRun
from bench.gpu.case import Case, Framework, sizes
from bench.gpu.cases import planned_cases
from bench.gpu.operators import Timed, run_cases, to_row
from bench.gpu.record import FILE, Deadline, DeviceLostError, Log, OutOfTime, ResultFile, read_results, sections_begun
from bench.gpu.workloads import steps, wanted_shards
from bench.killed.processes import is_running
from estimator.profiling.setting import DeviceIdentity
from profiles.hardware import load_device
from profiles.schema import validate_json
from profiles.store import ProfileStore, import_profiles
from profiles.vocabulary import AttentionKernel
from tests.processes import HANGS_S, running, wait_until

ROOT = Path(__file__).parents[2]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "jax")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that one tiny run of both frameworks leaves."""
    pytest.importorskip("jax")
    out = tmp_path_factory.mktemp("gpu") / "out"
    arguments = ("--out", str(out), "--tiny", "--device", "cpu", "--seconds", "300")
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


@pytest.fixture(scope="module")
def runs(results: Path) -> dict[str, BenchRun]:
    """What the file holds beside profiles, by framework."""
    file = validate_json(BenchFile, (results / FILE).read_text(encoding="utf-8"), where=FILE)
    assert file.bench is not None
    return {run.framework: run for run in file.bench.runs}


class StandIn:
    """A backend that does what a test tells it to."""

    def __init__(self, *, time_case: Callable[[Case], Sequence[float]] | None = None, alive: bool = True) -> None:
        self._time_case, self._alive = time_case, alive

    def describe(self) -> dict[str, Any]:
        return {}

    def identity(self) -> DeviceIdentity:
        return DeviceIdentity(device="none", hardware="none", software="none", threads=0)

    def attention(self) -> AttentionKernel:
        return "flash"

    def time_case(self, case: Case) -> Sequence[float]:
        assert self._time_case is not None
        return self._time_case(case)

    def other_variant(self, case: Case) -> Case | None:
        return operator("other") if case.variant == "special" else None

    def profile(self, *_: object) -> Any:
        raise ImportError("no module named pydantic")

    def time_training(self, *_: object) -> Any:
        raise MemoryError("out of memory")

    def free_memory(self) -> None:
        pass

    def check_alive(self) -> None:
        if not self._alive:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.close()


def operator(name: str, *, variant: str = "") -> Case:
    return Case(kind=name, dtype="fp32", direction="forward", sizes=sizes(n=1), bytes=1, variant=variant)


def in_a_minute() -> Deadline:
    return Deadline(at_s=time.monotonic() + 600)


def run_operators(
    path: Path, cases: list[Case], time_case: Callable[[Case], Sequence[float]], deadline: Deadline, log: Log
) -> dict[str, Any]:
    """The section that is in the file afterwards."""
    file = ResultFile(path, framework="torch", provenance={})
    section = file.begin("operators", [case.label for case in cases])
    try:
        run_cases(cases, section, deadline, backend=StandIn(time_case=time_case), log=log)
    finally:
        file.save()
    found: dict[str, Any] = read_results(path)["bench"]["runs"][0]["sections"]["operators"]
    return found


# The whole run


def test_a_tiny_run_leaves_its_file_and_its_log_and_nothing_failed(results: Path, runs: dict[str, BenchRun]) -> None:
    assert {path.name for path in results.iterdir()} == {FILE, "log.txt"}
    assert (results / FILE).stat().st_size < 2**24
    assert "failed" not in (results / "log.txt").read_text(encoding="utf-8").replace(" 0 failed", "")
    assert set(runs) == set(FRAMEWORKS)
    for name, run in runs.items():
        assert run.provenance[name]
        assert run.provenance["device"] == "cpu"
        for section in (run.sections.operators, run.sections.layers, run.sections.steps):
            assert section is not None
            assert section.rows
            assert (section.failures, section.skipped) == ((), ())


def test_operator_rows_carry_shape_time_work_and_rate(runs: dict[str, BenchRun]) -> None:
    kinds = {"gemm", "batched_gemm", "attention", "conv", "layernorm", "swiglu", "cross_entropy", "adamw", "launch"}
    for run in runs.values():
        assert run.sections.operators is not None
        rows = run.sections.operators.rows
        assert kinds <= {row.kind for row in rows}
        for row in rows:
            assert 0 < row.seconds <= row.median_s
            rate = (row.tflops or 0) * 1e12 if row.flops else (row.gb_per_s or 0) * 1e9
            assert rate == pytest.approx((row.flops or row.bytes) / row.seconds)
            assert row.efficiency is None, "a CPU is in no catalogue"
        assert {row.direction for row in rows if row.kind == "gemm"} == {"forward", "dgrad", "wgrad"}


def test_rows_of_both_frameworks_can_be_put_side_by_side(runs: dict[str, BenchRun]) -> None:
    keys = {}
    for name, run in runs.items():
        assert run.sections.operators is not None
        keys[name] = {
            (row.kind, row.dtype, row.direction, tuple(row.shape.items())) for row in run.sections.operators.rows
        }
    only_in_jax = {key[0] for key in keys["jax"] - keys["torch"]}
    assert only_in_jax == {"adamw"}, "a flat vector, which torch's optimizers do not take"
    assert keys["torch"] <= keys["jax"]


def test_the_layers_of_both_frameworks_go_into_a_store(results: Path, tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.sqlite") as store:
        count = import_profiles(store, results / FILE)
        found = store.profiles()
    assert count.added >= len(found)
    by_framework = {
        name: {profile.key.shard.tp for profile in found if profile.key.software.startswith(f"{name} ")}
        for name in FRAMEWORKS
    }
    assert by_framework == {"torch": {1, 2}, "jax": {1, 2}}


def test_steps_have_estimates_beside_them_that_rest_on_the_layers(runs: dict[str, BenchRun]) -> None:
    # In torch bf16 weights and gradients, fp32 masters and two states, and a count in fp32 for each tensor; in JAX
    # weights and two states in fp32.
    resident = {"torch": 16, "jax": 12}
    for name, run in runs.items():
        assert run.sections.steps is not None
        for row in run.sections.steps.rows:
            step: dict[str, Any] = dict(row)
            assert step["estimates"]["modelled"]["provenance"] == "modelled"
            assert step["estimates"]["measured"]["provenance"] == "measured"
            assert step["forward_s"] > 0
            assert step["iteration_s"] > 0
            assert 0 <= step["resident_bytes"] - resident[name] * step["parameters"] < 4096
    assert runs["torch"].sections.steps is not None
    rows = runs["torch"].sections.steps.rows
    assert [row["optimizer"] for row in rows] == ["adamw fused", "adamw foreach"]


def test_a_run_that_is_killed_leaves_a_whole_file_and_no_worker(tmp_path: Path) -> None:
    arguments = ("--out", str(tmp_path), "--tiny", "--device", "cpu", "--framework", "torch", "--seconds", "100")
    command = [sys.executable, "-m", "bench.gpu", *arguments]
    with running(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as started:
        wait_until(lambda: sections_begun(tmp_path / FILE, "torch"), "no section began")
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=HANGS_S) == 130
    file = validate_json(BenchFile, (tmp_path / FILE).read_text(encoding="utf-8"), where=FILE)
    assert file.bench is not None
    assert file.bench.runs[0].sections.operators is not None
    assert not list(tmp_path.glob(".cellplan-*"))


# The workers


class Worker:
    """The order for a worker that is this script, and what the log says of it."""

    def __init__(self, out: Path, script: str) -> None:
        self.log = Log(out / "log.txt")
        self.order = command.Order(out=out, device="cpu", tiny=True, log=self.log)
        self._path, self._script = out / "log.txt", script

    def run(self, limit_s: float) -> int | None:
        arguments = (sys.executable, "-c", self._script)
        status = command.run_worker(self.order, "jax", arguments, time.monotonic() + limit_s)
        self.log.close()
        return status

    @property
    def words(self) -> str:
        return self._path.read_text(encoding="utf-8")


def test_a_worker_that_hangs_is_killed_at_its_deadline_with_all_that_it_started(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print('started', child.pid, flush=True); time.sleep(600)"
    )
    hung = Worker(tmp_path, script)
    assert hung.run(5.0) is None
    assert "killed at its deadline" in hung.words
    child = int(hung.words.split("started ")[1].split()[0])
    wait_until(lambda: not is_running(child), "it is still there")


def test_what_a_worker_prints_and_how_it_ends_is_told(tmp_path: Path) -> None:
    script = "import os, sys; print('one', flush=True); print('two', file=sys.stderr, flush=True); os.abort()"
    dying = Worker(tmp_path, script)
    assert dying.run(30.0) == -signal.SIGABRT
    assert "jax: one" in dying.words
    assert "jax: two" in dying.words


def test_memory_is_not_taken_beforehand(tmp_path: Path, log: Log) -> None:
    order = command.Order(out=tmp_path, device="cuda:0", tiny=False, log=log)
    assert order.environment()["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"
    assert "JAX_PLATFORMS" not in order.environment().keys() - os.environ.keys()


def note_section(path: Path, framework: str, *names: str) -> None:
    file = ResultFile(path / FILE, framework=framework, provenance={})
    for name in names:
        file.begin(name, [])


def test_after_a_crash_another_worker_goes_on_with_the_next_section(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def crash(order: command.Order, framework: Framework, arguments: Sequence[str], limit_s: float) -> int:
        assert order.out == tmp_path
        assert limit_s > time.monotonic()
        sections = list(arguments[arguments.index("--sections") + 1 :])
        asked.append(sections)
        note_section(tmp_path, framework, sections[0])
        return worker.DONE if len(asked) == 2 else worker.DEVICE_LOST

    monkeypatch.setattr(command, "run_worker", crash)
    order = command.Order(out=tmp_path, device="cpu", tiny=True, log=log)
    command.run_framework(order, "torch", time.monotonic() + 100)
    assert asked == [["operators", "layers", "steps"], ["layers", "steps"]]
    assert sections_begun(tmp_path / FILE, "torch") == ("operators", "layers")


def test_a_worker_that_begins_nothing_is_not_started_again(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def fail(*arguments: object) -> int:
        asked.append(arguments)
        return worker.FAILED

    monkeypatch.setattr(command, "run_worker", fail)
    order = command.Order(out=tmp_path, device="cpu", tiny=True, log=log)
    assert command.measure(order, ("torch",), time.monotonic() + 100) == 1
    assert len(asked) == 1


@pytest.mark.parametrize(("jax_status", "share"), [(worker.FAILED, 1.0), (worker.DONE, command.TORCH_SHARE)])
def test_without_jax_torch_has_the_whole_time(
    jax_status: int, share: float, tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: dict[str, float] = {}
    monkeypatch.setattr(command, "run_worker", lambda *_: jax_status)
    monkeypatch.setattr(command, "run_framework", lambda _, framework, end_s: ends.update({framework: end_s}))
    order = command.Order(out=tmp_path, device="cpu", tiny=True, log=log)
    now = time.monotonic()
    command.measure(order, FRAMEWORKS, now + 1000)
    assert ends["torch"] == pytest.approx(now + 1000 * share, abs=5)
    assert ends.get("jax", now + 1000) == now + 1000


# What is planned


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_whole_run_can_be_planned(framework: Framework) -> None:
    from estimator.profiling.plan import plan_profile

    cases = planned_cases(framework, tiny=False, on_gpu=True)
    assert len({case.label for case in cases}) == len(cases) > 2000
    assert all(min(case.shape.values()) >= 0 and case.bytes > 0 for case in cases)
    assert min(case.priority for case in cases[-30:]) >= 80, "what may hurt the others comes last"
    wanted = list(wanted_shards(framework, tiny=False))
    steps_wanted = {(step.model.name, step.micro_batch, step.dtype) for step in steps(framework, tiny=False)}
    assert steps_wanted <= {(one.model.name, one.micro_batch, one.dtype) for one in wanted}
    assert {degree for one in wanted for degree in one.degrees} == {1, 2, 4, 8}
    for one in wanted:
        tasks = plan_profile(one.model, degrees=one.degrees, micro_batches_per_rank=[one.micro_batch], dtype=one.dtype)
        assert not tasks[0].infeasible


def test_torch_takes_the_most_important_first_and_jax_some_of_each_kind() -> None:
    torch_cases = planned_cases("torch", tiny=False, on_gpu=True)
    assert [case.priority for case in torch_cases] == sorted(case.priority for case in torch_cases)
    jax_cases = planned_cases("jax", tiny=False, on_gpu=True)
    kinds = {case.kind for case in jax_cases}
    assert {case.kind for case in jax_cases[:30]} == kinds == {case.kind for case in torch_cases}


def test_efficiency_is_of_the_peak_of_the_dtype_or_of_the_memory() -> None:
    from bench.gpu.cases import gemm

    h200 = load_device("h200")
    product = gemm(1000, 1000, 1000, priority=0)
    assert to_row(Timed(case=product, samples_s=[2e9 / 989e12]), h200)["efficiency"] == pytest.approx(1)
    row = to_row(Timed(case=operator("copy"), samples_s=[3.0, 1.0, 2.0]), h200)
    assert (row["seconds"], row["median_s"], row["samples"]) == (1.0, 2.0, 3)
    assert row["efficiency"] == pytest.approx(1 / 4800e9)


def test_every_operator_can_be_made_and_does_the_flops_that_torch_counts() -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from bench.gpu.operators_torch import make_step

    # Kernels that only a GPU has, and steps that wait for one, have no twin on tensors without data.
    needs_gpu = {"efficient", "cudnn", "graph", "fused", "foreach", "plain"}
    seen: Counter[tuple[str, str, str]] = Counter()
    for case in planned_cases("torch", tiny=False, on_gpu=True):
        seen[case.kind, case.variant, case.direction] += 1
        enough = seen[case.kind, case.variant, case.direction] > 8
        if enough or case.variant in needs_gpu or case.kind == "launch":
            continue
        step = make_step(case, torch.device("meta"))
        with FlopCounterMode(display=False) as counted:
            step()
        expected: float = counted.get_total_flops()
        if (case.kind, case.variant, case.direction) == ("attention", "flash", "backward"):
            expected *= 5 / 4  # without data torch takes the plain kernel, which does not compute the scores again
        assert case.flops == expected or case.variant == "grouped_mm", case.label  # which torch does not count


def test_fused_attention_computes_the_scores_again() -> None:
    from bench.gpu.operators_jax import other_variant

    found = {
        (case.variant, case.direction): case
        for case in planned_cases("jax", tiny=False, on_gpu=True)
        if case.kind == "attention" and case.shape["seq_len"] == 1024 and case.shape["batch"] == 1
    }
    backward = found["cudnn", "backward"]
    product = 2 * backward.shape["heads"] * 1024 * 1024 * 128
    assert backward.flops == 5 * product
    plain = other_variant(backward)
    assert plain is not None
    assert (plain.variant, plain.flops) == ("xla", 4 * product)
    assert other_variant(plain) is None


# Failures and deadlines


def test_an_operator_that_raises_is_recorded_and_the_next_one_measured(tmp_path: Path, log: Log) -> None:
    def time_case(case: Case) -> Sequence[float]:
        if case.kind == "bad":
            raise RuntimeError("CUDA out of memory\nand pages more")
        return [1.0]

    found = run_operators(tmp_path / FILE, [operator("bad"), operator("good")], time_case, in_a_minute(), log)
    assert [row["kind"] for row in found["rows"]] == ["good"]
    assert found["failures"] == [{"what": "bad fp32 forward n=1", "error": "RuntimeError: CUDA out of memory"}]
    assert found["skipped"] == []


def test_a_variant_that_cannot_run_gives_way_to_another_which_says_so(tmp_path: Path, log: Log) -> None:
    def time_case(case: Case) -> Sequence[float]:
        if case.variant == "special":
            raise ValueError("no such kernel")
        return [1.0]

    found = run_operators(tmp_path / FILE, [operator("one", variant="special")], time_case, in_a_minute(), log)
    assert [row["kind"] for row in found["rows"]] == ["other"]
    assert found["rows"][0]["instead_of"] == "special: ValueError: no such kernel"


def test_operators_after_the_deadline_are_listed_and_not_run(tmp_path: Path, log: Log) -> None:
    ran: list[str] = []

    def slow(case: Case) -> Sequence[float]:
        ran.append(case.kind)
        time.sleep(0.2)
        return [0.2]

    deadline = Deadline(at_s=time.monotonic() + 0.1)
    found = run_operators(tmp_path / FILE, [operator("slow"), operator("late")], slow, deadline, log)
    assert [row["kind"] for row in found["rows"]] == ["slow"]
    assert found["skipped"] == ["late fp32 forward n=1"]
    assert ran == ["slow"]


def test_a_lost_device_ends_the_operators(tmp_path: Path, log: Log) -> None:
    def explode(_: Case) -> Sequence[float]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    file = ResultFile(tmp_path / FILE, framework="torch", provenance={})
    cases = [operator("one"), operator("two")]
    section = file.begin("operators", [case.label for case in cases])
    with pytest.raises(DeviceLostError, match="illegal memory access"):
        run_cases(cases, section, in_a_minute(), backend=StandIn(time_case=explode, alive=False), log=log)
    assert section.done == 1


def stand_in_run(out: Path, log: Log, *, seconds: float) -> worker.Run:
    def explode(_: Case) -> Sequence[float]:
        raise RuntimeError("no kernel")

    now = time.monotonic()
    return worker.Run(
        framework="jax",
        backend=StandIn(time_case=explode),
        file=ResultFile(out / FILE, framework="jax", provenance={}),
        log=log,
        device="cpu",
        tiny=True,
        start_s=now,
        end_s=now + seconds,
    )


def test_without_time_every_section_lists_what_it_did_not_do(tmp_path: Path, log: Log) -> None:
    worker.measure_all(stand_in_run(tmp_path, log, seconds=-1.0), worker.SECTIONS)
    sections = read_results(tmp_path / FILE)["bench"]["runs"][0]["sections"]
    assert set(sections) == set(worker.SECTIONS)
    for section in sections.values():
        assert not section["rows"]
        assert section["skipped"]


def test_a_section_that_fails_does_not_stop_the_others(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def explode(*_: object, **__: object) -> None:
        raise ImportError("no module named yaml")

    monkeypatch.setattr("bench.gpu.cases.planned_cases", explode)
    worker.measure_all(stand_in_run(tmp_path, log, seconds=100.0), worker.SECTIONS)
    said = capsys.readouterr().out
    assert "failed: operators: ImportError: no module named yaml" in said
    sections = read_results(tmp_path / FILE)["bench"]["runs"][0]["sections"]
    assert [failure["error"] for failure in sections["steps"]["failures"]] == ["MemoryError: out of memory"]
    assert {failure["error"] for failure in sections["layers"]["failures"]} == {"ImportError: no module named pydantic"}


def test_one_file_holds_what_several_workers_leave(tmp_path: Path) -> None:
    note_section(tmp_path, "torch", "operators")
    note_section(tmp_path, "jax", "operators", "layers")
    note_section(tmp_path, "torch", "steps")
    assert sections_begun(tmp_path / FILE, "torch") == ("operators", "steps")
    assert sections_begun(tmp_path / FILE, "jax") == ("operators", "layers")
    validate_json(BenchFile, (tmp_path / FILE).read_text(encoding="utf-8"), where=FILE)


def test_another_programs_file_is_taken_for_none(tmp_path: Path) -> None:
    for text in ("", "[]", '{"bench": 1}', json.dumps({"schema": "cellplan.profiles/1", "profiles": []})):
        (tmp_path / FILE).write_text(text, encoding="utf-8")
        assert sections_begun(tmp_path / FILE, "torch") == ()


def run_into_the_alarm() -> None:
    with worker.alarm(0.05):
        for _ in range(1000):
            try:
                time.sleep(0.01)
            except Exception:  # what goes on after failures must not go on after this
                continue


def test_the_alarm_ends_what_overruns_even_where_exceptions_are_caught() -> None:
    with pytest.raises(OutOfTime):
        run_into_the_alarm()


def test_the_watchdog_ends_a_process_that_hears_no_alarm() -> None:
    script = (
        "import signal; from bench.gpu.worker import watchdog\n"
        "with watchdog(0.3):\n signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"
        " import threading; threading.Event().wait()"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == worker.FAILED
    assert "Timeout" in done.stderr


def test_jax_trains_one_loop_over_equal_blocks_or_each_by_itself() -> None:
    pytest.importorskip("jax")
    from dataclasses import replace

    from bench.gpu.steps_jax import segments_of

    (step,) = steps("jax", tiny=True)
    assert [(segment.first, segment.count) for segment in segments_of(step)] == [(0, 1), (1, 2), (3, 1)]
    alone = segments_of(replace(step, mode="compiled"))
    assert [(segment.first, segment.count) for segment in alone] == [(0, 1), (1, 1), (2, 1), (3, 1)]


def test_jax_trains_narrow_weights_through_wide_ones() -> None:
    pytest.importorskip("jax")
    import jax
    import jax.numpy as jnp

    from bench.gpu.steps_jax import State

    params = [{"narrow": jnp.ones(2, jnp.bfloat16), "wide": jnp.ones(3, jnp.float32)}]
    state = State.start(params)
    assert [leaf.dtype.itemsize for leaf in state.weights()] == [2, 4]
    assert state.narrow[1] is None, "an fp32 weight is its own master"
    after = jax.jit(State.after)
    for _ in range(3):
        state = after(state, [jnp.full(2, 2.0, jnp.bfloat16), jnp.full(3, 2.0, jnp.float32)])
    # With equal gradients each step of Adam is as long as the learning rate (1e-3), and the decay 1e-5 of the weight.
    assert state.wide[0] == pytest.approx([1 - 3 * 1.01e-3] * 2, abs=1e-6)
    assert state.wide[1] == pytest.approx([1 - 3 * 1.01e-3] * 3, abs=1e-6)
    assert state.narrow[0] is not None
    assert state.narrow[0].dtype == jnp.bfloat16
    assert (state.narrow[0] == state.wide[0].astype(jnp.bfloat16)).all()


def test_a_jax_program_holds_an_operator_several_times_and_none_is_left_out() -> None:
    pytest.importorskip("jax")
    import jax
    import jax.numpy as jnp

    from bench.gpu.timing_jax import chain

    sets = [(jnp.full((4, 4), float(number)), jnp.eye(4)) for number in range(3)]
    program = chain(jnp.matmul, sets)
    assert program.count == 3
    found = program.call()
    assert [float(product[0, 0]) for product in found] == [0.0, 1.0, 2.0]
    barriers = str(jax.make_jaxpr(lambda sets: chain(jnp.matmul, sets).call())(sets)).count("optimization_barrier")
    assert barriers == 2, "each begins when the one before has ended"


def test_small_operators_fill_a_program_and_large_ones_stand_alone() -> None:
    pytest.importorskip("jax")
    from types import SimpleNamespace

    from bench.gpu import timing_jax
    from bench.gpu.cases import gemm

    device: Any = SimpleNamespace(platform="gpu")
    assert timing_jax.calls_in_program(gemm(256, 256, 256, priority=0), device) == timing_jax.MOST_CALLS
    assert timing_jax.calls_in_program(gemm(16384, 16384, 16384, priority=0), device) == 1
    for case in planned_cases("jax", tiny=False, on_gpu=True):
        count = timing_jax.calls_in_program(case, device)
        assert count == 1 or count * case.bytes <= timing_jax.MOST_BYTES
