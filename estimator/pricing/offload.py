"""What keeping part of a rank's state in host memory costs in time."""

from __future__ import annotations

from estimator.layers.split import Work
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from profiles.vocabulary import held_bytes

HOST_MEMORY_BYTES_PER_S = 200e9
"""What one node's host memory streams, shared by its devices' optimizers (assumption: eight channels of DDR4-3200)."""


def host_link_bytes_per_s(setup: Setup, stage: StageSetup) -> float:
    """Bytes/s between one device of `stage` and its host, one way."""
    link = setup.cluster.group_of(stage.slots[0]).host_link
    return link.bandwidth_bytes_per_s * link.efficiency


def optimizer_on_host_s(setup: Setup, stage: StageSetup, updated: float, step_bytes: float) -> tuple[float, float]:
    """(step, transfers) seconds of an optimizer in host memory: its traffic through the node's memory, of which each
    device has a share; gradients of the `updated` parameters down, weights up over the host link (Ren et al. 2021,
    ZeRO-Offload, section 4)."""
    group = setup.cluster.group_of(stage.slots[0])
    width = GRAD_WIDTH[setup.recipe.grad_dtype] + held_bytes(setup.recipe.dtype)
    return step_bytes * group.devices / HOST_MEMORY_BYTES_PER_S, updated * width / host_link_bytes_per_s(setup, stage)


def offloaded_share(recipe: Recipe) -> float:
    """Return the share of a stage's layers whose activations leave the device where a plan offloads them."""
    return min(1.0, recipe.software.offloaded_share)


def activations_over_host_link_s(
    setup: Setup, stage: StageSetup, works: tuple[tuple[Work, int], ...], forward_s: float, backward_s: float
) -> tuple[float, float]:
    """Seconds that saving a micro-batch's activations to the host adds to forward, which they leave beside, and to
    backward, which they come back beside: what takes longer than the computation."""
    moved = offloaded_share(setup.recipe) * sum(work.saved_bytes * count for work, count in works)
    way_s = moved / host_link_bytes_per_s(setup, stage)
    return max(0.0, way_s - forward_s), max(0.0, way_s - backward_s)
