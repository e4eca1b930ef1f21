"""How unequal a model's tensors are, from the zoo."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from models_zoo.layers import Head
from models_zoo.parameters import layer_parameters
from models_zoo.user_code import names_code
from planner.many_jobs.jobs.records import AS_LOGGED
from profiles.errors import InputError


@lru_cache(maxsize=1024)
def largest_share(model: str) -> float | None:
    """Return the share of all parameters that the largest tensor holds; None of what no zoo or config describes."""
    from estimator.frontends.load import load_file_model

    if model == AS_LOGGED or names_code(model):
        return None
    try:
        layers = load_file_model(model).layers
    except InputError:
        return None
    sizes: list[int] = []
    for layer in layers:
        own = [prod(parameter.shape) for parameter in layer_parameters(layer)]
        if isinstance(layer, Head) and layer.holds_table:
            own.remove(max(own))  # The embedding's, which is counted there.
        sizes += own
    return max(sizes) / sum(sizes) if sum(sizes) else None
