"""The process in which a user's factory is called and its model traced: `load.py` asks for it."""

from __future__ import annotations

from typing import Any

from estimator.frontends.factory import add_to_path
from estimator.frontends.load import layers_format
from estimator.frontends.user_model import load_here
from estimator.host.answering import serve
from models_zoo.layers import TracedLayer
from models_zoo.user_code import UserFactory


def load(question: dict[str, Any]) -> dict[str, Any]:
    """Return the layers and their names of the model that the factory called `reference` makes."""
    dump = layers_format().dump_python
    add_to_path(question["path"])
    model = load_here(UserFactory(reference=question["reference"]))
    layers = tuple(layer for layer in model.layers if isinstance(layer, TracedLayer))
    return {"layers": dump(layers, mode="json"), "names": model.layer_names}


if __name__ == "__main__":
    serve(load)
