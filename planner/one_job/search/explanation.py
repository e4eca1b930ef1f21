"""What is said of a plan: what vouches for it, what holds it back, what others lose, what changes would bring."""

from __future__ import annotations

from planner.one_job.explicit.effects import Effect
from planner.one_job.search.certificate import Certificate
from planner.one_job.search.sensitivity import Sensitivity
from planner.shared.options.search import Objective
from planner.shared.plan import Plan
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds of an iteration that communication of an axis takes and nothing hides, and the link that it crosses."""

    axis: str
    seconds: float
    link: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """What holds the plan back: `resource` is the one of which a little more would save most (None: none would; where
    compute was measured, what takes most), and `memory_gain` what 8 GiB more would change (None: not tried).

    What an iteration's time is made of on the stage that sets the pace (`ahead`: how far its passes are above the
    stages' mean), and where memory is scarcest: `spare_bytes` are left on a device of `fullest_stage` if the allocator
    keeps nothing that it could give back."""

    resource: str | None
    memory_gain: float | None

    stage: int
    stages: int
    ahead: float
    compute_s: float
    recompute_s: float
    communication: tuple[Exposed, ...]
    bubble_s: float
    optimizer_s: float
    offload_s: float
    fullest_stage: int
    peak_memory_bytes: int
    device_memory_bytes: int
    spare_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    """The best plan without one choice of the best one (`without`: which; several where it is the same plan).

    `loss` is relative and of the objective, `parts` are seconds that each part of the iteration takes more than with
    the best plan; they sum to `slower_s`. `proved` False: the search was cut short, it loses at least `least_loss`.
    """

    without: tuple[str, ...]
    plan: str
    devices: int
    differences: tuple[str, ...]
    iteration_time_s: float
    simulated_s: float | None
    loss: float
    least_loss: float
    proved: bool
    slower_s: float
    parts: tuple[tuple[str, float], ...]
    peak_memory_bytes: int
    more_memory_bytes: int
    spare_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why `plan` is the best: plain sentences, the certificate, what binds, the runners-up with the least loss first,
    what changes would bring, what each of the user's own constraints costs, and what assumptions move it most."""

    plan: Plan
    objective: Objective
    summary: tuple[str, ...]
    certificate: Certificate
    binding: Binding
    runners_up: tuple[RunnerUp, ...]
    sensitivities: tuple[Sensitivity, ...]
    constraints: tuple[Sensitivity, ...]
    effects: tuple[Effect, ...] = ()
