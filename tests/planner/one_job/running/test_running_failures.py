"""What becomes of a run whose workers die, hang or lose their parent, and of a launcher's ranks that cannot meet."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.killed.processes import TOKEN, processes_with
from estimator.frontends.load import load_file_model
from estimator.host.ports import unused_port
from estimator.host.worker_processes import Limits, WorkerSpec, run_workers
from planner.cli import main as cli
from planner.one_job.running.launch import run_here, worker_specs
from planner.one_job.running.program import program_of
from planner.shared.plan import Plan
from planner.shared.plan_file import save_plan
from profiles.errors import MachineError
from tests.oracles.training_oracle import train_alone
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import orders_of, put_own_rates
from tests.processes import HANGS_S, new_token, wait_until

ROOT = str(Path(__file__).parents[4])
ENDLESS = 10**6
PATIENCE_S = 10.0
"""Of a run that is to be given up: many times what a step takes on a busy machine. Its start may take longer."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("failures")
    plan = hand_plan(write_config(found, "gpt", GPT), HandStage(chunks=((0, 6),), dp=2))
    save_plan(plan, found / "plan.json")
    put_own_rates(found / "store")
    return found


@pytest.fixture
def plan(folder: Path) -> Plan:
    return make_plan(folder)


def make_plan(folder: Path) -> Plan:
    return hand_plan(str(folder / "gpt" / "config.json"), HandStage(chunks=((0, 6),), dp=2))


def workers_of(token: str) -> list[int]:
    """Process ids of the workers that train."""
    return sorted(
        pid for pid, command in processes_with(token).items() if "planner.one_job.running.torch_worker" in command
    )


# Workers of this machine


def fail_after_two_steps(plan: Plan, token: str, sent: signal.Signals, *, timeout_s: float) -> tuple[str, float]:
    """Runs without end, sends a signal to one of the workers; the message, and the seconds from then on."""
    sent_at: list[float] = []

    def strike(done: int, _total: int, _what: str) -> None:
        if done >= 2 and not sent_at:
            sent_at.append(time.monotonic())
            os.kill(workers_of(token)[1], sent)

    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    orders = orders_of(plan, steps=ENDLESS, timeout_s=timeout_s)
    specs = [replace(spec, environment={TOKEN: token}) for spec in worker_specs(program, orders, pins=True)]
    with pytest.raises(MachineError) as failure:
        run_here(program, orders, pins=True, progress=strike, specs=specs)
    assert not workers_of(token), "a process was left behind"
    assert sent_at, f"it failed before: {failure.value}"
    return str(failure.value), time.monotonic() - sent_at[0]


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Iterator[Future[tuple[str, float]]]:
    """A run one of whose workers is stopped. It is mostly waiting: other tests take place meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        plan = make_plan(folder)
        yield pool.submit(fail_after_two_steps, plan, new_token(), signal.SIGSTOP, timeout_s=PATIENCE_S)


@pytest.mark.usefixtures("stopped")
def test_a_killed_worker_ends_the_run_by_its_name(plan: Plan) -> None:
    message, seconds = fail_after_two_steps(plan, new_token(), signal.SIGKILL, timeout_s=600.0)
    assert message.startswith("run: killed by signal 9, worker 1: ")
    assert seconds < HANGS_S


LIGHT_WORKER = """
import json, os, pathlib, signal, sys, time
request = json.loads(sys.stdin.readline())
stopping = pathlib.Path(request["results"]).with_name("stopping")
with open(request["results"], "a") as lines:
    for number in range(10):
        while number == 9 and not stopping.exists():
            time.sleep(0.01)
        print(json.dumps({"number": number}), file=lines, flush=True)
        time.sleep(0.05)
        if request["rank"] == 2 and number == 3:
            print("about to stop", file=sys.stderr, flush=True)
            time.sleep(0.2)  # The others are heard later.
            stopping.touch()
            os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(600)
"""


def test_of_silent_workers_the_one_that_was_heard_least_lately_is_named(token: str) -> None:
    heard: list[tuple[int, int]] = []
    with pytest.raises(MachineError) as failure:
        run_workers(
            [WorkerSpec(command=(sys.executable, "-c", LIGHT_WORKER), request={})] * 4,
            what="light",
            limits=Limits(silent_s=5.0),
            on_line=lambda rank, value: heard.append((rank, value["number"])),
        )
    assert str(failure.value) == "light: no worker got on for 5 s, worker 2 the longest; worker 2: about to stop"
    assert sorted(heard) == [(rank, number) for rank in range(4) for number in range(4 if rank == 2 else 10)]
    assert not processes_with(token)


SLOW_TO_START = """
import json, sys, time
request = json.loads(sys.stdin.readline())
time.sleep(request["starting_s"][request["rank"]])
with open(request["results"], "a") as lines:
    print(json.dumps({}), file=lines, flush=True)
