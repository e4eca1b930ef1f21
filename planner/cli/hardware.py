"""`cellplan hardware`: the catalogue of devices and links; the network of a cluster for its manager."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_bytes, format_count, format_seconds, print_table
from planner.shared.words import three_digits


def add_arguments(parser: ArgumentParser) -> None:
    """`hardware list`, `hardware show NAME` and `hardware topology --cluster C`."""
    add_actions(
        parser,
        list=Action(api.hardware_list, _print_all, "all devices, links and training software"),
        show=Action(api.hardware_show, _print_one, "one device, link or training software, with its source"),
        topology=Action(
            api.hardware_topology,
            _print_topology,
            "the tree of a cluster's network as Slurm's topology.conf or Kueue's Topology",
        ),
    )


def _print_all(hardware: dict[str, Any], _: Namespace) -> None:
    devices = [
        (
            device["name"],
            format_bytes(device["memory_bytes"]),
            format_count(device["memory_bandwidth_bytes_per_s"], "B/s"),
            *(_teraflops(device["peak_flops_per_s"].get(dtype)) for dtype in ("fp32", "bf16", "fp16", "fp8")),
            f"{device['reference_node']['devices']} x {device['reference_node']['island_link']}",
        )
        for device in hardware["devices"]
    ]
    columns = ("device", "memory", "bandwidth", "fp32", "bf16", "fp16", "fp8", "node")
    print_table("Devices (dense TFLOP/s by type; node: the vendor's reference node)", columns, devices)
    links = [
        (
            link["name"],
            link["kind"],
            format_count(link["bandwidth_bytes_per_s"], "B/s"),
            format_seconds(link["latency_s"]),
            f"{link['efficiency']:.0%}",
        )
        for link in hardware["links"]
    ]
    print_table("Links (one direction)", ("link", "kind", "bandwidth", "latency", "efficiency"), links)
    software = [
        (each["name"], ", ".join(f"{name}={value}" for name, value in each["beyond_generic"].items()) or "-")
        for each in hardware["software"]
    ]
    print_table("Training software (--software)", ("name", "features beyond the generic (--feature)"), software)


def _print_topology(written: dict[str, Any], _: Namespace) -> None:
    if written["output"] is None:
        print(written["text"], end="")
    else:
        print(f"written to {written['output']}")


def _teraflops(rate: float | None) -> str | None:
    return None if rate is None else three_digits(rate / 1e12)


def _print_one(shown: dict[str, Any], _: Namespace) -> None:
    rows = []
    for key, value in shown.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        rows += [with_unit(f"{key}.{part}".rstrip("."), inner) for part, inner in parts]
    print_table(shown["name"], ("field", "value"), rows)


UNITS: dict[str, Callable[[float], str]] = {
    "flops_per_s": lambda rate: f"{three_digits(rate / 1e12)} TFLOP/s",
    "bytes_per_s": lambda rate: format_count(rate, "B/s"),
    "bytes": format_bytes,
    "s": format_seconds,
    "w": lambda power: f"{three_digits(power)} W",
}
"""The units that names of fields end in, longest first, and what their figures look like."""


def with_unit(name: str, value: object) -> tuple[str, object]:
    """Return the field's name without its unit, and its value with it, as people write them.

    >>> with_unit("memory_bandwidth_bytes_per_s", 3.35e12), with_unit("peak_flops_per_s.bf16", 989e12)
    (('memory_bandwidth', '3.35 TB/s'), ('peak.bf16', '989 TFLOP/s'))
    """
    first, dot, part = name.partition(".")
    for base, rest in ((first, dot + part), (name, "")):
        for unit, form in UNITS.items():
            if base.endswith(f"_{unit}"):
                plain = base.removesuffix(f"_{unit}") + rest
                known = isinstance(value, int | float) and not isinstance(value, bool)
                return plain, form(value) if known else value  # type: ignore[arg-type]
    return name, ", ".join(map(str, value)) or None if isinstance(value, list | tuple) else value
