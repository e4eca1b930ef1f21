"""One row of a run table, predicted: what was measured, what is estimated, and what the row is counted under."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, get_args

from planner.shared.options.running import RowGrouping
from profiles.records import dataclass
from profiles.vocabulary import Provenance

MemoryKind = Literal["allocated", "reserved", "required"]
"""What a memory figure is: the allocator's peak of allocated bytes, all that the process holds (as nvidia-smi shows
it), or a sum of the parts that was never read off a device."""

GROUPS: tuple[RowGrouping, ...] = get_args(RowGrouping)

Key = tuple[Hashable, ...]

SIZE_CLASSES = (("<1B", 1e9), ("1-10B", 1e10), ("10-100B", 1e11))
LARGEST_CLASS = ">=100B"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowResult:
    """A run of the table and its prediction; None where nothing was measured, or estimated, or stated.

    `source` (the id's prefix), `device`, its `generation`, `parallel` and `model_size` are the groups that the row is
    counted in.
    `configuration` is what is trained on what (model, device, devices, global batch, sequence length), `plan` every
    other setting; rows that share both, and `stated` (what their source says of them, blanks as blanks), are one run
    done several times. `measured_oom`: the run ended out of memory.

    `estimated_peak_memory_bytes` is the allocator's peak on the rank that was measured (the fullest, unless the row
    says the last stage's), `estimated_held_memory_bytes` the same with the reserve on top;
    `memory_interval_90_bytes` is the peak's.
    `oom_stage` is the stage whose ranks lack most, `oom_part` the largest part of their memory.
    `model_flops` of one iteration (no recomputation, attention in full), `peak_flops_per_s` of all devices together and
    `bubble` (1 plus the pipeline's idle share) are what the baselines need.
    A row with a `skipped` reason has no estimate.
    """

    id: str
    source: str
    device: str
    generation: str
    devices: int
    parallel: str
    model_size: str
    configuration: Key
    plan: Key
    stated: Key = ()
    measured_iteration_time_s: float | None = None
    measured_peak_memory_bytes: float | None = None
    memory_kind: MemoryKind = "allocated"
    measured_oom: bool = False
    estimated_iteration_time_s: float | None = None
    interval_90_s: tuple[float, float] | None = None
    estimated_peak_memory_bytes: float | None = None
    estimated_held_memory_bytes: float | None = None
    memory_interval_90_bytes: tuple[float, float] | None = None
    estimated_oom: bool | None = None
    oom_stage: int | None = None
    oom_part: str | None = None
    compute: Provenance | None = None
    communication: Provenance | None = None
    assumptions: tuple[str, ...] = ()
    model_flops: float | None = None
    peak_flops_per_s: float | None = None
    bubble: float = 1.0
    skipped: str | None = None

    def __post_init__(self) -> None:
        for name in ("measured_iteration_time_s", "measured_peak_memory_bytes", "estimated_iteration_time_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"row {self.id}: {name}={value}, expected a finite number above 0")
        if self.skipped is not None and self.estimated_iteration_time_s is not None:
            raise ValueError(f"row {self.id}: skipped ({self.skipped}) and estimated, expected one of them")

    @property
    def predicted(self) -> bool:
        """Whether there is an estimate."""
        return self.skipped is None

    @property
    def error(self) -> float | None:
        """Signed relative error of the iteration time: above 0 where the estimate is slower than the run was."""
        return relative_error(self.estimated_iteration_time_s, self.measured_iteration_time_s)

    @property
    def comparable_memory_bytes(self) -> float | None:
        """The estimate of what the measured memory figure counts: with the reserve where that has it."""
        if self.memory_kind == "reserved":
            return self.estimated_held_memory_bytes
        return self.estimated_peak_memory_bytes

    @property
    def comparable_memory_interval_bytes(self) -> tuple[float, float] | None:
        """The interval of `comparable_memory_bytes`: the peak's, moved up by the reserve where that is counted."""
        if self.memory_interval_90_bytes is None or self.memory_kind != "reserved":
            return self.memory_interval_90_bytes
        if self.estimated_held_memory_bytes is None or self.estimated_peak_memory_bytes is None:
            return None
        reserve = self.estimated_held_memory_bytes - self.estimated_peak_memory_bytes
        low, high = self.memory_interval_90_bytes
        return low + reserve, high + reserve

    @property
    def memory_error(self) -> float | None:
        """Signed relative error of the peak memory, like compared with like."""
        return relative_error(self.comparable_memory_bytes, self.measured_peak_memory_bytes)


def relative_error(estimated: float | None, measured: float | None) -> float | None:
    """`estimated / measured - 1`, None if either is missing.

    >>> relative_error(9.0, 10.0), relative_error(None, 10.0)
    (-0.09999999999999998, None)
    """
    return None if estimated is None or measured is None else estimated / measured - 1


def parallel_kind(
    *, dp: int = 1, tp: int = 1, pp: int = 1, cp: int = 1, fully_sharded: bool = False, experts: bool = False
) -> str:
    """The name of a way of splitting: its axes above 1, `fsdp` for a data axis that shards the weights too.

    >>> parallel_kind(dp=8, tp=4, pp=2), parallel_kind(dp=8, fully_sharded=True), parallel_kind(tp=2, experts=True)
    ('dp+tp+pp', 'fsdp', 'tp+moe')
    >>> parallel_kind()
    'single'
    """
    data = "fsdp" if fully_sharded else "dp"
    names = [name for name, degree in ((data, dp), ("tp", tp), ("pp", pp), ("cp", cp)) if degree > 1]
    return "+".join(names + ["moe"] * experts) or "single"


def size_class(parameters: float | None) -> str:
    """The class of a model with so many parameters, `unknown` for None.

    >>> size_class(124e6), size_class(1e9), size_class(1.75e11), size_class(None)
    ('<1B', '1-10B', '>=100B', 'unknown')
    """
    if parameters is None:
        return "unknown"
    return next((name for name, end in SIZE_CLASSES if parameters < end), LARGEST_CLASS)
