"""How one rank holds a layer, and the work that is then its own."""

from __future__ import annotations

from math import prod
from typing import Literal

from profiles.records import dataclass
from profiles.vocabulary import (
    DTYPE_BYTES,
    AdapterTargets,
    AttentionKernel,
    Collective,
    DType,
    FrozenAs,
    Kernels,
    Operator,
    RecomputeKind,
    RecomputeModule,
    held_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """One rank's share of a layer, and the micro-batch that passes through it.

    `samples` of `seq_len` tokens each, of which a cp rank holds 1/cp. `ep` ranks share the experts (1: every rank holds
    all of them), each expert's matrices split over `etp`. `capacity_factor` None: dropless. `imbalance`: tokens of the
    fullest expert rank over the mean. `selective`: what selective recomputation runs again. `fused_experts`: the
    experts' activation and its casts are part of their products. `stashes_experts`: what they keep is copied to
    pages. `sends_once`: a token goes once to each rank that holds some of its experts.
    `frozen`: no gradients of this layer's weights; with
    `lora_rank` only adapters have some, beside the blocks' matrices that `lora_targets` names; `frozen_as`: how frozen
    matrices are held. `wide`: products stay in 16 bits whatever the type of others. `keeps_narrow`: a product with
    narrow operands keeps its input as such. `narrow_activations`: an activation keeps its input in 8 bits.
    `fused_gate` False: a gated activation and its product are a kernel each all the same.
    `fused_softmax` False: of attention in separate products scale, mask and softmax are a kernel each all the same.
    `recomputes_needed`: full recomputation stops before a block's last product, whose result backward does not need.
    `passes_gradient` False: nothing before this layer learns, so backward computes no input gradient.

    `kernels` fused or eager are a training framework's; `zoo`: the modules of `models_zoo` as eager torch runs them,
    which know no context parallelism, split experts over tp, keep what they gather, and never drop a layer's gradient.
    """

    samples: int
    seq_len: int
    dtype: DType = "bf16"
    tp: int = 1
    sequence_parallel: bool = False
    cp: int = 1
    ep: int = 1
    etp: int = 1
    attention: AttentionKernel = "flash"
    kernels: Kernels | Literal["zoo"] = "fused"
    fused_cross_entropy: bool = False
    loss_in_place: bool = False
    weighs_inside: bool = False
    vocabulary_multiple: int = 1
    recompute: RecomputeKind = "none"
    recomputes_needed: bool = False
    fused_gate: bool = True
    fused_softmax: bool = True
    selective: tuple[RecomputeModule, ...] = ("core_attn",)
    fused_experts: bool = False
    stashes_experts: bool = False
    sends_once: bool = False
    capacity_factor: float | None = None
    imbalance: float = 1.0
    lora_rank: int = 0
    lora_targets: AdapterTargets = "all"
    frozen_as: FrozenAs = "held"
    wide: bool = False
    keeps_narrow: bool = False
    narrow_activations: bool = False
    frozen: bool = False
    passes_gradient: bool = True

    @property
    def width(self) -> int:
        """Bytes of an activation element."""
        return held_bytes(self.dtype)

    @property
    def kept_width(self) -> float:
        """Bytes of an element of what a block's product with a weight keeps of its input."""
        return min(self.width, DTYPE_BYTES[self.dtype]) if self.keeps_narrow else self.width

    @property
    def gathered_width(self) -> float:
        """Bytes of an element that tensor-parallel ranks gather for a block's product: of its operand where software
        keeps that (Transformer Engine's quantized gathers); an adapter beside it reads 16 bits."""
        return self.width if self.lora_rank else self.kept_width

    @property
    def gathered_gradient_width(self) -> float:
        """The same of a gradient, which two products read: one copy serves both where a tensor has one scale."""
        return min(self.width, self.gathered_width * (1 if self.dtype == "fp8" else 2))

    @property
    def rows(self) -> int:
        """Tokens of a micro-batch inside the tensor-parallel region."""
        return self.samples * self.seq_len // self.cp

    @property
    def local_rows(self) -> int:
        """Tokens outside it: 1/tp of them under sequence parallelism."""
        return self.rows // self.tp if self.sequence_parallel else self.rows

    @property
    def outside_ranks(self) -> int:
        """Ranks over which the gradient of a weight outside the tensor-parallel region must be summed."""
        return self.tp if self.sequence_parallel else 1

    @property
    def zoo(self) -> bool:
        """Whether the layer runs as the module of `models_zoo`."""
        return self.kernels == "zoo"

    @property
    def bias_in_product(self) -> bool:
        """Whether a row-split product adds its bias itself, not the residual after the partial sums are added."""
        return self.zoo and self.tp == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a rank does for one micro-batch of a layer.

    `operators` run once each way; `again` are those of them whose forward runs a second time, in backward: under full
    recomputation all, or all before the last product (`Split.recomputes_needed`).
    `collectives` name their axis and phase; those of `again_collectives` run once more with `again`. `parameters` are
    the rank's own outside the experts, `expert_parameters` those of its experts (sharded and summed over other ranks);
    `trainable_*` those that learn; `vectors` counts biases and norms' weights; `frozen`: none of the layer's own
    weights does; `wide` as `Split` has it. `partial_gradients` as `Piece` has them: sums over tensor-parallel
    ranks, once an iteration. `is_end`: an embedding or a head; `runs_again`: recomputed in full. `saved_bytes` is kept
    from forward to backward, `temporary_bytes` the most that lives only while this layer runs (a second copy of
    activations, gathered tensors).
    """

    operators: tuple[Operator, ...]
    again: tuple[Operator, ...] = ()
    collectives: tuple[Collective, ...] = ()
    again_collectives: tuple[Collective, ...] = ()
    parameters: int = 0
    expert_parameters: int = 0
    trainable_parameters: int = 0
    trainable_expert_parameters: int = 0
    vectors: int = 0
    partial_gradients: tuple[tuple[int, int], ...] = ()
    frozen: bool = False
    wide: bool = False
    is_end: bool = False
    runs_again: bool = False
    saved_bytes: int = 0
    temporary_bytes: int = 0
    input_bytes: int = 0
    output_bytes: int = 0

    @property
    def largest_matrix(self) -> int:
        """Parameters of the largest matrix of a product; of products of experts those of all together."""
        return max((prod(_matrix(op)) for op in self.operators if op.kind in ("gemm", "grouped_gemm")), default=0)


def _matrix(product: Operator) -> tuple[int, ...]:
    """(columns, inner width) of a product's weight, for each expert where there are several."""
    *groups, _, columns, inner = product.shape
    return (*groups, columns, inner)
