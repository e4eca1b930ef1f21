"""One entry for all models: a zoo name, a Hugging Face config, or a factory in the user's own code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from estimator.frontends.factory import call_for_values, describe, find_factory, first_line, user_code
from estimator.frontends.traced import Framework
from models_zoo.catalogue import load_model, near_names, zoo_name
from models_zoo.model import Model
from profiles.errors import InputError

WANTED = "(torch module, example_inputs) or (JAX function, params, inputs)"

_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_PACKAGES: dict[str, Framework] = {
    "torch": "torch",
    "torchvision": "torch",
    "jax": "jax",
    "flax": "jax",
    "haiku": "jax",
    "equinox": "jax",
}


def load_any_model(reference: str) -> Model:
    """The model that `reference` names.

    A zoo name first, in any usual spelling where no file is called so; then `package.module:factory`, whose code is
    run; then a path to a `config.json` or to a folder that holds one. InputError where it is none of them.
    """
    name = zoo_name(reference)
    if name is not None and (name == reference or not Path(reference).exists()):
        return load_model(name)
    if _FACTORY.fullmatch(reference):
        return _load_factory_model(reference)
    from models_zoo.hugging_face import load_config_model

    try:
        return load_config_model(_config_path(reference))
    except OSError as error:
        raise InputError(where=reference, found=error.strerror or str(error), expected="a readable path") from error


def framework_of(reference: str) -> Framework:
    """Of which framework the factory's model is: by the packages that its code names, where these are of one alone;
    else it is called, and what it returns decides. Imports neither framework.

    InputError where the factory cannot be found, fails, or returns the model of neither.
    """
    with user_code():
        factory = find_factory(reference, WANTED)
        named = set(_frameworks_named(factory))
        if len(named) == 1:
            return named.pop()
        returned = call_for_values(factory, reference, WANTED)
    model = returned[0] if isinstance(returned, tuple) and returned else returned
    if any(kind.__module__.split(".")[0] == "torch" for kind in type(model).__mro__):
        return "torch"
    if callable(model):
        return "jax"
    stated = describe(returned)
    if isinstance(returned, tuple):
        stated = f"({', '.join(type(item).__name__ for item in returned)})"
    raise InputError(where=reference, found=stated, expected=WANTED)


def _load_factory_model(reference: str) -> Model:
    framework = framework_of(reference)
    if find_spec(framework) is None:
        stated = f"a factory of a {framework} model, and no {framework} installed"
        raise InputError(where=reference, found=stated, expected=f"pip install 'cellplan[{framework}]'")
    if framework == "torch":
        from estimator.frontends.torch_module import load_module_model

        return load_module_model(reference)
    try:
        from estimator.frontends.jax_function import load_function_model
    except (ImportError, AttributeError) as error:
        raise InputError(where="jax", found=first_line(error), expected="0.10 or later") from error
    return load_function_model(reference)


def _frameworks_named(factory: Callable[[], Any]) -> Iterator[Framework]:
    """Those of the modules, classes and functions that the factory's module has, and of what the factory imports."""
    code = getattr(factory, "__code__", None)
    roots = set(_names_in(code)) if isinstance(code, CodeType) else set()
    for value in getattr(factory, "__globals__", {}).values():
        name = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
        if isinstance(value, type) or callable(value):
            name = getattr(value, "__module__", None) or name
        roots.add(str(name).split(".")[0])
    yield from (framework for package, framework in _PACKAGES.items() if package in roots)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


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
