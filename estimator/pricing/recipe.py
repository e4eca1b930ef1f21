"""The words of an explicit plan: how a model is trained (`Recipe`), who holds what (`StageSetup`), both (`Setup`)."""

from __future__ import annotations

from dataclasses import field
from typing import Literal, get_args

from estimator.pricing.memory_features import GENERIC, MemoryFeatures
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.vocabulary import (
    AdapterTargets,
    AttentionKernel,
    DType,
    FrozenAs,
    Kernels,
    RecomputeKind,
    RecomputeModule,
)
from profiles.vocabulary import GradDType as GradDType
from profiles.vocabulary import OffloadPart as OffloadPart
from profiles.vocabulary import OptimizerName as OptimizerName
from profiles.vocabulary import Overlap as Overlap
from profiles.vocabulary import ScheduleName as ScheduleName
from profiles.vocabulary import ZeroStage as ZeroStage

Dispatch = Literal["all_to_all", "networked", "deduplicated", "hybrid"]
Launch = Literal["eager", "compiled", "graph_router", "graph_dense", "graph_layers", "graph"]
GroupedProducts = Literal["one_kernel", "streams", "fused", "sequential"]
Modules = Literal["torch", "megatron_core", "transformer_engine", "zero3"]
TensorOverlap = Literal["backward", "pipelined"]
NarrowAttention = Literal["no", "first", "yes"]
NarrowScaling = Literal["delayed", "current"]
Moments = Literal["as_masters", "bf16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What the training framework is declared to do; parameters of the models are told apart by these alone.

    `kernels` fused: bias, activation, dropout, residual, mask and softmax run as Megatron's or Transformer Engine's
    fused kernels; eager: one kernel each. `launch` graph: kernels replayed from a captured graph, so that the host's
    launch rate does not limit. `fused_cross_entropy`: no fp32 copy of the logits is kept; `loss_in_place`:
    the loss works on that copy itself (Megatron's vocabulary-parallel loss). `weighs_inside`: experts' activation is
    one kernel with the weighing by probability, and keeps its input alone. `optimizer_masters`: the
    optimizer's own fp32 copy of 16-bit weights (False: it works on the 16-bit weights, as bf16-pure training does).
    `moments`: the optimizer's are as wide as what it updates, or bf16 (Megatron's precision-aware optimizer).
    `keeps_narrow`: products with narrow operands keep those of their inputs for backward, and those of weights from one
    micro-batch to the next (Transformer Engine; False: they are cast from 16 bits each time). `narrow_parameters`: the
    blocks' matrices are held in the narrow type alone, and gathered so (fp8 parameter gather; NVFP4's only where they
    are frozen). `narrow_activations`: an activation between products keeps its input in 8 bits (Megatron Core's
    activation_func_fp8_input_store). `lora_targets`: beside which of the blocks' matrices adapters stand.
    `frozen_as`: whether frozen matrices of blocks are held in 4 bits (Q-LoRA), and widened before each product.
    `fused_accumulation`: weight-gradient products add to the accumulated gradients themselves; otherwise a second pass
    does. `bucket_bytes`: gradients are summed in buckets of so many bytes, each waiting for its own latencies (0: in
    one piece; `grown_buckets`: as Megatron cuts them where they are summed beside compute, `bucket_elements`, each
    chunk's apart). `broadcast_weights`: after a sharded step each rank's weights are broadcast in turn, not gathered at
    once. `copies_pieces`: of what a sharded step sums and gathers (ZeRO 1, 2), the host copies each rank's piece of
    each weight by itself, and waits for the gathering. `weights_in_turn`: ZeRO 3 gathers and scatters each weight by
    itself, from such pieces, when it is needed, for a recomputed layer once more, and waits for it. `flash_generation`:
    which FlashAttention the fused attention kernel is (1 includes Triton's, 3 Transformer Engine's cuDNN). `dispatch`
    deduplicated: a token goes once to each node, and there once to each rank, that holds some of its experts (DeepEP
    and its like; hybrid: HybridEP, in a rack too); all_to_all: once for each expert;
    networked: so too, and out of a node by its NICs alone.
    `grouped_products` one_kernel: one
    kernel multiplies the tokens of all experts of a rank; streams: one each, on a few streams; fused: as one kernel,
    the activation and its cast in it (Transformer Engine's fused grouped MLP).
    `paged_stash`: what experts keep for backward is copied into pages and back. `selective`: the modules that selective
    recomputation runs again. `tensor_overlap` is what `tp` of `Recipe.overlap` stands for, backward: the gradient's sum
    and the input's second gathering beside products (Megatron, Transformer Engine); pipelined: gathers and scatters of
    both passes too, in pieces (userbuffers, async TP); `sums_beside`: backward without being asked (Transformer
    Engine's layers). `shared_beside`: an expert that every token visits runs beside the others' exchange (Megatron
    Core's moe_shared_expert_overlap). `fp8_attention`: where products are narrow, fused attention is
    in fp8 as well (first: by the first kernels that could, cuDNN's of spring 2025). `fp8_scaling`: the
    scale of a tensor in fp8 is that of iterations before (delayed), or found in the tensor itself, which is read once
    more (current, Megatron's tensorwise; types whose scales are of blocks find them as they cast). `wide_first`,
    `wide_last`: so many blocks at either end of the model keep their products in 16 bits then. `offloaded_share`: of
    which share of the layers activations leave the device where a plan offloads them. `recomputes_needed`: what full
    recomputation runs again stops before a block's last product, whose result nothing needs (a compiler drops it).
    `fused_gate` False: a gated activation is a kernel of its own beside its product. `fused_softmax` False: scale,
    mask and softmax of unfused attention are a kernel each. `memory`: what it holds besides weights, gradients,
    optimizer state and activations.
    `name` is for people: no estimate looks at it.

    What the host has to do for it (`estimator.pricing.host_time`): `launch` graph_layers: one graph a layer is
    replayed; graph_dense: of all but experts' exchange and products; graph_router: of experts' router alone; compiled:
    kernels are launched by code that a compiler wrote. `modules`: whose modules layers are made of; the Python of
    Megatron Core's and Transformer Engine's takes longer than that of plain ones, and so do zero3's: DeepSpeed's hooks
    around every module, which fetch its weights and let them go. `grouped_products` sequential: each
    expert is a module of its own. `deterministic`: PyTorch's deterministic algorithms, which fill every result first.
    """

    name: str
    kernels: Kernels = "fused"
    launch: Launch = "eager"
    fused_cross_entropy: bool = False
    loss_in_place: bool = False
    weighs_inside: bool = False
    optimizer_masters: bool = True
    fused_accumulation: bool = False
    moments: Moments = "as_masters"
    keeps_narrow: bool = False
    narrow_parameters: bool = False
    narrow_activations: bool = False
    lora_targets: AdapterTargets = "all"
    frozen_as: FrozenAs = "held"
    bucket_bytes: int = 0
    grown_buckets: bool = False
    broadcast_weights: bool = False
    copies_pieces: bool = False
    weights_in_turn: bool = False
    flash_generation: Literal[1, 2, 3] = 2
    dispatch: Dispatch = "all_to_all"
    grouped_products: GroupedProducts = "one_kernel"
    modules: Modules = "torch"
    deterministic: bool = False
    selective: tuple[RecomputeModule, ...] = ("core_attn",)
    paged_stash: bool = False
    tensor_overlap: TensorOverlap = "backward"
    sums_beside: bool = False
    shared_beside: bool = False
    fp8_attention: NarrowAttention = "no"
    fp8_scaling: NarrowScaling = "delayed"
    wide_first: int = 0
    wide_last: int = 0
    offloaded_share: float = 1.0
    recomputes_needed: bool = False
    fused_gate: bool = True
    fused_softmax: bool = True
    memory: MemoryFeatures = GENERIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Settings of a training that do not depend on where a rank sits.

    `global_batch` samples an iteration; `seq_len` tokens per sample. `vocabulary_multiple`: the vocabulary is padded to
    a multiple of this times tp. `lora_rank` > 0: adapters of that rank beside the blocks' matrices, all else frozen;
    `frozen_layers`: layers [first, end) without gradients. `moe_capacity_factor` None: dropless routing.
    `moe_imbalance`: the fullest rank's tokens over the mean. `overlap`: which communication runs beside compute.
    """

    global_batch: int
    seq_len: int
    dtype: DType = "bf16"
    grad_dtype: GradDType = "fp32"
    optimizer: OptimizerName = "adamw"
    schedule: ScheduleName = "1f1b"
    attention: AttentionKernel = "flash"
    vocabulary_multiple: int = 1
    lora_rank: int = 0
    frozen_layers: tuple[int, int] | None = None
    moe_capacity_factor: float | None = None
    moe_imbalance: float = 1.0
    overlap: frozenset[Overlap] = field(default_factory=frozenset)
    software: Software = field(default_factory=lambda: Software(name="generic"))

    def __post_init__(self) -> None:
        _at_least_one("recipe", global_batch=self.global_batch, vocabulary_multiple=self.vocabulary_multiple)
        LIMITS.samples.check(self.global_batch, where="recipe", key="global_batch")
        LIMITS.tokens.check(self.seq_len, where="recipe", key="seq_len")
        if self.seq_len < 0 or self.lora_rank < 0 or self.moe_imbalance < 1:
            raise ValueError(
                f"recipe: seq_len={self.seq_len}, lora_rank={self.lora_rank}, moe_imbalance={self.moe_imbalance};"
                " expected seq_len >= 0, lora_rank >= 0, moe_imbalance >= 1"
            )
        for value, allowed in (
            (self.grad_dtype, get_args(GradDType)),
            (self.optimizer, get_args(OptimizerName)),
            (self.schedule, get_args(ScheduleName)),
        ):
            if value not in allowed:
                raise ValueError(f"recipe: found {value!r}, expected one of {', '.join(allowed)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetup:
    """One pipeline stage: its layers and how its ranks share the work.

    `chunks` are [first, end) ranges of the model's layers, one unless interleaved. `slots` are the ranks' places, tp
    the fastest axis, then cp, then dp; dp * cp * tp of them. `ep` ranks of dp * cp * tp (with `etp` ranks for each
    expert's matrices) share the experts: ep * etp divides dp * cp * tp. `zero` shards over groups of `shard` of the
    dp * cp ranks (HSDP where shard < dp * cp). `recompute_layers` None: all layers of the stage. `shares` are each
    replica's samples of a micro-batch where they are uneven; all are priced as the one with most.
    """

    chunks: tuple[tuple[int, int], ...]
    slots: tuple[DeviceSlot, ...]
    tp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int = 1
    sequence_parallel: bool = False
    zero: ZeroStage = 0
    shard: int | None = None
    recompute: RecomputeKind = "none"
    recompute_layers: int | None = None
    offload: frozenset[OffloadPart] = field(default_factory=frozenset)
    shares: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        _at_least_one("stage", tp=self.tp, cp=self.cp, dp=self.dp, ep=self.ep, etp=self.etp)
        if self.tp * self.cp * self.dp != len(self.slots):
            raise ValueError(
                f"stage: tp={self.tp} * cp={self.cp} * dp={self.dp} and {len(self.slots)} slots; expected as many"
            )
        if self.sharded_over * self.replicas != self.dp * self.cp:
            raise ValueError(f"stage: shard={self.shard} does not divide dp * cp = {self.dp * self.cp}")

    @property
    def sharded_over(self) -> int:
        """Ranks that share one copy of what `zero` shards."""
        if self.zero == 0:
            return 1
        return self.shard or self.dp * self.cp

    @property
    def replicas(self) -> int:
        """Copies of the sharded state."""
        return self.dp * self.cp // self.sharded_over

    @property
    def layers(self) -> int:
        """Layers of all chunks."""
        return sum(end - first for first, end in self.chunks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """A plan with everything fixed, on given devices.

    `micro_batch` is samples over all replicas of a stage (every stage's dp divides it); `micro_batches` of them make
    the global batch.
    """

    model: Model
    cluster: Cluster
    recipe: Recipe
    stages: tuple[StageSetup, ...]
    micro_batch: int

    def __post_init__(self) -> None:
        if not self.stages or self.recipe.global_batch % self.micro_batch:
            raise ValueError(
                f"setup: {len(self.stages)} stages, global batch {self.recipe.global_batch}, micro-batch"
                f" {self.micro_batch}; expected stages, and the micro-batch to divide the batch"
            )
        for number, stage in enumerate(self.stages):
            if stage.shares is not None and (len(stage.shares), sum(stage.shares)) != (stage.dp, self.micro_batch):
                raise ValueError(
                    f"setup: stage {number} has shares {stage.shares} for dp={stage.dp} and a micro-batch of"
                    f" {self.micro_batch}; expected one a replica, which sum to it"
                )
            if stage.shares is None and self.micro_batch % stage.dp:
                raise ValueError(f"setup: stage {number} has dp={stage.dp}, which does not divide {self.micro_batch}")

    @property
    def micro_batches(self) -> int:
        """Micro-batches an iteration."""
        return self.recipe.global_batch // self.micro_batch

    @property
    def devices(self) -> int:
        """Devices of all stages."""
        return sum(len(stage.slots) for stage in self.stages)

    def samples_per_rank(self, stage: StageSetup) -> int:
        """Samples of a micro-batch that a rank of `stage` computes (a cp rank computes its part of each); the most that
        any does."""
        if stage.shares is not None:
            return max(stage.shares)
        return self.micro_batch // stage.dp


def _at_least_one(what: str, **numbers: int) -> None:
    if min(numbers.values()) < 1:
        raise ValueError(f"{what}: {numbers}; expected each at least 1")
