"""What jobs share now, and how fast each is beside the others (see `planner.many_jobs.simulation.settings.Sharing`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.settings import Placement, Seated, Sharing, Steering
from planner.many_jobs.simulation.states import ActiveJob


class SharedAmounts(ABC):
    """A `Sharing` of things of which only counts how much is in use, whoever uses it."""

    @abstractmethod
    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        """How much the job uses of what, by name; empty if it shares nothing."""

    @abstractmethod
    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        """Seconds of an iteration with so much of what the job uses in use, its own part included."""

    def beside_s(self, seated: Seated, in_use: Mapping[str, int]) -> float:
        """As `iteration_s`, told what is in use of everything, by this job or not."""
        own = {name: in_use[name] for name in seated.uses}
        return self.iteration_s(seated.job, seated.grant, seated.placement, own)

    def iterations_s(self, together: Sequence[Seated]) -> Sequence[float]:
        """As `Sharing`."""
        in_use: Counter[str] = Counter()
        for each in together:
            in_use.update(each.uses)
        return [self.beside_s(each, in_use) for each in together]


class Shared:
    """What is in use now, and by whom."""

    __slots__ = ("changed", "in_use", "seated", "sharing", "states", "users")

    def __init__(self, sharing: Sharing) -> None:
        self.sharing = sharing
        self.in_use: Counter[str] = Counter()
        self.users: dict[str, set[int]] = {}
        self.seated: dict[int, Seated] = {}
        self.states: dict[int, ActiveJob] = {}
        self.changed: set[str] = set()

    def enter(self, state: ActiveJob, grant: Grant) -> None:
        """The job begins to use what it does under this grant."""
        uses = self.sharing.uses(state.job, grant, state.placement)
        self.seated[state.index] = Seated(job=state.job, grant=grant, placement=state.placement, uses=uses)
        self.states[state.index] = state
        self.in_use.update(uses)
        for name in uses:
            self.users.setdefault(name, set()).add(state.index)
        self.changed.update(uses)

    def leave(self, state: ActiveJob) -> None:
        """It uses nothing any more."""
        uses = self.seated.pop(state.index).uses
        del self.states[state.index]
        self.in_use.subtract(uses)
        for name in uses:
            self.users[name].discard(state.index)
        self.changed.update(uses)

    def alone_s(self, state: ActiveJob) -> float:
        """Seconds of an iteration of a job that has entered, if all others were gone."""
        seated = self.seated[state.index]
        return self.sharing.iterations_s([seated])[0] if seated.uses else state.iteration_time_s

    def neighbours(self, number: int) -> tuple[str, ...]:
        """The ids of the jobs that use something that the job uses, by their numbers."""
        users = {user for name in self.seated[number].uses for user in self.users[name]}
        return tuple(self.seated[user].job.id for user in sorted(users - {number}))

    def beside_others(self) -> Iterator[tuple[ActiveJob, float, float]]:
        """The jobs that may have got slower or faster since this was last asked, by number, with the seconds that their
        iterations take now, and those in which they stand still first: of the components in which something has
        changed; where amounts are all that counts only the users of what has changed; under a policy of the network
        all who are on it."""
        pauses_s: Mapping[int, float] = {}
        if isinstance(self.sharing, SharedAmounts):
            times_s: Mapping[int, float] = self._by_amounts(self.sharing)
        elif isinstance(self.sharing, Steering):
            steered = self.sharing.steer(self.seated)
            times_s, pauses_s = steered.seconds, steered.pauses_s
        else:
            times_s = self._by_components()
        self.changed.clear()
        for number, iteration_s in sorted(times_s.items()):
            yield self.states[number], iteration_s, pauses_s.get(number, 0.0)

    def _by_amounts(self, sharing: SharedAmounts) -> dict[int, float]:
        numbers = {number for name in self.changed for number in self.users[name]}
        return {number: sharing.beside_s(self.seated[number], self.in_use) for number in numbers}

    def _by_components(self) -> dict[int, float]:
        times_s: dict[int, float] = {}
        for name in self.changed:
            for number in self.users[name]:
                if number not in times_s:
                    together = sorted(self._component(number))
                    seated = [self.seated[member] for member in together]
                    times_s.update(zip(together, self.sharing.iterations_s(seated), strict=True))
        return times_s

    def _component(self, number: int) -> set[int]:
        """Who shares something with the job, or with one who does."""
        members, names, open_ = {number}, set[str](), [number]
        while open_:
            fresh = self.seated[open_.pop()].uses.keys() - names
            names |= fresh
            for name in fresh:
                others = self.users[name] - members
                members |= others
                open_ += others
        return members
