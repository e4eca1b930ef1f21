"""What jobs share now, and how fast each is beside the others (see `planner.many_jobs.simulation.settings.Sharing`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from planner.many_jobs.jobs.records import Grant
from planner.many_jobs.simulation.settings import Sharing
from planner.many_jobs.simulation.states import ActiveJob


class Shared:
    """What is in use now, and by whom."""

    __slots__ = ("changed", "in_use", "sharing", "users", "uses")

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.in_use: dict[str, int] = {}
        self.users: dict[str, dict[int, ActiveJob]] = {}
        self.uses: dict[int, Mapping[str, int]] = {}
        self.changed: set[str] = set()

    def enter(self, state: ActiveJob, grant: Grant) -> None:
        """The job begins to use what it does under this grant."""
        uses = self.uses[state.index] = self.sharing.uses(state.job, grant, state.placement)
        for name, amount in uses.items():
            self.in_use[name] = self.in_use.get(name, 0) + amount
            self.users.setdefault(name, {})[state.index] = state
        self.changed.update(uses)

    def leave(self, state: ActiveJob) -> None:
        """It uses nothing any more."""
        for name, amount in self.uses.pop(state.index).items():
            self.in_use[name] -= amount
            del self.users[name][state.index]
            self.changed.add(name)

    def beside_others(self) -> Iterator[tuple[ActiveJob, float]]:
        """The jobs that use something whose use has changed since this was last asked, by number, with the seconds
        that their iterations take now."""
        affected = {number: state for name in self.changed for number, state in self.users[name].items()}
        self.changed.clear()
        for number, state in sorted(affected.items()):
            assert state.grant is not None
            in_use = {name: self.in_use[name] for name in self.uses[number]}
            yield state, self.sharing.iteration_s(state.job, state.grant, state.placement, in_use)
