"""Settings files of named keys (TOML, JSON): their leaves by dotted name, and what is said of those nobody reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from models_zoo.hugging_face.keys import Keys, describe
from planner.one_job.tools.base.import_records import not_understood
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.tables import read_tables
from profiles.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmodelled:
    """A setting that changes the speed in a way that estimates do not follow: what is said of it unless it is off or
    at its `default`."""

    about: str
    default: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSettings:
    """Dotted names of settings. One that ends in `.*` stands for all below it."""

    used: frozenset[str]
    without_effect: frozenset[str]
    not_modelled: Mapping[str, Unmodelled]

    def names(self) -> tuple[str, ...]:
        """All names that stand for one setting."""
        return tuple(name for name in (*self.used, *self.without_effect, *self.not_modelled) if not name.endswith(".*"))


def load_data(name: str) -> dict[str, Any]:
    """Return a data file below `tools`, by its path there."""
    return read_tables(Path(__file__).parents[1] / name)


@cache
def load_known(name: str) -> KnownSettings:
    """The known settings of a launcher, from a data file below `tools`."""
    data = load_data(name)
    return KnownSettings(
        used=frozenset(data["used"]),
        without_effect=frozenset(data["without_effect"]),
        not_modelled={key: Unmodelled(**entry) for key, entry in data["not_modelled"].items()},
    )


def read_settings(path: Path) -> Keys:
    """Return the keys of a YAML file. Raise InputError, with its line, where it is broken or no mapping."""
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise InputError(where=str(path), found=describe(values), expected="a mapping of settings")
    return Keys(where=str(path), values=values)


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of all that is no table, or an empty one.

    >>> dict(leaves({"a": {"b": 1}, "c": 2}))
    {'a.b': 1, 'c': 2}
    """
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def describe_unread(values: Mapping[str, Any], settings: KnownSettings) -> list[str]:
    """A sentence for each setting of `values` that is not modelled, or not known."""
    said = []
    for name, value in leaves(values):
        unmodelled = settings.not_modelled.get(name)
        if unmodelled is not None:
            if value and value != unmodelled.default:
                said.append(f"{name}: not modelled; {unmodelled.about}")
        elif not _listed(name, settings.used) and not _listed(name, settings.without_effect):
            said.append(not_understood(name, settings.names()))
    return said


def _listed(name: str, names: frozenset[str]) -> bool:
    parts = name.split(".")
    return name in names or any(f"{'.'.join(parts[:end])}.*" in names for end in range(1, len(parts) + 1))
