"""What a network policy is told, and what it answers."""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import numpy as np

from estimator.network.steps import Step
from estimator.network.wires import Floats
from planner.contention.policies.sending import Choice, Path, Sending
from profiles.records import dataclass, replace

__all__ = ["Choice", "Contender", "Decision", "NetworkPolicy", "Path", "View"]


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A job on the network. The ways of its `steps` name its connections, not links: (connection, bytes/s at pace 1).
    `paths` are those that each connection may take, `now` the ones that it takes (hashed, where nobody chose).

    Attributes:
        flops: of an iteration, on all devices (Crux, eq. 1).
        alone_s: of an iteration where nobody else sends.
        own_level: the level that is in force now, or that its users gave it; 0 comes first.
        weight: of two jobs of one level on a link, who has twice the weight gets twice the share. It says nothing of
            what work is worth.
        axes: of each connection, the axis (dp, tp, pp, ep, cp) of the collectives that it carries; empty where nobody
            knows them.
        may_change: whether other paths and another level than now may be answered.
        recent_loss: the share of its iterations a second alone that it has lost of late; None where nobody measured.
    """

    id: str
    devices: int
    flops: float
    alone_s: float
    steps: tuple[Step, ...]
    paths: tuple[tuple[Path, ...], ...]
    now: tuple[Choice, ...]
    own_level: int = 0
    weight: float = 1.0
    axes: tuple[str, ...] = ()
    may_change: bool = True
    recent_loss: float | None = None

    def __post_init__(self) -> None:
        """Raise ValueError where there is no time, a connection has no path, or it takes one that it has not, or axes
        are known of some connections alone."""
        if not (self.alone_s > 0 and self.flops >= 0 and self.weight > 0):
            said = f"alone_s {self.alone_s}, flops {self.flops}, weight {self.weight}: above 0, not below 0, above 0"
            raise ValueError(f"job {self.id}: {said}")
        if len(self.now) != len(self.paths):
            raise ValueError(f"job {self.id}: {len(self.now)} choices now for {len(self.paths)} connections")
        for options, choice in zip(self.paths, self.now, strict=True):
            if not options or (choice is not None and not 0 <= choice < len(options)):
                raise ValueError(f"job {self.id}: path {choice} of {len(options)}")
        if len(self.axes) not in (0, len(self.paths)):
            raise ValueError(f"job {self.id}: {len(self.axes)} axes for {len(self.paths)} connections")

    @cached_property
    def sending(self) -> Sending:
        """What follows from its steps and paths."""
        return Sending(steps=self.steps, paths=self.paths)

    def as_told(self, *, id: str, own_level: int, now: tuple[Choice, ...]) -> Contender:
        """Return the same job by another name, at another level and on other paths now; what follows from its steps and
        paths is worked out once for both."""
        other = replace(self, id=id, own_level=own_level, now=now)
        vars(other)["sending"] = self.sending
        return other


@dataclass(frozen=True, kw_only=True)
class View:
    """Jobs on one fabric. `levels`: how many priorities the fabric leaves free; None: any number of them."""

    jobs: tuple[Contender, ...]
    bytes_per_s: tuple[float, ...]
    levels: int | None

    def __post_init__(self) -> None:
        """Raise ValueError for fewer than one level, or two jobs of one name."""
        if self.levels is not None and self.levels < 1:
            raise ValueError(f"levels {self.levels}: at least 1")
        if len({job.id for job in self.jobs}) != len(self.jobs):
            raise ValueError("two jobs have the same id")

    @cached_property
    def rates(self) -> Floats:
        """`bytes_per_s` as an array."""
        return np.array(self.bytes_per_s, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a policy answers, by the numbers of the view's jobs.

    Attributes:
        paths: of each job, of each of its connections.
        levels: of each job, 0 first; None: it shares no link and needs none.
        offsets_s: how much later than now each job's next iteration begins.
        order: the jobs that share links, the most important first; empty where all are the same.
        axis_levels: of each job, (axis, level) of each axis whose transfers have a level of their own, by axis; () of
            one whose transfers all have the job's. Empty: of no job.
        periods_s: of each job the period that its iterations are held to: none begins sooner than so many of them
            after the first (`Playing.period_s`); None of one that is not held. Empty: no job is.
        proved: no paths and levels do more work.
        given_up: the share of the most work that was found which is given up so that fewer jobs change.
    """

    paths: tuple[tuple[Choice, ...], ...]
    levels: tuple[int | None, ...]
    offsets_s: tuple[float, ...]
    order: tuple[int, ...] = ()
    axis_levels: tuple[tuple[tuple[str, int], ...], ...] = ()
    periods_s: tuple[float | None, ...] = ()
    proved: bool = False
    given_up: float = 0.0


class NetworkPolicy(Protocol):
    """It keeps nothing between two calls, and is deterministic."""

    @property
    def name(self) -> str: ...
    def decide(self, view: View, /) -> Decision: ...
