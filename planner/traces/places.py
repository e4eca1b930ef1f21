"""Where the job of a row may run: the pools of the device that it names, and how many devices of them it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.scheduling.records import Pool
from planner.traces.records import TraceRow
from profiles.errors import InputError
from profiles.hardware import load_device

Counts = Literal["keep", "powers"]
Oversize = Literal["refuse", "clip"]
UnknownDevice = Literal["refuse", "draw"]


def pools_of(row: TraceRow, pools: Mapping[str, Pool], unknown: UnknownDevice, *, source: str) -> tuple[str, ...]:
    """Names of the pools that a row may go to: all where it names no device; else the pool of that name, or those of
    that device, by its name or an alias of it, or, failing that, by the name's beginning (`a100` is also a100-40gb).
    A device that no pool has is refused (InputError), or its row goes anywhere."""
    wanted = row.device
    if not wanted:
        return tuple(pools)
    if wanted in pools:
        return (wanted,)
    found = _pools_with(wanted, pools)
    if not found and unknown == "refuse":
        raise InputError(
            where=f"{source}, line {row.line}",
            key="device",
            found=repr(wanted),
            expected=f"a device of the cluster ({', '.join(sorted({pool.device for pool in pools.values()}))}), "
            "or --unknown-device draw",
        )
    return found or tuple(pools)


def _pools_with(wanted: str, pools: Mapping[str, Pool]) -> tuple[str, ...]:
    plain = wanted.strip().lower().replace("_", "-")
    exact = tuple(name for name, pool in pools.items() if pool.device == plain)
    if exact:
        return exact
    try:
        canonical = load_device(wanted).name
    except InputError:
        canonical = plain
    found = tuple(name for name, pool in pools.items() if pool.device == canonical)
    return found or tuple(name for name, pool in pools.items() if pool.device.startswith(f"{plain}-"))


def devices_of(
    row: TraceRow, names: tuple[str, ...], pools: Mapping[str, Pool], counts: Counts, oversize: Oversize, *, source: str
) -> int:
    """How many devices the row's job takes: its GPUs, or the next power of two. More than any of the pools has are
    refused (InputError), or cut to what the largest has (to its largest power of two with `counts` "powers")."""
    devices = row.gpus if counts == "keep" else 1 << (row.gpus - 1).bit_length()
    most = max((pools[name].devices for name in names), default=0)
    if devices <= most:
        return devices
    if oversize == "refuse" or most == 0:
        rounded = "" if devices == row.gpus else f" (a power of two: {devices})"
        where = f"{source}, line {row.line}"
        expected = f"at most the {most} devices of the largest pool ({', '.join(names)}), or --oversize clip"
        raise InputError(where=where, key="gpus", found=f"{row.gpus}{rounded}", expected=expected)
    return most if counts == "keep" else 1 << (most.bit_length() - 1)
