"""Measuring links with real gloo processes on this machine, and what happens when they fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.killed.processes import is_running
from estimator.communication import measure_torch
from estimator.communication.measure_torch import ALL_OPS, measure_links
from estimator.communication.measuring import Measured, World
from estimator.host import worker_processes
from estimator.host.cpu import cpu_name
from estimator.host.ports import unused_port
from profiles.errors import InputError, MachineError
from tests.processes import HANGS_S, all_running, wait_until

SIZES = (4096, 262_144)


def test_two_workers_measure_every_op() -> None:
    seen: list[tuple[int, int, str]] = []
    tables = measure_links(
        link_name="loopback",
        sizes=SIZES,
        repeats=3,
        progress=lambda done, total, what: seen.append((done, total, what)),
    )
    assert [table.op for table in tables] == list(ALL_OPS)
    for table in tables:
        assert (table.link, table.ranks, table.nodes, table.provenance) == ("loopback", 2, 1, "measured")
        assert tuple(size for size, _ in table.points) == SIZES
        assert all(0 < seconds < 1 for _, seconds in table.points)
        assert ("gloo" in table.source, table.backend, table.hardware) == (True, "gloo", cpu_name())
    assert [done for done, _, _ in seen] == list(range(1, 11))
    assert {total for _, total, _ in seen} == {10}
    assert seen[0][2] == "all_reduce 4096 bytes, 2 ranks"


def test_calls_between_computing_and_those_of_jax() -> None:
    """A busy rank's mean is one figure a size, and says so; JAX's devices are a backend of their own."""
    busy = measure_links(link_name="l", sizes=SIZES, ops=("all_reduce", "send_recv"), repeats=2, busy=True)
    assert [table.source.split(", ")[1] for table in busy] == ["mean of calls between computing"] * 2
    assert all(seconds > 0 for table in busy for _, seconds in table.points)
    (jax,) = measure_links(link_name="l", sizes=SIZES, ops=("all_reduce",), repeats=2, backend="xla")
    assert (jax.backend, jax.ranks, tuple(size for size, _ in jax.points)) == ("xla", 2, SIZES)
    assert jax.source.startswith("jax ")


def test_rank_counts_share_workers_and_round_sizes_up() -> None:
    tables = measure_links(link_name="l", ranks=(3, 2), sizes=(1000,), ops=("all_gather", "send_recv"), repeats=1)
    found = {(table.op, table.ranks): table.points[0][0] for table in tables}
    assert found == {("all_gather", 2): 1000, ("all_gather", 3): 1008, ("send_recv", 2): 1000}


def test_ranks_of_a_launcher_each_get_the_tables() -> None:
    port = unused_port()
    code = (
        "import sys; from estimator.communication.measure_torch import *\n"
        "world = World(rank=int(sys.argv[1]), world_size=2, ranks_per_node=1, address='127.0.0.1',\n"
        f"              port={port}, agent_store=False)\n"
        "tables = measure_links(link_name='ib', sizes=(4096,), ops=('all_reduce', 'send_recv'), repeats=2,\n"
        "                       timeout_s=120, world=world)\n"
        "print(sorted((table.op, table.ranks, table.nodes, table.points) for table in tables))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "GLOO_SOCKET_IFNAME": "lo"}
    commands = [[sys.executable, "-c", code, str(rank)] for rank in range(2)]
    with all_running(commands, stdout=subprocess.PIPE, env=environment, text=True) as ranks:
        first, second = (process.communicate(timeout=2 * HANGS_S)[0] for process in ranks)
    assert [process.returncode for process in ranks] == [0, 0]
    assert first == second
    assert "('all_reduce', 2, 2, ((4096," in first
    assert "('send_recv', 2, 2, ((4096," in first


def test_an_op_that_the_backend_lacks_takes_its_stand_in_and_says_so() -> None:
    gathered = Measured(op="all_gather", ranks=4, nodes=1, bytes=4096, seconds=(2e-5, 1e-5))
    lacking = Measured(op="reduce_scatter", ranks=4, nodes=1, unsupported="Gloo does not support it")
    first, second = measure_torch._tables("l", "gloo", [lacking, gathered], busy=False)
    assert (first.op, first.provenance) == ("all_gather", "measured")
    assert (second.op, second.provenance, second.points) == ("reduce_scatter", "modelled", first.points)
    assert "reduce_scatter taken from all_gather" in second.source
    with pytest.raises(InputError, match=r"reduce_scatter, which gloo lacks .* expected all_gather measured as well"):
        measure_torch._tables("l", "gloo", [lacking], busy=False)


def replace_worker(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    monkeypatch.setattr(measure_torch, "WORKER", (sys.executable, "-c", code))


def test_a_worker_that_dies_is_named_with_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_worker(monkeypatch, "import sys; print('one'); print('first', file=sys.stderr); sys.exit('out of luck')")
    with pytest.raises(MachineError, match=r"exit status 1, worker [01]: out of luck"):
        measure_links(link_name="l", timeout_s=120)


def test_a_killed_worker_is_named_before_the_one_that_lost_it(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import fcntl, json, os, pathlib, signal, sys, time\n"
        "request = json.loads(sys.stdin.readline())\n"
        "dying = pathlib.Path(request['results']).with_name('dying')\n"
        "held = open(dying.with_name('held'), 'w')\n"
        "if request['rank'] == 1:\n"
        "    fcntl.flock(held, fcntl.LOCK_EX); dying.touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "while not dying.exists():\n"
        "    time.sleep(0.01)\n"
        "fcntl.flock(held, fcntl.LOCK_EX)  # once the other is dead\n"
        "sys.exit('Connection closed by peer')\n"
    )
    replace_worker(monkeypatch, code)
    monkeypatch.setattr(worker_processes, "_POLL_S", 1.0)
    with pytest.raises(MachineError, match="killed by signal 9, worker 1: no message"):
        measure_links(link_name="l", timeout_s=120)


def test_a_measurement_that_hangs_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    replace_worker(monkeypatch, "import time; time.sleep(600)")
    with pytest.raises(MachineError, match=r"not done after 1 s; worker \d: no message"):
        measure_links(link_name="l", timeout_s=1)


def test_a_worker_that_hangs_is_killed_with_its_children() -> None:
    """It ignores the end of its input and SIGTERM, and has a child of its own."""
    code = (
        "import json, os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "request = json.loads(sys.stdin.readline())\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "with open(request['results'], 'a') as lines:\n"
        "    print(json.dumps({'pids': [os.getpid(), child.pid]}), file=lines, flush=True)\n"
        "time.sleep(600)\n"
    )
    pids: list[int] = []
    with pytest.raises(MachineError, match=r"no worker got on for 0.5 s, worker \d the longest"):
        worker_processes.run_workers(
            [worker_processes.WorkerSpec(command=(sys.executable, "-c", code), request={})] * 2,
            what="hang",
            limits=worker_processes.Limits(silent_s=0.5),
            on_line=lambda _, line: pids.extend(line["pids"]),
        )
    assert len(pids) == 4
    wait_until(lambda: not any(map(is_running, pids)), "a process was left behind")


def test_a_program_that_cannot_start_is_a_machine_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(measure_torch, "WORKER", (str(tmp_path / "no-such-python"),))
    with pytest.raises(MachineError, match="cannot run 2 workers"):
        measure_links(link_name="l")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"backend": "mpi"}, "backend: found mpi, expected one of gloo, nccl, xla"),
        ({"ranks": (1, 2)}, r"ranks: found \(1, 2\), expected rank counts of at least 2"),
        ({"ranks": ()}, r"ranks: found \(\)"),
        ({"sizes": (0,)}, "sizes: .* expected bytes, at least 1"),
        ({"ops": ("broadcast",)}, "ops: found .*broadcast.* expected some of all_reduce"),
        ({"repeats": 0}, "repeats: found 0"),
        ({"timeout_s": 0.0}, "--timeout: found 0.0"),
    ],
)
def test_arguments_that_cannot_be(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_links(link_name="l", **arguments)  # type: ignore[arg-type]


def test_ranks_of_a_launcher_are_checked() -> None:
    world = World(rank=0, world_size=16, ranks_per_node=8, address="h", port=1, agent_store=True)
    with pytest.raises(InputError, match="at most the 16 that were launched"):
        measure_links(link_name="l", ranks=(32,), world=world)
    with pytest.raises(InputError, match="they cross different links"):
        measure_links(link_name="l", ranks=(8, 16), world=world)
