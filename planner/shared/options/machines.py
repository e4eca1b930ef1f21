"""The options of `place` for machines that are partly used: jobs that may be moved to make room."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from planner.shared.options.record import Option, Options
from planner.shared.options.simulate import RESTART_S
from planner.shared.options.values import DURATION, POSITIVE_INT
from profiles.records import dataclass

MACHINES = partial(Option, group="partly used machines (docs/machines.md)")
MOST_MOVED = 3


@dataclass(frozen=True, kw_only=True)
class MachinesOptions(Options):
    """How many running jobs may be moved so that this one fits on whole machines, and what a move costs."""

    move: Annotated[
        int | None,
        MACHINES(f"which running jobs to move, K of them at most (1 to {MOST_MOVED}), so that it fits whole", "K",
                 POSITIVE_INT),
    ] = None  # fmt: skip
    move_time: Annotated[
        float, MACHINES("seconds that a job that is moved stands still (default: %(default)s)", "S", DURATION)
    ] = RESTART_S

    def check_machines(self) -> None:
        """Raise InputError for moves that are not exact, or without the jobs that run, or beside what a move is not
        for."""
        if self.move is None:
            if "move_time" in self.changed():
                raise self.wrong("move_time", found=f"{self.move_time:g}", expected="--move K beside it")
            return
        if self.move > MOST_MOVED:
            raise self.wrong("move", found=self.move, expected=f"1 to {MOST_MOVED}, up to which it is exact")
        if getattr(self, "running", None) is None:
            raise self.wrong("move", found="no --running", expected="--running FILE, the jobs that run")
        for name in ("reserve", "spares", "measure_affinity", "local", "comm", "links", "max_spread", "alpha"):
            if getattr(self, name, None):
                raise self.wrong(name, found="--move too", expected="one of them")
