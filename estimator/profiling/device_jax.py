"""Starts JAX with as many threads as a measurement wants, and finds its devices.

XLA's CPU threads are made when JAX first needs a device, as many as the environment then says, and stay as they are.
"""

from __future__ import annotations

import os
from pathlib import Path

import jax
from jax._src import xla_bridge

from estimator.profiling.setting import Setting
from profiles.errors import InputError, MachineError

_POOL_THREADS = "tf_XLAEigen"
_TASKS = Path("/proc/self/task")


def start_jax(setting: Setting) -> jax.Device:
    """Return the device of `setting`, in a JAX that computes on a CPU with `setting.threads` threads.

    The first call in a process starts JAX so, and leaves the environment as it was. Raise InputError for a device that
    JAX does not have; MachineError where JAX has already started with another number of threads (call this before
    anything that makes an array).
    """
    # JAX has no public function that says whether it has started.
    if not xla_bridge.backends_are_initialized():
        _start(setting.threads)
    device = check_device(setting.device)
    running = _cpu_threads()
    if device.platform == "cpu" and running not in (None, setting.threads):
        raise MachineError(
            f"JAX has started with {running} threads in this process, expected {setting.threads}: profile before other"
            f" use of JAX, or set NPROC={setting.threads}"
        )
    return device


def _start(threads: int) -> None:
    """Sets how large XLA's thread pool is, and that one thread needs no pool; memory of GPUs is taken as it is used."""
    wanted = {"NPROC": str(threads), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    if threads == 1:
        wanted["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        jax.devices()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _cpu_threads() -> int | None:
    """How many threads XLA computes with on the CPU; None where this system does not say."""
    try:
        names = [task.joinpath("comm").read_text(encoding="ascii").strip() for task in _TASKS.iterdir()]
    except OSError:
        return None
    return names.count(_POOL_THREADS) or None


def check_device(name: str) -> jax.Device:
    """The JAX device called `name` (cpu, cuda:0, tpu:0); InputError if there is none here."""
    usable: dict[str, jax.Device] = {"cpu": jax.devices("cpu")[0]}
    for device in jax.devices():
        if device.platform != "cpu":
            usable[f"{'cuda' if device.platform == 'gpu' else device.platform}:{device.id}"] = device
    wanted = name if ":" in name or name == "cpu" else f"{name}:0"
    if wanted not in usable:
        raise InputError(
            where="profile", key="--device", found=name, expected=f"one that JAX has here: {', '.join(usable)}"
        )
    return usable[wanted]
