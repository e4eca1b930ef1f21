"""A world of JAX processes, one for each device: joined through JAX's coordination service, gloo on a CPU."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from jax._src import distributed

from estimator.communication.messages import Messenger
from estimator.host.ports import LOOPBACK, unused_port
from profiles.errors import MachineError
from profiles.records import dataclass

_POLL_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxWorld:
    """This process's place: the devices of all ranks in their order, and what it can tell the others."""

    rank: int
    devices: tuple[Any, ...]
    messenger: Messenger
    timeout_s: float

    def publish(self, name: str, text: str) -> None:
        """Make `text` known to all ranks."""
        distributed.global_state.client.key_value_set(f"cellplan/{name}", text)

    def look_up(self, name: str) -> str:
        """Return what was published under `name`, once it is. Raise RuntimeError if it is not in time."""
        return _look_up(name, self.timeout_s)

    def barrier(self, name: str) -> None:
        """Wait for all ranks; each `name` once."""
        distributed.global_state.client.wait_at_barrier(f"cellplan/{name}", _milliseconds(self.timeout_s))


@contextmanager
def joined_world(
    rank: int, world_size: int, coordinator: str, *, timeout_s: float, local_gpu: int | None = None
) -> Iterator[JaxWorld]:
    """Join `world_size` processes whose rank 0 serves them at `coordinator` (address:port), and leave them at the end.

    `local_gpu` is the GPU that is this process's, None for a CPU. Nothing of JAX may have been computed before.
    """
    host, port = coordinator.rsplit(":", 1)
    if local_gpu is None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        world_size,
        rank,
        local_device_ids=None if local_gpu is None else [local_gpu],
        coordinator_bind_address=coordinator if host == LOOPBACK else None,
        initialization_timeout=_seconds(timeout_s),
        # A worker that is lost is its parent's to see; a slow one is only slow.
        heartbeat_timeout_seconds=_seconds(timeout_s),
        shutdown_timeout_seconds=_seconds(timeout_s),
        cluster_detection_method="deactivate",
    )
    try:
        messenger = Messenger(
            rank,
            _own_address(host, int(port)),
            publish=lambda name, text: distributed.global_state.client.key_value_set(f"cellplan/{name}", text),
            look_up=lambda name: _look_up(name, timeout_s),
            timeout_s=timeout_s,
        )
        devices = tuple(sorted(jax.devices(), key=lambda device: (device.process_index, device.id)))
        yield JaxWorld(rank=rank, devices=devices, messenger=messenger, timeout_s=timeout_s)
        messenger.close()
    finally:
        jax.distributed.shutdown()


def local_coordinator(meeting: Path, rank: int, timeout_s: float) -> str:
    """Return the address that rank 0 of this machine's processes will serve: it picks a free port and writes it to
    `meeting`. Raise MachineError where it has not in time."""
    if rank == 0:
        address = f"{LOOPBACK}:{unused_port()}"
        draft = meeting.with_suffix(".draft")
        draft.write_text(address, encoding="utf-8")
        draft.replace(meeting)
        return address
    end_s = time.monotonic() + timeout_s
    while not meeting.exists():
        if time.monotonic() > end_s:
            raise MachineError(f"run: rank 0 gave no address in {timeout_s:g} s")
        time.sleep(_POLL_S)
    return meeting.read_text(encoding="utf-8")


def _own_address(host: str, port: int) -> str:
    """The address of this machine from which the coordinator is reached."""
    if host == LOOPBACK:
        return host
    with socket.create_connection((host, port)) as connection:
        return str(connection.getsockname()[0])


def _look_up(name: str, timeout_s: float) -> str:
    text: str = distributed.global_state.client.blocking_key_value_get(f"cellplan/{name}", _milliseconds(timeout_s))
    return text


def _seconds(timeout_s: float) -> int:
    return max(1, round(min(timeout_s, 24 * 3600)))


def _milliseconds(timeout_s: float) -> int:
    return 1000 * _seconds(timeout_s)
