"""What Megatron calls things: tables that are read forwards to read settings and `backwards` to write a plan.

Core's fields are Megatron-LM's arguments with dashes for underscores.
"""

from __future__ import annotations

from estimator.pricing.recipe import OptimizerName, ZeroStage

DEGREES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}

BATCH = {"micro_batch": "micro-batch-size", "global_batch": "global-batch-size", "seq_len": "seq-length"}

OPTIMIZERS: dict[str, OptimizerName] = {"adam": "adamw", "sgd": "sgd", "muon": "muon", "dist_muon": "muon"}

STRATEGIES: dict[str, ZeroStage] = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
"""--data-parallel-sharding-strategy of Megatron FSDP."""


def argument(field: str) -> str:
    """Return the argument of a field of Megatron Core.

    >>> argument("context_parallel_size")
    'context-parallel-size'
    """
    return field.replace("_", "-")
