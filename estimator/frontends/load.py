"""One entry for all models: a zoo name, a Hugging Face config, or a factory in the user's own code.

What a file names is never code: `load_file_model` knows no way to it, and `load_any_model` only that which the user
named (`models_zoo.user_code`). Such code runs in a process of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimator.frontends.traced import model_of_layers
from models_zoo.catalogue import load_model, near_names, zoo_name
from models_zoo.hub import HubConfig, HubId, cached_config, fetch_config, hub_id
from models_zoo.layers import TracedLayer
from models_zoo.model import Model
from models_zoo.user_code import NO_CODE, UserCode, UserFactory, names_code
from profiles.errors import InputError, MachineError
from profiles.given import given_under

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def load_any_model(
    reference: str, code: UserCode, *, where: str = "model", key: str | None = None, fetches: bool = True
) -> Model:
    """Return the model that `reference` names, which stands at `where` and `key`.

    What a Python caller gave under that name (`estimator.frontends.live`); a Hub id (`org/name`, `org/name@revision`)
    whose config is in the Hugging Face cache; a zoo name, in any usual spelling where no file is called so;
    `package.module:factory` if the user named it, whose `code` is run; a Hub id that has to be fetched; a path to a
    `config.json` or to a folder that holds one: the first of these that it is. Where it does not fetch, because a file
    names the model, the Hub is not asked. Raise InputError where it is none of them, MachineError where code takes too
    long or too much memory, or the Hub does.
    """
    given = given_under(reference)
    if isinstance(given, Model):
        return given
    if given is not None:
        return _config_given(given, reference)
    wanted = hub_id(reference)
    if wanted is not None and Path(reference).exists():
        wanted = None
    cached = None if wanted is None else cached_config(wanted)
    if wanted is not None and cached is not None:
        return _hub_model(wanted, cached)
    name = zoo_name(reference)
    if name is not None and (name == reference or not Path(reference).exists()):
        return load_model(name)
    if names_code(reference):
        factory = code.factory(reference)
        if factory is None:
            named_too = f", unless you name it too ({code.option} {reference})" if code.option else ""
            expected = f"a zoo name or a path to a config.json: code that a file names is not run{named_too}"
            stated = f"{reference!r}, where you name {', '.join(code.named)}" if code.named else repr(reference)
            raise InputError(where=where, key=key, found=stated, expected=expected)
        return load_user_model(factory)
    if wanted is not None and fetches:
        return _hub_model(wanted, fetch_config(wanted))
    from models_zoo.hugging_face import load_config_model

    try:
        return load_config_model(_config_path(reference, where=where, key=key))
    except InputError as error:
        if wanted is None:
            raise
        expected = f"{error.expected}, or a model of the Hub in the cache ({wanted.command})"
        raise InputError(where=error.where, key=error.key, found=error.found, expected=expected) from error
    except OSError as error:
        raise InputError(where=reference, found=error.strerror or str(error), expected="a readable path") from error


def _config_given(keys: Mapping[str, Any], name: str) -> Model:
    from models_zoo.hugging_face import config_model

    return config_model(keys, where="config", name=name.partition("@")[0])


def load_file_model(reference: str, *, where: str = "model", key: str | None = None) -> Model:
    """Return the model that a file names, as `load_any_model`; no code is run, and nothing fetched."""
    return load_any_model(reference, NO_CODE, where=where, key=key, fetches=False)


def load_user_model(factory: UserFactory) -> Model:
    """Return the model that the user's code makes, run in a process of its own, once for all who ask here."""
    try:
        folder = str(Path.cwd())
    except FileNotFoundError as error:
        raise MachineError("the current folder is no more there, so that no module can be looked for in it") from error
    return _load_apart(factory, folder, tuple(sys.path))


@lru_cache(maxsize=8)
def _load_apart(factory: UserFactory, folder: str, path: tuple[str, ...]) -> Model:
    """`folder` and `path` are where its module is looked for."""
    del folder
    from pydantic import ValidationError

    from estimator.frontends.user_model import WANTED
    from estimator.host.user_process import UserProcess

    worker = "estimator.frontends.load_worker"
    with UserProcess(worker, name=factory.reference, expected=WANTED, limit_s=factory.limit_s) as process:
        answer = process.ask({"reference": factory.reference, "path": path})
    try:
        layers = layers_format().validate_python(answer["layers"])
        names = tuple(map(str, answer["names"]))
        layers = tuple(replace(layer, factory=factory) for layer in layers)
        return model_of_layers(factory, names=names, layers=layers)
    except (ValidationError, ValueError, TypeError, KeyError) as error:
        stated = "code that changed how its model is described"
        raise InputError(where=factory.reference, found=stated, expected=WANTED) from error


@cache
def layers_format() -> TypeAdapter[tuple[TracedLayer, ...]]:
    """How traced layers go from one process to another: as values of JSON."""
    from pydantic import TypeAdapter

    return TypeAdapter(tuple[TracedLayer, ...])


def _hub_model(wanted: HubId, config: HubConfig) -> Model:
    """The model of a config of the Hub, called by the last part of its id."""
    from models_zoo.hugging_face import config_model
    from models_zoo.hugging_face.keys import read_object

    model = config_model(read_object(config.path), where=str(config.path), name=wanted.name.rpartition("/")[2])
    commit = "" if config.commit is None else f" at commit {config.commit[:12]}"
    return replace(model, source=f"{model.source}; {wanted.text} of the Hugging Face Hub{commit}")


def _config_path(reference: str, *, where: str, key: str | None) -> Path:
    path = Path(reference)
    if reference and path.is_dir():
        if not (path / "config.json").is_file():
            raise InputError(where=reference, found="a folder without a config.json", expected="a folder that has one")
        return path / "config.json"
    if not path.is_file() and path.suffix != ".json" and "/" not in reference:
        forms = "or a path to a config.json" if key else "a path to a config.json, or package.module:factory"
        expected = f"a zoo name such as {near_names(reference)}, {forms}"
        raise InputError(where=where, key=key, found=repr(reference), expected=expected)
    return path
