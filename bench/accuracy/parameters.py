"""The parameters of whole runs: which rows each rests on, and how a fit is written back into `training.toml`."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from bench.accuracy.fitting import Values
from bench.accuracy.left_out import Slopes
from bench.accuracy.markdown import table
from estimator.pricing.software import load_frameworks
from profiles.efficiencies import read_efficiencies
from profiles.training_parameters import load_training_rows

MEANING_KEYS = ("meaning", "means", "basis")


def write_parameters(known: Slopes) -> str:
    """A row for each parameter with the sources behind it; then those that rest on one source, or on none."""
    rows, single, none = [], [], []
    for name, row in load_training_rows().items():
        counts = Counter(each.source for each in known.behind(name))
        if not counts:
            none.append(name)
        elif len(counts) == 1:
            single.append(f"{name} ({next(iter(counts))})")
        behind = ", ".join(f"{source} {count}" for source, count in counts.most_common())
        at_bound = " (at its bound)" if _at_bound(row) else ""
        rows.append((f"`{name}`", f"{float(row['value']):.4g}{at_bound}", _meaning(row), behind or "no row"))
    lines = [
        "A parameter rests on the rows of the fit half whose time it moves: 1% of it by at least 0.01%. VTS counts its"
        " cells.",
        table(("parameter", "value", "what it is", "rows behind it"), rows),
        f"Resting on a single source: {', '.join(single) or 'none'}.",
    ]
    if none:
        lines.append(f"No row moves: {', '.join(none)}.")
    return "\n\n".join(lines)


def set_values(text: str, values: Values) -> str:
    """`text` of training.toml with the values of `values`, everything else as it was.

    ValueError for a name that it does not have.
    """
    changed = text
    for name, value in values.items():
        pattern = re.compile(
            rf'(^name\s*=\s*"{re.escape(name)}"\s*$(?:(?!^\[\[).)*?^value\s*=\s*)[^\n#]*?(\s*(?:#[^\n]*)?)$',
            re.MULTILINE | re.DOTALL,
        )
        changed, count = pattern.subn(rf"\g<1>{value:.6g}\g<2>", changed)
        if count != 1:
            raise ValueError(f"training.toml: {count} parameters called {name!r} with a value, expected one")
    return changed


def _meaning(row: dict[str, Any]) -> str:
    return next((str(row[key]) for key in MEANING_KEYS if row.get(key)), "")


def _at_bound(row: dict[str, Any]) -> bool:
    value = float(row["value"])
    return value <= float(row["low"]) * 1.001 or value >= float(row["high"]) * 0.999


def write_elsewhere() -> str:
    """Figures outside training.toml that rest on whole runs, which no half was kept from."""
    rows = []
    for architecture, entry in read_efficiencies().items():
        for where, table_ in (("", entry.get("operators", {})), *_devices(entry)):
            runs = [name for name in table_.get("rows", []) if not re.match(r"[GC]\d", name)]
            if runs:
                sources = sorted({name.split("-")[0] for name in runs})
                single = " (one source)" if len(sources) == 1 else ""
                rows.append((f"efficiencies.toml, {where or architecture}", ", ".join(runs) + single))
    declared = load_frameworks().values()
    rows.extend((f"memory of {each.name}", each.memory_basis) for each in declared if each.memory_basis)
    rows.append(
        (
            "saved activations of experts and context parallelism, Transformer Engine's scratch",
            "SMXB's peaks, all of them (one source): its memory errors are those of rows that were looked at",
        )
    )
    intro = (
        "Single figures of the operator model, of what frameworks hold in memory, and declared features of frameworks"
        " were chosen where whole runs showed them, without keeping a half apart; their rows:"
    )
    return f"{intro}\n\n{table(('figure', 'rows or basis'), rows)}"


def _devices(entry: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return list(entry.get("operators", {}).get("device", {}).items())
