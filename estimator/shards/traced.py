"""Local shards of a user's own torch module, scaled from the batch at which it was traced."""

from __future__ import annotations

from models_zoo.layers import TracedLayer
from profiles.vocabulary import Infeasible, LocalLayer, Shard


def shard_traced(layer: TracedLayer, shard: Shard) -> LocalLayer | Infeasible:
    """Local shard of a traced layer."""
    return Infeasible(reason="module brings no tensor-parallel plan", lacking="support")
