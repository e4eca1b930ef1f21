"""What the simulator's rules of placement would choose for a job, on the machines as they are now."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import Job, Workload
from planner.many_jobs.placement.machines.choices import Choice, EndOf, choice_of
from planner.many_jobs.placement.machines.occupied import Machine
from planner.many_jobs.placers.catalogue import PLACERS, make_placer
from planner.many_jobs.placers.records import Later, Request
from profiles.network import PLAIN
from profiles.records import dataclass

LEFT_OUT = ("random", "ours")
RULES = tuple(name for name in PLACERS if name not in LEFT_OUT)
"""Those whose choice is told: what is drawn by lot says nothing of a single job, and ours is what is placed by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nodes:
    """Machines of one kind, in the cluster's order, as a rule sees them."""

    machines: tuple[Machine, ...]
    end_of: EndOf

    @property
    def free(self) -> Sequence[int]:
        return tuple(len(machine.free) for machine in self.machines)

    def last_end_s(self, node: int) -> float | None:
        return self.end_of(self.machines[node]) if self.machines[node].jobs else None

    def ends(self, _: int) -> Sequence[tuple[float, int]]:
        return ()


def choose_by(
    name: str, machines: Sequence[Machine], devices: int, end_of: EndOf, *, model: str, end_s: float | None = None
) -> Choice | None:
    """Return what the rule of that name chooses for a job of this model, as the command line calls it, and of so many
    devices, which ends in `end_s` seconds where that is known; None where it finds nothing."""
    workload = Workload(model=model, global_batch=1)
    job = Job(id="", submit_s=0.0, pool="", devices=devices, workload=workload, iterations=1.0, duration_s=0.0)
    request = Request(
        job=job, pool="", devices=devices, size=machines[0].size, now_s=0.0, predicted_end_s=end_s, network=PLAIN
    )
    counts = make_placer(name).place(_Nodes(machines=tuple(machines), end_of=end_of), request)
    if isinstance(counts, Later) or sum(count for _, count in counts) != devices:
        return None
    return choice_of([(machines[node], count) for node, count in counts])
