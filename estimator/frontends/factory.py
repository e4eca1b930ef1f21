"""Finds the factory that a user named, and runs code of theirs; knows no framework."""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from models_zoo.user_code import UserFactory, names_code
from profiles.errors import InputError


def find_factory(named: UserFactory, wanted: str) -> Callable[[], Any]:
    """What the user named, imported; `wanted` says what it is to return.

    InputError where there is no such module, nothing of that name in it, or nothing that can be called.
    """
    reference = named.reference
    module_name, _, path = reference.partition(":")
    if not names_code(reference):
        raise InputError(where="model", found=repr(reference), expected="package.module:factory")
    try:
        module = import_module(module_name)
    except (Exception, SystemExit) as error:
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


def add_to_path(path: Iterable[str]) -> None:
    """Let user code be imported from where the process that asks for it would: `path` is its `sys.path`."""
    sys.path += [entry for entry in path if entry and entry not in sys.path]


def call_for_values(factory: Callable[[], Any], reference: str, wanted: str) -> Any:
    """Return what `factory` returns; InputError where it fails, naming `wanted`."""
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise InputError(where=reference, found=first_line(error), expected=wanted) from error


def check_tuple(reference: str, returned: Any, lengths: tuple[int, ...], wanted: str) -> None:
    """Raise InputError where `returned` is no tuple of one of `lengths`."""
    if not isinstance(returned, tuple) or len(returned) not in lengths:
        stated = f"tuple of {len(returned)}" if isinstance(returned, tuple) else describe(returned)
        raise InputError(where=reference, found=stated, expected=wanted)


def checked_inputs(
    reference: str, inputs: Any, *, key: str, plural: str, is_array: Callable[[Any], bool]
) -> tuple[Any, ...]:
    """Return example inputs as a tuple; InputError where they are no arrays (`plural` in words), batch first."""
    inputs = (inputs,) if is_array(inputs) else inputs
    if not isinstance(inputs, tuple) or not inputs or not all(map(is_array, inputs)):
        stated = f"({', '.join(type(x).__name__ for x in inputs)})" if isinstance(inputs, tuple) else describe(inputs)
        raise InputError(where=reference, key=key, found=stated, expected=f"a tuple of {plural}")
    shapes = [tuple(x.shape) for x in inputs]
    if not all(shapes) or len({shape[0] for shape in shapes}) != 1 or not shapes[0][0]:
        expected = f"{plural} that all have the batch, of one size, as their first dimension"
        stated = f"shapes {', '.join(map(str, shapes))}"
        raise InputError(where=reference, key=key, found=stated, expected=expected)
    return inputs


def describe(value: object) -> str:
    """Its type, and the value where that is short."""
    name = type(value).__name__
    return f"{name} ({reprlib.repr(value)})" if isinstance(value, int | float | str) else name


def first_line(error: BaseException) -> str:
    """The error's type and the first line of what it says."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
