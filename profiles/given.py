"""What a Python caller gave by value (a cluster, a model), under the text that requests, plans and messages name it by.

The text holds a digest of what was given, so that equal values have one name and different ones never share it. It is a
name in this process alone: in a file it means nothing to another one, and it never leads to code.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from profiles.errors import InputError

_DIGITS = 10
_GIVEN: dict[str, Any] = {}


def name_given(title: str, content: str, make: Callable[[str], Any]) -> str:
    """Return the text that stands from now on for the value that `make` returns of it: `title`, and a digest of
    `content`, which says all that the value is made of."""
    name = f"{title}@{hashlib.sha256(content.encode()).hexdigest()[:_DIGITS]}"
    if name not in _GIVEN:
        _GIVEN[name] = make(name)
    return name


def given_under(name: str) -> Any | None:
    """Return what was given under `name` in this process; None where nothing was."""
    return _GIVEN.get(name)


def plain_object(value: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """Return a copy of a mapping as its JSON file would have it read. Raise InputError for what JSON does not have."""
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        expected = "numbers, text, true, false, null, lists and mappings, as a file has them"
        raise InputError(where=where, found=f"{type(error).__name__}: {error}", expected=expected) from None
    return copy
