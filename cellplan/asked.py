"""What a Python caller gives for a model and a cluster, as the text that the options of a command take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiles.cluster import Cluster
from profiles.errors import InputError

ModelLike = Any
"""A zoo name, a path to a config.json or `package.module:factory` (text); a config's keys (a mapping, or the config of
transformers); a torch module or a JAX function with its example inputs, alone or as a tuple."""
ClusterLike = str | Path | Mapping[str, Any] | Cluster
"""The short form or a path of a cluster file (text), what such a file holds (a mapping), or a record."""


def model_text(model: ModelLike, inputs: Any = None, params: Any = None) -> str:
    """Return the text that stands for `model`, with `inputs` (and the parameter tree `params` of a JAX function) where
    it is one that runs on them. Raise InputError where it is none, or cannot be traced."""
    if isinstance(model, str | Path):
        if inputs is not None or params is not None:
            raise InputError(
                where="model", key="inputs", found=f"inputs of {model}", expected="inputs of a live module"
            )
        return str(model)
    from estimator.frontends.live import name_model

    if not isinstance(model, Mapping | tuple) and hasattr(model, "model_type") and hasattr(model, "to_dict"):
        return name_model(model.to_dict())
    if not isinstance(model, Mapping | tuple):
        given = (inputs,) if params is None else (params, inputs)
        if inputs is None:
            expected = "inputs=... too: example inputs, batch first (and params=... of a JAX function)"
            raise InputError(where="model", found=f"{type(model).__name__} alone", expected=expected)
        model = (model, *given)
    return name_model(model)


def cluster_text(cluster: ClusterLike) -> str:
    """Return the text that stands for `cluster`. Raise InputError where it is of another type."""
    if isinstance(cluster, str | Path):
        return str(cluster)
    from profiles.cluster_file import name_cluster

    if not isinstance(cluster, Mapping | Cluster):
        expected = "text such as h100:2x8, a path of a cluster file, what it holds as a dict, or a Cluster"
        raise InputError(where="cluster", found=type(cluster).__name__, expected=expected)
    return name_cluster(cluster)
