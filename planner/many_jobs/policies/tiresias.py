"""Tiresias: least attained service in two dimensions, in a few queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from planner.many_jobs.jobs.records import Decision, JobState, View
from planner.many_jobs.scheduling.queueing import decision_for, take_in_order


class Tiresias:
    """Discretised 2D-LAS (Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI 2019,
    section 3; its Tiresias-L, which knows nothing of durations).

    A job's service is devices times seconds held. It starts in the first queue and falls to the next at each threshold;
    the queues go in order, each first in, first out, and whoever no longer fits is suspended. One that has waited
    `promote` times as long as it had run is put back into the first queue, its service counted anew (its
    PROMOTEKNOB, against starvation). Whoever does not fit is passed over.

    Simplifications: placement by model skew is the engine's matter; within a queue the order is that of submission
    (theirs: of first start); a job crosses a threshold when the policy is next asked.

    Args:
        thresholds_device_s: device-seconds at which a job falls to the next queue, rising. The paper tunes them to its
            trace; these are one and ten device-hours.
        promote: None: never promoted.
    """

    name = "tiresias"

    def __init__(
        self, *, thresholds_device_s: Sequence[float] = (3600.0, 36000.0), promote: float | None = 8.0
    ) -> None:
        self._thresholds = tuple(float(threshold) for threshold in thresholds_device_s)
        self._promote = promote
        self._bases: dict[str, tuple[float, float]] = {}

    def decide(self, view: View) -> Decision:
        """Queue by queue, whoever fits."""
        for id_ in view.departed:
            self._bases.pop(id_, None)
        everyone = [*view.running.values(), *view.waiting.values()]
        for state in view.waiting.values():
            self._promoted(state)
        ordered = sorted(everyone, key=lambda state: (self.queue(state), state.job.submit_s, state.job.id))
        return decision_for(view, take_in_order(view, ordered))

    def queue(self, state: JobState) -> int:
        """The index of the job's queue, 0 the first."""
        service = state.attained_device_s - self._bases.get(state.job.id, (0.0, 0.0))[0]
        return sum(service >= threshold for threshold in self._thresholds)

    def _promoted(self, state: JobState) -> None:
        if self._promote is None or not self.queue(state):
            return
        service, waited_s = self._bases.get(state.job.id, (0.0, 0.0))
        ran_s = (state.attained_device_s - service) / state.job.devices
        if state.waited_s - waited_s >= self._promote * ran_s:
            self._bases[state.job.id] = (state.attained_device_s, state.waited_s)

    def state(self) -> object:
        """Service and waiting at each job's last promotion."""
        return {id_: list(base) for id_, base in self._bases.items()}

    def restore(self, state: object) -> None:
        """What `state` gave."""
        self._bases = {id_: (base[0], base[1]) for id_, base in cast("dict[str, list[float]]", state).items()}
