"""A model of one's own for cellplan in JAX: a function, its parameters, and its example inputs, batch first."""

from typing import Any

import jax
import jax.numpy as jnp


def apply(params: list[dict[str, jax.Array]], x: jax.Array) -> jax.Array:
    """Return the sum that is trained on."""
    for block in params:
        x = x + jax.nn.gelu(x @ block["up"]) @ block["down"]
    return x.sum()


def make_jax() -> tuple[Any, Any, jax.Array]:
    """Twelve blocks on samples of 512 tokens; shapes alone are looked at."""
    params = [{"up": jnp.zeros((1024, 4096)), "down": jnp.zeros((4096, 1024))} for _ in range(12)]
    return apply, params, jnp.zeros((4, 512, 1024))
