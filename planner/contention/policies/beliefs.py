"""A policy that is told what is not quite true: what errors in W, t and periods cost."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from estimator.network.steps import Step
from planner.contention.policies.records import Contender, Decision, NetworkPolicy, View


class Believing:
    """Another policy, which is told a view with errors: of each job the work of an iteration, the seconds of its
    transfers and those of its compute, each by itself, are too great or too small by the share `error`, by lot. What it
    answers holds for the jobs as they are. Offsets and periods are made of what it believes."""

    def __init__(self, policy: NetworkPolicy, error: float, seed: int = 0) -> None:
        if not 0 <= error < 1:
            raise ValueError(f"error {error}: from 0 to below 1")
        self.policy, self.error, self.seed = policy, error, seed

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        decision = self.policy.decide(misled(view, self.error, self.seed))
        return replace(decision, proved=decision.proved and self.error == 0)


def misled(view: View, error: float, seed: int = 0) -> View:
    """Return the view with errors. Each job's are drawn by its id and the seed."""
    if error == 0:
        return view
    return replace(view, jobs=tuple(_misled(job, error, Random(f"{seed}, {job.id}")) for job in view.jobs))


def _misled(job: Contender, error: float, rng: Random) -> Contender:
    work, wire, compute = (1 + rng.choice((-error, error)) for _ in range(3))
    steps = tuple(
        replace(
            step,
            compute_s=step.compute_s * compute,
            begins_s=step.begins_s * compute,
            transfers=tuple(
                replace(
                    transfer,
                    latency_s=transfer.latency_s * wire,
                    movers=tuple(replace(mover, seconds=mover.seconds * wire) for mover in transfer.movers),
                )
                for transfer in step.transfers
            ),
        )
        for step in job.steps
    )
    true_s = undisturbed_s(job.steps)
    alone_s = job.alone_s * undisturbed_s(steps) / true_s if true_s > 0 else job.alone_s
    return replace(job, flops=job.flops * work, steps=steps, alone_s=alone_s)


def undisturbed_s(steps: tuple[Step, ...]) -> float:
    """Return what an iteration takes at least, whatever links carry."""
    return sum(
        step.times
        * max(
            step.compute_s,
            step.begins_s
            + sum(
                transfer.times
                * (transfer.latency_s + max((mover.seconds / mover.most for mover in transfer.movers), default=0.0))
                for transfer in step.transfers
            ),
        )
        for step in steps
    )
