"""The Python interface: a function for each command, with the command's arguments as keywords.

Each returns a record or a value that `json.dumps` takes, prints nothing and reads no environment; the command line
parses and prints. Heavy modules are imported inside the functions, so that this one costs nothing to import.

Raises, everywhere: `profiles.errors.InputError` (wrong input), `NothingFits`, `MachineError`.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from profiles.vocabulary import Device, DType

if TYPE_CHECKING:
    from models_zoo.model import Model


def models_list() -> list[dict[str, Any]]:
    """The models of the catalogue, each in numbers."""
    from models_zoo.catalogue import load_model, model_names

    return [_describe_model(load_model(name)) for name in model_names()]


def models_show(model: str, *, seq_len: int | None = None, dtype: DType = "bf16") -> dict[str, Any]:
    """One model, layer by layer, for one sample of `seq_len` tokens (default: the model's own).

    `model` is a zoo name, a path to a Hugging Face config.json, or `package.module:factory`.
    """
    from estimator.frontends.load import load_any_model
    from estimator.graph import build_graph
    from profiles.vocabulary import Infeasible, Shard

    found = load_any_model(model)
    graph = build_graph(found, shard=Shard(seq_len=seq_len or found.seq_len, dtype=dtype))
    layers = [
        {
            "name": node.name,
            "kind": type(node.layer).__name__,
            "parameters": node.parameters,
            "forward_flops": node.forward_flops,
            "backward_flops": node.backward_flops,
            "saved_bytes": node.saved_bytes,
            "cut_bytes": node.cut_bytes,
            "tp": {
                str(degree): what.reason if isinstance(what, Infeasible) else [asdict(one) for one in what]
                for degree, what in node.collectives_by_degree
            },
        }
        for node in graph.nodes
    ]
    return _describe_model(found) | {"seq_len": seq_len or found.seq_len or None, "dtype": dtype, "layers": layers}


def _describe_model(model: Model) -> dict[str, Any]:
    from estimator.graph import build_graph
    from planner.model_sizes import model_sizes
    from profiles.vocabulary import Shard

    parameters = build_graph(model, shard=Shard(seq_len=model.seq_len), degrees=()).parameters
    return {
        "name": model.name,
        "family": model.family,
        "sizes": asdict(model_sizes(model, parameters=parameters)),
        "published_parameters": model.published_parameters,
        "seq_len": model.seq_len or None,
        "global_batch": model.global_batch,
        "source": model.source,
    }


def hardware_list() -> dict[str, list[dict[str, Any]]]:
    """The devices and links of the catalogue."""
    from profiles.hardware import device_names, link_names, load_device, load_link

    return {
        "devices": [_describe_device(load_device(name)) for name in device_names()],
        "links": [asdict(load_link(name)) for name in link_names()],
    }


def hardware_show(name: str) -> dict[str, Any]:
    """One device or link of the catalogue."""
    from profiles.hardware import link_names, load_device, load_link

    return asdict(load_link(name)) if name in link_names() else _describe_device(load_device(name))


def _describe_device(device: Device) -> dict[str, Any]:
    return asdict(device) | {"peak_flops_per_s": dict(device.peak_flops_per_s)}
