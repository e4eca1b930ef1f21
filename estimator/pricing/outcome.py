"""What the evaluation of an explicit plan says: an iteration's time and a rank's memory, part by part."""

from __future__ import annotations

import math
from dataclasses import fields

from estimator.schedules.records import StageTimes, Transfers
from profiles.records import dataclass
from profiles.vocabulary import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBreakdown:
    """Where an iteration's seconds go, seen from the stage that limits the pipeline; the fields sum to the iteration.

    Compute by kind of operator (forward and backward), what is computed a second time, the host's launching that the
    device waits for, communication that nothing hides, by axis, and the rest.
    """

    gemm_s: float = 0.0
    attention_s: float = 0.0
    convolution_s: float = 0.0
    memory_bound_s: float = 0.0
    recompute_s: float = 0.0
    launch_s: float = 0.0
    tp_s: float = 0.0
    cp_s: float = 0.0
    ep_s: float = 0.0
    dp_s: float = 0.0
    pp_s: float = 0.0
    bubble_s: float = 0.0
    optimizer_s: float = 0.0
    offload_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The sum of the parts."""
        return math.fsum(getattr(self, part.name) for part in fields(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on a rank of a stage at its fullest moment, by part; `peak_bytes` is what the allocator has handed out.

    `activation_bytes` is all micro-batches in flight; `temporary_bytes` what lives for one operator or layer (logits,
    recomputed activations, gathered weights); `communication_bytes` buffers of collectives. `reserve_bytes` (context,
    libraries, fragmentation) stands on top; `firm_reserve_bytes` of it cannot be given back where the device is full
    (None: nobody took it apart).
    """

    stage: int
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    temporary_bytes: int
    communication_bytes: int
    reserve_bytes: int
    firm_reserve_bytes: int | None = None

    @property
    def peak_bytes(self) -> int:
        """All parts but the reserve."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.activation_bytes
            + self.temporary_bytes
            + self.communication_bytes
        )

    @property
    def needed_bytes(self) -> int:
        """The peak with the reserve: what the device must have."""
        return self.peak_bytes + self.reserve_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """One thing that an estimate took without a measurement near it, and how many of its seconds rest on it."""

    what: str
    seconds: float
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppedTimes:
    """Seconds that collectives stop one stage's passes of ONE micro-batch, for each of its chunks: parts of what
    `StageTimes` has."""

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTimes:
    """What an iteration was put together from: each stage's passes, what of these are collectives that nothing hides,
    the transfers, the stage that limits, and what comes after the last backward."""

    stages: tuple[StageTimes, ...]
    stopped: tuple[StoppedTimes, ...]
    transfers: Transfers
    bottleneck: int
    sync_s: float
    optimizer_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """An explicit plan's figures. `memory` holds one entry a stage (its ranks are alike); `device_memory_bytes` each
    stage's device capacity, and `device_margin_bytes` what its device has beside that and keeps free (empty: nothing).
    `interval_90_s` and `memory_interval_90_bytes` are [low, high]. `compute_s` and
    `communication_s` are per stage and micro-batch. `pipeline` is what they come from (None: nobody put it together).
    """

    iteration_time_s: float
    breakdown: TimeBreakdown
    memory: tuple[RankMemory, ...]
    device_memory_bytes: tuple[int, ...]
    stage_compute_s: tuple[float, ...]
    stage_communication_s: tuple[float, ...]
    interval_90_s: tuple[float, float]
    memory_interval_90_bytes: tuple[int, int]
    compute_provenance: Provenance
    communication_provenance: Provenance | None
    profile_ids: tuple[str, ...] = ()
    link_table_ids: tuple[str, ...] = ()
    guesses: tuple[Guess, ...] = ()
    pipeline: PipelineTimes | None = None
    device_margin_bytes: tuple[int, ...] = ()

    @property
    def peak_memory_bytes(self) -> int:
        """The fullest rank's allocated bytes."""
        return max(rank.peak_bytes for rank in self.memory)

    @property
    def out_of_memory(self) -> RankMemory | None:
        """The rank that lacks most, or None if all fit."""
        lacking = [
            (rank.needed_bytes - capacity, rank)
            for rank, capacity in zip(self.memory, self.device_memory_bytes, strict=True)
            if rank.needed_bytes > capacity
        ]
        return max(lacking, key=lambda pair: pair[0])[1] if lacking else None
