"""Stand-ins for packages that a tool imports but whose configuration does not need: GPU kernels, trackers, data.

Any name in such a package is an empty class, any module in it can be imported.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any


class Anything(type):
    """A class of which every attribute is such a class."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class StubModule(ModuleType):
    """A module of which every name is an empty class."""

    __version__ = "2.9.0"
    __path__: list[str] = []  # noqa: RUF012  (a package's own attribute)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})


class Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds the packages named, where they are not installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = set(packages)

    def find_spec(self, name: str, *_: object) -> Any:
        if name.split(".")[0] in self.packages:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def install(*packages: str) -> list[str]:
    """Stand in for those of `packages` that are not installed, and say which."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        sys.meta_path.append(Stubs(missing))
    return missing
