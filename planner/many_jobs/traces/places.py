"""Where the job of a row may run: the pools of the device that it names, and how many devices of them it takes."""

from __future__ import annotations

from collections.abc import Mapping

from planner.many_jobs.jobs.records import Pool
from planner.many_jobs.traces.records import TraceRow
from planner.shared.options.simulate import Counts, Oversize, UnknownDevice
from profiles.errors import InputError
from profiles.hardware import load_device


def pools_of(row: TraceRow, pools: Mapping[str, Pool], unknown: UnknownDevice, *, source: str) -> tuple[str, ...]:
    """Names of the pools that a row may go to: all where it names no device; else the pool of that name, or those of
    that device, by its name or an alias of it, or, failing that, by the name's beginning (`a100` is also a100-40gb).
    A device that no pool has is refused (InputError), or its row goes anywhere."""
    wanted = row.device
    if not wanted:
        return tuple(pools)
    if wanted in pools:
        return (wanted,)
    fitting = _pools_with(wanted, pools)
    if not fitting and unknown == "refuse":
        raise InputError(
            where=f"{source}, line {row.line}",
            key="device",
            found=repr(wanted),
            expected=f"a device of the cluster ({', '.join(sorted({pool.device for pool in pools.values()}))}), "
            "or --unknown-device draw",
        )
    return fitting or tuple(pools)


def _pools_with(wanted: str, pools: Mapping[str, Pool]) -> tuple[str, ...]:
    plain = wanted.strip().lower().replace("_", "-")
    exact = tuple(name for name, pool in pools.items() if pool.device == plain)
    if exact:
        return exact
    try:
        canonical = load_device(wanted).name
    except InputError:
        canonical = plain
    same_device = tuple(name for name, pool in pools.items() if pool.device == canonical)
    return same_device or tuple(name for name, pool in pools.items() if pool.device.startswith(f"{plain}-"))


def devices_of(
    row: TraceRow, names: tuple[str, ...], pools: Mapping[str, Pool], counts: Counts, oversize: Oversize, *, source: str
) -> int:
    """How many devices the row's job takes: its GPUs, or the next power of two. More than any of the pools has are
    refused (InputError), or cut to what the largest has (to its largest power of two with `counts` "powers"), or stay
    ("spread") up to what all pools of one type of device have together."""
    devices = row.gpus if counts == "keep" else 1 << (row.gpus - 1).bit_length()
    most = max((pools[name].devices for name in names), default=0)
    if devices <= most:
        return devices
    together = max((devices_like(name, pools) for name in names), default=0)
    if oversize == "spread" and devices <= together:
        return devices
    if oversize != "clip" or most == 0:
        rounded = "" if devices == row.gpus else f" (a power of two: {devices})"
        where = f"{source}, line {row.line}"
        expected = f"at most the {most} devices of the largest pool ({', '.join(names)}), or --oversize clip"
        if oversize == "spread":
            expected = f"at most the {together} devices of all pools of one type, or --oversize clip"
        elif len({pool.site for pool in pools.values()}) > 1:
            expected += f", or --oversize spread (at most the {together} devices of all pools of one type)"
        raise InputError(where=where, key="gpus", found=f"{row.gpus}{rounded}", expected=expected)
    return most if counts == "keep" else 1 << (most.bit_length() - 1)


def devices_like(name: str, pools: Mapping[str, Pool]) -> int:
    """The devices of all pools of the same type as this one."""
    return sum(pool.devices for pool in pools.values() if pool.device == pools[name].device)


def stand_in(name: str, devices: int, pools: Mapping[str, Pool]) -> tuple[str, int]:
    """Where a Cell stands for a job of this pool: its own devices there, or, where it asks for more than the pool has,
    the largest power of two of them that the largest pool of the type has."""
    asked = pools[name]
    if devices <= asked.devices:
        return name, devices
    largest = max((pool for pool in pools.values() if pool.device == asked.device), key=lambda pool: pool.devices)
    return largest.name, 1 << (min(devices, largest.devices).bit_length() - 1)
