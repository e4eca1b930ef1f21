"""What `place` takes: which options of a search, which methods, and what is its own. Loads nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from planner.shared.options import SearchOptions
from profiles.errors import InputError

NOT_FOR_PLACE = ("search", "objective", "limit", "profile_budget", "stages", "partition", "formula", "assembly")
"""Options of a search that placing over sites knows nothing of."""
_HINTS = get_type_hints(SearchOptions, include_extras=True)
PlaceSearchOptions: type[Any] = type(
    "PlaceSearchOptions",
    (),
    {"__annotations__": {name: hint for name, hint in _HINTS.items() if name not in NOT_FOR_PLACE}},
)
"""The options of a search that it takes, as `planner.shared.options.options_of` reads them."""
METHODS = (
    "compact",
    "exact",
    "spin-search",
    "spin-search-free",
    "spin-search-from-local",
    "spin-search-from-local-free",
    "first-fit",
)
"""How sites are chosen: the names in `planner.many_jobs.sites.choosing.METHODS`, the default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceOptions:
    """What `place` takes beside model, cluster and the options of a search.

    `local`: the site that the job is submitted at. `types`: device types to take (none: any), `one_type`: of one type
    only. `all_sites`: the plan uses every site that gives devices. `comm`: files of link measurements, `links`: the
    monitor's state, which they are added to. `now_s`: when ages are counted to (None: by the clock). `alternatives`: so
    many other ways at most are planned.
    """

    local: str | None = None
    method: str = METHODS[0]
    types: tuple[str, ...] = ()
    one_type: bool = False
    all_sites: bool = False
    comm: tuple[Path, ...] = ()
    links: Path | None = None
    half_life_s: float = 3600.0
    now_s: float | None = None
    alternatives: int = 6

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(where="place", key="--method", found=self.method, expected=f"one of {', '.join(METHODS)}")
        if len(set(self.types)) != len(self.types):
            raise InputError(where="place", key="--types", found=",".join(self.types), expected="each type once")
        if not 0 < self.half_life_s < float("inf"):
            raise InputError(where="place", key="--half-life", found=self.half_life_s, expected="seconds above 0")
        if self.alternatives < 0:
            raise InputError(where="place", key="--alternatives", found=self.alternatives, expected="0 or more")
