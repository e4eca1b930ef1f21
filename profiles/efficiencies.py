"""Reader of `data/efficiencies.toml`: which share of its datasheet rates a device reaches."""

from __future__ import annotations

from dataclasses import field, fields, replace
from functools import cache
from typing import Any

from profiles.records import dataclass
from profiles.tables import DATA, read_tables
from profiles.vocabulary import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmEfficiency:
    """How fast an architecture multiplies matrices, as a library of tiled kernels.

    A kernel cuts the result into tiles; `tiles` holds (rows, columns, share of the best tile's rate).
    `peak_share` is what the best tile reaches of the dense peak once it runs, `fill` the inner elements' worth of time
    that a tile needs to start and end, `wave_loss` the share of a last wave's idle units that is really lost, `stall`
    the share of the shorter of arithmetic and traffic that the longer does not hide. Under load the clock falls: a
    product of t seconds takes 1 + `power_loss` t / (t + `power_half_s`) times as long. `weight_grad_loss` is the extra
    time of weight gradients (both operands run along the inner dimension). A product's traffic reaches `bandwidth` of
    what a stream does. A grouped product as one kernel each, on several streams, has `group_stall` for `stall`, and
    takes at least `group_floor_s` a group (as one kernel for all of them: `GroupedEfficiency`); a batched one has
    `batch_stall`, and reaches
    `batch_bandwidth` of what a stream does. Where rows are no multiple of 16 bytes a product runs at `unaligned_share`
    of its rate, a batched one on the plain units at `plain_share` of their fp32 peak. Every product takes `start_s` on
    top, until its first tile runs. Where the parameters are of a device under lasting load, as training is, a burst of
    some milliseconds runs `burst_gain` faster, less the longer it lasts (half of it lost at `burst_half_s`).
    `backward_loss`: the extra time of both gradients where training asks for more exact sums in them than forward.
    """

    peak_share: float
    fill: float
    tiles: tuple[tuple[int, int, float], ...]
    wave_loss: float
    stall: float
    power_loss: float
    power_half_s: float
    weight_grad_loss: float
    group_floor_s: float
    group_stall: float
    batch_stall: float
    batch_bandwidth: float
    unaligned_share: float
    plain_share: float
    bandwidth: float = 1.0
    start_s: float = 0.0
    burst_gain: float = 0.0
    burst_half_s: float = 1.0
    backward_loss: float = 0.0

    def __post_init__(self) -> None:
        for name in ("peak_share", "unaligned_share", "plain_share", "batch_bandwidth", "bandwidth"):
            _check_share(f"gemm: {name}", getattr(self, name))
        for name in ("fill", "stall", "power_loss", "weight_grad_loss", "group_floor_s", "group_stall", "batch_stall"):
            _check_not_negative(f"gemm: {name}", getattr(self, name))
        for name in ("start_s", "burst_gain", "backward_loss"):
            _check_not_negative(f"gemm: {name}", getattr(self, name))
        if not self.tiles or not 0 <= self.wave_loss <= 1 or min(self.power_half_s, self.burst_half_s) <= 0:
            raise ValueError(
                f"gemm: {len(self.tiles)} tiles, wave_loss={self.wave_loss}, power_half_s={self.power_half_s},"
                f" burst_half_s={self.burst_half_s}; expected at least one tile, wave_loss in 0..1, halves above 0 s"
            )

    def turned(self, *, weight: bool) -> float:
        """Return how much longer the gradient of an input takes than a forward product of its sizes, or (`weight`) that
        of a weight."""
        return (1 + self.backward_loss) * (1 + self.weight_grad_loss if weight else 1.0)

    def in_bursts(self) -> GemmEfficiency:
        """Return how products run in bursts of some milliseconds, as benchmarks of single kernels time them; as here
        where the parameters do not tell the two apart."""
        if not self.burst_gain:
            return self
        return replace(
            self,
            peak_share=min(1.0, self.peak_share * (1 + self.burst_gain)),
            power_loss=self.burst_gain,
            power_half_s=self.burst_half_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedEfficiency:
    """How fast an architecture runs the products of many experts as one kernel.

    Such a kernel walks over the tiles of all groups, so that a group costs no more than its work: `shares` are what its
    arithmetic reaches of the dense peak by dtype (one that is not named has that of bf16), `fill` the inner elements'
    worth of time of a tile's start and end, `bandwidth_share` what its operands reach of the datasheet's bandwidth,
    `stall` the share of the shorter of arithmetic and traffic that the longer does not hide, `start_s` what comes once.
    `rows` are the measured ones behind the figures, `basis` how they were found.
    """

    shares: tuple[tuple[DType, float], ...]
    fill: float
    stall: float
    bandwidth_share: float
    start_s: float
    rows: tuple[str, ...] = ()
    basis: str = ""

    def __post_init__(self) -> None:
        for dtype, share in self.shares:
            _check_share(f"grouped: share of {dtype}", share)
        _check_share("grouped: bandwidth_share", self.bandwidth_share)
        for name in ("fill", "stall", "start_s"):
            _check_not_negative(f"grouped: {name}", getattr(self, name))
        if "bf16" not in dict(self.shares):
            raise ValueError(f"grouped: shares of {', '.join(name for name, _ in self.shares)}; expected one of bf16")

    def share_of(self, dtype: DType) -> float:
        """Return what arithmetic in `dtype` reaches of its dense peak."""
        shares = dict(self.shares)
        return shares.get(dtype, shares["bf16"])


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionEfficiency:
    """How fast one fused attention kernel runs on an architecture.

    A block of `forward_rows` queries (backward: `backward_rows` keys) passes over all keys that it may see, plus
    `*_overhead` keys' worth of time to start and end. `forward_shares` are of the peak at head sizes 64, 128 and 256,
    straight lines between; `backward_ratios` are those of backward over forward at the same sizes. `*_tail` is the part
    of the longest block's time during which the device is not full, `*_alone` how much slower a block is that has the
    device to itself.
    """

    forward_shares: tuple[float, float, float]
    backward_ratios: tuple[float, float, float]
    forward_rows: int
    backward_rows: int
    forward_overhead: float
    backward_overhead: float
    forward_tail: float
    backward_tail: float
    forward_alone: float
    backward_alone: float

    def __post_init__(self) -> None:
        if len(self.forward_shares) != 3 or len(self.backward_ratios) != 3:
            raise ValueError("attention: expected shares and ratios at three head sizes (64, 128, 256)")
        for forward, ratio in zip(self.forward_shares, self.backward_ratios, strict=True):
            _check_share("attention: forward_shares", forward)
            _check_share("attention: backward share", forward * ratio)
        for name in ("forward_overhead", "backward_overhead", "forward_tail", "backward_tail"):
            _check_not_negative(f"attention: {name}", getattr(self, name))
        if min(self.forward_rows, self.backward_rows, self.forward_alone, self.backward_alone) < 1:
            raise ValueError("attention: expected rows and *_alone of at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorEfficiencies:
    """What the operator model needs to know of a device beside its datasheet.

    `compute_units` run tiles side by side (streaming multiprocessors, compute units). `plain_gemm` is how products in
    fp32 run, which matrix units do not do: small tiles fill the plain units. `attention` holds (kernel, its
    rates), the usual one first; `attention_share` scales them for this device. `bandwidth_share` is what streams reach
    of the datasheet's bandwidth, `gather_share` what reads and writes of rows reach of that, `conv_share` what a
    convolution reaches of the product that it equals (`plain_conv_share`: one in fp32, whose libraries multiply less
    than that product does, after Lavin and Gray 2016). `grouped` is how products of many experts run as one kernel
    (None: no rows tell, they run as one each). A kernel takes at least `kernel_floor_s` on the device (the
    host's launch not counted), a stream `kernel_ramp_s` until it flows. `basis` says where the figures come from,
    `rows` which published rows they rest on, `carried_over` from which architecture those come that this one does not
    state itself ("": none).
    """

    device: str
    architecture: str
    compute_units: int
    gemm: GemmEfficiency
    plain_gemm: GemmEfficiency
    narrow_gemm: tuple[tuple[DType, GemmEfficiency], ...]
    kernels: str
    attention: tuple[tuple[str, AttentionEfficiency], ...]
    attention_share: float
    bandwidth_share: float
    gather_share: float
    conv_share: float
    plain_conv_share: float
    kernel_floor_s: float
    kernel_ramp_s: float
    carried_over: str
    basis: str
    rows: tuple[str, ...]
    grouped: GroupedEfficiency | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("attention_share", "bandwidth_share", "gather_share", "conv_share", "plain_conv_share"):
            _check_share(f"{self.device}: {name}", getattr(self, name))
        for name in ("kernel_floor_s", "kernel_ramp_s"):
            _check_not_negative(f"{self.device}: {name}", getattr(self, name))
        if self.compute_units < 1 or not self.attention:
            raise ValueError(
                f"{self.device}: compute_units={self.compute_units}, {len(self.attention)} attention kernels"
            )

        values = [getattr(self, each.name) for each in fields(self) if each.name != "_hash"]
        object.__setattr__(self, "_hash", hash(tuple(values)))

    def __hash__(self) -> int:
        # Part of the key of every cached time: computed anew it would cost more than the time that it looks up.
        return self._hash

    def in_streams(self) -> OperatorEfficiencies:
        """Return the same where software runs the products of many experts as one kernel each, on several streams."""
        return self if self.grouped is None else replace(self, grouped=None)

    def gemm_of(self, dtype: DType) -> GemmEfficiency:
        """Return how products of a compute type run: those in fp32 on the plain units."""
        if dtype == "fp32":
            return self.plain_gemm
        return next((rates for name, rates in self.narrow_gemm if name == dtype), self.gemm)

    def stand_in(self) -> str:
        """Return in words what stands in where no layer was profiled, and what of it was measured."""
        carried = f", carried over from {self.carried_over}" if self.carried_over else ""
        model = f"the operator model ({self.architecture}{carried})"
        if not self.kernels:
            return model
        return f"measured kernels of {self.kernels} (products: forward measured, backward derived) beside {model}"

    def attention_kernel(self, name: str | None) -> AttentionEfficiency:
        """Return the kernel called `name` (None: the usual one). Raise ValueError if nothing is known of it here."""
        kernels = dict(self.attention)
        if name is None:
            return self.attention[0][1]
        if name not in kernels:
            raise ValueError(f"{self.device}: attention kernel {name!r}, expected one of {', '.join(kernels)}")
        return kernels[name]


def _check_share(name: str, value: float) -> None:
    if not 0 < value <= 1:
        raise ValueError(f"{name}={value}, expected a share in (0, 1]")


def _check_not_negative(name: str, value: float) -> None:
    if value < 0:
        raise ValueError(f"{name}={value}, expected at least 0")


@cache
def read_efficiencies() -> dict[str, dict[str, Any]]:
    """Return the file as it stands, by architecture."""
    return read_tables(DATA / "efficiencies.toml")


@cache
def load_operator_efficiencies(device: str) -> OperatorEfficiencies:
    """Return what the operator model knows of `device`; that of `generic`, the named fall-back, if none names it."""
    data = read_efficiencies()
    architecture = next((name for name, row in data.items() if device in row["devices"]), "generic")
    table = _inherited(architecture)
    device_entry = data[architecture].get("operators", {}).get("device", {}).get(device, {})
    gemm = table["gemm"] | device_entry.get("gemm", {})
    return OperatorEfficiencies(
        device=device,
        architecture=architecture,
        compute_units=device_entry.get("compute_units", table["compute_units"]),
        gemm=_gemm(gemm),
        plain_gemm=_gemm(gemm | table.get("gemm_plain", {})),
        narrow_gemm=_narrow_gemm(gemm, table, device_entry),
        kernels=device_entry.get("kernels", ""),
        attention=tuple((name, _attention(row)) for name, row in table["attention"].items()),
        attention_share=device_entry.get("attention_share", 1.0),
        bandwidth_share=table["bandwidth_share"],
        gather_share=table["gather_share"],
        conv_share=device_entry.get("conv_share", table["conv_share"]),
        plain_conv_share=device_entry.get("plain_conv_share", table["plain_conv_share"]),
        kernel_floor_s=table["kernel_floor_s"],
        kernel_ramp_s=table["kernel_ramp_s"],
        carried_over=table["carried_over"],
        basis=" ".join(text for text in (table["basis"], device_entry.get("basis", "")) if text),
        rows=(*table["rows"], *device_entry.get("rows", ())),
        grouped=_grouped(data[architecture]["operators"].get("grouped")),
    )


def _inherited(architecture: str) -> dict[str, Any]:
    """The architecture's `operators` table over that of the relative that it names as `carried_over`."""
    operators = {
        name: value for name, value in read_efficiencies()[architecture]["operators"].items() if name != "device"
    }
    relative = operators.get("carried_over", "")
    if not relative:
        return operators | {"carried_over": ""}
    base = _inherited(relative)
    return (
        base
        | operators
        | {"gemm": base["gemm"] | operators.get("gemm", {}), "rows": [*operators["rows"], *base["rows"]]}
    )


def _narrow_gemm(
    gemm: dict[str, Any], table: dict[str, Any], device_entry: dict[str, Any]
) -> tuple[tuple[DType, GemmEfficiency], ...]:
    """The narrow types' products: those of 16 bits but for what the architecture, then the device, says of each."""
    stated, special = table.get("gemm_narrow", {}), device_entry.get("gemm_narrow", {})
    return tuple(
        (dtype, _gemm(gemm | stated.get(dtype, {}) | special.get(dtype, {}))) for dtype in sorted(stated | special)
    )


def _gemm(row: dict[str, Any]) -> GemmEfficiency:
    return GemmEfficiency(**row | {"tiles": tuple((rows, columns, share) for rows, columns, share in row["tiles"])})


def _grouped(row: dict[str, Any] | None) -> GroupedEfficiency | None:
    return (
        None
        if row is None
        else GroupedEfficiency(**row | {"shares": tuple(row["shares"].items()), "rows": tuple(row["rows"])})
    )


def _attention(row: dict[str, Any]) -> AttentionEfficiency:
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return AttentionEfficiency(**values)
