"""The hardware catalogue: devices and links by name, read from `data/devices.toml` and `data/links.toml`."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from typing import Any

from profiles.errors import InputError
from profiles.tables import DATA, parse_tables, read_tables
from profiles.vocabulary import Device, Link, ReferenceNode

GIB = 2**30


def device_names() -> tuple[str, ...]:
    """Return the names of all devices, in the catalogue's order (by vendor and age)."""
    return tuple(_devices())


def link_names() -> tuple[str, ...]:
    """Return the names of all links, in the catalogue's order (by kind and age)."""
    return tuple(_links())


def load_device(name: str, *, where: str = "hardware catalogue", key: str | None = None) -> Device:
    """Return the device called `name`, or by an alias, in any case and with spaces or underscores for hyphens.

    Raise InputError with the nearest names if there is none; `where` and `key` say where the name was found.

    >>> load_device("A100 SXM 80GB").name
    'a100-80gb'
    """
    plain = name.strip().lower().replace(" ", "-").replace("_", "-")
    device = _devices().get(_aliases().get(plain, plain))
    if device is None:
        raise _unknown("device", name, [*_devices(), *_aliases()], where=where, key=key)
    return device


def load_link(name: str, *, where: str = "hardware catalogue", key: str | None = None) -> Link:
    """Return the link called `name`. Raise InputError with the nearest names if there is none.

    >>> load_link("nvswitch3").bandwidth_bytes_per_s
    300000000000.0
    """
    link = _links().get(name)
    if link is None:
        raise _unknown("link", name, list(_links()), where=where, key=key)
    return link


def check_link_name(name: str, *, where: str, key: str) -> None:
    """Raise InputError for a name that looks like a slip for a link of the catalogue.

    Others are a user's own: of a link that a cluster file defines, or of two sites (`north--south`).
    """
    plain = name.strip().lower()
    if name in _links() or "--" in name or any(link in plain and link != plain for link in _links()):
        return
    if not plain or get_close_matches(plain, list(_links()), n=1, cutoff=0.8):
        raise _unknown("link", name, list(_links()), where=where, key=key)


def _unknown(kind: str, name: str, names: list[str], *, where: str, key: str | None) -> InputError:
    near = get_close_matches(name.lower(), names, n=3, cutoff=0.4)
    hint = f" such as {', '.join(near)}" if near else ""
    expected = f"a {kind} of the catalogue{hint} (all of them: cellplan hardware list)"
    return InputError(where=where, key=key, found=f"an unknown {kind} {name!r}", expected=expected)


def _read(name: str) -> dict[str, Any]:
    return read_tables(DATA / name)


@cache
def _devices() -> dict[str, Device]:
    return {name: _device(name, row) for name, row in _read("devices.toml").items()}


@cache
def _aliases() -> dict[str, str]:
    return {alias: name for name, row in _read("devices.toml").items() for alias in row["aliases"]}


@cache
def _links() -> dict[str, Link]:
    return {name: _link(name, row) for name, row in _read("links.toml").items()}


def read_links(text: str) -> dict[str, Link]:
    """Return the links of a catalogue's text, by name, in the form of `data/links.toml`."""
    return {name: _link(name, row) for name, row in parse_tables(text).items()}


def _link(name: str, row: dict[str, Any]) -> Link:
    shares = tuple((int(ranks), float(share)) for ranks, share in row.get("share_by_ranks", ()))
    return Link(name=name, **row | {"share_by_ranks": shares})


def _device(name: str, row: dict[str, Any]) -> Device:
    return Device(
        name=name,
        memory_bytes=round(row["memory_gib"] * GIB),
        memory_bandwidth_bytes_per_s=float(row["memory_bandwidth_bytes_per_s"]),
        peak_flops_per_s=tuple((dtype, float(peak)) for dtype, peak in row["peak_flops_per_s"].items()),
        power_w=float(row["power_w"]) if "power_w" in row else None,
        flash_attention=row["flash_attention"],
        reference_node=ReferenceNode(**row["node"]),
        source=row["source"],
    )
