"""Pipeline stages of a Cell: which contiguous layers each stage holds and how many of the devices (Crius section 4.2).

`partition_exact` is the default: the smallest bottleneck max F_i / n_i (FLOPs of a stage over its devices) of all
contiguous splits and all shares that add up to the devices. `partition_crius` is the paper's clustering.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from estimator.cells.partition import Usable, search_partition
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSplit:
    """Stages in order: layers [first, end) of each and its number of devices."""

    bounds: tuple[tuple[int, int], ...]
    devices: tuple[int, ...]

    def __post_init__(self) -> None:
        ends = (0, *(end for _, end in self.bounds))
        contiguous = all(first == ends[i] < end for i, (first, end) in enumerate(self.bounds))
        if not self.bounds or not contiguous or len(self.bounds) != len(self.devices) or min(self.devices) < 1:
            raise ValueError(
                f"stage split: bounds={self.bounds}, devices={self.devices}; expected non-empty ranges, each beginning"
                " where the one before ends, from 0, and a device count >= 1 for each"
            )


def bottleneck_flops_per_device(split: StageSplit, flops: Sequence[int]) -> Fraction:
    """Largest FLOPs per device of a stage: what a pipeline of equally fast devices waits for."""
    from fractions import Fraction  # and decimal with it, which no command needs at its start

    return max(Fraction(sum(flops[a:e]), n) for (a, e), n in zip(split.bounds, split.devices, strict=True))


def boundary_bytes(split: StageSplit, cut_bytes: Sequence[int]) -> int:
    """Bytes over all stage boundaries; `cut_bytes[k]` crosses from layer k to layer k + 1."""
    return sum(cut_bytes[first - 1] for first, _ in split.bounds[1:])


def crius_stage_counts(devices: int, layers: int) -> tuple[int, ...]:
    """Stage counts that Crius tries (section 6.1): 1, 2, 4, ... up to the devices and the layers.

    >>> crius_stage_counts(devices=8, layers=6)
    (1, 2, 4)
    """
    return tuple(1 << k for k in range(min(devices, layers).bit_length()))


def stage_counts(devices: int, layers: int) -> tuple[int, ...]:
    """Stage counts tried by default: powers of two and divisors of `devices`, up to the devices and the layers.

    >>> stage_counts(devices=18, layers=12)
    (1, 2, 3, 4, 6, 8, 9)
    """
    divisors = (n for n in range(1, min(devices, layers) + 1) if devices % n == 0)
    return tuple(sorted({*divisors, *crius_stage_counts(devices, layers)}))


def partition_exact(
    flops: Sequence[int],
    cut_bytes: Sequence[int],
    devices: int,
    stages: int,
    *,
    usable: Usable | None = None,
    allowed_devices: Sequence[int] | None = None,
) -> StageSplit | Infeasible:
    """The contiguous split into `stages` stages, with shares that sum to `devices`, of the smallest max F_i / n_i.

    Among equals: fewest bytes over the boundaries; then layers such that the devices the stages need at that
    bottleneck are most even (least sum of squares); then devices of the least sum of F_i / n_i.

    Args:
        flops: FLOPs of each layer (>= 0; Python ints of any size, compared exactly).
        cut_bytes: bytes from layer k to layer k + 1; one fewer than the layers.
        devices: N, all of which are used.
        stages: Ns.
        usable: `usable(first, end, n)` says of integer arrays, element by element, whether layers [first, end) have a
            legal plan on n devices; nothing is assumed about it (more devices may be worse).
        allowed_devices: the counts a stage may have; all if None.

    Returns:
        The split, or Infeasible where no such split exists.

    Raises:
        ValueError: sizes that do not match, or values out of range.

    >>> partition_exact([1, 3, 2, 2, 6, 2], [9, 1, 9, 2, 3], devices=8, stages=3)
    StageSplit(bounds=((0, 2), (2, 4), (4, 6)), devices=(2, 2, 4))
    """
    _check(flops, cut_bytes, devices, stages, allowed_devices)
    counts = range(1, devices + 1) if allowed_devices is None else sorted(set(allowed_devices))
    layers = len(flops)
    ranges = [(a, e) for a in range(layers) for e in range(a + 1, min(layers, a + layers - stages + 1) + 1)]
    return _partition(flops, cut_bytes, devices, stages, ranges, counts, usable)


def partition_crius(
    flops: Sequence[int], cut_bytes: Sequence[int], devices: int, stages: int
) -> StageSplit | Infeasible:
    """The paper's stages: devices shared over layers by FLOPs, layers clustered by cutting at the smallest cuts.

    Every layer gets n_k = N F_k / sum F devices, so any clustering has equal stage times before rounding; the
    boundaries are the `stages` - 1 smallest cuts. A stage's devices approximate a power of two. Where the text is
    silent, our rule: among equally small cuts (all those of a plain transformer), and among the powers of two that
    add up to N, those of the smallest max F_i / n_i. These are the powers nearest to the shares (in ratio) wherever
    the nearest ones add up to N: any other choice gives some stage half as many or fewer, and so is slower. Where N is
    no power of two, whole counts are taken by the same rule. Further ties, arguments and errors as in
    `partition_exact`.

    Section 4.2's example (figure 7) has six operators on 8 devices, the first with 1/16 and the second with 3/16 of
    the FLOPs; the other FLOPs and all the cuts are ours:

    >>> partition_crius([1, 3, 4, 4, 2, 2], [8, 2, 7, 3, 1], devices=8, stages=4)
    StageSplit(bounds=((0, 2), (2, 4), (4, 5), (5, 6)), devices=(2, 4, 1, 1))
    """
    _check(flops, cut_bytes, devices, stages, None)
    layers = len(flops)
    dearest = sorted(cut_bytes)[stages - 2] if 1 < stages <= layers else -1
    may_cut = [True, *(b <= dearest for b in cut_bytes), True]
    must_cut = [0, *(int(b < dearest) for b in cut_bytes)]
    ranges = [
        (a, e)
        for a in range(layers)
        for e in range(a + 1, layers + 1)
        if may_cut[a] and may_cut[e] and not any(must_cut[a + 1 : e])
    ]
    power_of_two = devices & (devices - 1) == 0
    counts = [1 << k for k in range(devices.bit_length())] if power_of_two else range(1, devices + 1)
    return _partition(flops, cut_bytes, devices, stages, ranges, counts, None)


def _check(
    flops: Sequence[int], cut_bytes: Sequence[int], devices: int, stages: int, allowed_devices: Sequence[int] | None
) -> None:
    if not flops or len(cut_bytes) != len(flops) - 1:
        raise ValueError(f"stages: {len(flops)} layers and {len(cut_bytes)} cuts; expected layers, and one cut fewer")
    if min(flops) < 0 or min(cut_bytes, default=0) < 0 or sum(cut_bytes) >= 1 << 62:
        raise ValueError("stages: found a negative FLOP or byte count, or 2^62 bytes of cuts; expected less, and >= 0")
    if devices < 1 or stages < 1:
        raise ValueError(f"stages: devices={devices}, stages={stages}; expected at least 1 of each")
    if allowed_devices is not None and min(allowed_devices, default=0) < 1:
        raise ValueError(f"stages: allowed_devices={tuple(allowed_devices)}; expected counts >= 1, and at least one")


def _partition(
    flops: Sequence[int],
    cut_bytes: Sequence[int],
    devices: int,
    stages: int,
    ranges: Sequence[tuple[int, int]],
    counts: Sequence[int],
    usable: Usable | None,
) -> StageSplit | Infeasible:
    if stages > len(flops):
        return Infeasible(reason=f"{stages} stages of {len(flops)} layers: a stage needs one", lacking="divisibility")
    if stages * counts[0] > devices:
        return Infeasible(
            reason=f"{stages} stages on {devices} devices: a stage needs at least {counts[0]}", lacking="devices"
        )
    split = search_partition(flops, cut_bytes, devices, stages, ranges=ranges, counts=counts, usable=usable)
    return split if isinstance(split, Infeasible) else StageSplit(bounds=split[0], devices=split[1])
