"""What public recipes state of published runs whose tables leave it out (recipes.toml), as columns."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from planner.one_job.validation.columns import DEGREES, RunRow

SLICES_PATTERN = r"\b(\d+)x v\d\w*-\d+"
"""Slices of a run on TPUs in the words of the notes: `4x v5e-256`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRecipe:
    """An entry of recipes.toml, which says what each key means; `columns` are those that it fills."""

    name: str
    framework: str
    gpu: str
    model: str
    source: str
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    minimal: bool = False
    recomputed_share: float = 1.0
    samples_per_device: int = 0
    slice: int = 0
    columns: Mapping[str, Any] = field(default_factory=dict)

    def means(self, row: RunRow, framework: str) -> bool:
        """Return whether `row`, which runs `framework`, is a run of this recipe."""
        return (
            re.fullmatch(self.framework, framework) is not None
            and re.fullmatch(self.gpu, re.sub(r"\s*\(.*\)", "", row.gpu).strip().lower()) is not None
            and re.fullmatch(self.model, _plain_name(row.model_name)) is not None
            and all(getattr(row, name) in allowed for name, allowed in self.when.items())
        )


def _plain_name(model_name: str) -> str:
    """`model_name` in lower case without what stands in brackets, its words joined by hyphens."""
    return re.sub(r"[\s_]+", "-", re.sub(r"\s*\(.*\)", "", model_name).strip().lower())


KEYS = frozenset(PublicRecipe.__dataclass_fields__) - {"name", "columns"}


@cache
def load_public_recipes() -> tuple[PublicRecipe, ...]:
    """Return all entries of recipes.toml, in the file's order."""
    entries = tomllib.loads(Path(__file__).with_name("recipes.toml").read_text(encoding="utf-8"))
    return tuple(
        PublicRecipe(
            name=name,
            columns={key: value for key, value in entry.items() if key not in KEYS},
            **{
                **{key: value for key, value in entry.items() if key in KEYS},
                "when": {key: tuple(values) for key, values in entry.get("when", {}).items()},
            },
        )
        for name, entry in entries.items()
    )


def with_recipe(row: RunRow, framework: str, assumed: list[str]) -> RunRow:
    """Return `row` with blanks filled from the public recipe that it is a run of, if there is one.

    Adds to `assumed` which one.
    """
    recipe = next((each for each in load_public_recipes() if each.means(row, framework)), None)
    if recipe is None:
        return row
    assumed.append(f"settings: those of the public recipe {recipe.name} ({recipe.source})")
    columns: dict[str, Any] = {}
    degrees = dict(row.degrees)
    for name, value in recipe.columns.items():
        if name in DEGREES:
            degrees.setdefault(name, value)
        elif name == "dtype" or getattr(row, name) in ("", None):
            columns[name] = value
    if row.micro_batch is None and row.grad_accum is None:
        columns["grad_accum"] = 1
    if recipe.minimal and not row.recompute:
        columns["recompute"] = "selective"
    if recipe.samples_per_device and row.gpus_total and row.global_batch is None:
        columns["global_batch"] = recipe.samples_per_device * row.gpus_total
    tp = degrees.get("tp", 1)
    if recipe.slice and row.gpus_total and row.gpus_total > recipe.slice and row.shard is None:
        columns["shard"] = recipe.slice // tp
    slices = re.search(SLICES_PATTERN, row.notes)
    if slices and row.gpus_total and not recipe.slice and row.shard is None:
        columns["shard"] = row.gpus_total // int(slices[1]) // tp
    return replace(row, degrees=tuple(degrees.items()), **columns)


def recomputed_layers(row: RunRow, framework: str, blocks: int | None) -> int | None:
    """Return how many of the `blocks` of `row` full recomputation stands for where its recipe recomputes a part of
    each; None where it recomputes all that it can, or no recipe is known."""
    recipe = next((each for each in load_public_recipes() if each.means(row, framework)), None)
    if recipe is None or recipe.recomputed_share == 1 or blocks is None:
        return None
    return max(1, round(recipe.recomputed_share * blocks))
