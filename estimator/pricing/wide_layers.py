"""Which layers of a training with narrow products keep theirs in 16 bits."""

from __future__ import annotations

from estimator.pricing.recipe import Recipe
from models_zoo.layers import TransformerBlock
from models_zoo.model import Model
from profiles.vocabulary import NARROW_DTYPES


def narrow_layers(model: Model, recipe: Recipe) -> range:
    """Return the indexes of the layers whose products are in the recipe's type: all, but under a narrow one those from
    behind the first `wide_first` blocks to before the last `wide_last`, as the software has it."""
    layers, software = model.layers, recipe.software
    everything = range(len(layers))
    if recipe.dtype not in NARROW_DTYPES or not (software.wide_first or software.wide_last):
        return everything
    blocks = [index for index, layer in enumerate(layers) if isinstance(layer, TransformerBlock)]
    inner = blocks[software.wide_first : max(0, len(blocks) - software.wide_last)]
    return range(inner[0], inner[-1] + 1) if inner else range(0)
