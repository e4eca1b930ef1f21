"""The frontend for any torch module: `package.module:factory`, taken as it is, becomes a chain of traced layers.

The factory returns `(module, example_inputs)`, or `(module, example_inputs, tp_plan)` with the plan that
`torch.distributed.tensor.parallel.parallelize_module` takes. Example inputs are a tuple of tensors, batch first.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from fnmatch import fnmatch
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ParallelStyle

from estimator.frontends.factory import (
    call_for_values,
    check_tuple,
    checked_inputs,
    describe,
    find_factory,
    first_line,
    user_code,
)
from estimator.frontends.torch_cut import Places, cut_layers, find_units, name_layers, trace_layers
from estimator.frontends.torch_private import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from estimator.frontends.torch_tensor_parallel import apply_plan, lone_rank
from estimator.frontends.torch_trace import Trace, trace_step
from estimator.frontends.traced import (
    Work,
    add_degrees,
    has_negative_work,
    other_work,
    shards_of,
    traced_model,
    two_batches,
)
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.records import dataclass

_WANTED = "a tuple (module, example_inputs) or (module, example_inputs, tp_plan)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What a factory returned, its module's tensors replaced by fake ones of `mode`, which take no memory."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    plan: dict[str, Any]
    mode: FakeTensorMode

    @property
    def batch(self) -> int:
        """Samples in the example inputs."""
        return int(self.inputs[0].shape[0])

    def inputs_for(self, batch: int) -> tuple[Tensor, ...]:
        """Fake inputs of `batch` samples."""
        with self.mode:
            return tuple(
                torch.empty((batch, *x.shape[1:]), dtype=x.dtype, requires_grad=x.requires_grad) for x in self.inputs
            )


def load_module_model(factory: UserFactory) -> Model:
    """The model that `factory` makes, traced in training mode on fake tensors at two batch sizes.

    Layers follow the module's own lists of submodules (see `find_units`). InputError where the factory cannot be found
    or returns something else, and where the module does not run on its example inputs, or only for certain values.
    """
    return _module_model(factory, partial(call_factory, factory))


def live_module_model(title: str, live: tuple[object, ...]) -> Model:
    """Return the model called `title` of what a caller has, `(module, example_inputs)` or `(module, example_inputs,
    tp_plan)`: as `load_module_model`, of copies whose tensors are fake. The caller's own module stays as it is."""
    return _module_model(UserFactory(reference=title), partial(_live_example, title, live))


def _module_model(factory: UserFactory, make: Callable[[], Example]) -> Model:
    """The model of the example that each call of `make` gives anew."""
    reference, example = factory.reference, make()
    units = find_units(example.module)
    batches = two_batches(example.batch)
    try:
        traces = [_trace(example, batch, units) for batch in batches]
    except (Exception, SystemExit) as error:
        _refuse_to_run(reference, error)
    layers = cut_layers(traces[0])
    if not layers:
        raise InputError(where=reference, found="a module that runs no operator", expected="a module that computes")
    shards = [[shard] for shard in _shards(reference, traces, layers, tp=1)]
    if has_negative_work(shard for ((shard, _),) in shards):
        expected = "the batch as first dimension wherever tensors meet"
        raise InputError(where=reference, found="work that does not grow with the batch", expected=expected)
    split = partial(_parallel_shards, reference, make, batches, units, layers)
    return traced_model(
        factory,
        batch=batches[0],
        names=name_layers(traces[0], layers),
        places=layers,
        refused=add_degrees(shards, split) if example.plan else (),
        layers=shards,
        framework="torch",
    )


def call_factory(named: UserFactory) -> Example:
    """Imports and calls the factory. InputError as for `load_module_model`.

    It is called where tensors have no memory, once more on torch's meta device if that fails (there `module.to(dtype)`
    works), and once more for real if that fails too (it reads weights from a file, say).
    """
    reference, mode = named.reference, FakeTensorMode(allow_non_fake_inputs=True)
    with user_code():
        factory = find_factory(named, _WANTED)
        returned = None
        for place in (mode, torch.device("meta")):
            # What goes wrong or is warned of here concerns the stand-ins; the last call, outside, speaks for itself.
            with suppress(Exception, SystemExit), warnings.catch_warnings(action="ignore"), place:
                returned = factory()
                break
        else:
            returned = call_for_values(factory, reference, _WANTED)
    module, inputs, plan = _check_returned(reference, returned)
    convert_tensors(module, partial(_fake, mode))
    return Example(module=module.train(), inputs=inputs, plan=plan, mode=mode)


