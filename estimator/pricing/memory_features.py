"""What training software holds besides weights, gradients, optimizer state and activations, as declared features."""

from __future__ import annotations

from typing import Literal

from profiles.records import dataclass

MIB = 2**20

LAZY_CONTEXT_BYTES = 550 * MIB
"""CUDA context where kernels are loaded when first used (CUDA 11.7 and newer): the usual half GiB (assumption)."""

COMMUNICATOR_BYTES_PER_CHANNEL = 24 * MIB
CHANNEL_BYTES_PER_S = 12.5e9
MOST_CHANNELS = 32
"""A communicator's buffers: NCCL opens about one channel for each 12.5 GB/s of a rank's links, up to 32, and each has
its buffers for ring, trees and protocols (sends and receives between stages have their own). The bytes were fitted on
the BSA rows with memory (A100, CUDA 11.3 to 11.5)."""

WeightGradientScratch = Literal["none", "current", "cached"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFeatures:
    """What a framework is declared to hold; profiles/data/software.toml says which does what, and on what that rests.

    `weight_gradient_scratch`: a tensor of the weight's size and compute dtype that backward hands to autograd beside
    the gradient buffer. none: the gradient itself is that tensor; current: one, while a product runs; cached: one for
    each shape of weight, kept from the first backward on (but `current` for embedding, head and grouped products).
    `gradient_copy_bytes` for each learning parameter where gradients are summed in fp32 under a 16-bit compute dtype.
    `weights_are_masters`: what is kept of the weights is the fp32 master, the 16-bit weight is cast when gathered.
    `step_in_backward`: each gradient is used and given up as soon as it is there, so that one layer's are held.
    `paged_states`: the optimizer's are in memory that device and host share, and on the device while one is updated.
    `gathers_matrices`: under ZeRO 3 weights are gathered one by one, not a layer's together.
    `keeps_gathered`: what tensor-parallel ranks gather of a product's input is kept for backward, not gathered anew.
    `keeps_ends_gathered`: under ZeRO 3 embedding and head stay whole through a pass.
    `step_copy_bytes` for each parameter that a rank updates and whose gradient has 16 bits, in the optimizer's step:
    copies of other sizes than what the allocator then has free. `bucket_elements`: of the gradients reduced at a time,
    and of the weights gathered at a time, `bucket_copies` of them.
    `workspace_bytes`: of matrix-product libraries, taken from the allocator. `context_bytes` stand outside it: context
    with loaded kernels. `fragmentation`: what the allocator holds but has not handed out, over the temporary bytes;
    `activation_fragmentation` over the activations. Both fitted on the reserved figures in SMXB's notes and on BSA.
    """

    weight_gradient_scratch: WeightGradientScratch = "none"
    gradient_copy_bytes: float = 0.0
    weights_are_masters: bool = False
    step_in_backward: bool = False
    paged_states: bool = False
    gathers_matrices: bool = False
    keeps_gathered: bool = False
    keeps_ends_gathered: bool = False
    step_copy_bytes: float = 0.0
    bucket_elements: int = 0
    bucket_copies: int = 0
    workspace_bytes: int = 64 * MIB
    context_bytes: int = LAZY_CONTEXT_BYTES
    fragmentation: float = 0.5
    activation_fragmentation: float = 0.1


GENERIC = MemoryFeatures()
"""No framework declared: gradients are their own buffers."""
