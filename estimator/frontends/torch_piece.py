"""Makes a runnable module of a traced layer, or of several in a row, for timing it on one device.

The user's module is exported (`torch.export`, training mode) at the micro-batch and dtype wanted, on fake tensors; the
operators of the layers are cut out of the exported graph, and get weights and inputs of the right shapes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import getitem

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from estimator.frontends.torch_cut import find_units
from estimator.frontends.torch_module import call_factory, convert_tensors
from estimator.frontends.torch_private import tree_leaves
from models_zoo.layers import TracedLayer
from models_zoo.torch_layers.parallel import dtype_of
from models_zoo.user_code import UserFactory
from profiles.records import dataclass
from profiles.vocabulary import Shard

aten = torch.ops.aten

_SPREAD = 0.02
_ASSERTION = aten._assert_tensor_metadata.default
_NO_GRADIENT = (aten.detach.default, aten.detach_.default)


def build_traced(
    layers: Sequence[TracedLayer], shard: Shard, device: torch.device | str
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The module of contiguous `layers` of one model on `device`, in the shard's dtype, and random inputs of it.

    Called as `module(*inputs)`, it returns a tuple: the tensors that later layers read, and at the model's end the
    loss, or without one all outputs. Weights are random, buffers ones and zeros. NotImplementedError for tp > 1: an
    exported graph has no collectives. RuntimeError where torch.export cannot follow the module.
    """
    if shard.tp > 1:
        raise NotImplementedError(f"a traced layer runs with tp = 1 alone, found tp = {shard.tp}")
    exported = _export(layers[0].factory, shard.micro_batch_per_rank, dtype_of(shard))
    program = exported.program
    trained = _nodes_with_gradient(program)
    chosen = _nodes_in(exported, frozenset(place for layer in layers for place in layer.places))
    inside = set(chosen)
    # In the graph's order, so that equal seeds give equal weights.
    sources = dict.fromkeys(source for node in chosen for source in node.all_input_nodes if source not in inside)
    states = _state_of(program)
    root, graph, copies = nn.Module(), fx.Graph(), dict[fx.Node, fx.Node]()
    given = [node for node in program.graph.nodes if node in sources and node.op != "get_attr" and node not in states]
    for node in given:
        copies[node] = graph.placeholder(node.name)
    changed = _mutated(chosen) & trained
    for node in given:
        if node in changed:
            copies[node] = graph.call_function(aten.clone.default, (copies[node],))  # no leaf is changed in place
    for node in sources:
        if node in copies:
            continue
        if node.op == "get_attr":
            setattr(root, node.name, getattr(program.graph_module, node.target))
        else:
            _register(root, node, trained=node in trained, is_parameter=states[node], device=device)
        copies[node] = graph.get_attr(node.name)
    for node in chosen:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in _outputs(program.graph, chosen, trained)))
    module = fx.GraphModule(root, graph)
    _move_literals(module, device)
    return module, tuple(_random(node, device, requires_grad=node in trained) for node in given)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exported:
    program: ExportedProgram
    units: frozenset[str]


@lru_cache(maxsize=4)
def _export(factory: UserFactory, batch: int, dtype: torch.dtype) -> _Exported:
    example = call_factory(factory)
    with example.mode:
        convert_tensors(example.module, lambda tensor: _with_dtype(tensor, dtype))
        inputs = tuple(_with_dtype(x, dtype) for x in example.inputs_for(batch))
        try:
            program = torch.export.export(example.module, inputs, strict=False)
        except Exception as error:
            line = next(iter(str(error).strip().splitlines()), "")
            raise RuntimeError(f"torch.export: {type(error).__name__}: {line}") from error
    return _Exported(program=program, units=find_units(example.module))


