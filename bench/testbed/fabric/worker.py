"""One emulated worker on a place of a host: sleeps as long as it would compute, then sends what its job sends.

A round is jobs that run at the same time, each on places of its own, until a common moment; rounds follow each other.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from bench.testbed.sleeping import sleep
from estimator.host.worker_processes import read_request

_TIMEOUT = timedelta(seconds=120)
_SOON_S = 0.1
_FIRST = -10
"""Workers sleep nearly all the time: whatever else this machine does need not keep them from waking."""
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")


def main() -> None:
    """Write a line for each round: how much too late this rank woke, in the mean; of the first rank of a job, when each
    of its iterations ended."""
    request = read_request()
    rank, world_size = request["rank"], request["world_size"]
    torch.set_num_threads(1)
    with contextlib.suppress(PermissionError):
        os.nice(_FIRST)
    with Path(request["results"]).open("a", encoding="utf-8") as lines:
        store = dist.TCPStore(request["address"], request["port"], world_size, is_master=rank == 0, timeout=_TIMEOUT)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)
        usual = _PORTS.read_text(encoding="ascii")
        for number, one in enumerate(request["rounds"]):
            found = _round(one, rank)
            _PORTS.write_text(usual, encoding="ascii")
            print(json.dumps({"round": number, **found}), file=lines, flush=True)
        dist.barrier()
        dist.destroy_process_group()


def _round(one: dict[str, Any], rank: int) -> dict[str, Any]:
    """Connect, begin with all others, and run to the end."""
    jobs: list[dict[str, Any]] = one["jobs"]
    own = next((number for number, job in enumerate(jobs) if rank in job["ranks"]), None)
    if own is not None:
        first, last = jobs[own]["ports"][jobs[own]["ranks"].index(rank)]
        _PORTS.write_text(f"{first} {last}\n", encoding="ascii")
        _mark(jobs[own].get("marks", ""))
    groups = [dist.new_group(job["ranks"]) if job["kind"] == "ring" else None for job in jobs]
    ends = None if own is None else _connect(jobs[own], rank, groups[own])
    dist.barrier()
    begins = torch.tensor([time.perf_counter() + _SOON_S], dtype=torch.float64)
    dist.broadcast(begins, 0)
    found: dict[str, Any] = {}
    if own is not None:
        assert ends is not None
        with ends[1]:
            sleep(float(begins) - time.perf_counter())
            before = _ticks()
            first = rank == jobs[own]["ranks"][0]
            stamps, late_s = _run(jobs[own], ends[0], first=first, end_s=float(begins) + one["lasts_s"])
        found = {"late_s": late_s, **_shares(before, _ticks())}
        if first:
            found |= {"job": own, "ended_s": [stamp - float(begins) for stamp in stamps]}
    dist.barrier()
    for group in groups:
        if group is not None and group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    return found


def _ticks() -> list[int]:
    """What the cores have done so far: user, nice, system, idle, waiting for I/O, interrupts (two kinds), stolen."""
    with Path("/proc/stat").open(encoding="ascii") as lines:
        return [int(field) for field in lines.readline().split()[1:9]]


def _shares(before: list[int], after: list[int]) -> dict[str, float]:
    spent = [late - early for early, late in zip(before, after, strict=True)]
    every = sum(spent) or 1
    return {"busy": 1 - (spent[3] + spent[4]) / every, "stolen": spent[7] / every}


def _mark(rules: str) -> None:
    """Have `nft` load rules in this namespace: those that put a DSCP on what leaves it."""
    if rules:
        command = ("nft", "-f", "-")
        done = subprocess.run(
            command, input=rules, text=True, capture_output=True, check=False, timeout=_TIMEOUT.total_seconds()
        )
        if done.returncode:
            raise RuntimeError(f"nft: {done.stderr.strip()}")


Send = Callable[[bool], bool]
"""Sends what an iteration sends, given whether it is the last; whether it was (who only receives is told)."""


class _Nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: object) -> None: ...


def _connect(job: dict[str, Any], rank: int, group: Any) -> tuple[Send, Any]:
    if job["kind"] == "ring":
        return _ring(job, group), _Nothing()
    connection = _meet(job, rank)
    return (_sender if rank == job["ranks"][0] else _receiver)(job, connection), connection


def _ring(job: dict[str, Any], group: dist.ProcessGroup) -> Send:
    vector, ranks = torch.zeros(job["bytes"] // 4), len(job["ranks"])

    def send(last: bool) -> bool:
        vector.fill_(1.0)
        vector[0] = float(last)
        dist.all_reduce(vector, group=group)
        if vector[-1] != ranks:
            raise RuntimeError(f"all-reduce over {ranks} ranks: a sum that is wrong")
        return bool(vector[0])

    return send


def _meet(job: dict[str, Any], rank: int) -> socket.socket:
    """The connection from the first rank to the second, whose port is the first of its own."""
    address, (port, _) = job["receiver"], job["ports"][1]
    if rank != job["ranks"][0]:
        with socket.create_server((address, port)) as server:
            connection, _ = server.accept()
    else:
        connection = _call(address, port)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _call(address: str, port: int) -> socket.socket:
    deadline_s = time.monotonic() + _TIMEOUT.total_seconds()
    while True:
        try:
            return socket.create_connection((address, port), timeout=_TIMEOUT.total_seconds())
        except ConnectionRefusedError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _sender(job: dict[str, Any], connection: socket.socket) -> Send:
    data = bytearray(job["bytes"])

    def send(last: bool) -> bool:
        data[0] = last
        connection.sendall(data)
        if connection.recv(1) != b"x":
            raise RuntimeError("flow: the other end has gone")
        return last

    return send


def _receiver(job: dict[str, Any], connection: socket.socket) -> Send:
    data = memoryview(bytearray(job["bytes"]))

    def receive(_: bool) -> bool:
        at = 0
        while at < len(data):
            got = connection.recv_into(data[at:])
            if not got:
                raise RuntimeError("flow: the other end has gone")
            at += got
        connection.sendall(b"x")
        return bool(data[0])

    return receive


def _run(job: dict[str, Any], send: Send, *, first: bool, end_s: float) -> tuple[list[float], float]:
    """When each iteration ended, by the job's first rank, which says when it is the last; and how much too late this
    rank woke, in the mean. Compute varies by the same shares on all ranks; who only receives need not compute."""
    rng, stamps, last = random.Random(job["seed"]), [], False
    late_s = []
    computes = first or job["kind"] == "ring"
    if computes:
        sleep(job.get("offset_s", 0.0))
    period_s, due_s = job.get("period_s", 0.0), time.perf_counter()
    while not last:
        began_s = time.perf_counter()
        longer = 1 + job["jitter"] * rng.uniform(-1.0, 1.0)
        if computes:
            sleep(job["begins_s"] * longer)
            late_s.append(time.perf_counter() - began_s - job["begins_s"] * longer)
        last = send(first and time.perf_counter() > end_s)
        if computes:
            sleep(began_s + job["compute_s"] * longer - time.perf_counter())
            due_s = _hold(due_s, period_s)
        stamps.append(time.perf_counter())
    return stamps, sum(late_s) / len(late_s) if late_s else 0.0


def _hold(due_s: float, period_s: float) -> float:
    """Wait until a period after `due_s`, and return when that was; who is late goes on at once, and makes up for no
    period that was missed whole."""
    now_s = time.perf_counter()
    if period_s <= 0:
        return now_s
    due_s += period_s
    if due_s > now_s:
        sleep(due_s - now_s)
        return due_s
    return due_s + (now_s - due_s) // period_s * period_s


if __name__ == "__main__":
    main()
    os._exit(0)
