"""The training framework of a published run, told by its source and notes, and what its runs usually have."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from bench.accuracy.adapters.told import UNTOLD, Told
from estimator.pricing.software import Framework, load_framework, load_frameworks
from planner.one_job.validation.columns import RunRow


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFramework:
    """An entry of frameworks.toml, which says what each key means; `name` is empty where nothing tells."""

    name: str = ""
    patterns: tuple[str, ...] = ()
    tensor_parallel: bool = True
    predicts_masked_only: bool = False
    fed_lengths: tuple[tuple[int, int], ...] = ()
    seq_len: int = 0
    samples_per_device: int = 0
    recompute: str = ""
    alone: str = ""
    basis: str = ""

    @property
    def declared(self) -> Framework:
        """What the product declares of it; of a name that it does not know, what it takes where none is named."""
        return load_framework(self.name if self.name in load_frameworks() else None)


@cache
def load_published_frameworks() -> dict[str, PublishedFramework]:
    """Return all entries of frameworks.toml by name, in the file's order."""
    entries = tomllib.loads(Path(__file__).with_name("frameworks.toml").read_text(encoding="utf-8"))
    return {
        name: PublishedFramework(
            name=name,
            **{
                **entry,
                "patterns": tuple(entry["patterns"]),
                "fed_lengths": tuple((int(full), fed) for full, fed in entry.get("fed_lengths", {}).items()),
            },
        )
        for name, entry in entries.items()
    }


def framework_of(row: RunRow, told: Told = UNTOLD) -> PublishedFramework:
    """Return the row's framework: by its column, else by the first pattern found in its text or in what is `told`."""
    published = load_published_frameworks()
    name = row.framework.strip().lower()
    if name in published:
        return published[name]
    text = " | ".join((name, said(row), told.get("framework", ""))).lower()
    matching = (each for each in published.values() if any(re.search(pattern, text) for pattern in each.patterns))
    return next(matching, PublishedFramework(name=name))


def release_of(framework: PublishedFramework, told: Told) -> str:
    """Return the name of the product's release of `framework` that the container is of which is `told`: the last one
    that is no later; without one the framework's own."""
    version = re.search(r"\b(\d\d\.\d\d)\b", told.get("container", ""))
    releases = [name for name in load_frameworks() if name.startswith(f"{framework.name}@")]
    if not version or not framework.name:
        return framework.name
    return max((name for name in releases if name.partition("@")[2] <= version[1]), default=framework.name)


def said(row: RunRow) -> str:
    """Return all free text of the row, in which patterns are looked for."""
    return " | ".join(
        (row.source_repo_or_paper, row.source_path_or_table, row.zero_or_fsdp, row.optimizer_notes, row.notes)
    )
