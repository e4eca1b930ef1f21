"""ZeRO 3 event by event: one stream computes, one moves weights and gradients, and weights are fetched one layer ahead.

Forward goes through the layers first to last, backward last to first. The gather of a layer is queued as the layer
before it starts to compute (FSDP's prefetching), its gradients' scatter as its backward ends; the moving stream does
what was queued in that order.
"""

from __future__ import annotations

from collections.abc import Sequence

from estimator.pricing.gradient_sync import ShardedLayer


def simulate_sharded(layers: Sequence[ShardedLayer]) -> float:
    """Seconds of a micro-batch, forward and backward, the last scatter included."""
    forward = [(one.gather_s, one.forward_s, 0.0) for one in layers]
    back = [(one.gather_s, one.backward_s, one.scatter_s) for one in reversed(layers)]
    # The last layer's weights are still there when backward begins with it.
    steps = [*forward, (0.0, *back[0][1:]), *back[1:]]
    copies = sum(one.copy_s for one in layers)
    moving = computing = steps[0][0]
    for number, (_, compute_s, scatter_s) in enumerate(steps):
        started, ended = computing, computing + compute_s
        following = steps[number + 1][0] if number + 1 < len(steps) else 0.0
        moving = max(moving, started) + following if following else moving
        computing = max(ended, moving) if following else ended
        moving = max(moving, ended) + scatter_s if scatter_s else moving
    return max(computing, moving) + copies
