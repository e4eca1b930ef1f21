"""The words that every part shares: operator, collective, shard, layer time, device, link.

This module is the bottom of the import order and imports nothing of ours. Everything in it is a frozen record in SI
units (seconds, bytes, FLOP); a field's name carries its unit.
"""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import Literal, get_args

from profiles.records import dataclass

Provenance = Literal["measured", "modelled", "mixed"]
"""Where a figure comes from: read off hardware, computed by a model, or a sum that holds both."""

DType = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp8_block", "mxfp8", "nvfp4"]
"""Compute types; tf32 holds everything in fp32 and rounds the operands of matrix products inside the matrix units.

Of the narrow ones, which hold operands of matrix products alone, fp8 has one scale a tensor, int8 (as TPUs train in,
AQT) one a row or column, fp8_block one for 128 elements (128 x 128 of a weight), mxfp8 one for 32, and nvfp4, of 4
bits, one for 16.
"""

DTYPE_BYTES: dict[DType, float] = {
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int8": 1,
    "fp8_block": 1 + 4 / 128,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 1 / 2 + 1 / 16,
}
"""Bytes of one element of a product's operand, its part of a scale included."""

MOST_S = 1e9
"""Of any measured time: thirty years."""

NARROW_DTYPES: tuple[DType, ...] = ("fp8", "int8", "fp8_block", "mxfp8", "nvfp4")
"""Those that only the operands of products with weights are in; all else stays in bf16."""


_HELD_BYTES = {dtype: max(2, int(width)) for dtype, width in DTYPE_BYTES.items()}


def held_bytes(dtype: DType) -> int:
    """Return the bytes of a weight, gradient or activation as held and sent: of narrow types only the operands of
    matrix products are, what stays is bf16."""
    return _HELD_BYTES[dtype]


ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "dualpipe"]
OptimizerName = Literal["adamw", "sgd", "adam8bit", "muon", "adafactor"]
Overlap = Literal["dp", "tp", "p2p", "ep"]
OffloadPart = Literal["optimizer", "activations"]
GradDType = Literal["fp32", "bf16", "fp16"]
ZeroStage = Literal[0, 1, 2, 3]
AttentionKernel = Literal["flash", "math"]
Recompute = Literal["none", "full"]
RecomputeKind = Literal["none", "selective", "full"]
RecomputeModule = Literal[
    "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts", "by_operator"
]
"""What selective recomputation can run again, in Megatron Core's words; PyTorch's policy of operators."""
AdapterTargets = Literal["all", "attention"]
"""Beside which of the blocks' matrices adapters stand: every one, or the projections of attention alone."""
FrozenAs = Literal["held", "nf4", "gptq"]
"""How frozen matrices of blocks are held: as others are; in 4 bits that one kernel widens before each product
(bitsandbytes, torchao); in 4 bits that PyTorch's operators unpack (AutoGPTQ)."""
FOUR_BIT_BYTES = 0.5 + 2 / 128 + 0.5 / 128
"""A weight in 4 bits with a 16-bit scale and a 4-bit zero point for each 128 (GPTQ's group size; NF4's blocks of 64
with doubly quantised scales take 0.516: QLoRA, Dettmers et al. 2023, section 3)."""
WIDENED_BYTES: dict[FrozenAs, tuple[float, int]] = {"held": (0.0, 0), "nf4": (0.52 + 2, 1), "gptq": (16.5, 5)}
"""Bytes moved for each weight, and kernels, when 4 bits become 16. GPTQ: its int32 words shifted into one int32 a
weight, narrowed to int8, masked, less the zero point, times the scale (AutoGPTQ, qlinear_cuda.py, forward)."""
Kernels = Literal["fused", "eager"]
"""Steps over activations as Megatron's or Transformer Engine's fused kernels run them, or one kernel each."""
Phase = Literal["forward", "backward", "step"]
Axis = Literal["tp", "dp", "pp", "cp", "ep", "etp"]
CollectiveOp = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
PeakBasis = Literal["datasheet", "measured"]
LinkKind = Literal["nvlink", "pcie", "infiniband", "ethernet", "ici", "xgmi", "loopback", "wan"]
OperatorKind = Literal["gemm", "batched_gemm", "grouped_gemm", "attention", "conv", "memory", "gather"]


