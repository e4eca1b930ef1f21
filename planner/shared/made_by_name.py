"""An object that a command names (a policy, a rule of placement), made with the options that the user states."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import Parameter, isclass, signature
from typing import cast

from profiles.errors import InputError

WORDS: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def class_of_ours(reference: str) -> Callable[..., object]:
    """Return the class that a catalogue of ours names as `module:Class`."""
    module, _, name = reference.partition(":")
    return cast("Callable[..., object]", getattr(import_module(module), name))


def make_with(
    maker: Callable[..., object],
    options: Mapping[str, object],
    *,
    where: str,
    key: str,
    methods: Sequence[str],
    kind: str,
) -> object:
    """Return what `maker` makes of `options`, which are its keyword arguments. Raise InputError for an option that it
    has not or of another type than its default, and for what has no name or lacks one of `methods`: it is not `kind`.
    """
    typed = _typed(maker, options, where, key)
    try:
        made = maker(**typed)
    except InputError as error:
        option = f"{key} {error.key.removeprefix('--')}" if error.key else key
        raise InputError(where=where, key=option, found=error.found, expected=error.expected) from error
    except (TypeError, ValueError) as error:
        options_of = ", ".join(signature(maker).parameters) if isclass(maker) else ""
        expected = f"of its options ({options_of or 'it has none'}) what they can be"
        raise InputError(where=where, key=key, found=str(error), expected=expected) from error
    lacks = [method for method in methods if not callable(getattr(made, method, None))]
    if not isinstance(getattr(made, "name", None), str):
        lacks.append("name")
    if lacks:
        raise InputError(where=where, found=f"no {', '.join(lacks)}", expected=kind)
    return made


def _typed(maker: Callable[..., object], options: Mapping[str, object], where: str, key: str) -> dict[str, object]:
    """The options as the types of their defaults; InputError for one of another type."""
    parameters = signature(maker).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    open_ended = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    typed = dict(options)
    for name in options:
        if name not in defaults and not open_ended:
            expected = "one of " + ", ".join(defaults) if defaults else "none: it has no options"
            raise InputError(where=where, key=f"{key} {name}", found="no such option", expected=expected)
    for name, value in options.items():
        type_ = type(defaults.get(name))
        if type_ is float and type(value) is int:
            typed[name] = float(value)
        elif type_ in WORDS and type(value) is not type_:
            raise InputError(where=where, key=f"{key} {name}", found=repr(value), expected=WORDS[type_])
    return typed
