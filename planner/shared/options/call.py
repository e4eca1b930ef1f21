"""Functions that take a record of options, or its fields as arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from functools import update_wrapper
from inspect import Parameter, Signature, signature
from typing import Any, ParamSpec, Protocol, TypeVar, cast, get_args, get_type_hints, overload

from planner.shared.options.outputs import check_outputs
from planner.shared.options.record import Options

P = ParamSpec("P")
O = TypeVar("O", bound=Options)  # noqa: E741
O_contra = TypeVar("O_contra", bound=Options, contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Command(Protocol[P, O_contra, R_co]):
    """A function of a record of options that also takes these as arguments, by the record's own signature."""

    @overload
    def __call__(self, options: O_contra, /) -> R_co: ...
    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def takes(record: Callable[P, O]) -> Callable[[Callable[[O], R]], Command[P, O, R]]:
    """Return what makes of a function of the record a `Command`, whose signature shows the record's fields with their
    types and defaults; `options` of it is the record's class."""

    return lambda function: _Function(function, record)


class _Function:
    """A `Command`; its signature is made where somebody looks at it."""

    def __init__(self, function: Callable[..., Any], record: Callable[..., Options]) -> None:
        self._function, self.options = function, record
        update_wrapper(self, function)

    def __call__(self, *args: Any, **options: Any) -> Any:
        whole = len(args) == 1 and not options and isinstance(args[0], Options)
        self._refuse_unknown(options)
        record: Options = args[0] if whole else self.options(*args, **options)
        check_outputs(record)
        return self._function(record)

    def _refuse_unknown(self, options: Mapping[str, Any]) -> None:
        """Raise TypeError, as Python does, for an argument that there is not, with the one that is spelled like it."""
        known = [field.name for field in fields(cast("Any", self.options))]
        unknown = next((name for name in options if name not in known), None)
        if unknown is None:
            return
        from difflib import get_close_matches  # Nobody else needs it.

        near = get_close_matches(unknown, known, n=1)
        hint = f"; is it {near[0]}?" if near else ""
        raise TypeError(f"{self._function.__name__}() got an unexpected keyword argument {unknown!r}{hint}")

    @property
    def __signature__(self) -> Signature:
        return _signature(self.options, self._function)


def _signature(record: Any, function: Callable[..., Any]) -> Signature:
    """The record's fields as parameters, with their types as people write them, and what the function returns."""
    hints = get_type_hints(record, include_extras=True)
    parameters = [
        Parameter(
            field.name,
            Parameter.KEYWORD_ONLY if field.kw_only else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if field.default is MISSING else field.default,
            annotation=get_args(hints[field.name])[0],
        )
        for field in fields(record)
    ]
    parameters.sort(key=lambda parameter: parameter.kind)
    return Signature(parameters, return_annotation=signature(function).return_annotation)
