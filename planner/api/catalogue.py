"""What is known without a cluster: models and hardware of the catalogue."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.shared.options.call import takes
from planner.shared.options.catalogue import HardwareShowOptions, HardwareTopologyOptions, ModelsShowOptions


def models_list() -> list[dict[str, Any]]:
    """The models of the catalogue, each in numbers."""
    from models_zoo.catalogue import load_model, model_names
    from planner.shared.describing import describe_model

    return [describe_model(load_model(name)) for name in model_names()]


@takes(ModelsShowOptions)
def models_show(options: ModelsShowOptions) -> dict[str, Any]:
    """Return one model, layer by layer, for one sample of `seq_len` tokens (default: the model's own)."""
    from estimator.frontends.load import load_any_model
    from estimator.layers.graph import build_graph
    from planner.shared.describing import describe_layers, describe_model
    from planner.shared.inputs import token_count
    from profiles.vocabulary import Shard

    model = load_any_model(options.model, options.user_code)
    tokens = token_count(model, options.seq_len)
    graph = build_graph(model, shard=Shard(seq_len=tokens, dtype=options.dtype))
    about = {"seq_len": tokens or None, "dtype": options.dtype}
    return describe_model(model) | about | {"layers": describe_layers(graph)}


def hardware_list() -> dict[str, list[dict[str, Any]]]:
    """Return the devices and links of the catalogue, and what each training software is declared to do."""
    from estimator.pricing.software import describe_framework, load_frameworks
    from planner.shared.describing import describe_device
    from profiles.hardware import device_names, link_names, load_device, load_link

    return {
        "devices": [describe_device(load_device(name)) for name in device_names()],
        "links": [asdict(load_link(name)) for name in link_names()],
        "software": [describe_framework(framework) for framework in load_frameworks().values()],
    }


@takes(HardwareShowOptions)
def hardware_show(options: HardwareShowOptions) -> dict[str, Any]:
    """Return one device or link of the catalogue, or one training software with its declared features."""
    from estimator.pricing.software import describe_framework, load_frameworks
    from planner.shared.describing import describe_device
    from profiles.hardware import link_names, load_device, load_link

    if options.name in load_frameworks():
        return describe_framework(load_frameworks()[options.name])
    if options.name in link_names():
        return asdict(load_link(options.name))
    return describe_device(load_device(options.name))


@takes(HardwareTopologyOptions)
def hardware_topology(options: HardwareTopologyOptions) -> dict[str, Any]:
    """Return the tree of a cluster's network as the text that a cluster manager reads, for those who have none yet;
    `output` is a file to write it to. InputError where nodes have no names or nothing is known above them."""
    from planner.shared.inputs import load_any_place
    from profiles.files import write_atomically
    from profiles.topology_writing import kueue_topology, topology_conf

    cluster = load_any_place(options.cluster)
    names = [site.name for site in cluster.sites]
    if options.site is None and len(names) > 1:
        raise options.wrong("site", found=f"{len(names)} sites", expected=f"one of {', '.join(names)}")
    if options.site is not None and options.site not in names:
        raise options.wrong("site", found=repr(options.site), expected=f"one of {', '.join(names)}")
    site = cluster.site(options.site or names[0])
    text = topology_conf(site) if options.to == "topology.conf" else kueue_topology(site, options.labels)
    if options.output is not None:
        write_atomically(options.output, text)
    return {
        "cluster": cluster.text,
        "site": site.name,
        "to": options.to,
        "levels": [{"name": level.name, "parts": len(level.parts)} for level in site.network.levels],
        "text": text,
        "output": None if options.output is None else str(options.output),
    }
