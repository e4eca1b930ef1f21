"""Times a local shard with JAX on one device: forward, backward and optimizer step, and the memory they take.

Of a tensor-parallel layer one rank's function runs with neutral collectives (`models_zoo.jax_layers`), so what is
timed is its computation alone (Crius section 5.1). The contract is that of `estimator.profiling.measure_torch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from estimator.host.memory import free_host_memory_bytes
from estimator.profiling.device_jax import start_jax
from estimator.profiling.plan import ProfileTask
from estimator.profiling.room import refuse_early
from estimator.profiling.sampling import explain, sample_passes, time_in_turn
from estimator.profiling.setting import Repeats, Setting
from estimator.profiling.training_jax import Training
from models_zoo.jax_layers.build import example_inputs, example_params, layer_function
from models_zoo.layers import Classifier, ConvUnit, Layer, TracedLayer
from profiles.errors import InputError, MachineError
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible, Shard

Build = Callable[[], tuple[Callable[..., Any], Any, tuple[Any, ...]]]
"""Makes (function, params, inputs): `function(params, *inputs)` is one rank's, without collectives."""

SWEPT_BYTES = 2**27
"""Written before each repeat, as the rest of a stage would be: a layer run again and again finds its weights in the
caches and looks faster than it is among others."""

__all__ = ["SWEPT_BYTES", "build_shard", "measure_callable", "measure_layer", "start_jax"]


def measure_layer(task: ProfileTask, setting: Setting) -> Measurement | Infeasible:
    """Time and memory of `task`'s local shard on one device; Infeasible where it does not fit or JAX cannot run it.

    With full recomputation forward keeps its input alone and backward runs it again. Raise InputError for a device that
    JAX does not have; MachineError where JAX has started with another number of threads.
    """
    if task.infeasible is not None:
        return task.infeasible
    return measure_callable(
        lambda: build_shard(task.layer, task.shard),
        task.shard,
        setting,
        layers=(task.layer,),
        input_gradients=not _is_first(task.layer),
    )


def build_shard(layer: Layer, shard: Shard) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    """One layer's local shard on JAX's default device: (function, params, inputs), weights and inputs random.

    Raise ValueError where JAX cannot have it, as for a layer traced from a torch module.
    """
    if isinstance(layer, TracedLayer):
        if layer.framework != "jax":
            raise ValueError(f"found a layer traced from a {layer.framework} module, expected a JAX function's")
        from estimator.frontends.jax_piece import build_traced

        return build_traced((layer,), shard)
    function = layer_function(layer, shard, neutral=True)
    params, inputs = example_params(function, shard), example_inputs(layer, shard)
    if not _drops(layer):
        return function.apply, params, inputs
    return (
        lambda params, key, *inputs: function.apply(params, *inputs, key=jax.random.wrap_key_data(key)),
        params,
        (jax.random.key_data(jax.random.key(0)), *inputs),
    )


def _drops(layer: Layer) -> bool:
    return len(layer.features) > 2 if isinstance(layer, Classifier) else bool(getattr(layer, "dropout", False))


def _is_first(layer: Layer) -> bool:
    """Whether the layer's inputs are the model's own, which need no gradient."""
    if isinstance(layer, TracedLayer):
        return layer.places[0].startswith("0-")
    return isinstance(layer, ConvUnit) and layer.first


def measure_callable(
    build: Build,
    shard: Shard,
    setting: Setting,
    *,
    layers: Sequence[Layer] = (),
    input_gradients: bool = True,
) -> Measurement | Infeasible:
    """Measures the function that `build` makes, which stands for `layers` held as `shard`. See `measure_layer`.

    `shard` says whether to recompute and, with `layers`, how much memory it is expected to take. Without
    `input_gradients` backward stops at the inputs, as in a model's first layer.
    """
    device = start_jax(setting)
    refusal = refuse_early(layers, shard, setting, free_bytes=lambda: _free_bytes(device))
    if refusal is not None:
        return refusal
    try:
        with jax.default_device(device):
            function, params, inputs = build()
            training = Training(function, params, inputs, shard, setting.optimizer, input_gradients=input_gradients)
            return _measure(training, setting.repeats)
    except (InputError, MachineError):
        raise
    except (RuntimeError, ValueError, TypeError, MemoryError) as error:
        return explain(error, "JAX", out_of_memory="RESOURCE_EXHAUSTED" in str(error))


def _measure(training: Training, repeats: Repeats) -> Measurement:
    steps = (training.forward, training.backward, training.step)
    swept = jnp.zeros(SWEPT_BYTES // 4, jnp.float32)
    sweep = jax.jit(lambda x: x + 1, donate_argnums=0)

    def sample() -> tuple[float, ...]:
        nonlocal swept
        training.prepare()
        swept = jax.block_until_ready(sweep(swept))
        return time_in_turn(steps)

    forward_s, backward_s, optimizer_s = zip(*sample_passes(sample, repeats), strict=True)
    return Measurement(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=optimizer_s if training.learns else (),
        saved_bytes=training.saved_bytes(),
        peak_memory_bytes=training.peak_bytes(),
        parameters=sum(weight.size for weight in training.weights),
    )


def _free_bytes(device: jax.Device) -> int:
    if device.platform == "cpu":
        return free_host_memory_bytes()
    memory_stats = device.memory_stats()
    return int(memory_stats["bytes_limit"] - memory_stats["bytes_in_use"])
