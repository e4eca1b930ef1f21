"""Jobs on links over time, as simply as can be: a reference for network policies, and every cut of a contention DAG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from estimator.network.steps import Mover, Playing, Transfer

NEVER = float("inf")


def iterations_a_second(jobs: Sequence[Playing], bytes_per_s: Sequence[float], until_s: float) -> list[float]:
    """Play from 0 to `until_s`, levels strict and fair inside; the rate of the later half, by whole iterations."""
    return [player.rate() for player in _played(jobs, bytes_per_s, until_s)]


def spent_seconds(
    jobs: Sequence[Playing], bytes_per_s: Sequence[float], until_s: float
) -> tuple[list[float], list[float]]:
    """Of each job, until then, seconds of compute, and seconds at pace 1 that it has sent."""
    players = _played(jobs, bytes_per_s, until_s)
    return [player.computed_s for player in players], [player.sent_s for player in players]


def _played(jobs: Sequence[Playing], bytes_per_s: Sequence[float], until_s: float) -> list[_Player]:
    players = [_Player(job, until_s) for job in jobs]
    now_s = 0.0
    while now_s < until_s:
        paces = _paces(jobs, players, bytes_per_s)
        step_s = min(
            [until_s - now_s]
            + [time for player in players for time in player.timers()]
            + [left / pace for movers in paces.values() for (left, pace) in movers if pace > 0]
        )
        now_s += step_s
        for number, player in enumerate(players):
            player.passes(step_s, [pace for _, pace in paces[number]], now_s)
    return players


class _Player:
    """A job: what it computes, what it sends."""

    def __init__(self, job: Playing, until_s: float) -> None:
        self.until_s = until_s
        self.ends_s: list[float] = []
        self.steps = [step for step in job.steps for _ in range(step.times)]
        self.at = -1
        self.compute_s, self.wait_s, self.latency_s = job.starts_s + job.idle_s, 0.0, 0.0
        self.own_level, self.level = job.level, job.level
        self.left: list[tuple[Mover, float]] = []
        self.queue: list[Transfer] = []
        self.computed_s, self.sent_s = 0.0, 0.0
        self.passes(0.0, [], 0.0)

    def timers(self) -> Iterator[float]:
        yield from (time for time in (self.compute_s, self.wait_s) if time > 0)
        if self.wait_s <= 0 and self.latency_s > 0:
            yield self.latency_s

    def sends(self) -> bool:
        return self.wait_s <= 0 and self.latency_s <= 0 and bool(self.left)

    def passes(self, time_s: float, paces: list[float], now_s: float) -> None:
        small = 1e-12 * max(now_s, 1.0)
        self.computed_s += time_s if self.compute_s > 0 and self.at >= 0 else 0.0
        if self.sends():
            self.sent_s += sum(paces) * time_s
            self.left = [(mover, left - pace * time_s) for (mover, left), pace in zip(self.left, paces, strict=True)]
            self.left = [(mover, left) for mover, left in self.left if left > small]
        elif self.wait_s <= 0 and self.latency_s > 0:
            self.latency_s = self.latency_s - time_s if self.latency_s - time_s > small else 0.0
        self.compute_s = self.compute_s - time_s if self.compute_s - time_s > small else 0.0
        self.wait_s = self.wait_s - time_s if self.wait_s - time_s > small else 0.0
        while self.wait_s <= 0 and self.latency_s <= 0 and not self.left and (self.queue or self.compute_s <= 0):
            if self.queue:
                transfer = self.queue.pop(0)
                self.level = self.own_level if transfer.level is None else transfer.level
                self.latency_s = transfer.latency_s
                self.left = [(mover, mover.seconds) for mover in transfer.movers if mover.seconds > 0]
            else:
                self.at += 1
                if self.at == len(self.steps):
                    self.ends_s.append(now_s)
                self.at %= len(self.steps)
                step = self.steps[self.at]
                self.compute_s, self.wait_s = step.compute_s, step.begins_s
                self.queue = [transfer for transfer in step.transfers for _ in range(transfer.times)]

    def rate(self) -> float:
        """Iterations from the first end after half the time to the last; 0 where there are none."""
        late = [end for end in self.ends_s if end >= self.until_s / 2]
        return (len(late) - 1) / (late[-1] - late[0]) if len(late) > 1 else 0.0


def _paces(
    jobs: Sequence[Playing], players: Sequence[_Player], bytes_per_s: Sequence[float]
) -> dict[int, list[tuple[float, float]]]:
    """Of each job's movers what is left of them and their pace: levels one after the other, progressive filling."""
    left = list(bytes_per_s)
    movers = [(n, m) for n, player in enumerate(players) if player.sends() for m in range(len(player.left))]
    pace = dict.fromkeys(movers, 0.0)
    for level in sorted({player.level for player in players}):
        growing = [mover for mover in movers if players[mover[0]].level == level]
        while growing:
            loads = [0.0] * len(left)
            for n, m in growing:
                for link, amount in players[n].left[m][0].way:
                    loads[link] += amount * jobs[n].weight
            more = min([left[link] / load for link, load in enumerate(loads) if load > 0], default=NEVER)
            more = min([more] + [(players[n].left[m][0].most - pace[n, m]) / jobs[n].weight for n, m in growing])
            for n, m in growing:
                pace[n, m] += more * jobs[n].weight
            left = [rest - more * load for rest, load in zip(left, loads, strict=True)]
            full = {link for link, load in enumerate(loads) if load > 0 and left[link] <= 1e-12 * bytes_per_s[link]}
            growing = [
                (n, m)
                for n, m in growing
                if pace[n, m] < players[n].left[m][0].most * (1 - 1e-12)
                and not any(link in full for link, _ in players[n].left[m][0].way)
            ]
    return {
        n: [(player.left[m][1], pace[n, m]) for m in range(len(player.left))] if player.sends() else []
        for n, player in enumerate(players)
    }


def best_cut_weight(count: int, edges: Sequence[tuple[int, int, float]], levels: int) -> float:
    """The most that any valid levels cut, by trying all."""
    return max(
        sum(weight for u, v, weight in edges if tried[u] < tried[v])
        for tried in product(range(levels), repeat=count)
        if all(tried[u] <= tried[v] for u, v, _ in edges)
    )
