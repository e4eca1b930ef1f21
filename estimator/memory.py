"""What one rank of a stage holds: weights, gradients, optimizer state, activations in flight, working space.

Figures are modelled from parameter counts and saved activations (Crius section 5.1 drops a stage's choice that exceeds
the device; so do we). `reserve_bytes` stands apart: what allocator, context and communication library keep on top.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from profiles.vocabulary import DType, held_bytes

Zero = Literal[0, 1, 2, 3]
Schedule = Literal["1f1b", "gpipe"]

RESERVE_SHARE = 0.08
"""Share of a device's memory left to allocator fragmentation, context and communication buffers (assumption)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """`states` fp32 values per parameter besides the fp32 master copy that 16-bit training keeps."""

    name: str
    states: int

    def state_bytes(self, dtype: DType) -> int:
        """Bytes of optimizer state per parameter, the fp32 master copy of 16-bit weights included."""
        return 4 * self.states + (4 if held_bytes(dtype) < 4 else 0)

    def step_bytes(self, dtype: DType) -> int:
        """Memory traffic of one step per parameter: read the gradient, read and write the fp32 weight and states, and
        write the 16-bit copy of the weight where there is one."""
        width = held_bytes(dtype)
        return width + 2 * 4 * (1 + self.states) + (width if width < 4 else 0)


OPTIMIZERS = {"adamw": Optimizer(name="adamw", states=2), "sgd": Optimizer(name="sgd", states=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one rank, by part. `peak_bytes` is what the allocator holds at its fullest, without the reserve."""

    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    activation_bytes: int
    working_bytes: int
    reserve_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Weights, gradients, optimizer state, activations in flight and working space together."""
        return (
            self.weight_bytes + self.gradient_bytes + self.optimizer_bytes + self.activation_bytes + self.working_bytes
        )

    def lacking_bytes(self, capacity_bytes: int) -> int:
        """How many bytes a device of `capacity_bytes` lacks for this, reserve included; 0 if it fits."""
        return max(0, self.peak_bytes + self.reserve_bytes - capacity_bytes)


def estimate_memory(
    *,
    parameters: int,
    layer_parameters: int,
    saved_bytes: int,
    working_bytes: int,
    in_flight: int,
    dtype: DType,
    optimizer: Optimizer,
    zero: Zero,
    dp: int,
    capacity_bytes: int,
) -> Memory:
    """Memory of a rank holding `parameters`, `layer_parameters` of them in its largest layer, with `in_flight`
    micro-batches of `saved_bytes` each.

    ZeRO 1 shards the optimizer's state over dp, 2 the gradients too, 3 the weights too (Rajbhandari et al. 2020,
    section 5); shards are rounded up. What is sharded of gradients and weights is whole for one layer at a time, which
    counts as working space.
    """
    width = held_bytes(dtype)
    whole = layer_parameters * width * max(0, zero - 1) if dp > 1 else 0

    def share(bytes_: int, stage: int) -> int:
        return -(-bytes_ // dp) if zero >= stage else bytes_

    return Memory(
        weight_bytes=share(parameters * width, 3),
        gradient_bytes=share(parameters * width, 2),
        optimizer_bytes=share(parameters * optimizer.state_bytes(dtype), 1),
        activation_bytes=saved_bytes * in_flight,
        working_bytes=working_bytes + whole,
        reserve_bytes=round(capacity_bytes * RESERVE_SHARE),
    )


def micro_batches_in_flight(*, schedule: Schedule, stage: int, stages: int, micro_batches: int) -> int:
    """Micro-batches whose activations stage `stage` (from 0) holds: all under GPipe, stages - stage under 1F1B."""
    return micro_batches if schedule == "gpipe" else min(micro_batches, stages - stage)
