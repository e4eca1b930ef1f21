"""Models that a Python caller has at hand: a torch module, a JAX function, the keys of a config. Knows no framework.

They are traced in this process, as it is the caller's own code and objects: nothing is imported or looked up by name.
A name stands for the model from then on (`profiles.given`), which `load_any_model` finds in this process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from estimator.frontends.factory import describe, first_line
from models_zoo.layers import TracedLayer
from models_zoo.model import Model, TracedInput
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.given import name_given, plain_object
from profiles.measurements import canonical

WANTED = (
    "a zoo name, a path to a config.json, its keys as a dict, (torch module, example_inputs[, tp_plan]) or"
    " (JAX function, params, inputs[, param_specs])"
)


def name_model(value: object) -> str:
    """Return the text under which `load_any_model`, and a plan, have the model that a Python caller gives: the keys of
    a config, or the tuple that a factory would return. Raise InputError where it is none, or cannot be traced."""
    if isinstance(value, Mapping):
        return name_config(value)
    if not isinstance(value, tuple) or not value:
        raise InputError(where="model", found=describe(value), expected=WANTED)
    return _name_traced(_trace(value))


def name_config(values: Mapping[str, Any]) -> str:
    """Return the text that stands for the model of the keys of a config.json."""
    data = plain_object(values, where="config")
    kind = data.get("model_type")
    title = kind if isinstance(kind, str) and kind.isidentifier() else "config"
    return name_given(title, json.dumps(data, sort_keys=True), lambda _name: data)


def _trace(live: tuple[object, ...]) -> Model:
    first = live[0]
    if any(kind.__module__.partition(".")[0] == "torch" for kind in type(first).__mro__):
        from estimator.frontends.torch_module import live_module_model

        return live_module_model(type(first).__name__, live)
    if not callable(first):
        stated = f"({', '.join(type(item).__name__ for item in live)})"
        raise InputError(where="model", found=stated, expected=WANTED)
    title = getattr(first, "__name__", type(first).__name__).strip("<>")
    try:
        from estimator.frontends.jax_function import live_function_model
    except ImportError as error:
        raise InputError(where="jax", found=first_line(error), expected="pip install 'cellplan[jax]'") from error
    return live_function_model(title, live)


def _name_traced(model: Model) -> str:
    """The name of a traced model, by what its layers do; the model then goes by it too. As in the reference to a
    factory it has a colon, after which the searches take it for one; the digest makes sure that it never is one."""
    layers = tuple(layer for layer in model.layers if isinstance(layer, TracedLayer))

    def named(name: str) -> Model:
        factory = UserFactory(reference=name)
        called = tuple(replace(layer, factory=factory) for layer in layers)
        return replace(model, name=name, layers=called, input=TracedInput(factory=factory), source="traced here")

    shared = [[shard.shared for shard in layer.shards] for layer in layers]
    works = [(layer.fingerprint, layer.split_fingerprint, layer.places) for layer in layers]
    return name_given(f"module:{model.name}", canonical((*works, *map(tuple, shared))), named)
