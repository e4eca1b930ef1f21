"""What a reader of settings makes of them: options of `estimate`, the model, and what it could not follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Protocol

from planner.shared.options.common import Launcher
from planner.shared.options.estimate import EstimateOptions

Stated = dict[str, Any]
"""Options of `estimate` by name: those that settings fix, and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Settings of a launcher in cellplan's words.

    `setting` names them in messages: a file, or the arguments. The model is `reference` (what `MODEL` may be), or the
    keys of a `config.json` that describes it. `options` are those of `estimate` that the settings fix, `words` what the
    settings call each. `devices` is the launcher's world size. `software` holds features in place of what the named
    software declares. `blocks` are transformer blocks of each chunk of layers, in their order (None: shared evenly).
    `shard` is the ranks that share a copy of the state, or `copies` how many there are, where it is not all ranks.
    """

    launcher: Launcher
    setting: str
    reference: str | None = None
    config: Mapping[str, Any] | None = None
    options: Stated
    words: Mapping[str, str] = field(default_factory=dict)
    devices: int | None = None
    software: Mapping[str, Any] = field(default_factory=dict)
    blocks: tuple[int, ...] | None = None
    shard: int | None = None
    copies: int | None = None
    assumptions: tuple[str, ...] = ()


class Reader(Protocol):
    """Reads settings: a path or the settings themselves. `model` is what the user named, if anything; `options` what
    was given beside the settings."""

    def __call__(self, settings: str, *, model: str | None, options: EstimateOptions) -> Imported: ...


def not_understood(name: str, names: Iterable[str], *, shown: Callable[[str], str] = str) -> str:
    """A sentence about a setting that nobody knows, with the nearest name there is."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.7)
    hint = f"; the nearest known is {shown(near[0])}" if near else ""
    return f"{shown(name)} is not understood, and not in the estimate{hint}"
