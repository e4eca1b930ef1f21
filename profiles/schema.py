"""What pydantic finds wrong with a file, said our way. Imported only where a file is read."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from profiles.errors import InputError

T = TypeVar("T")

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)
"""No other keys than the declared ones, no conversion between types, finite numbers; records inside follow it."""

_ADAPTERS: dict[type[Any], TypeAdapter[Any]] = {}
_NOWHERE = object()


def printable(what: str) -> AfterValidator:
    """Return what refuses a text that ends a line, or does more to a terminal than to be shown; `what` was expected."""

    def check(value: str) -> str:
        if not value.isprintable():
            raise PydanticCustomError("printable", "{expected}", {"expected": f"{what} without control characters"})
        return value

    return AfterValidator(check)


class FileModel(BaseModel):
    """Base of what users write by hand: strict, and a mistyped key is answered with the nearest one."""

    model_config = STRICT

    @model_validator(mode="before")
    @classmethod
    def _only_known_keys(cls, data: Any) -> Any:
        keys = [field.alias or name for name, field in cls.model_fields.items()]
        for key in data if isinstance(data, Mapping) else ():
            if key not in keys:
                near = get_close_matches(str(key), keys, n=1)
                expected = f"{near[0]!r}, or another of {', '.join(keys)}" if near else f"one of {', '.join(keys)}"
                raise PydanticCustomError(
                    "unknown_key", "{found}", {"found": f"an unknown key {key!r}", "expected": expected}
                )
        return data


def validate(kind: type[T], data: Any, *, where: str) -> T:
    """Return `data`, as YAML or JSON gives it, as a `kind`. Raise InputError naming `where` and the first key that is
    wrong."""
    try:
        return _adapter(kind).validate_python(data)
    except ValidationError as error:
        raise to_input_error(error, data, where=where) from None


def validate_json(kind: type[T], text: str, *, where: str) -> T:
    """A JSON text as a `kind`: arrays may become tuples, objects records. InputError as `validate`."""
    try:
        return _adapter(kind).validate_json(text)
    except ValidationError as error:
        raise to_input_error(error, None, where=where) from None


def _adapter(kind: type[T]) -> TypeAdapter[T]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def to_input_error(error: ValidationError, data: Any, *, where: str) -> InputError:
    """Return the first of pydantic's complaints as an InputError that says how many more there are.

    Where `data` is given, steps of pydantic's path that name no place in it (which member of a union was tried) are
    left out of the key.
    """
    details = error.errors(include_url=False)
    first = details[0]
    what_stands, expected = _found_and_expected(first)
    if len(details) > 1:
        expected += f" ({len(details) - 1} more wrong beside it)"
    return InputError(where=where, key=_key(first, data), found=what_stands, expected=expected)


def _key(error: ErrorDetails, data: Any) -> str | None:
    steps: list[int | str] = []
    for step in error["loc"]:
        if data is not None:
            inside = _step_into(data, step)
            if inside is _NOWHERE:
                continue
            data = inside
        steps.append(step)
    if error["type"].startswith("union_tag"):
        steps.append(error["ctx"]["discriminator"].replace("'", ""))
    if error["type"] == "missing" and error["loc"][-1] not in steps[-1:]:
        steps.append(error["loc"][-1])
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".") or None


def _step_into(data: Any, step: int | str) -> Any:
    if isinstance(data, Mapping):
        return data.get(step, _NOWHERE)
    return data[step] if isinstance(data, list) and isinstance(step, int) and step < len(data) else _NOWHERE


def _length_rule(context: Mapping[str, Any]) -> str:
    return f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"


def _found_and_expected(error: ErrorDetails) -> tuple[str, str]:
    context = error.get("ctx", {})
    cause = context.get("error")
    message = error["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    shown = repr(error["input"])
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    match error["type"]:
        case "missing":
            return "nothing", "a value"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"an unknown key {error['loc'][-1]!r}", "only the keys that its schema declares"
        case "unknown_key":
            return str(context["found"]), str(context["expected"])
        case "json_invalid":
            return f"no JSON ({cause})", "a JSON document"
        case "union_tag_invalid":
            return repr(context["tag"]), "one of " + str(context["expected_tags"]).replace("'", "")
        case "union_tag_not_found":
            return "none", f"a {str(context['discriminator']).replace(chr(39), '')}"
        case "model_type" | "dataclass_type" | "model_attributes_type":
            return "nothing" if error["input"] is None else shown, "a mapping of keys to values"
        case "too_short" | "too_long":
            return f"{context['actual_length']} entries", _length_rule(context)
        case "value_error" if isinstance(cause, InputError):
            return str(cause.found), cause.expected
        case "value_error" if "; expected " in message:
            # How our records word their rules: what was found, then what is expected.
            what_stands, _, expected = message.partition("; expected ")
            return what_stands, expected
        case _:
            return shown, str(context.get("expected", message[:1].lower() + message[1:]))
