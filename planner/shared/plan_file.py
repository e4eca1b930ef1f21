"""The plan file: plan JSON to and from the `Plan` record, and its JSON Schema.

The records of `planner.shared.plan` are written as they are declared, and pydantic, which is imported where a file is
read, reads them so: a field is named once. The same plan always gives the same bytes.
"""

from __future__ import annotations

import json
import unicodedata
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.shared.plan import PLAN_SCHEMA, Plan, PlanDevice
from profiles.errors import InputError
from profiles.files import parse_json, read_text, write_atomically

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LINE = 120

_LEFT_OUT: dict[type[Any], str] = {Plan: "network", PlanDevice: "host"}
"""Fields of a cluster that has a tree or names, which stand in no plan of another."""

_NO_LINE = ("Cc", "Cs", "Zl", "Zp")


@cache
def _adapter() -> TypeAdapter[Plan]:
    from pydantic import TypeAdapter

    return TypeAdapter(Plan)


def plan_to_json(plan: Plan) -> str:
    """The text of the plan file: keys as declared, floats in full, a line for each innermost object or list."""
    return layout(_values(plan)) + "\n"


def _values(value: Any) -> Any:
    """Records as objects and tuples as lists, all the way down."""
    if isinstance(value, tuple | list):
        return [_values(part) for part in value]
    if isinstance(value, dict):
        return {name: _values(part) for name, part in value.items()}
    names = _field_names(value.__class__)
    if names is None:
        return value
    left_out = _LEFT_OUT.get(value.__class__)
    return {
        name: _values(getattr(value, name)) for name in names if name != left_out or getattr(value, name) is not None
    }


@cache
def _field_names(kind: type[Any]) -> tuple[str, ...] | None:
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


def plan_to_values(plan: Plan) -> dict[str, Any]:
    """What `plan_to_json` says, as the values that JSON has."""
    values: dict[str, Any] = _values(plan)
    return values


def plan_of_values(values: dict[str, Any]) -> Plan:
    """The plan whose values `plan_to_values` gave. What anybody else may have written is for `parse_plan`."""
    return _adapter().validate_json(json.dumps(values))


def parse_plan(text: str, where: str) -> Plan:
    """The plan that `text` holds. InputError names `where` and the key if it is not one."""
    from pydantic import ValidationError

    from profiles.schema import to_input_error

    value = parse_json(text, where=where)  # says line and column, and refuses a key given twice; pydantic does neither
    if isinstance(value, dict) and "schema" not in value:
        raise InputError(where=where, key="schema", found="nothing", expected=repr(PLAN_SCHEMA))
    _refuse_old_breakdown(value, where)
    _refuse_control_characters(value, where)
    try:
        return _adapter().validate_json(_without_old_keys(text, value))
    except ValidationError as error:
        raise to_input_error(error, value, where=where) from None


def _refuse_control_characters(value: Any, where: str, key: str = "") -> None:
    """InputError for text that is no line: what is exported of a plan becomes part of scripts."""
    if isinstance(value, dict):
        for name, part in value.items():
            _refuse_control_characters(part, where, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            _refuse_control_characters(part, where, f"{key}[{number}]")
    elif isinstance(value, str) and any(unicodedata.category(letter) in _NO_LINE for letter in value):
        raise InputError(where=where, key=key, found=f"{value[:40]!r}", expected="text without control characters")


def _refuse_old_breakdown(value: Any, where: str) -> None:
    """InputError for the coarser breakdown that plans of Cells had before 0.2: there is one shape now."""
    estimate = value.get("estimate") if isinstance(value, dict) else None
    breakdown = estimate.get("breakdown") if isinstance(estimate, dict) else None
    if isinstance(breakdown, dict) and "blocking_collectives_s" in breakdown:
        raise InputError(
            where=where,
            key="estimate.breakdown.blocking_collectives_s",
            found="the breakdown of a Cell's plan of an older version",
            expected="gemm_s, attention_s, ...: make the plan again with `cellplan plan --search cells`",
        )


def _without_old_keys(text: str, value: Any) -> str:
    """`text` of the parsed `value` without the reason for a lacking interval, a key that was always null."""
    estimate = value.get("estimate") if isinstance(value, dict) else None
    if not isinstance(estimate, dict) or estimate.get("interval_90_reason", "") is not None:
        return text
    del estimate["interval_90_reason"]
    return json.dumps(value)


def load_plan(path: Path) -> Plan:
    """The plan in the file `path`. InputError if there is none or it is wrong."""
    return parse_plan(read_text(path), str(path))


def save_plan(plan: Plan, path: Path) -> None:
    """Write the plan to `path`, whole or not at all."""
    write_atomically(path, plan_to_json(plan))


def plan_json_schema() -> str:
    """The JSON Schema of the plan file, as published in `planner/shared/schemas/plan.schema.json`.

    Keys that came later are optional in it: files without them stay valid. `schema` itself is not.
    """
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **_adapter().json_schema(mode="validation")}
    schema["required"] = ["schema", *schema["required"]]
    return layout(schema) + "\n"


_encode = json.JSONEncoder(allow_nan=False).encode


def layout(value: Any, column: int = 0) -> str:
    """Return JSON in which whatever fits stands on one line, from `column` on."""
    line = _encode(value)
    if column + len(line) <= LINE or not isinstance(value, dict | list) or not value:
        return line
    inner = " " * (column + 2)
    if isinstance(value, dict):
        parts = [f"{_encode(key)}: {layout(part, column + 2)}" for key, part in value.items()]
    else:
        parts = [layout(part, column + 2) for part in value]
    body = f",\n{inner}".join(parts)
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    return f"{opening}\n{inner}{body}\n{' ' * column}{closing}"