def _with_dtype(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _state_of(program: ExportedProgram) -> dict[fx.Node, bool]:
    """The placeholders that are the module's own tensors, and whether each is a parameter."""
    kinds = {spec.arg.name: spec.kind for spec in program.graph_signature.input_specs}
    return {
        node: kinds[node.name] == InputKind.PARAMETER
        for node in program.graph.nodes
        if node.op == "placeholder" and kinds[node.name] != InputKind.USER_INPUT
    }


def _nodes_in(exported: _Exported, places: frozenset[str]) -> list[fx.Node]:
    """The operators called in `places` (see `torch_trace.Call`); an element of a tuple goes with the tuple."""
    chosen: dict[fx.Node, None] = {}
    place = ">"
    for node in exported.program.graph.nodes:
        if node.op != "call_function" or node.target is _ASSERTION:
            continue
        if node.target is getitem:
            inside = node.args[0] in chosen
        else:
            # Keys end in @n for a submodule's later calls; values are (name, class).
            stack = node.meta.get("nn_module_stack", {})
            calls = [(path, key.partition("@")[2]) for key, (path, _) in stack.items() if path in exported.units]
            if calls:
                place = "@".join(filter(None, calls[0]))
            elif stack and not place.startswith(">"):
                place = f">{place}"
            inside = place in places
        if inside:
            chosen[node] = None
    return list(chosen)


def _nodes_with_gradient(program: ExportedProgram) -> set[fx.Node]:
    trainable = {name for name, parameter in program.named_parameters() if parameter.requires_grad}
    names = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    with_gradient: set[fx.Node] = set()
    for node in program.graph.nodes:
        if node.op == "placeholder":
            trained = names[node.name] in trainable
        else:
            without = node.target in _NO_GRADIENT or (node.args and node.args[0] is False)  # a region under no_grad
            trained = (
                not without and any(source in with_gradient for source in node.all_input_nodes) and _is_floating(node)
            )
        if trained:
            with_gradient.add(node)
    return with_gradient


def _values(node: fx.Node) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(node.meta.get("val")) if isinstance(leaf, Tensor)]


def _is_floating(node: fx.Node) -> bool:
    return any(value.is_floating_point() for value in _values(node))


def _mutated(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """What `nodes` change in place, through views of it too."""
    mutated: set[fx.Node] = set()
    for node in nodes:
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
            if argument.is_write:
                while value.op == "call_function" and getattr(value.target, "is_view", False):
                    value = value.args[0]
                mutated.add(value)
    return mutated


def _outputs(graph: fx.Graph, chosen: list[fx.Node], trained: set[fx.Node]) -> list[fx.Node]:
    """What nodes outside read, and of the module's own outputs the loss, or all if there is none."""
    (end,) = (node for node in graph.nodes if node.op == "output")
    losses = [node for node in end.all_input_nodes if node in trained and not _values(node)[0].dim()][:1]
    finals = losses or end.all_input_nodes
    inside = set(chosen)
    return [
        node
        for node in chosen
        if node in finals
        or any(user not in inside and user is not end and user.target is not _ASSERTION for user in node.users)
    ]


def _register(root: nn.Module, node: fx.Node, *, trained: bool, is_parameter: bool, device: torch.device | str) -> None:
    (value,) = _values(node)
    if is_parameter:
        tensor = torch.randn(value.shape, dtype=value.dtype, device=device) * _SPREAD
        root.register_parameter(node.name, nn.Parameter(tensor, requires_grad=trained))
        return
    fill = 1 if value.is_floating_point() or value.dtype == torch.bool else 0
    root.register_buffer(node.name, torch.full(value.shape, fill, dtype=value.dtype, device=device))


def _random(node: fx.Node, device: torch.device | str, *, requires_grad: bool) -> Tensor:
    (value,) = _values(node)
    if value.is_floating_point():
        return torch.randn(value.shape, dtype=value.dtype, device=device, requires_grad=requires_grad)
    if value.dtype == torch.bool:
        return torch.ones(value.shape, dtype=torch.bool, device=device)
    return torch.randint(_index_bound(node), value.shape, dtype=value.dtype, device=device)


def _index_bound(node: fx.Node) -> int:
    """What the integers of `node` must stay below: the rows of each table, or the classes, that they choose from."""
    bounds, waiting, seen = [], [node], {node}
    while waiting:
        source = waiting.pop()
        for user in source.users:
            if user.target is aten.embedding.default and user.args[1] is source:
                bounds.append(int(user.args[0].meta["val"].shape[0]))
            elif user.target is aten.cross_entropy_loss.default and user.args[1] is source:
                bounds.append(int(user.args[0].meta["val"].shape[1]))
            elif user not in seen and _values(user) and not _is_floating(user):
                seen.add(user)
                waiting.append(user)
    return min(bounds, default=2)


def _move_literals(module: fx.GraphModule, device: torch.device | str) -> None:
    """Makes what the graph creates on the device of its trace on `device`."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule):
            for node in part.graph.nodes:
                if "device" in node.kwargs:
                    node.update_kwarg("device", torch.device(device))
            part.recompile()
