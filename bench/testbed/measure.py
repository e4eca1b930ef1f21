"""What the links of an emulated network do with gloo: the times that an estimate of a run on it may be fed with."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO

from bench.testbed.network import Network, Seat
from estimator.communication.measure_torch import World
from profiles.errors import InputError, MachineError
from profiles.vocabulary import CollectiveOp

_FIRST_PORT, _PORTS = 23_000, 2_000
_POLL_S = 0.02
_ports = itertools.count()


def measure_between(
    network: Network,
    ranks: Sequence[int],
    sizes: Sequence[int],
    op: CollectiveOp,
    *,
    repeats: int = 20,
    timeout_s: float = 120.0,
) -> list[tuple[int, float]]:
    """(bytes, seconds) of `op` among the seats of `ranks`, in that order, for each size (bytes as nccl-tests counts).

    Every rank is a process of one thread. A time is the fastest repeat's on its slowest rank; send_recv is half a round
    trip between the first and the last rank. See `measure_links`.

    Raises:
        InputError: fewer than two ranks, one twice, or one that has no seat; an op that gloo lacks.
        MachineError: a rank failed, or not all were done in time.
    """
    seats = {seat.rank: seat for seat in network.seats}
    if len(ranks) < 2 or len(set(ranks)) != len(ranks) or not set(ranks) <= set(seats):
        expected = f"two or more different ones of the {len(seats)} seats"
        raise InputError(where="measure between", key="ranks", found=tuple(ranks), expected=expected)
    taken = [seats[rank] for rank in ranks]
    request = {"sizes": list(sizes), "op": op, "repeats": repeats, "timeout_s": timeout_s}
    port = _FIRST_PORT + next(_ports) % _PORTS if network.emulated else _free_port()
    with contextlib.ExitStack() as stack:
        outputs = [stack.enter_context(tempfile.TemporaryFile("w+", encoding="utf-8")) for _ in taken]
        processes = []
        for number, (seat, output) in enumerate(zip(taken, outputs, strict=True)):
            world = World(
                rank=number,
                world_size=len(taken),
                ranks_per_node=len(taken),
                address=taken[0].address,
                port=port,
                agent_store=False,
            )
            process = _start(seat, output)
            stack.callback(_stop, process)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # It died at once: its output says of what.
                process.stdin.write(json.dumps({**request, "world": asdict(world)}).encode() + b"\n")
                process.stdin.flush()
            processes.append(process)
        _wait(processes, outputs, timeout_s)
        outputs[0].seek(0)
        points = json.loads(outputs[0].read().strip().splitlines()[-1])["points"]
    return [(int(size), float(seconds)) for size, seconds in points]


def _start(seat: Seat, output: IO[str]) -> subprocess.Popen[bytes]:
    root = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        **dict(seat.environment),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
    }
    return subprocess.Popen(
        (*seat.prefix, sys.executable, "-m", "bench.testbed.link_worker"),
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def _wait(processes: Sequence[subprocess.Popen[bytes]], outputs: Sequence[IO[str]], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while any(process.poll() is None for process in processes):
        failed = [number for number, process in enumerate(processes) if process.poll()]
        if failed or time.monotonic() > deadline:
            number = failed[0] if failed else next(n for n, process in enumerate(processes) if process.poll() is None)
            what = f"exit status {processes[number].poll()}" if failed else f"not done after {timeout_s:g} s"
            raise MachineError(f"measure between: rank {number}: {what}, {_last_line(outputs[number])}")
        time.sleep(_POLL_S)
    for number, process in enumerate(processes):
        if process.returncode:
            raise MachineError(
                f"measure between: rank {number}: exit status {process.returncode}, {_last_line(outputs[number])}"
            )


def _last_line(output: IO[str]) -> str:
    output.seek(0)
    lines = [line.strip() for line in output.read().splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
