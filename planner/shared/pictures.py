"""Pictures by matplotlib: what a file must be called, the colours, and bytes that are the same for the same figure."""

from __future__ import annotations

from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from profiles.errors import InputError
from profiles.files import check_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PictureFormat = Literal["svg", "png"]
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d")
"""Told apart by the colour-blind too (Okabe and Ito's palette without its yellow and black, and a purple)."""


def picture_format(path: Path, *, where: str) -> PictureFormat:
    """Return the format that the file's name ends in. Raise InputError, of the option --plot of the command `where`,
    for another ending, or where there is no such folder or no matplotlib."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ("svg", "png"):
        raise InputError(where=where, key="--plot", found=path, expected="a file name that ends in .svg or .png")
    check_folder(path, where=where, key="--plot")
    if find_spec("matplotlib") is None:
        expected = "it to be there: pip install 'cellplan[plot]'"
        raise InputError(where=where, key="--plot", found="no matplotlib in this Python", expected=expected)
    return "svg" if ending == "svg" else "png"


def picture_bytes(figure: Figure, form: PictureFormat) -> bytes:
    """Return the figure as a file's content. Without a date and with a fixed salt the same figure gives the same
    bytes."""
    import matplotlib as mpl

    content = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "cellplan", "svg.fonttype": "none"}):
        figure.savefig(content, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {"Software": None})
    return content.getvalue()
