"""A policy to which the work of jobs counts by their weights: by name, since GPU utilisation (Crux, eq. 1) counts all
work alike."""

from __future__ import annotations

from dataclasses import replace

from planner.contention.policies.records import Decision, NetworkPolicy, View

WORTHS = ("work", "weighted")
"""What policies go for: the work that is done (eq. 1), or the sum of each job's work times its weight."""


class Weighing:
    """Another policy, which is told of each job the work of an iteration times its weight. What it answers holds for
    the jobs as they are; it is proved of their weighted work, not of eq. 1, unless all weigh the same."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy

    @property
    def name(self) -> str:
        """That of the policy."""
        return self.policy.name

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`."""
        weighed = tuple(replace(job, flops=job.flops * job.weight) for job in view.jobs)
        decision = self.policy.decide(replace(view, jobs=weighed))
        alike = len({job.weight for job in view.jobs}) <= 1
        return replace(decision, proved=decision.proved and alike)
