"""Cuts a traced module into contiguous layers, and says what each of them computes, holds, keeps and passes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from torch import Tensor, nn

from estimator.frontends.sizes import Size
from estimator.frontends.torch_private import storage_key
from estimator.frontends.torch_trace import Call, Trace, size_of
from estimator.frontends.traced import Kernel, LayerTrace, keeping_layer

Places = tuple[str, ...]


def find_units(module: nn.Module) -> frozenset[str]:
    """Names of the submodules that a layer may be: the children of lists and sequences of layers.

    Looks into lists, sequences, and modules that hold a list of modules with parts of their own; of other modules with
    parts, each is a unit. If that leaves a single one, looks inside it.
    """
    name = ""
    while True:
        units = [f"{name}.{unit}" if name else unit for unit in _units_below(module.get_submodule(name))]
        if len(units) != 1 or not _has_parts(module.get_submodule(units[0])):
            return frozenset(units)
        name = units[0]


def _units_below(module: nn.Module) -> Iterator[str]:
    listed = _is_list(module)
    for name, child in module.named_children():
        if _is_list(child) or (not listed and _holds_layers(child)):
            yield from (f"{name}.{inner}" for inner in _units_below(child))
        elif listed or _has_parts(child):
            yield name


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)


def _has_parts(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _holds_layers(module: nn.Module) -> bool:
    return any(_is_list(part) and any(map(_has_parts, part.children())) for part in module.modules())


def unit_of(place: str) -> str:
    """Name of the submodule that `place` is in or after; empty before the first."""
    return place.lstrip(">").split("@")[0]


def cut_layers(trace: Trace) -> tuple[Places, ...]:
    """The places of each layer, in order.

    Each call of a unit is a layer, and so is what happens between two; but what has neither a product nor a table or
    matrix among its parameters (a norm, an activation, a loss) joins the layer before it, or the next at the start.
    """
    layers: list[tuple[list[str], bool]] = []
    for place, calls in groupby(trace.calls, key=lambda call: call.place):
        works = any(call.forward.flops or _reads_matrix(call, trace) for call in calls)
        if layers and not (works and layers[-1][1]):
            places, worked = layers.pop()
            layers.append(([*places, place], worked or works))
        else:
            layers.append(([place], works))
    return tuple(tuple(places) for places, _ in layers)


def _reads_matrix(call: Call, trace: Trace) -> bool:
    held = (trace.parameters.get(storage_key(tensor)) for tensor in call.reads)
    return any(parameter is not None and parameter.dimensions > 1 for parameter in held)


def name_layers(trace: Trace, layers: Sequence[Places]) -> tuple[str, ...]:
    """A name for each layer: its unit's call, or the first submodule that works between units."""
    names = []
    for places in layers:
        units = [place for place in places if not place.startswith(">")]
        calls = [call for call in trace.calls if call.place in places]
        working = next((call for call in calls if call.forward.flops or _reads_matrix(call, trace)), calls[0])
        names.append(units[0] if units else working.name.rpartition(".")[0] or places[0])
    return tuple(names)


def trace_layers(trace: Trace, layers: Sequence[Places]) -> tuple[LayerTrace, ...]:
    """Return what each layer does, holds, keeps and passes on.

    A tensor crosses a cut if it is made before it, read after it, and depends on the inputs: a skip connection, an
    encoder's output, a mask. The inputs themselves do not, since each stage can read its batch, nor do constants.
    What enters and leaves at the ends are the module's own inputs and outputs.
    """
    numbers = _layer_numbers(trace, layers)
    kept = _saved_sizes(trace, numbers)
    cuts = _crossing_sizes(trace, numbers, len(layers))
    held = _held_parameters(trace, layers, numbers)
    traced = []
    for number in range(len(layers)):
        calls = [(call, saved) for call, saved, at in zip(trace.calls, kept, numbers, strict=True) if at == number]
        traced.append(
            LayerTrace(
                kernels=tuple(_kernel(call, saved) for call, saved in calls if _does_anything(call, saved)),
                collectives=tuple((*message, call.name) for call, _ in calls for message in call.collectives),
                weights=tuple(
                    (key, trace.parameters[key].count, trace.parameters[key].replicated) for key in held[number]
                ),
                entering=cuts[number],
                leaving=cuts[number + 1],
            )
        )
    return tuple(traced)


