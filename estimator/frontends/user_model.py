"""Runs the user's factory in this process, whichever framework its model is of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

from estimator.frontends.factory import call_for_values, describe, find_factory, first_line, user_code
from estimator.frontends.traced import Framework
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.errors import InputError

WANTED = "(torch module, example_inputs) or (JAX function, params, inputs)"

_PACKAGES: dict[str, Framework] = {
    "torch": "torch",
    "torchvision": "torch",
    "jax": "jax",
    "flax": "jax",
    "haiku": "jax",
    "equinox": "jax",
}


def framework_of(named: UserFactory) -> Framework:
    """Of which framework the factory's model is: by the packages that its code names, where these are of one alone;
    else it is called, and what it returns decides. Imports neither framework.

    InputError where the factory cannot be found, fails, or returns the model of neither.
    """
    reference = named.reference
    with user_code():
        factory = find_factory(named, WANTED)
        frameworks = set(_frameworks_named(factory))
        if len(frameworks) == 1:
            return frameworks.pop()
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


def load_here(factory: UserFactory) -> Model:
    """Return the model of `factory`, whose code runs in this process. Raise InputError as `framework_of`, and where the
    model is not one that can be traced."""
    reference, framework = factory.reference, framework_of(factory)
    if find_spec(framework) is None:
        stated = f"a factory of a {framework} model, and no {framework} installed"
        raise InputError(where=reference, found=stated, expected=f"pip install 'cellplan[{framework}]'")
    if framework == "torch":
        from estimator.frontends.torch_module import load_module_model

        return load_module_model(factory)
    try:
        from estimator.frontends.jax_function import load_function_model
    except (ImportError, AttributeError) as error:
        raise InputError(where="jax", found=first_line(error), expected="0.10 or later") from error
    return load_function_model(factory)


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
