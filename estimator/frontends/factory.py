"""Finds the factory that a user named, and runs code of theirs; knows no framework."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from profiles.errors import InputError


def find_factory(reference: str, wanted: str) -> Callable[[], Any]:
    """What `package.module:factory` names, imported; `wanted` says what it is to return.

    InputError where there is no such module, nothing of that name in it, or nothing that can be called.
    """
    module_name, _, path = reference.partition(":")
    if not module_name or not path:
        raise InputError(where="model", found=repr(reference), expected="package.module:factory")
    try:
        module = import_module(module_name)
    except Exception as error:
        expected = f"a module {module_name} that can be imported from here"
        raise InputError(where=reference, found=first_line(error), expected=expected) from error
    try:
        factory = reduce(getattr, path.split("."), module)
    except AttributeError as error:
        stated = f"no {path} in {getattr(module, '__file__', module_name)}"
        raise InputError(where=reference, found=stated, expected=f"a function that returns {wanted}") from error
    if not callable(factory):
        stated = f"{path}, {describe(factory)}"
        raise InputError(where=reference, found=stated, expected=f"a function that returns {wanted}")
    return factory


@contextmanager
def user_code() -> Iterator[None]:
    """The current folder can be imported from, as under `python -m`, and what the code prints goes to stderr."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def describe(value: object) -> str:
    """Its type, and the value where that is short."""
    name = type(value).__name__
    return f"{name} ({reprlib.repr(value)})" if isinstance(value, int | float | str) else name


def first_line(error: BaseException) -> str:
    """The error's type and the first line of what it says."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
