"""Measured kernels beside the operator model, with and without the shipped tables: errors by device, dtype and load.

Shapes are held out by a hash of their sizes (`kernel_rows.is_held`): the tables of this report are made anew of the
other half's rows alone. A burst is compared with the price in a burst.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from bench.accuracy.kernel_fit import in_bursts, modelled_at, without_tables
from bench.accuracy.kernel_rows import ProductRow, read_products
from bench.accuracy.kernel_tables import grid_of
from profiles.efficiencies import load_operator_efficiencies

HEADER = (
    f"{'device dtype load':34s} {'rows':>5s} {'held':>5s} {'model':>7s} {'bias':>7s} {'fitted':>7s}"
    f" {'tables':>7s} {'bias':>7s}"
)


def write_products_report(folder: Path) -> str:
    """Return the report on the products of `folder`, lines of shapes with no size below 1,024 and 256."""
    groups: defaultdict[tuple[str, str], list[ProductRow]] = defaultdict(list)
    for row in read_products(folder):
        if row.usable:
            groups[row.device, row.dtype].append(row)
    lines = [HEADER]
    for key, rows in sorted(groups.items()):
        lines += _lines(" ".join(key), rows)
    return "\n".join(lines)


RELATIVES = (
    ("b300", "gb200"),
    ("gb200", "b300"),
    ("b200", "gb200"),
    ("b300", "b200"),
    ("h100", "h200"),
    ("h200", "h100"),
)
"""(Device whose table is carried over, device that it is carried over to): as for one that nobody measured."""


def write_carried_report(folder: Path) -> str:
    """Return the errors in bf16 of devices priced by a relative's table and parameters at their own datasheet rates."""
    rows = [row for row in read_products(folder) if row.usable and row.dtype == "bf16" and row.long and row.held]
    lines = [f"{'carried over':34s} {'rows':>5s} {'mean':>7s} {'bias':>7s}"]
    for relative, device in RELATIVES:
        units = load_operator_efficiencies(device).compute_units
        efficiencies = replace(load_operator_efficiencies(relative), compute_units=units)
        bursts = in_bursts(efficiencies)
        errors = [
            modelled_at(row, bursts if row.burst else efficiencies) / row.seconds - 1
            for row in rows
            if row.device == device
        ]
        lines.append(f"{relative + ' to ' + device:34s} {len(errors):5d} {_mean(errors):7.1%} {fmean(errors):+7.1%}")
    return "\n".join(lines)


def _lines(name: str, rows: Sequence[ProductRow]) -> Iterable[str]:
    model = without_tables(load_operator_efficiencies(rows[0].device))
    bursts = in_bursts(model)
    grid = grid_of([row for row in rows if not row.held])
    for burst in (True, False):
        for least in (1024, 256):
            members = [row for row in rows if row.burst == burst and min(row.m, row.n, row.k) >= least]
            held = [row for row in members if row.held]
            if not held:
                continue
            modelled = [modelled_at(row, bursts if burst else model) / row.seconds - 1 for row in held]
            fitted = [modelled_at(row, bursts if burst else model) / row.seconds - 1 for row in members if not row.held]
            tabled = [
                grid.seconds(row.m, row.n, row.k)
                * (modelled_at(row, bursts) / modelled_at(row, model) if burst else 1.0)
                / row.seconds
                - 1
                for row in held
            ]
            label = f"{name} {'burst' if burst else 'lasting'} >= {least}"
            yield (
                f"{label:34s} {len(members):5d} {len(held):5d} {_mean(modelled):7.1%} {fmean(modelled):+7.1%}"
                f" {_mean(fitted):7.1%} {_mean(tabled):7.1%} {fmean(tabled):+7.1%}"
            )


def _mean(errors: Sequence[float]) -> float:
    return fmean(abs(error) for error in errors)