def _live_example(title: str, live: tuple[object, ...]) -> Example:
    """A copy of what a caller has, with fake tensors: the copy shares no tensor with it and takes no memory."""
    module, inputs, plan = _check_returned(title, live)
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    copies: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        copy = _fake(mode, tensor.detach())
        is_parameter = isinstance(tensor, nn.Parameter)
        copies[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if is_parameter else copy
    try:
        copied: nn.Module = deepcopy(module, copies)
    except Exception as error:
        expected = "a module that can be copied, or package.module:factory, which makes it"
        raise InputError(where=title, key="module", found=first_line(error), expected=expected) from error
    return Example(module=copied.train(), inputs=inputs, plan=plan, mode=mode)


def _fake(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _check_returned(reference: str, returned: Any) -> tuple[nn.Module, tuple[Tensor, ...], dict[str, Any]]:
    check_tuple(reference, returned, (2, 3), _WANTED)
    module, inputs, plan = (*returned, {})[:3]
    if not isinstance(module, nn.Module):
        raise InputError(where=reference, key="module", found=describe(module), expected="a torch.nn.Module")
    LIMITS.modules.check(sum(1 for _ in module.modules()), where=reference, key="module")
    inputs = checked_inputs(
        reference, inputs, key="example_inputs", plural="tensors", is_array=lambda x: isinstance(x, Tensor)
    )
    _check_plan(reference, module, plan)
    return module, inputs, plan


def _check_plan(reference: str, module: nn.Module, plan: Any) -> None:
    if not isinstance(plan, dict) or not all(isinstance(style, ParallelStyle) for style in plan.values()):
        stated = describe(plan)
        if isinstance(plan, dict):
            stated = f"dict of {', '.join(sorted({type(style).__name__ for style in plan.values()}))}"
        expected = "a dict from module names to ParallelStyle, as parallelize_module takes"
        raise InputError(where=reference, key="tp_plan", found=stated, expected=expected)
    names = [name for name, _ in module.named_modules()]
    for pattern in plan:
        if not any(fnmatch(name, pattern) for name in names):
            raise InputError(where=reference, key="tp_plan", found=repr(pattern), expected="names of its submodules")


def convert_tensors(module: nn.Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Puts `convert` of its data in the place of every parameter and buffer; what was shared stays shared.

    `module.to(...)` cannot change fake tensors.
    """
    made: dict[int, Tensor] = {}
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    new = convert(tensor.detach())
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(new, tensor.requires_grad) if is_parameter else new
                table[name] = made[id(tensor)]


def _trace(example: Example, batch: int, units: frozenset[str]) -> Trace:
    with user_code(), _unlogged():
        return trace_step(example.module, example.inputs_for(batch), example.mode, units)


@contextmanager
def _unlogged() -> Iterator[None]:
    """What an operator's stand-in refuses is told by its exception: torch logs it with a traceback besides."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def _parallel_shards(
    reference: str,
    make: Callable[[], Example],
    batches: tuple[int, int],
    units: frozenset[str],
    layers: tuple[Places, ...],
    degree: int,
) -> list[Work]:
    example = make()
    with lone_rank(degree) as mesh:
        with example.mode:
            apply_plan(example.module, example.plan, mesh)
        traces = []
        for batch in batches:
            # A distributed tensor works out each operator's whole result once, by calling it on whole fake tensors,
            # and remembers it: a first run keeps those calls out of the trace.
            _trace(example, batch, units)
            traces.append(_trace(example, batch, units))
    return _shards(reference, traces, layers, tp=degree)


def _shards(reference: str, traces: list[Trace], layers: tuple[Places, ...], *, tp: int) -> list[Work]:
    """Each layer's shard. InputError where the module does other work in another batch."""
    small, large = (trace_layers(trace, layers) for trace in traces)
    for layer, larger in zip(small, large, strict=True):
        if [kernel.name for kernel in layer.kernels] != [kernel.name for kernel in larger.kernels]:
            raise other_work(reference, (trace.inputs[0].shape[0] for trace in traces), "module")
    return [(shard, (shard.tp, shard.corners)) for shard in shards_of(small, large, tp=tp)]


def _refuse_to_run(reference: str, error: BaseException) -> NoReturn:
    expected = "a module that trains on its example inputs, at any batch size"
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        expected = (
            "a module whose control flow and shapes do not depend on the values of tensors (a router of experts with a"
            " static capacity, say)"
        )
    raise InputError(where=reference, found=first_line(error), expected=expected) from error