time.sleep(request["working_s"])
"""


@pytest.mark.parametrize(
    ("starting_s", "working_s", "limits", "given_up_s"),
    [
        ((0.0, 6.0), 0.0, Limits(silent_s=5.0, start_s=600.0), None),
        ((0.0, 600.0), 0.0, Limits(silent_s=0.3, start_s=1.5), 1.5),
        ((0.0, 0.0), 600.0, Limits(silent_s=0.3, start_s=600.0), 0.3),
    ],
)
def test_a_start_may_take_longer_than_a_step(
    token: str, starting_s: tuple[float, ...], working_s: float, limits: Limits, given_up_s: float | None
) -> None:
    request = {"starting_s": starting_s, "working_s": working_s}
    specs = [WorkerSpec(command=(sys.executable, "-c", SLOW_TO_START), request=request)] * 2

    def run() -> None:
        run_workers(specs, what="slow", limits=limits, on_line=lambda _rank, _value: None)

    if given_up_s is None:
        run()
    else:
        with pytest.raises(MachineError, match=f"slow: no worker got on for {given_up_s:g} s, worker "):
            run()
    assert not processes_with(token)


def test_a_core_that_there_is_not_is_the_machines_failure(token: str) -> None:
    spec = WorkerSpec(command=(sys.executable, "-c", LIGHT_WORKER), request={})
    none = max(os.sched_getaffinity(0)) + 1000
    with pytest.raises(MachineError, match="light: cannot run 2 workers: "):
        run_workers(
            [spec, replace(spec, cores=(none,))],
            what="light",
            limits=Limits(silent_s=60.0),
            on_line=lambda _rank, _value: None,
        )
    assert not processes_with(token)


# Ranks of a launcher


@pytest.fixture
def port() -> int:
    return unused_port()


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the plan as one rank of a launcher; its exit status and what it says on stderr."""

    def run(rank: int, port: int | str, *, size: int = 2, timeout: str = "1") -> tuple[int, str]:
        for name, value in (("RANK", rank), ("WORLD_SIZE", size), ("LOCAL_WORLD_SIZE", size), ("MASTER_PORT", port)):
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        store = str(folder / "store")
        status = cli.main(["run", str(folder / "plan.json"), "--store", store, "--timeout", timeout, "--json"])
        shown = capsys.readouterr()
        if rank == 0:
            assert json.loads(shown.out)["failure"]["status"] == status
        else:
            assert shown.out == ""
        return status, shown.err

    return run


def test_a_port_in_use_is_named(as_rank: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        status, message = as_rank(0, port)
    assert status == 4
    assert message == f"cellplan: error: run: port {port} of 127.0.0.1 is in use by another program\n"


@pytest.mark.parametrize("rank", [0, 1])
def test_a_world_of_another_size_is_wrong_input(as_rank: Any, port: int, rank: int) -> None:
    status, message = as_rank(rank, port, size=3)
    assert status == 2
    assert "environment: WORLD_SIZE: found 3, expected 2, a process for each rank of the plan" in message


@pytest.mark.parametrize("rank", [0, 1])
def test_peers_that_never_come_are_given_up(as_rank: Any, port: int, rank: int) -> None:
    begin = time.monotonic()
    status, message = as_rank(rank, port)
    assert status == 4
    assert f"run: rank {rank} of 2 at 127.0.0.1:{port}: " in message
    assert time.monotonic() - begin < HANGS_S


def test_numbers_that_are_none_are_wrong_input(as_rank: Any) -> None:
    status, message = as_rank(0, "here")
    assert status == 2
    assert "MASTER_PORT=here, expected the numbers that torchrun sets" in message


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_torchrun_trains_as_one_machine_alone_does(
    backend: str, plan: Plan, folder: Path, token: str, port: int
) -> None:
    """Two ranks under the real launcher: JSON comes from rank 0 alone, and the losses are those of one process."""
    launcher = ["torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
    command = [sys.executable, "-m", *launcher, "--master-port", str(port), "-m", "planner.cli.main"]
    words = ["run", str(folder / "plan.json"), "--steps", "2", "--store", str(folder / "store"), "--json"]
    words += ["--backend", backend]
    environment = {**os.environ, "PYTHONPATH": ROOT}
    done = subprocess.run(
        [*command, *words], capture_output=True, text=True, env=environment, timeout=2 * HANGS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    program = program_of(plan, load_file_model(plan.model.reference), where="plan")
    alone = train_alone(
        program.model, seq_len=16, steps=3, global_batch=8, at_once=1, learning_rate=1e-3, optimizer="adamw"
    )
    assert found["losses"] == pytest.approx(alone, rel=2e-5)
    assert found["plan"]["ranks"] == len(found["measured"]["stages"]) + 1 == 2
    assert found["estimated"]["iteration_time_s"] > 0
    wait_until(lambda: not processes_with(token), lambda: f"left: {processes_with(token)}")  # the launcher's own


# The run that has been waiting all the while


def test_a_stopped_worker_ends_the_run_in_time(stopped: Future[tuple[str, float]]) -> None:
    """The worker that waits for it is more patient than the parent, who counts from the last that it heard."""
    message, seconds = stopped.result(2 * HANGS_S)
    assert re.match(rf"run: no worker got on for {PATIENCE_S:g} s, worker [01] the longest; worker [01]: ", message)
    assert PATIENCE_S <= seconds < HANGS_S
