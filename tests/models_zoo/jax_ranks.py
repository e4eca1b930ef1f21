"""Run as a program: layers split over forced host devices against the same layers unsplit, as JSON on stdout.

A process of its own, since the number of devices is settled when JAX starts. Prints for each case the largest error of
outputs, input gradients and parameter gradients, relative to the largest value of each.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from tests.seeds import some

RANKS = 4
CASES: dict[tuple[int, bool], tuple[str, ...]] = {
    (2, False): (
        *some(
            (
                *("block_gpt", "block_mla", "block_moe_shared", "embedding_bert", "head_gpt", "conv", "strided"),
                *("vgg_end", "identity", "head_bert", "block_qwen3", "block_neox", "block_decoder_pre"),
            ),
            6,
        ),
    ),
    (4, True): (
        *some(
            (
                *("block_bert", "block_multi_query", "block_gated_relu", "block_moe_top_1_bias", "block_decoder"),
                *("embedding_opt_350m", "head_bert", "head_opt_350m"),
                *(f"block_{name}" for name in ("llama", "qwen3", "gemma", "mla", "phi", "neox", "moe_shared")),
                *("embedding_bert", "head_gpt", "head_bare"),
            ),
            8,
        ),
    ),
}
"""(ranks, sequence parallelism): layers that together do everything that ranks do together."""


def main() -> None:
    from tests.jax_flags import QUICK_TO_COMPILE

    os.environ["XLA_FLAGS"] = " ".join((f"--xla_force_host_platform_device_count={RANKS}", *QUICK_TO_COMPILE))
    from tests.models_zoo.test_parameters import EVERY_LAYER

    found = {}
    for name in sys.argv[1:] or dict.fromkeys(name for names in CASES.values() for name in names):
        degrees = [degree for degree, names in CASES.items() if name in names]
        try:
            for (tp, sequence_parallel), errors in compare(EVERY_LAYER[name], degrees):
                found[f"{name} tp={tp}{' sp' * sequence_parallel}"] = errors
        except Exception as error:
            found[name] = {f"{type(error).__name__}: {error}": float("inf")}
    json.dump(found, sys.stdout)


def sum_shared(gradients: Mapping[str, Any], function: Any, *, tp: int) -> dict[str, Any]:
    """Complete global gradients: each copy of a key-value head's weights gets the sum over its copies."""
    import jax.numpy as jnp

    summed = dict(gradients)
    splits = {p.name: p.split or 0 for p in function.parameters}
    for name, ranks in function.shared_by.items():
        array, dim = summed[name], splits[name]
        groups = (*array.shape[:dim], tp // ranks, ranks, array.shape[dim] // tp, *array.shape[dim + 1 :])
        total = array.reshape(groups).sum(dim + 1, keepdims=True)
        summed[name] = jnp.broadcast_to(total, groups).reshape(array.shape)
    return summed


def compare(layer: Any, degrees: list[tuple[int, bool]]) -> Iterator[tuple[tuple[int, bool], dict[str, float]]]:
    """For each degree the largest relative error of each result."""
    import jax
    import numpy as np
    from jax.sharding import Mesh

    from models_zoo.jax_layers.build import global_array, layer_function
    from tests.transformer_variants import shard

    rng = np.random.default_rng(0)
    whole = layer_function(layer, shard(1, False))
    weights = {p.name: (0.3 * rng.standard_normal(p.shape)).astype(np.float32) for p in whole.parameters}
    inputs = random_inputs(layer)
    out = jax.eval_shape(whole.apply, weights, *inputs)
    gradient = rng.standard_normal(out.shape).astype(np.float32)
    expected = differentiated(whole.apply, inputs)(weights, gradient)
    for tp, sequence_parallel in degrees:
        split = layer_function(layer, shard(tp, sequence_parallel))
        together = jax.shard_map(
            split.apply,
            mesh=Mesh(np.array(jax.devices()[:tp]), ("tp",)),
            in_specs=(split.param_specs, *split.input_specs),
            out_specs=split.output_spec,
            check_vma=True,
        )
        made = {p.name: global_array(p, weights[p.name], tp=tp) for p in split.parameters}
        found, of_weights, of_inputs = differentiated(together, inputs)(made, gradient)
        of_weights = sum_shared(of_weights, split, tp=tp)
        errors = {"output": error_of(found, expected[0])}
        for number, (mine, theirs) in enumerate(zip(of_inputs, expected[2], strict=True)):
            errors[f"gradient of input {number}"] = error_of(mine, theirs)
        for p in split.parameters:
            theirs = global_array(p, np.asarray(expected[1][p.name]), tp=tp)
            errors[f"gradient of {p.name}"] = error_of(of_weights[p.name], theirs)
        yield (tp, sequence_parallel), errors


def random_inputs(layer: Any) -> tuple[Any, ...]:
    """As `example_inputs` makes them for three samples, but by numpy: JAX would compile a program for each shape."""
    import jax
    import numpy as np

    from models_zoo.jax_layers.build import example_inputs
    from tests.transformer_variants import shard

    rng = np.random.default_rng(3)
    bound = layer.features[-1] if hasattr(layer, "features") else getattr(layer, "vocab", 0) or 1
    return tuple(
        rng.integers(bound, size=x.shape).astype(x.dtype)
        if x.dtype == np.int32
        else rng.standard_normal(x.shape).astype(x.dtype)
        for x in jax.eval_shape(lambda: example_inputs(layer, shard(1, False)))
    )


def differentiated(function: Any, inputs: tuple[Any, ...]) -> Any:
    """(weights, output gradient) to (output, gradients of weights, gradients of floating inputs), one program."""
    import jax
    import numpy as np

    floating = [number for number, x in enumerate(inputs) if x.dtype != np.int32]

    def run(weights: Any, given: list[Any]) -> Any:
        values = list(inputs)
        for number, x in zip(floating, given, strict=True):
            values[number] = x
        return function(weights, *values)

    def both(weights: Any, gradient: Any) -> Any:
        out, pull = jax.vjp(run, weights, [inputs[number] for number in floating])
        return out, *pull(gradient)

    return jax.jit(both)


def error_of(found: Any, expected: Any) -> float:
    """The largest difference, relative to the largest value; without bound where there is a NaN."""
    import numpy as np

    found, expected = np.asarray(found), np.asarray(expected)
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found - expected).max() / (np.abs(expected).max() + 4e-2))


if __name__ == "__main__":
    main()
