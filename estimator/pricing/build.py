"""From degrees of parallelism to a `Setup`: layers divided over stages, ranks placed on a cluster's devices."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from estimator.layers.split import Split
from estimator.layers.work import refuse_layers
from estimator.pricing.pipeline_layout import divided_blocks
from estimator.pricing.recipe import OffloadPart, Recipe, Setup, StageSetup, ZeroStage
from models_zoo.layers import Embedding, Head
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass
from profiles.vocabulary import Degrees, Infeasible, RecomputeKind

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineDegrees(Degrees):
    """How the devices are shared by `pp` stages, all alike, of `vpp` chunks each."""

    pp: int = 1
    vpp: int = 1

    def __post_init__(self) -> None:
        degrees = (self.tp, self.pp, self.dp, self.cp, self.ep, self.etp, self.vpp)
        if min(degrees) < 1:
            raise ValueError(f"degrees: tp, pp, dp, cp, ep, etp, vpp = {degrees}; expected each at least 1")

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return self.stage_devices * self.pp


def uniform_setup(
    model: Model,
    cluster: Cluster,
    recipe: Recipe,
    *,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    cp: int = 1,
    ep: int = 1,
    etp: int = 1,
    vpp: int = 1,
    micro_batch_per_rank: int = 1,
    sequence_parallel: bool = False,
    zero: ZeroStage = 0,
    shard: int | None = None,
    recompute: RecomputeKind = "none",
    recompute_layers: int | None = None,
    offload: frozenset[OffloadPart] = frozenset(),
    devices: tuple[DeviceSlot, ...] | None = None,
    blocks: tuple[int, ...] | None = None,
) -> Setup | Infeasible:
    """The setup in which every stage has the same degrees, or why there is none.

    Ranks are ordered as in Megatron-LM (Narayanan et al. 2021, section 2; its parallel_state): tp fastest, then cp, dp,
    and pp slowest, and put on `devices` (None: the cluster's free ones) in that order. `vpp` chunks of layers a stage
    need the interleaved schedule; under DualPipe a stage holds its own chunk and its mirror's (DeepSeek-V3 report,
    section 3.2.1). `micro_batch_per_rank` is samples; `shard` ranks share what `zero` shards (None: all dp * cp).
    `recompute_layers` counts a stage's layers, `blocks` those of each chunk (None: divided evenly). ValueError for a
    degree below 1.
    """
    degrees = PipelineDegrees(tp=tp, pp=pp, dp=dp, cp=cp, ep=ep, etp=etp, vpp=vpp, sequence_parallel=sequence_parallel)
    slots = cluster.free_slots if devices is None else devices
    chunks = (
        _devices_refuse(degrees, len(slots))
        or _schedule_refuses(recipe, degrees, micro_batch_per_rank)
        or refuse_degrees(model, degrees, seq_len=recipe.seq_len)
        or _sharding_refuses(degrees, zero, shard)
        or stage_chunks(model, pp=pp, vpp=vpp, mirrored=recipe.schedule == "dualpipe", blocks=blocks)
    )
    if isinstance(chunks, Infeasible):
        return chunks
    size = degrees.stage_devices
    return Setup(
        model=model,
        cluster=cluster,
        recipe=recipe,
        stages=tuple(
            StageSetup(
                chunks=chunks[stage],
                slots=slots[stage * size : (stage + 1) * size],
                tp=tp,
                cp=cp,
                dp=dp,
                ep=ep,
                etp=etp,
                sequence_parallel=sequence_parallel,
                zero=zero,
                shard=shard if zero else None,
                recompute=recompute,
                recompute_layers=recompute_layers,
                offload=offload,
            )
            for stage in range(pp)
        ),
        micro_batch=micro_batch_per_rank * dp,
    )


@lru_cache(maxsize=1024)
def stage_chunks(
    model: Model, *, pp: int, vpp: int = 1, mirrored: bool = False, blocks: tuple[int, ...] | None = None
) -> tuple[Ranges, ...] | Infeasible:
    """Return each stage's [first, end) ranges of layers; Infeasible where `blocks` are not those of pp * vpp chunks.

    Chunk c of stage s is the (c * pp + s)-th, with as many blocks as `blocks` has there. None: they are divided over
    the pp * vpp chunks as evenly as possible, where uneven the fewer to the chunks that hold embedding and head (which
    may hold no block at all, as Llama 3 405B is run: 126 blocks over 128 chunks). `mirrored`: stage s holds chunks s
    and pp - 1 - s.

    >>> from models_zoo.catalogue import load_model
    >>> stage_chunks(load_model("gpt-tiny"), pp=2)
    (((0, 3),), ((3, 6),))
    """
    embeds = isinstance(model.layers[0], Embedding)
    heads = isinstance(model.layers[-1], Head)
    held, chunks = len(model.layers) - embeds - heads, pp * vpp
    if held + embeds + heads < chunks or not held:
        return Infeasible(reason=f"{held} blocks for pp * vpp = {chunks} chunks of layers", lacking="divisibility")
    counts = blocks or divided_blocks(model, chunks, spare_first=embeds, spare_last=heads)
    if (len(counts), sum(counts)) != (chunks, held):
        return Infeasible(
            reason=f"{sum(counts)} blocks in {len(counts)} chunks, the model has {held} for pp * vpp = {chunks}",
            lacking="divisibility",
        )
    ranges, first = [], 0
    for number, count in enumerate(counts):
        end = first + count + (embeds and number == 0) + (heads and number == chunks - 1)
        ranges.append((first, end))
        first = end
    if mirrored:
        return tuple((ranges[stage], ranges[pp - 1 - stage]) for stage in range(pp))
    return tuple(tuple(ranges[chunk * pp + stage] for chunk in range(vpp)) for stage in range(pp))


def _lacking(reason: str, lacking: Literal["divisibility", "support"] = "divisibility") -> Infeasible:
    return Infeasible(reason=reason, lacking=lacking)


def _devices_refuse(degrees: PipelineDegrees, places: int) -> Infeasible | None:
    if degrees.devices <= places:
        return None
    return Infeasible(
        reason=f"tp * cp * dp * pp = {degrees.devices} devices, and there are {places}", lacking="devices"
    )


def _schedule_refuses(recipe: Recipe, degrees: PipelineDegrees, micro_batch_per_rank: int) -> Infeasible | None:
    """What the batch and the schedule do not allow."""
    if micro_batch_per_rank < 1:
        raise ValueError(f"micro_batch_per_rank: found {micro_batch_per_rank}, expected at least 1")
    micro_batch = micro_batch_per_rank * degrees.dp
    if recipe.global_batch % micro_batch:
        return _lacking(
            f"the global batch {recipe.global_batch} is no multiple of dp * micro-batch ="
            f" {degrees.dp} * {micro_batch_per_rank}"
        )
    micro_batches, pp = recipe.global_batch // micro_batch, degrees.pp
    if degrees.vpp > 1:
        if recipe.schedule != "interleaved" or pp == 1:
            return _lacking(f"vpp = {degrees.vpp} with schedule {recipe.schedule} and pp = {pp}", "support")
        if micro_batches % pp:
            return _lacking(f"{micro_batches} micro-batches, which interleaving needs in multiples of pp = {pp}")
    if recipe.schedule == "dualpipe" and pp % 2:
        return _lacking(f"DualPipe needs an even number of stages, not pp = {pp}")
    return None


def refuse_degrees(model: Model, degrees: Degrees, *, seq_len: int) -> Infeasible | None:
    """Return why the layers of `model` cannot be held under `degrees` with `seq_len` tokens a sample, None where they
    can. Which degrees a layer can have, its description says (`estimator.layers.kinds`)."""
    split = Split(
        samples=1,
        seq_len=seq_len,
        tp=degrees.tp,
        sequence_parallel=degrees.sequence_parallel and degrees.tp > 1,
        cp=degrees.cp,
        ep=degrees.ep,
        etp=degrees.etp,
    )
    if not seq_len and (split.cp > 1 or split.sequence_parallel):
        return _lacking(f"cp = {split.cp} and sequence parallelism over tp = {split.tp} ranks need tokens")
    holders = degrees.ep * degrees.etp
    if degrees.stage_devices % holders:
        return _lacking(f"ep * etp = {holders} of dp * cp * tp = {degrees.stage_devices} ranks")
    return refuse_layers(model.layers, split)


def _sharding_refuses(degrees: Degrees, zero: ZeroStage, shard: int | None) -> Infeasible | None:
    ranks = degrees.dp * degrees.cp
    if zero and shard is not None and (shard < 1 or ranks % shard):
        return _lacking(f"sharding over {shard} of dp * cp = {ranks} ranks")
    return None
