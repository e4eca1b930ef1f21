"""`cellplan hardware`: the catalogue of devices and links."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from planner import api
from planner.cli.actions import Action, add_actions
from planner.cli.output import format_bytes, format_count, format_seconds, print_table


def add_arguments(parser: ArgumentParser) -> None:
    """`hardware list` and `hardware show NAME`."""
    add_actions(
        parser,
        list=Action(api.hardware_list, _print_all, "all devices, links and training software"),
        show=Action(api.hardware_show, _print_one, "one device, link or training software, with its source"),
    )


def _print_all(hardware: dict[str, Any], _: Namespace) -> None:
    devices = [
        (
            device["name"],
            format_bytes(device["memory_bytes"]),
            format_count(device["memory_bandwidth_bytes_per_s"], "B/s"),
            *(format_count(device["peak_flops_per_s"].get(dtype)) for dtype in ("fp32", "bf16", "fp16", "fp8")),
            f"{device['reference_node']['devices']} x {device['reference_node']['island_link']}",
        )
        for device in hardware["devices"]
    ]
    columns = ("device", "memory", "bandwidth", "fp32", "bf16", "fp16", "fp8", "reference node")
    print_table("Devices (dense FLOP/s)", columns, devices)
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


def _print_one(shown: dict[str, Any], _: Namespace) -> None:
    rows = []
    for key, value in shown.items():
        parts = value.items() if isinstance(value, dict) else [("", value)]
        rows += [(f"{key}.{part}".rstrip("."), inner) for part, inner in parts]
    print_table(shown["name"], ("field", "value"), rows)
