"""One entry for all models: a zoo name, a Hugging Face config, or a factory in the user's own code."""

from __future__ import annotations

import re
from pathlib import Path

from estimator.frontends.hugging_face import load_config_model
from models_zoo.catalogue import load_model, model_names, near_names
from models_zoo.model import Model
from profiles.errors import InputError

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def load_any_model(reference: str) -> Model:
    """The model that `reference` names.

    A zoo name first; then `package.module:factory`, whose code is run; then a path to a `config.json` or to a folder
    that holds one. InputError where it is none of them.
    """
    if reference in model_names():
        return load_model(reference)
    if _FACTORY.fullmatch(reference):
        from estimator.frontends.torch_module import load_module_model

        return load_module_model(reference)
    try:
        return load_config_model(_config_path(reference))
    except OSError as error:
        raise InputError(where=reference, found=error.strerror or str(error), expected="a readable path") from error


def _config_path(reference: str) -> Path:
    path = Path(reference)
    if reference and path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(where=reference, found="a folder without a config.json", expected="a folder that has one")
        return path / "config.json"
    if not path.is_file() and path.suffix != ".json" and "/" not in reference:
        expected = f"a zoo name such as {near_names(reference)}, a path to a config.json, or package.module:factory"
        raise InputError(where="model", found=repr(reference), expected=expected)
    return path
