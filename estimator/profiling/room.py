"""Whether a shard can be measured at all, asked before it is built: Linux kills on a host that runs out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

from estimator.layers.shards import shard_layer
from estimator.pricing.optimizers import OPTIMIZERS
from estimator.pricing.recipe import OptimizerName
from estimator.profiling.setting import Setting
from models_zoo.layers import Layer
from profiles.vocabulary import Infeasible, LocalLayer, Shard, held_bytes


def refuse_early(
    layers: Sequence[Layer], shard: Shard, setting: Setting, *, free_bytes: Callable[[], int]
) -> Infeasible | None:
    """Why contiguous `layers` cannot be measured as `shard`: one cannot be split so, or together they are expected to
    take more than are free on the device of `setting`. None where nothing is known against it."""
    locals_ = []
    for layer in layers:
        local = shard_layer(layer, shard)
        if isinstance(local, Infeasible):
            return local
        locals_.append(local)
    lacking = _needed_bytes(locals_, shard, setting.optimizer) - free_bytes() if locals_ else 0
    if lacking <= 0:
        return None
    return Infeasible(
        reason=f"needs {lacking / 2**30:.1f} GiB more than are free on {setting.device}",
        lacking="memory",
        lacking_bytes=lacking,
    )


def _needed_bytes(locals_: Sequence[LocalLayer], shard: Shard, optimizer: str) -> int:
    """Weights, gradients and optimizer state, what backward needs, and the largest input and output with gradients."""
    width = held_bytes(shard.dtype)
    state = math.ceil(OPTIMIZERS[cast(OptimizerName, optimizer)].state_bytes(shard.dtype))
    held = sum(local.parameters * (2 * width + state) + local.saved_bytes + local.output_bytes for local in locals_)
    return held + 2 * max(local.input_bytes + local.output_bytes for local in locals_)
