"""What a placement over sites is asked for and answers with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from profiles.records import dataclass
from profiles.vocabulary import Infeasible


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """So many devices of these types (none named: of any). `local` is the site that the job is submitted at, if it
    matters; `one_type`: all devices are of one type."""

    devices: int
    types: tuple[str, ...] = ()
    local: str | None = None
    one_type: bool = False

    def __post_init__(self) -> None:
        if self.devices < 1 or len(set(self.types)) != len(self.types):
            raise ValueError(f"demand: {self.devices} devices of {self.types}, expected 1 or more, each type once")

    def type_choices(self, there: Sequence[str]) -> list[tuple[str, ...]]:
        """Return the sets of types, of those that are `there`, that one choice of sites may take; () is any type."""
        return [(name,) for name in self.types or there] if self.one_type else [self.types]


class Choice(NamedTuple):
    """Sites by number with how many devices each gives, in the order chosen, and the step that found them.
    `proved`: there is no better choice."""

    step: str
    shares: tuple[tuple[int, int], ...]
    proved: bool = False

    @property
    def sites(self) -> tuple[int, ...]:
        """The sites by number, ascending."""
        return tuple(sorted(site for site, _ in self.shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """How good a set of sites is: `key` less is better. Fewest sites, then widest, then nearest.

    `bandwidth_bytes_per_s` is the least widest-path bandwidth (SpiderFlow, equation 1; a path may lead over any site)
    of two chosen sites: infinite for one site, 0 if no path joins them. `distance_s` is the least sum of latencies that
    joins the chosen sites, and the local one, into a tree, whose branches are paths of least latency: along a line of
    sites the length of the walk, as in table 1.
    """

    sites: int
    bandwidth_bytes_per_s: float
    distance_s: float

    @property
    def key(self) -> tuple[int, float, float]:
        """Ascending from the best."""
        return self.sites, -self.bandwidth_bytes_per_s, self.distance_s

    def to_json(self) -> dict[str, Any]:
        """JSON has no infinity: what is unbounded is null."""
        width, far = self.bandwidth_bytes_per_s, self.distance_s
        return {
            "sites": self.sites,
            "bandwidth_bytes_per_s": width if math.isfinite(width) else None,
            "distance_s": far if math.isfinite(far) else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Devices of one site, by type."""

    site: str
    devices: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        """Devices of all types."""
        return sum(count for _, count in self.devices)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"name": self.site, "devices": dict(self.devices)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """Another way to place the job, and why it is not the one chosen: the devices that it takes by site (empty: it
    finds none), the score of its sites (None: there are none, or they are some of those chosen), and where it was
    planned seconds of an iteration."""

    name: str
    sites: tuple[Share, ...]
    score: Score | None
    loses: str
    iteration_time_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as `json.dumps` takes it."""
        return {
            "name": self.name,
            "sites": [share.to_json() for share in self.sites],
            "score": None if self.score is None else self.score.to_json(),
            "iteration_time_s": self.iteration_time_s,
            "loses": self.loses,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePlacement:
    """Where a job's devices are. `links` are those between sites that widest paths of chosen sites run over. `proved`:
    no choice has a better score."""

    method: str
    step: str
    sites: tuple[Share, ...]
    links: tuple[tuple[str, str], ...]
    score: Score
    proved: bool
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSites:
    """A job that cannot be placed: why, and the smallest changes of each kind that would help, cheapest kind first."""

    reason: str
    changes: tuple[str, ...]

    @property
    def infeasible(self) -> Infeasible:
        """As the rest of the planner says it."""
        return Infeasible(reason="; ".join((self.reason, *self.changes)), lacking="devices")