def _layer_numbers(trace: Trace, layers: Sequence[Places]) -> list[int]:
    """The layer of each call. A place that no layer lists (a collective where the layers were cut without any) belongs
    to the layer of the call before it."""
    layer_of_place = {place: number for number, places in enumerate(layers) for place in places}
    numbers: list[int] = []
    for call in trace.calls:
        numbers.append(layer_of_place.get(call.place, numbers[-1] if numbers else 0))
    return numbers


def _held_parameters(trace: Trace, layers: Sequence[Places], numbers: Sequence[int]) -> list[set[int]]:
    """The parameters that each layer reads; one that nothing reads goes to the layer that its submodule is part of."""
    held: list[set[int]] = [set() for _ in layers]
    for call, number in zip(trace.calls, numbers, strict=True):
        held[number].update(storage_key(tensor) for tensor in call.reads)
    for keys in held:
        keys.intersection_update(trace.parameters)
    for key in trace.parameters.keys() - set().union(*held):
        name = trace.parameters[key].name
        owners = (n for n, places in enumerate(layers) for place in places if _is_within(name, unit_of(place)))
        held[next(owners, 0)].add(key)
    return held


def _is_within(name: str, unit: str) -> bool:
    return bool(unit) and name.startswith(f"{unit}.")


def _saved_sizes(trace: Trace, numbers: Sequence[int]) -> list[Size]:
    """What each call newly keeps for backward; each storage counts once (see `keeping_layer`), and the module's own
    tensors do not."""
    maker: dict[int, int] = {}
    for index, call in enumerate(trace.calls):
        for tensor in call.makes:
            maker.setdefault(storage_key(tensor), index)
    keepers: dict[int, dict[int, int]] = {}
    sizes: dict[int, Size] = {}
    for index, tensor in trace.saved:
        key = storage_key(tensor)
        if key not in trace.resident:
            keepers.setdefault(key, {}).setdefault(numbers[index], index)
            sizes[key] = size_of(tensor, trace.dtype, tensor.untyped_storage().nbytes())
    kept = [Size()] * len(trace.calls)
    for key, by_layer in keepers.items():
        home = numbers[maker[key]] if key in maker else None
        number = next(iter(by_layer)) if home is None else keeping_layer(home, by_layer)
        index = by_layer.get(number, maker.get(key, 0))
        kept[index] += sizes[key]
    return kept


def _crossing_sizes(trace: Trace, numbers: Sequence[int], layers: int) -> list[Size]:
    """What enters the first layer, crosses each cut, and leaves the last layer."""
    dependent = {id(tensor) for tensor in trace.inputs}
    made: dict[int, tuple[int, Tensor]] = {}
    read: dict[int, int] = {}
    for call, number in zip(trace.calls, numbers, strict=True):
        read.update((id(tensor), number) for tensor in call.reads)
        if any(id(tensor) in dependent for tensor in call.reads):
            for tensor in call.makes:
                dependent.add(id(tensor))
                made.setdefault(id(tensor), (number, tensor))
    read.update((id(tensor), layers - 1) for tensor in trace.outputs)
    crossing = (
        [tensor for key, (number, tensor) in made.items() if number < cut <= read.get(key, number)]
        for cut in range(1, layers)
    )
    return [_joint_size(tensors, trace) for tensors in (trace.inputs, *crossing, trace.outputs)]


def _joint_size(tensors: Sequence[Tensor], trace: Trace) -> Size:
    """Size of `tensors`, of which several may be views of one storage."""
    total = Size()
    groups: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(storage_key(tensor), []).append(tensor)
    for views in groups.values():
        bytes_ = min(sum(view.nbytes for view in views), views[0].untyped_storage().nbytes())
        total += size_of(views[0], trace.dtype, bytes_)
    return total


def _does_anything(call: Call, kept: Size) -> bool:
    return bool(call.forward.kernels or call.backward.kernels or call.backward.flops or kept != Size())


def _kernel(call: Call, saved: Size) -> Kernel:
    return Kernel(
        name=call.name,
        kind=call.kind,
        shape=call.shape,
        forward_flops=call.forward.flops,
        backward_flops=call.backward.flops,
        forward=call.forward.traffic,
        backward=call.backward.traffic,
        saved=saved,
        forward_kernels=call.forward.kernels,
        backward_kernels=call.backward.kernels,
    )
