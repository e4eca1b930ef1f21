"""The loop of events, compiled where numba is installed, else as it stands: the same results to rounding.

numba is imported when something is played, and keeps what it compiled on disk. It looks at the file of one function to
see whether that still holds; here what is called stands in other files too, so that their contents are part of the key.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from estimator.network.player import events, filling, holders, narrowing, paces, score, steadiness
from estimator.network.player.score import Score, State

Advance = Callable[[Score, State, float, int], int]


def can_compile() -> bool:
    """Whether numba is installed."""
    return importlib.util.find_spec("numba") is not None


def will_compile() -> bool:
    """Whether nothing compiled was kept yet: then the first play begins by that, for some 20 s. False without numba."""
    if not can_compile():
        return False
    advance: Any = compiled_advance()
    folder = advance.stats.cache_path
    return folder is None or not any(Path(folder).glob(f"{Path(__file__).stem}.*.nbi"))


@cache
def compiled_advance() -> Advance:
    """Return `events.advance`, compiled: without counting references, since nothing is made in it; each count of each
    array would be most of the time. Raise ImportError without numba."""
    import numba
    from numba.extending import register_jitable

    modules = (filling, holders, paces, narrowing, steadiness, events)
    for helper in (*(helper for module in modules for helper in module.HELPERS), events.advance):
        register_jitable(_nrt=False, error_model="numpy")(helper)
    loop = _with_key(_contents())
    try:
        advance: Advance = numba.njit(cache=True, _nrt=False, error_model="numpy")(loop)
    except RuntimeError:  # numba finds no folder that it may write into
        advance = numba.njit(_nrt=False, error_model="numpy")(loop)
    return advance


def _with_key(contents: int) -> Advance:
    """The loop as a function that holds a number, by which what was kept of it is found."""

    def play_on(to_play: Score, state: State, until_s: float, most_events: int) -> int:
        if contents < 0:
            return contents
        return events_advance(to_play, state, until_s, most_events)

    return play_on


events_advance = events.advance


def _contents() -> int:
    """A number that changes with any of the files whose functions are compiled."""
    number = 0
    for module in (score, filling, holders, paces, narrowing, steadiness, events):
        number = zlib.crc32(Path(module.__file__ or "").read_bytes(), number)
    return number
