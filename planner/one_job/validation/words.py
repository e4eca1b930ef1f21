"""Words of a row's text columns against those that there are; InputError names row and column."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, TypeVar

from profiles.errors import InputError

if TYPE_CHECKING:
    from planner.one_job.validation.columns import RunRow

Value = TypeVar("Value")


def word_of(row: RunRow, column: str, words: Mapping[str, Value], *, shown: str | None = None) -> Value | None:
    """Return what the word in `column` means, None where it is blank.

    Raise InputError for a word that is none of `words`; it names them all, or says `shown`.
    """
    text: str = getattr(row, column)
    if not text:
        return None
    if text.lower() not in words:
        _refuse(row, column, shown or f"one of {', '.join(words)}")
    return words[text.lower()]


def words_of(row: RunRow, column: str, words: Mapping[str, Value]) -> frozenset[Value] | None:
    """Return what the words that `column` joins by + mean, none of them for `none`; None where it is blank.

    Raise InputError for any other word.
    """
    text: str = getattr(row, column)
    if not text:
        return None
    stated = {word for word in re.split(r"[+,; ]+", text.lower()) if word} - {"none"}
    if not stated <= set(words):
        _refuse(row, column, f"any of {', '.join(words)} joined by +, or none")
    return frozenset(words[word] for word in stated)


def _refuse(row: RunRow, column: str, expected: str) -> NoReturn:
    raise InputError(where=row.where, key=column, found=repr(getattr(row, column)), expected=expected)
