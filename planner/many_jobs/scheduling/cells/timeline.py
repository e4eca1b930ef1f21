"""How many devices of a pool are free at what time from now on, and when the policy will be asked next."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right

from planner.many_jobs.jobs.records import View

ALIKE_S = 1e-6
"""Times that differ by less are one: ends are foreseen anew at every decision, and not to the last bit alike."""


class Timeline:
    """Free devices of one pool as a step function of time: `free[i]` from `times[i]` on, the last for ever. Times are
    clock times in seconds."""

    __slots__ = ("free", "times")

    def __init__(self, now_s: float, free: int) -> None:
        self.times, self.free = [now_s], [free]

    def copy(self) -> Timeline:
        """One that changes by itself."""
        copied = Timeline(0.0, 0)
        copied.times, copied.free = self.times.copy(), self.free.copy()
        return copied

    def snap(self, time_s: float) -> float:
        """This time, or the one of `times` that is alike."""
        place = bisect_left(self.times, time_s - ALIKE_S)
        if place < len(self.times) and self.times[place] <= time_s + ALIKE_S:
            return self.times[place]
        return time_s

    def take(self, start_s: float, end_s: float, count: int) -> None:
        """So many devices are taken (below 0: given back) from `start_s`, which is not before now, to `end_s`.
        What is given back must be what was taken, to the last bit (`snap` before, not after)."""
        first, last = self._edge(start_s), self._edge(end_s)
        for place in range(first, last):
            self.free[place] -= count
        for place in (last, first):
            if 0 < place < len(self.times) and self.free[place] == self.free[place - 1]:
                del self.times[place], self.free[place]

    def room(self, start_s: float, end_s: float) -> int:
        """Devices that are free all the time between the two."""
        first = bisect_right(self.times, start_s + ALIKE_S) - 1
        return min(self.free[first : max(first + 1, bisect_left(self.times, end_s - ALIKE_S))])

    def earliest(self, count: int, lasts_s: float, latest_s: float) -> float | None:
        """The earliest time, at most `latest_s`, from which so many are free for `lasts_s`; it is now or a time at
        which devices come back. None: there is none."""
        times, free = self.times, self.free
        start, steps = 0, len(times)
        while start < steps and times[start] <= latest_s:
            end_s = times[start] + lasts_s - ALIKE_S
            place = start
            while place < steps and (place == start or times[place] < end_s) and free[place] >= count:
                place += 1
            if place == steps or (place > start and times[place] >= end_s):
                return times[start]
            start = place + 1
        return None

    def _edge(self, time_s: float) -> int:
        """The place of this time, which becomes one of the times."""
        place = bisect_left(self.times, time_s)
        if place == len(self.times) or self.times[place] != time_s:
            self.times.insert(place, time_s)
            self.free.insert(place, self.free[place - 1])
        return place


class Cadence:
    """When a policy is asked: after every event, or at the multiples of a round.

    It is rounds as soon as a job is seen later than it was submitted. Their length is the least time between two calls,
    `round_s` seconds until there were two.
    """

    def __init__(self, round_s: float) -> None:
        self._fallback_s = round_s
        self._rounds = False
        self._gap_s = math.inf
        self._now_s = -math.inf

    def see(self, view: View) -> None:
        """A call."""
        for id_ in view.arrived:
            state = view.waiting.get(id_)
            if state is not None and view.now_s - state.job.submit_s > ALIKE_S:
                self._rounds = True
        if view.now_s > self._now_s:
            self._gap_s = min(self._gap_s, view.now_s - self._now_s)
            self._now_s = view.now_s

    @property
    def gap_s(self) -> float:
        """Seconds from call to call; 0: it is asked whenever something happens."""
        if not self._rounds:
            return 0.0
        return self._gap_s if math.isfinite(self._gap_s) else self._fallback_s

    def state(self) -> list[float | bool | None]:
        """As JSON."""
        gap_s = self._gap_s if math.isfinite(self._gap_s) else None
        return [self._rounds, gap_s, self._now_s if math.isfinite(self._now_s) else None]

    def restore(self, held: list[float | bool | None]) -> None:
        """Take over what `state` gave."""
        rounds, gap_s, now_s = held
        self._rounds = bool(rounds)
        self._gap_s = math.inf if gap_s is None else float(gap_s)
        self._now_s = -math.inf if now_s is None else float(now_s)
