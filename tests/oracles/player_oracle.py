"""Jobs played beside each other in fractions: nothing folded, all paces anew at every moment."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from estimator.network.steps import Mover, Playing, Step, Transfer


class _Job:
    """A job that goes through all steps of all its iterations in a row."""

    def __init__(self, playing: Playing) -> None:
        self.playing = playing
        self.steps = [step for step in playing.steps for _ in range(step.times)] * (playing.iterations or 0)
        self.size = len(self.steps) // (playing.iterations or 1)
        self.ends: list[Fraction] = []
        self.due = Fraction(playing.starts_s) + Fraction(playing.idle_s)
        self._begin(0, self.due)

    def _begin(self, number: int, now: Fraction) -> None:
        self.number = number
        self.left: dict[int, Fraction] = {}
        step = self.steps[number] if number < len(self.steps) else Step(compute_s=0.0)
        self.computed = now + Fraction(step.compute_s)
        self.transfers: list[Transfer] = [each for each in step.transfers for _ in range(each.times)]
        self.waits: Fraction | None = now + Fraction(step.begins_s)
        if self.transfers:
            self.waits += Fraction(self.transfers[0].latency_s)

    @property
    def gone(self) -> bool:
        return self.number == len(self.steps)

    def go_on(self, now: Fraction) -> bool:
        """Do one thing that is due; whether there was one."""
        if self.gone:
            return False
        if self.waits is not None and self.waits <= now and self.transfers:
            self.waits = None
            self.left = {number: Fraction(each.seconds) for number, each in enumerate(self.transfers[0].movers)}
            return True
        if self.waits is None and not any(self.left.values()):
            self.transfers = self.transfers[1:]
            self.waits = now + Fraction(self.transfers[0].latency_s) if self.transfers else now
            return True
        if self.waits is not None and self.waits <= now and self.computed <= now:
            begins = now
            if (self.number + 1) % self.size == 0:
                self.ends.append(now)
                begins = self._held(now)
            self._begin(self.number + 1, begins)
            return True
        return False

    def _held(self, now: Fraction) -> Fraction:
        """When the next iteration begins."""
        period = Fraction(self.playing.period_s)
        if not period:
            return now
        self.due += period
        while self.due + period <= now:
            self.due += period
        return max(self.due, now)

    def moving(self) -> list[tuple[int, Mover, int]]:
        """What is on its way: by number in its transfer, with its level."""
        if self.waits is not None or self.gone:
            return []
        transfer = self.transfers[0]
        level = self.playing.level if transfer.level is None else transfer.level
        return [(number, transfer.movers[number], level) for number, left in self.left.items() if left]


def played_ends(playings: Sequence[Playing], bytes_per_s: Sequence[float]) -> list[list[Fraction]]:
    """The ends of all iterations of each job; all must have a number of them."""
    jobs, now = [_Job(playing) for playing in playings], Fraction(0)
    while True:
        while any(job.go_on(now) for job in jobs):
            pass
        if all(job.gone for job in jobs):
            return [job.ends for job in jobs]
        moving = [(job, number, mover, level) for job in jobs for number, mover, level in job.moving()]
        paces = _paces([(mover, level, _weight(job.playing, mover)) for job, _, mover, level in moving], bytes_per_s)
        times = [time for job in jobs if not job.gone for time in (job.computed, job.waits) if time and time > now]
        times += [
            now + job.left[number] / pace for (job, number, _, _), pace in zip(moving, paces, strict=True) if pace
        ]
        after = min(times)
        for (job, number, _, _), pace in zip(moving, paces, strict=True):
            job.left[number] -= pace * (after - now)
        now = after


def _weight(playing: Playing, mover: Mover) -> Fraction:
    """Shares of links are equal in bytes."""
    return Fraction(playing.weight) / max((Fraction(amount) for _, amount in mover.way), default=Fraction(1))


def _paces(movers: Sequence[tuple[Mover, int, Fraction]], bytes_per_s: Sequence[float]) -> list[Fraction]:
    """Level by level all paces over weight rise together; who is held by a full link, or by its most, stays."""
    left = [Fraction(rate) for rate in bytes_per_s]
    paces = [Fraction(0)] * len(movers)
    for level in sorted({level for _, level, _ in movers}):
        rising = [number for number, (_, its, _) in enumerate(movers) if its == level]
        while rising:
            loads = [Fraction(0)] * len(left)
            for number in rising:
                for link, amount in movers[number][0].way:
                    loads[link] += Fraction(amount) * movers[number][2]
            steps = [left[link] / load for link, load in enumerate(loads) if load]
            steps += [(Fraction(movers[n][0].most) - paces[n]) / movers[n][2] for n in rising]
            step = min(steps)
            for number in rising:
                paces[number] += step * movers[number][2]
            left = [rate - step * load for rate, load in zip(left, loads, strict=True)]
            rising = [
                number
                for number in rising
                if paces[number] < Fraction(movers[number][0].most)
                and all(left[link] for link, _ in movers[number][0].way)
            ]
    return paces
