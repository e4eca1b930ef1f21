"""Numbers in a user's text: ASCII digits alone, where Python's own `int` and `float` take ٣, ３ and 1_000 too."""

from __future__ import annotations

from profiles.limits import LIMITS


def read_whole(word: str) -> int:
    """Return the whole number that `word` is in digits alone, 18 at most; raise ValueError if it is none."""
    if not (word.isascii() and word.isdigit() and len(word) <= LIMITS.digits.most):
        raise ValueError(word)
    return int(word)


def read_number(word: str) -> float:
    """Return the number that `word` is, as `float` reads it, but for other than ASCII text and for 1_000; raise
    ValueError if it is none. Infinity and NaN are numbers here, left to whoever sets bounds."""
    if not word.isascii() or "_" in word:
        raise ValueError(word)
    return float(word)
