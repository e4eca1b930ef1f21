"""Bits of SVG: numbers, how much room text takes, and text that XML can hold."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from xml.sax.saxutils import escape

CHARACTER = 0.6
"""Width of a character over the font's size: that of wide fonts, so that no other runs over."""

MIDDLE = 0.36
"""How far below the middle of a line its letters stand, over the font's size."""


def px(value: float) -> str:
    """A number of pixels, to a tenth.

    >>> px(12.0), px(0.26)
    ('12', '0.3')
    """
    return f"{value:.1f}".removesuffix(".0")


def box_path(x: float, y: float, wide: float, high: float) -> str:
    """A rectangle, in fewer letters than `<rect>` takes."""
    return f"M{px(x)} {px(y)}h{px(max(wide, 0.2))}v{px(high)}H{px(x)}z"


def text_width(text: str, size: float) -> float:
    """Pixels that `text` takes in a font of `size`."""
    return CHARACTER * size * len(text)


def cut_text(text: str, width: float, size: float) -> str:
    """`text`, or as much of its beginning as fits into `width`."""
    fitting = int(width / (CHARACTER * size) + 1e-9)
    return text if len(text) <= fitting else f"{text[: fitting - 3]}..."


def wrap_text(text: str, width: float, size: float) -> list[str]:
    """Lines of at most `width`; a word longer than that is broken."""
    return textwrap.wrap(text, int(width / (CHARACTER * size)), break_on_hyphens=False)


def xml_text(text: str) -> str:
    """Escaped, and without the control characters that XML has no place for.

    >>> xml_text("a<b" + chr(7))
    'a&lt;b?'
    """
    return escape("".join(letter if letter.isprintable() else "?" for letter in text))


def fit_text(letters: int, sizes: Sequence[float], wide: float, high: float) -> tuple[float, bool] | None:
    """The largest of `sizes` in which so many letters fit into a box, lying or else standing (True); None for none."""
    for size in sizes:
        length, thick = CHARACTER * size * letters + 2.5, 0.8 * size + 1.0
        if length <= wide and thick <= high:
            return size, False
        if length <= high and thick <= wide:
            return size, True
    return None
