"""Jobs played beside each other: to the end, or until their rates are steady and on from there by these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from estimator.network.player import compiling, events
from estimator.network.player.folding import Part, fold
from estimator.network.player.packing import Floats, Packed, pack
from estimator.network.player.score import (
    EVENTS,
    LOGGED,
    MOVING,
    NEVER,
    NOW,
    PERIOD,
    PRESENT,
    SAVED,
    Score,
    State,
    fresh_state,
)
from estimator.network.player.scoring import Watch, as_lists, make_score
from estimator.network.steps import Playing
from profiles.records import dataclass

WHOLE = 1e-9
"""So near to a whole number of periods is one."""
NOTHING = 1e-6
"""Of a transfer no more than this is none of it."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How jobs are played.

    `exact`: every iteration; else until rates are steady, and by these to when the next job comes or goes. A rate is
    steady when the state recurs (asked where nothing varies), or when `window` iterations take as long as the `window`
    before to within `tolerance`; after `most_windows`, or `most_events` of a part of the network, it is taken as it is.
    `until_s` is the end (None: when all have gone, or where some never go, when all is steady). Compute times vary from
    iteration to iteration, evenly, by up to the share `jitter`, by `seed`. `compiled`: by numba; None: where it is
    there. `log_rows` of what happened first are kept, of each part.
    """

    exact: bool = False
    until_s: float | None = None
    jitter: float = 0.01
    seed: int = 0
    window: int = 20
    tolerance: float = 0.01
    most_windows: int = 10
    most_events: int = 500_000
    compiled: bool | None = None
    log_rows: int = 0


@dataclass(frozen=True, kw_only=True)
class JobPlayed:
    """What became of a job: `iterations` until the end; `seconds` is what one of them takes: of a job that never goes,
    played to no stated end, at its last rate, else over all that it did; inf where it gets nowhere. `ended_s` is when
    it went. `steady`: its last rate recurs or stayed within the tolerance."""

    iterations: float
    seconds: float
    ended_s: float | None
    steady: bool


@dataclass(frozen=True, kw_only=True)
class Happening:
    """A row of the log: `what` as `estimator.network.player.score` counts it, of a job by number, with the number of
    its step or transfer."""

    time_s: float
    what: int
    job: int
    at: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Played:
    """What became of the jobs, in their order; `bytes_per_s` is what each link carries in the mean while all play at
    their `seconds`; `events` that were played; the log."""

    jobs: tuple[JobPlayed, ...]
    bytes_per_s: Floats
    events: int
    log: tuple[Happening, ...]


def play(
    jobs: Sequence[Playing | Packed],
    bytes_per_s: Floats,
    *,
    settings: Settings | None = None,
    names: Sequence[str] | None = None,
) -> Played:
    """Play jobs on links that carry `bytes_per_s`.

    Args:
        jobs: packed ones (`pack`) are quicker, when they are played more than once.
        names: what each job's jitter is drawn by; unsaid: its place.

    Raises:
        ValueError: a job that cannot be (`pack`), a link that there is not, or no end: `exact` with a job that never
            goes, and no `until_s`.
    """
    settings = settings or Settings()
    packed = [job if isinstance(job, Packed) else pack(job) for job in jobs]
    names = names or [str(number) for number in range(len(jobs))]
    bytes_per_s = np.asarray(bytes_per_s, dtype=np.float64)
    for job in packed:
        if len(job.links) and not (job.links[0] >= 0 and job.links[-1] < len(bytes_per_s)):
            raise ValueError(f"found links {job.links[0]} to {job.links[-1]}, expected of {len(bytes_per_s)}")
        if settings.exact and settings.until_s is None and job.playing.iterations is None:
            raise ValueError("found a job that never goes, expected until_s where every iteration is played")
    played: dict[int, JobPlayed] = {}
    happened: list[Happening] = []
    count = 0
    for part in fold(packed, bytes_per_s):
        in_part = _PartPlayed(part, packed, names, bytes_per_s, settings)
        in_part.play()
        played.update(zip(part.jobs, in_part.results(), strict=True))
        happened += in_part.log()
        count += in_part.events
    results = tuple(played[job] for job in range(len(packed)))
    return Played(
        jobs=results,
        bytes_per_s=mean_bytes_per_s(packed, [job.seconds for job in results], len(bytes_per_s)),
        events=count,
        log=tuple(sorted(happened, key=lambda row: (row.time_s, row.job, row.what, row.at))),
    )


def mean_bytes_per_s(packed: Sequence[Packed], seconds: Sequence[float], links: int) -> Floats:
    """Return what each link carries in the mean where the jobs' iterations take so long, (links,)."""
    total = np.zeros(links)
    for job, of_job in zip(packed, seconds, strict=True):
        total[job.links] += job.iteration_bytes / of_job
    return total


