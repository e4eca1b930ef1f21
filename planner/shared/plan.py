"""The parallel plan as a record: what runs where, split how, and what it is estimated to cost.

One record for each object of the plan file (`planner.shared.plan_file`), with the same names. Each checks itself;
`Plan` checks what only the whole can show. SI units; `[first, end)` ranges of layers and ranks from 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

from estimator.pricing.recipe import ScheduleName
from planner.shared.plan_network import PlanNetwork
from planner.shared.plan_parts import (
    FileRecord,
    PlanMemory,
    PlanMemoryFit,
    PlanRecipe,
    PlanTimeBreakdown,
    require,
)
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, Degrees, DType, Provenance, RecomputeKind

PLAN_SCHEMA: Literal["cellplan.plan/1"] = "cellplan.plan/1"

RankAxis = Literal["tp", "cp", "dp", "pp"]
Offload = Literal["weights", "optimizer", "activations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes(FileRecord):
    """A model in numbers. `layers` is what chunks count, embedding and head included; `blocks` the transformer blocks
    among them. None where a model has no such thing: heads of a ResNet, experts of a dense model."""

    layers: int
    blocks: int | None
    parameters: int
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    feed_forward_hidden: int | None
    vocab: int | None
    experts: int | None
    experts_per_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanModel(FileRecord):
    """The model. `reference` is what finds it again: a zoo name, a config.json or `package.module:factory`.

    `seq_len` is tokens per sample, None for a model without tokens.
    """

    name: str
    reference: str
    sizes: ModelSizes
    seq_len: int | None
    dtype: DType

    def __post_init__(self) -> None:
        require(self.sizes.layers >= 1, f"layers={self.sizes.layers}", "at least 1")
        require(self.seq_len is None or self.seq_len >= 1, f"seq_len={self.seq_len}", "null or at least 1")
        LIMITS.tokens.check(self.seq_len or 0, where="plan", key="model.seq_len")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBatch(FileRecord):
    """Samples per iteration, samples per micro-batch over all replicas of a stage, and micro-batches per iteration."""

    global_batch: int
    micro_batch: int
    micro_batches: int

    def __post_init__(self) -> None:
        require(
            min(self.micro_batch, self.micro_batches) >= 1
            and self.global_batch == self.micro_batch * self.micro_batches,
            f"global_batch={self.global_batch}, micro_batch={self.micro_batch}, micro_batches={self.micro_batches}",
            "global_batch = micro_batch * micro_batches, all at least 1",
        )
        LIMITS.samples.check(self.global_batch, where="plan", key="batch.global_batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevice(FileRecord):
    """Where a rank sits: `node` counts through the site, `index` within the node. `host` is what the node is called,
    where the cluster names its nodes."""

    rank: int
    site: str
    node: int
    device: str
    index: int
    host: str | None = None

    def __post_init__(self) -> None:
        numbers = (self.rank, self.node, self.index)
        require(min(numbers) >= 0, f"rank, node, index = {numbers}", "none below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding(FileRecord):
    """Who holds what of a stage's state: ZeRO stage `zero` (1 optimizer, 2 gradients too, 3 weights too, as FSDP) over
    groups of `shard` ranks, each group a replica of `replicate` (HSDP where that is above 1)."""

    zero: Literal[0, 1, 2, 3]
    shard: int
    replicate: int

    def __post_init__(self) -> None:
        require(
            min(self.shard, self.replicate) >= 1 and (self.zero > 0 or self.shard == 1),
            f"zero={self.zero}, shard={self.shard}, replicate={self.replicate}",
            "shard and replicate of at least 1, and shard 1 under zero 0",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeRule(FileRecord):
    """What backward computes again, and in how many of the stage's layers."""

    kind: RecomputeKind
    layers: int

    def __post_init__(self) -> None:
        require(
            (self.layers == 0) == (self.kind == "none") and self.layers >= 0,
            f"kind={self.kind}, layers={self.layers}",
            "0 layers for none, and at least 1 otherwise",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStage(FileRecord):
    """A stage: its layers, its ranks and how they share the work.

    `device` is the type of its devices (`a40+a10` where replicas sit on several). `ranks` are ordered by the plan's
    `rank_axis_order`. `ep` ranks share a layer's experts, each expert split `etp`
    ways. `micro_batch_shares` are samples per replica where they are uneven. `compute_s` (forward and backward) and
    `communication_s` (collectives and transfers waited for) are per micro-batch; `memory_bytes` is the allocator's peak
    on a rank, `memory` its parts (None where nobody took it apart).
    """

    chunks: tuple[tuple[int, int], ...]
    device: str
    ranks: tuple[int, ...]
    dp: int
    tp: int
    sequence_parallel: bool
    cp: int
    ep: int
    etp: int
    sharding: Sharding
    attention: AttentionKernel
    recompute: RecomputeRule
    offload: tuple[Offload, ...]
    micro_batch_shares: tuple[int, ...] | None
    compute_s: float
    communication_s: float
    memory_bytes: int
    memory: PlanMemory | None = None

    @property
    def degrees(self) -> Degrees:
        """How its ranks share the work."""
        return Degrees(
            tp=self.tp,
            cp=self.cp,
            dp=self.dp,
            ep=self.ep,
            etp=self.etp,
            sequence_parallel=self.sequence_parallel,
        )

    def __post_init__(self) -> None:
        degrees = {name: getattr(self, name) for name in ("dp", "tp", "cp", "ep", "etp")}
        require(min(degrees.values()) >= 1, f"degrees {degrees}", "each at least 1")
        require(
            self.dp * self.tp * self.cp == len(self.ranks),
            f"dp={self.dp}, tp={self.tp}, cp={self.cp} and {len(self.ranks)} ranks",
            "dp * tp * cp = ranks",
        )
        require(
            len(self.ranks) % (self.ep * self.etp) == 0,
            f"ep={self.ep}, etp={self.etp} and {len(self.ranks)} ranks",
            "ep * etp to divide the ranks",
        )
        require(
            self.sharding.shard * self.sharding.replicate == self.dp * self.cp,
            f"shard={self.sharding.shard}, replicate={self.sharding.replicate}, dp={self.dp}, cp={self.cp}",
            "shard * replicate = dp * cp",
        )
        require(
            bool(self.chunks) and all(0 <= first < end for first, end in self.chunks),
            f"chunks={self.chunks}",
            "at least one [first, end) with 0 <= first < end",
        )
        layers = sum(end - first for first, end in self.chunks)
        require(
            self.recompute.layers <= layers,
            f"recompute.layers={self.recompute.layers}",
            f"at most the stage's {layers} layers",
        )
        require(len(set(self.offload)) == len(self.offload), f"offload={self.offload}", "each at most once")
        figures = (self.compute_s, self.communication_s, self.memory_bytes)
        require(min(figures) >= 0, f"compute_s, communication_s, memory_bytes = {figures}", "none below 0")
        parts = self.memory.peak_bytes if self.memory else self.memory_bytes
        require(parts == self.memory_bytes, f"memory's parts sum to {parts}", f"memory_bytes={self.memory_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanEstimate(FileRecord):
    """What the plan is estimated to reach. `tflops_per_device` counts model FLOPs (no recomputation, attention in
    full), `causal_tflops_per_device` causal attention half, `hardware_tflops_per_device` recomputation as well.

    None: tokens of a model without tokens, `mfu` of a device without a known peak. `interval_90_s` is [low, high] of
    the iteration, `memory_interval_90_bytes` of the peak; `memory_fit` holds the latter against the device.
    """

    iteration_time_s: float
    samples_per_s: float
    tokens_per_s_per_device: float | None
    tflops_per_device: float
    causal_tflops_per_device: float
    hardware_tflops_per_device: float
    mfu: float | None
    peak_memory_bytes: int
    reserve_bytes: int
    breakdown: PlanTimeBreakdown
    interval_90_s: tuple[float, float]
    memory_interval_90_bytes: tuple[int, int] | None = None
    memory_fit: PlanMemoryFit | None = None

    def __post_init__(self) -> None:
        require(self.iteration_time_s > 0, f"iteration_time_s={self.iteration_time_s}", "above 0")
        require(
            math.isclose(self.breakdown.total_s, self.iteration_time_s, rel_tol=1e-9),
            f"breakdown sums to {self.breakdown.total_s}",
            f"iteration_time_s={self.iteration_time_s}",
        )
        low, high = self.interval_90_s
        require(0 <= low <= high, f"interval_90_s={self.interval_90_s}", "0 <= low <= high")
        if self.memory_interval_90_bytes is not None:
            least, most = self.memory_interval_90_bytes
            found = f"memory_interval_90_bytes={self.memory_interval_90_bytes}"
            require(0 <= least <= most, found, "0 <= low <= high")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProvenance(FileRecord):
    """What the estimate rests on. `communication` is None where nothing had to be communicated.

    `search_space_size` counts the plans that the search covered, `optimality_proved` whether none of them is better.
    """

    compute: Provenance
    communication: Provenance | None
    memory: Provenance
    profile_ids: tuple[str, ...]
    link_table_ids: tuple[str, ...]
    version: str
    search_space_size: int
    optimality_proved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan(FileRecord):
    """A Cell with everything fixed. `rank_axis_order` names the axes of the rank numbers, fastest first; `recipe` holds
    what an explicit plan fixes beyond a Cell's, None where the defaults stand; `network` what it puts on the uplinks
    above the nodes, None where the cluster has none."""

    schema: Literal["cellplan.plan/1"] = PLAN_SCHEMA
    model: PlanModel
    cluster: str
    batch: PlanBatch
    schedule: ScheduleName
    optimizer: str
    devices: tuple[PlanDevice, ...]
    rank_axis_order: tuple[RankAxis, ...]
    stages: tuple[PlanStage, ...]
    estimate: PlanEstimate
    provenance: PlanProvenance
    assumptions: tuple[str, ...]
    recipe: PlanRecipe | None = None
    network: PlanNetwork | None = None

    def __post_init__(self) -> None:
        require(
            sorted(self.rank_axis_order) == ["cp", "dp", "pp", "tp"],
            f"rank_axis_order={self.rank_axis_order}",
            "tp, cp, dp and pp in some order",
        )
        _check_ranks(self.devices, self.stages)
        _check_chunks(self.stages, self.model.sizes.layers, mirrored=self.schedule == "dualpipe")
        for number, stage in enumerate(self.stages):
            _check_shares(number, stage, self.batch.micro_batch)
        fullest = max(stage.memory_bytes for stage in self.stages)
        require(
            self.estimate.peak_memory_bytes == fullest,
            f"estimate.peak_memory_bytes={self.estimate.peak_memory_bytes}",
            f"the fullest stage's {fullest}",
        )


def _check_ranks(devices: tuple[PlanDevice, ...], stages: tuple[PlanStage, ...]) -> None:
    """Devices are listed by rank, each place once; the stages' ranks are a partition of them."""
    listed = [device.rank for device in devices]
    require(listed == list(range(len(devices))), f"devices have ranks {_brief(listed)}", "0, 1, 2, ... in order")
    places = {(device.site, device.node, device.index) for device in devices}
    require(len(places) == len(devices), f"{len(devices)} ranks on {len(places)} places", "one rank a place")
    used = [rank for stage in stages for rank in stage.ranks]
    require(
        sorted(used) == listed,
        f"stages use ranks {_brief(sorted(used))}",
        f"each of the {len(devices)} devices' ranks exactly once",
    )
    for number, stage in enumerate(stages):
        types = device_types(devices[rank].device for rank in stage.ranks)
        require(
            types == stage.device,
            f"stages[{number}].device={stage.device} and ranks on {types}",
            "the device of its ranks, several joined by + in the order of their ranks",
        )


def device_types(devices: Iterable[str]) -> str:
    """A stage's `device`: the types of its ranks' devices, each once.

    >>> device_types(["a40", "a40", "a10"])
    'a40+a10'
    """
    return "+".join(dict.fromkeys(devices))


def _check_chunks(stages: tuple[PlanStage, ...], layers: int, *, mirrored: bool) -> None:
    """Read round by round (first chunk of every stage, then the second, ...), chunks cover the layers in order.

    `mirrored`: a stage's second and last chunk is the first of the stage as far from the pipeline's other end
    (DualPipe), and the first ones cover the layers.
    """
    counts = [len(stage.chunks) for stage in stages]
    require(len(set(counts)) == 1, f"stages have {counts} chunks", "as many in each")
    if mirrored:
        require(counts[0] == 2, f"dualpipe with {counts[0]} chunks a stage", "two: its own and its mirror's")
        firsts, seconds = zip(*(stage.chunks for stage in stages), strict=True)
        require(seconds == firsts[::-1], f"second chunks {_brief(seconds)}", f"the mirror of {_brief(firsts)}")
        counts = [1]
    order = [stage.chunks[turn] for turn in range(counts[0]) for stage in stages]
    require(
        order[0][0] == 0 and order[-1][1] == layers and all(a[1] == b[0] for a, b in pairwise(order)),
        f"chunks {_brief(order)}",
        f"contiguous ranges from 0 to the model's {layers} layers",
    )


def _check_shares(number: int, stage: PlanStage, micro_batch: int) -> None:
    shares = stage.micro_batch_shares
    if shares is None:
        require(
            micro_batch % stage.dp == 0,
            f"stages[{number}].dp={stage.dp} and batch.micro_batch={micro_batch}",
            "dp to divide it, or micro_batch_shares",
        )
    else:
        require(
            len(shares) == stage.dp and sum(shares) == micro_batch and min(shares) >= 1,
            f"stages[{number}].micro_batch_shares={_brief(shares)}",
            f"dp={stage.dp} shares of at least 1 that sum to batch.micro_batch={micro_batch}",
        )


def _brief(values: Sequence[object]) -> str:
    """The values, or the first eight and their number, so that a message stays a line."""
    shown = ", ".join(str(value) for value in values[:8])
    return shown if len(values) <= 8 else f"{shown}, ... ({len(values)} in all)"