def combine_provenance(parts: tuple[Provenance, ...]) -> Provenance:
    """Return the provenance of a figure computed from `parts`: theirs if they agree, else `mixed`.

    >>> combine_provenance(("measured", "modelled"))
    'mixed'
    """
    kinds = set(parts)
    if not kinds:
        raise ValueError("combine_provenance: no parts given, expected at least one")
    return kinds.pop() if len(kinds) == 1 else "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """An expected failure: what cannot be, why, and what it lacks."""

    reason: str
    lacking: Literal["memory", "divisibility", "devices", "support"]
    lacking_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """How the ranks of a pipeline stage share its work: dp * cp * tp of them; ep ranks (with `etp` for each expert's
    matrices) are taken out of these."""

    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False

    @property
    def stage_devices(self) -> int:
        """Devices of one stage."""
        return self.tp * self.cp * self.dp


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """How one rank holds a layer, and the micro-batch that passes through it.

    `seq_len` is tokens per sample (0 where the model has no tokens). `micro_batch_per_rank` is samples.
    """

    tp: int = 1
    sequence_parallel: bool = False
    micro_batch_per_rank: int = 1
    seq_len: int = 0
    dtype: DType = "bf16"
    attention: AttentionKernel = "flash"
    recompute: Recompute = "none"

    def __post_init__(self) -> None:
        if self.tp < 1 or self.micro_batch_per_rank < 1 or self.seq_len < 0:
            raise ValueError(
                f"shard: tp={self.tp}, micro_batch_per_rank={self.micro_batch_per_rank}, seq_len={self.seq_len};"
                " expected tp >= 1, micro_batch_per_rank >= 1, seq_len >= 0"
            )
        for value, allowed in (
            (self.dtype, get_args(DType)),
            (self.attention, get_args(AttentionKernel)),
            (self.recompute, get_args(Recompute)),
        ):
            if value not in allowed:
                raise ValueError(f"shard: found {value!r}, expected one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator of a layer's local shard, forward and backward, for one micro-batch.

    `forward_flops` and `backward_flops` count matrix products, convolutions and attention as torch's FlopCounterMode
    does (2 per multiply-add, attention's full square, the flash kernel's recomputation of scores in backward); for
    kinds `memory` and `gather` they are 0. `*_bytes` is the memory traffic in both directions; `saved_bytes` what this
    operator newly keeps for backward (a tensor that an earlier operator already keeps counts there, once).
    `narrow_input`, `narrow_gradient`: under a narrow compute type what a product takes forward, and its result's
    gradient, come cast out of the operator before; `wide`: it stays in 16 bits whatever the compute type.

    `shape` by kind: gemm (m, n, k); batched_gemm and
    grouped_gemm (groups, m, n, k) with m rows per group; attention (batch, heads,
    kv_heads, q_len, kv_len, qk_dim, v_dim, causal 0|1); conv (batch, c_in, c_out, out_h, out_w, kernel_h, kernel_w,
    stride); memory and gather (elements,).
    """

    name: str
    kind: OperatorKind
    shape: tuple[int, ...]
    forward_flops: int = 0
    backward_flops: int = 0
    forward_bytes: int = 0
    backward_bytes: int = 0
    saved_bytes: int = 0
    forward_kernels: int = 1
    backward_kernels: int = 1
    narrow_input: bool = False
    narrow_gradient: bool = False
    wide: bool = False

    def __hash__(self) -> int:
        # Told apart by all fields, hashed by those in which most differ: searches look up times by the million.
        return hash((self.name, self.shape, self.forward_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One collective that a local shard needs.

    `bytes` follows nccl-tests: the larger of a rank's input and output (all_reduce: the tensor; all_gather: the
    gathered output; reduce_scatter: the whole input; all_to_all: what one rank sends, its own part included;
    send_recv: the message). `phase` step means once an iteration, not once a micro-batch. `ranks` is the group's size.
    """

    op: CollectiveOp
    bytes: int
    phase: Phase
    axis: Axis = "tp"
    ranks: int
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLayer:
    """The local shard of a layer: what one rank computes, holds and communicates for one micro-batch.

    `parameters` are those this rank holds; `replicated_parameters` those of them that every tp rank holds alike.
    `input_bytes` and `output_bytes` are this rank's boundary activations.
    """

    operators: tuple[Operator, ...]
    collectives: tuple[Collective, ...]
    parameters: int
    replicated_parameters: int
    input_bytes: int
    output_bytes: int

    @property
    def forward_flops(self) -> int:
        return sum(op.forward_flops for op in self.operators)

    @property
    def backward_flops(self) -> int:
        return sum(op.backward_flops for op in self.operators)

    @property
    def saved_bytes(self) -> int:
        """Activation bytes kept from forward to backward, without recomputation.

        What a layer passes on counts in the layer that reads it, even if both keep it: it is one tensor.
        """
        return sum(op.saved_bytes for op in self.operators)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTime:
    """Seconds of one local shard on one device for one micro-batch; the optimizer's once an iteration.

    `saved_bytes` and `peak_memory_bytes` are None where only modelled by the caller. The middle 90% of the samples of
    forward plus backward reach from `relative_low` of the figure below it to `relative_high` above it (0 for a model
    that states none). `profile_id` names the stored measurement behind a measured figure, taken with `workers` busy.
    """

    forward_s: float
    backward_s: float
    optimizer_s: float
    provenance: Provenance
    saved_bytes: int | None = None
    peak_memory_bytes: int | None = None
    relative_low: float = 0.0
    relative_high: float = 0.0
    profile_id: str | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceNode:
    """The vendor's usual node of a device: what the short form `a100-80gb:16x8` expands to. `host_cpu`: the processor
    that drives the devices ("": any)."""

    devices: int
    island_link: str
    island_size: int
    host_link: str
    nic_link: str
    nics: int
    host_cpu: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One accelerator. `peak_flops_per_s` holds (dtype, dense peak) pairs; rates without sparsity.

    `peak_basis` measured: what a large matrix product reached, which says nothing of the share of a peak that is used.
    `contention` holds (workers, how many times as long computing takes with so many busy on one machine), ascending,
    where that was measured: cores of one CPU share its memory and its clock. `margin_bytes` of its memory are to stay
    free: `memory_bytes` is what is left without them.
    """

    name: str
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    peak_flops_per_s: tuple[tuple[str, float], ...]
    power_w: float | None
    flash_attention: bool
    reference_node: ReferenceNode
    source: str
    peak_basis: PeakBasis = "datasheet"
    contention: tuple[tuple[int, float], ...] = ()
    margin_bytes: int = 0

    def slowdown(self, workers: int) -> float:
        """Return how many times as long computing takes with `workers` busy on one machine: between measured counts on
        a straight line, beyond the last as there; 1 where nobody measured."""
        points = ((1, 1.0), *self.contention)
        for (fewer, low), (more, high) in pairwise(points):
            if workers <= more:
                return low + (high - low) * (workers - fewer) / (more - fewer)
        return points[-1][1]

    def among(self, workers: int) -> Device:
        """Return the device as one of so many busy workers on a machine finds it."""
        slower = self.slowdown(workers)
        if slower == 1:
            return self
        return replace(
            self,
            memory_bandwidth_bytes_per_s=self.memory_bandwidth_bytes_per_s / slower,
            peak_flops_per_s=tuple((dtype, rate / slower) for dtype, rate in self.peak_flops_per_s),
        )

    def peak(self, dtype: DType) -> float | None:
        """Return the dense peak in FLOP/s for `dtype`, or None where the device has no such unit."""
        return dict(self.peak_flops_per_s).get(dtype)

    def rate(self, dtype: DType) -> float:
        """Return the peak in FLOP/s where there has to be one. Raise ValueError that names those there are."""
        peak = self.peak(dtype)
        if peak is None:
            raise ValueError(
                f"{self.name} has no {dtype} rate, it has {', '.join(name for name, _ in self.peak_flops_per_s)}"
            )
        return peak


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of link: bytes/s in one direction per device (or per NIC), and seconds for one step of a collective.

    `startup_s` comes once a collective. `quick_latency_s` and `quick_efficiency` are the step and the share of the line
    rate of the low-latency protocol that small messages take (None: there is none). `in_network_efficiency` is the
    share of the line rate at which switches reduce (None: they do not); `exchange_efficiency` what
    all_to_all reaches (None: `efficiency`). `share_by_ranks` holds (ranks,
    share of the line rate) for groups that cannot use all of a device's links, as in a cube mesh: ranks ascending, a
    size between two takes the next larger one's, beyond the last it is 1. In a torus of more than one dimension a
    ring's steps are those along each dimension in turn. What does not grow with bytes (a) and what does (b) join as
    (a^p + b^p)^(1/p) with p the `ramp_exponent`: below 1 a message of middling size reaches less of the line, as its
    pipeline of chunks fills and drains.
    """

    name: str
    kind: LinkKind
    bandwidth_bytes_per_s: float
    latency_s: float
    efficiency: float = 1.0
    source: str
    startup_s: float = 0.0
    quick_latency_s: float | None = None
    quick_efficiency: float | None = None
    in_network_efficiency: float | None = None
    exchange_efficiency: float | None = None
    share_by_ranks: tuple[tuple[int, float], ...] = ()
    torus_dimensions: int = 1
    ramp_exponent: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTable:
    """Measured time of one collective on one kind of link for one rank count.

    `points` are (bytes, seconds), bytes ascending. `alpha_s + beta_s_per_byte * bytes` is the summary line and the
    extrapolator; `fit_error` its mean absolute relative error over the points. `backend` (gloo, nccl) and `hardware`
    (the measuring host's CPU) are empty where nobody said.
    """

    link: str
    op: CollectiveOp
    ranks: int
    nodes: int
    points: tuple[tuple[int, float], ...]
    alpha_s: float
    beta_s_per_byte: float
    fit_error: float
    source: str
    provenance: Provenance = "measured"
    backend: str = ""
    hardware: str = ""

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        times = [seconds for _, seconds in self.points]
        line = (self.alpha_s, self.beta_s_per_byte, self.fit_error)
        if min(self.ranks, self.nodes) < 1:
            raise ValueError(f"link table of {self.link}: {self.ranks} ranks on {self.nodes} nodes; expected 1 or more")
        if not sizes or sizes[0] < 1 or any(later <= earlier for earlier, later in pairwise(sizes)):
            raise ValueError(f"link table of {self.link}: sizes {sizes[:5]}; expected one or more, rising, from 1 byte")
        if not all(0 < seconds <= MOST_S for seconds in times) or not all(0 <= part <= MOST_S for part in line):
            raise ValueError(
                f"link table of {self.link}: times {times[:5]}, alpha, beta and error {line}; expected times above 0,"
                f" none of all below 0 or above {MOST_S:g} s"
            )

    @property
    def id(self) -> str:
        """12 hexadecimal digits of all that it says, by which a plan names it."""
        return _link_table_id(self)


@lru_cache(maxsize=1024)
def _link_table_id(table: LinkTable) -> str:
    return sha256(json.dumps(asdict(table), sort_keys=True).encode()).hexdigest()[:12]