class _PartPlayed:
    """A part on its way: the state, and how long was not played but counted."""

    def __init__(
        self, part: Part, packed: Sequence[Packed], names: Sequence[str], bytes_per_s: Floats, settings: Settings
    ) -> None:
        alone = len(part.jobs) == 1
        self._exact, self._settings, self._part = settings.exact and not alone, settings, part
        # What meets nobody takes in the mean what it takes without jitter.
        watch = Watch(
            jitter=0.0 if alone else settings.jitter,
            seed=settings.seed,
            window=0 if self._exact or alone else settings.window,
            most_windows=settings.most_windows,
            tolerance=settings.tolerance,
            compares=not self._exact and (alone or settings.jitter == 0),
            log_rows=settings.log_rows,
        )
        self._playings = [packed[job].playing for job in part.jobs]
        self._lasts_s = [packed[job].lasts_s for job in part.jobs]
        score = make_score(part, packed, names, bytes_per_s, watch)
        state = fresh_state(score)
        compiled = compiling.can_compile() if settings.compiled is None else settings.compiled
        self._advance = compiling.compiled_advance() if compiled else events.advance
        self._score: Score = score if compiled else as_lists(score)
        self._state: State = state if compiled else as_lists(state)
        self._skipped_s, self._ended = 0.0, events.REACHED
        self._went_s: list[float | None] = [None] * len(part.jobs)

    @property
    def events(self) -> int:
        return int(self._state.tally[EVENTS])

    def play(self) -> None:
        settings = self._settings
        end_s = NEVER if settings.until_s is None else settings.until_s
        while True:
            most = (1 << 60) if self._exact else self.events + settings.most_events
            self._ended = why = self._advance(self._score, self._state, end_s - self._skipped_s, most)
            for job, went_s in enumerate(self._state.went_s):
                if went_s < NEVER and self._went_s[job] is None:
                    self._went_s[job] = float(went_s) + self._skipped_s
            if why in (events.REACHED, events.ALL_GONE):
                return
            if not self._skip(why, end_s):
                return

    def _skip(self, why: int, end_s: float) -> bool:
        """Count on by the rates that were found, to when a job comes or goes or to the end; whether there is one. A
        state that recurs goes on for whole periods, exactly; else every job is where it is in its iteration."""
        state, now = self._state, float(self._state.clock[NOW])
        present = [int(job) for job in state.present[: state.tally[PRESENT]]]
        rates = {job: 1.0 / state.seconds_s[job] for job in present}
        changes_s = [end_s - self._skipped_s - now]
        changes_s += [float(score_s) - now for score_s in self._score.starts_s if score_s > now]
        for job in present:
            left = self._score.iterations[job] - state.done[job]
            if self._score.iterations[job] >= 0 and rates[job] > 0:
                changes_s.append((left - 1.0) / rates[job])
        skip_s = max(min(changes_s), 0.0)
        if skip_s == NEVER:
            return False
        if why == events.RECURS:
            skip_s = state.clock[PERIOD] * np.floor(skip_s / state.clock[PERIOD] + WHOLE)
        for job in present:
            state.done[job] += rates[job] * skip_s
        # What was saved to compare with had not counted these.
        state.tally[SAVED] = 0
        self._skipped_s += float(skip_s)
        for job in range(len(self._score.starts_s)):
            self._score.starts_s[job] -= skip_s if self._score.starts_s[job] > now else 0.0
        return True

    def results(self) -> list[JobPlayed]:
        return [self._result(job, playing) for job, playing in enumerate(self._playings)]

    def _result(self, job: int, playing: Playing) -> JobPlayed:
        went_s, done = self._went_s[job], float(self._state.done[job])
        begins_s, steady = playing.starts_s + playing.idle_s, int(self._state.steady[job]) == 1
        if went_s is not None and playing.iterations is not None:
            done = float(playing.iterations)
            seconds = (went_s - begins_s) / done if done else NEVER
        elif self._settings.until_s is not None:
            seconds = (self._settings.until_s - begins_s) / done if done else NEVER
        else:
            seconds = float(self._state.seconds_s[job])
            if seconds == NEVER and self._ended == events.TIRED:
                seconds = self._begun_s(job)
        return JobPlayed(iterations=done, seconds=seconds, ended_s=went_s, steady=steady)

    def _begun_s(self, job: int) -> float:
        """What an iteration takes of a job that has come to no rate within the events that were allowed, since its
        iterations are long beside those of others: by those that it did, else by what is done of its first. inf where
        it gets no share of what it waits for."""
        state, score = self._state, self._score
        through = 1.0
        if state.comm[job] == MOVING:
            transfer = state.transfer[job]
            for mover in range(score.mover_first[transfer], score.mover_first[transfer + 1]):
                if state.mover_active[mover] and score.seconds[mover] > 0:
                    through = min(through, 1.0 - float(state.mover_left_s[mover] / score.seconds[mover]))
        if through < NOTHING:
            return NEVER
        elapsed_s = float(state.clock[NOW] - state.came_s[job]) - self._playings[job].idle_s
        done = float(state.done[job])
        return elapsed_s / done if done >= 1 else max(self._lasts_s[job], elapsed_s / through)

    def log(self) -> list[Happening]:
        """What was logged, of jobs as all are counted."""
        state = self._state
        return [
            Happening(
                time_s=float(state.log_time_s[row]),
                what=int(state.log_what[row]),
                job=self._part.jobs[int(state.log_job[row])],
                at=int(state.log_at[row]),
            )
            for row in range(int(state.tally[LOGGED]))
        ]
