"""What jobs share now, and how fast each is beside the others (see `planner.many_jobs.simulation.settings.Sharing`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from planner.many_jobs.jobs.records import Grant, Job
from planner.many_jobs.simulation.settings import Placement, Seated, SharedInTurns, Sharing, Steering
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


InTurns = Callable[[Sequence[ActiveJob], Sequence[float]], float]
"""Seconds of a round of jobs that take turns, of each of which is known what an iteration would take without them."""


class Shared:
    """What is in use now, and by whom. Jobs that take turns on the same devices are one, with the number of the first
    of them."""

    __slots__ = ("changed", "first", "in_turns", "in_use", "seated", "sharing", "states", "users")

    def __init__(self, sharing: Sharing, in_turns: InTurns) -> None:
        self.sharing, self.in_turns = sharing, in_turns
        self.in_use: Counter[str] = Counter()
        self.users: dict[str, set[int]] = {}
        self.seated: dict[int, Seated] = {}
        self.states: dict[int, Sequence[ActiveJob]] = {}
        self.first: dict[int, int] = {}
        self.changed: set[str] = set()

    def enter(self, states: Sequence[ActiveJob]) -> None:
        """The job, or the jobs that take turns, begin to use what they do under their grants."""
        number = states[0].index
        seated = self._together([self._seat(state) for state in states])
        self.seated[number], self.states[number] = seated, states
        self.first.update((state.index, number) for state in states)
        self.in_use.update(seated.uses)
        for name in seated.uses:
            self.users.setdefault(name, set()).add(number)
        self.changed.update(seated.uses)

    def leave(self, states: Sequence[ActiveJob]) -> None:
        """They use nothing any more."""
        number = states[0].index
        uses = self.seated.pop(number).uses
        del self.states[number]
        for state in states:
            del self.first[state.index]
        self.in_use.subtract(uses)
        for name in uses:
            self.users[name].discard(number)
        self.changed.update(uses)

    def _seat(self, state: ActiveJob) -> Seated:
        assert state.grant is not None
        uses = self.sharing.uses(state.job, state.grant, state.placement)
        return Seated(job=state.job, grant=state.grant, placement=state.placement, uses=uses)

    def _together(self, seats: Sequence[Seated]) -> Seated:
        """Those who take turns as one; where nobody knows better what they use, as much of each as the most of one."""
        if len(seats) == 1:
            return seats[0]
        if isinstance(self.sharing, SharedInTurns):
            uses = self.sharing.uses_in_turns(seats)
        else:
            names = dict.fromkeys(name for seat in seats for name in seat.uses)
            uses = {name: max(seat.uses.get(name, 0) for seat in seats) for name in names}
        return replace(seats[0], uses=uses, mates=tuple(seats[1:]))

    def alone_s(self, state: ActiveJob) -> float:
        """Seconds of an iteration of a job that is placed, if all others were gone; what it has of one that shares
        nothing."""
        number = self.first.get(state.index)
        seated = self._seat(state) if number is None or self.seated[number].mates else self.seated[number]
        return self.sharing.iterations_s([seated])[0] if seated.uses else state.alone_s

    def neighbours(self, number: int) -> tuple[str, ...]:
        """The ids of the jobs that use something that the job uses, by their numbers; not those who take turns with
        it."""
        own = self.first[number]
        users = {user for name in self.seated[own].uses for user in self.users[name]}
        return tuple(state.job.id for user in sorted(users - {own}) for state in self.states[user])

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
            pause_s = pauses_s.get(number, 0.0)
            yield from ((state, iteration_s, pause_s) for state in self.states[number])

    def _by_amounts(self, sharing: SharedAmounts) -> dict[int, float]:
        numbers = {number for name in self.changed for number in self.users[name]}
        return {number: self._beside_s(sharing, number) for number in numbers}

    def _beside_s(self, sharing: SharedAmounts, number: int) -> float:
        if not self.seated[number].mates:
            return sharing.beside_s(self.seated[number], self.in_use)
        states = self.states[number]
        return self.in_turns(states, [sharing.beside_s(self._seat(state), self.in_use) for state in states])

    def _by_components(self) -> dict[int, float]:
        times_s: dict[int, float] = {}
        for name in self.changed:
            for number in self.users[name]:
                if number not in times_s:
                    together = sorted(self._component(number))
                    times_s.update(zip(together, self._iterations_s(together), strict=True))
        return times_s

    def _iterations_s(self, together: Sequence[int]) -> Sequence[float]:
        """Seconds of an iteration, or of a round, of each of a component. Who does not know turns is asked for each of
        those who take them in turn."""
        seated = [self.seated[number] for number in together]
        most = max(len(each.mates) for each in seated)
        if not most or isinstance(self.sharing, SharedInTurns):
            return self.sharing.iterations_s(seated)
        each_alone = [[self._seat(state) for state in self.states[number]] for number in together]
        asked = [
            self.sharing.iterations_s([seats[turn % len(seats)] for seats in each_alone]) for turn in range(most + 1)
        ]
        return [
            self.in_turns(self.states[number], [asked[turn][place] for turn in range(len(self.states[number]))])
            for place, number in enumerate(together)
        ]

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
