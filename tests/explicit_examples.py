"""Small explicit plans for the tests of their evaluation: models of each kind, clusters, and random setups."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from estimator.pricing.build import uniform_setup
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Recipe, ScheduleName, Setup, Software, StageSetup
from models_zoo.catalogue import load_model
from models_zoo.model import Model
from profiles.cluster import Cluster, NodeGroup
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Device, Link
from tests.zoo_families import gpt, llama, mixtral

GPT = gpt("g", hidden=512, layers=8, heads=8, vocab=5000, seq_len=512)
LLAMA = llama("l", hidden=512, layers=8, heads=8, kv_heads=4, ffn_hidden=1024, vocab=4096, seq_len=512)
EXPERTS = mixtral(
    "m", hidden=512, layers=8, heads=8, kv_heads=4, ffn_hidden=1024, experts=8, top_k=2, vocab=4096, seq_len=512
)
MODELS = {"gpt": GPT, "llama": LLAMA, "experts": EXPERTS}
RECIPE = Recipe(global_batch=32, seq_len=512)
CLUSTER = load_cluster("a100-80gb:4x8")
GRAPH = Software(name="graph", launch="graph")
QUIET = replace(RECIPE, software=GRAPH)
"""Without the host's launches, so that the device's own times show."""


def build(model: Model = LLAMA, cluster: Cluster = CLUSTER, recipe: Recipe = RECIPE, **degrees: Any) -> Setup:
    """The uniform setup of these degrees, which must be possible."""
    found = uniform_setup(model, cluster, recipe, **degrees)
    assert isinstance(found, Setup), found
    return found


def evaluated(setup: Setup, **options: Any) -> Evaluation:
    """Its figures, which must exist."""
    evaluation = evaluate(setup, Pricing(**options))
    assert isinstance(evaluation, Evaluation), evaluation
    return evaluation


def with_stages(setup: Setup, change: Callable[[StageSetup], StageSetup]) -> Setup:
    """The same setup with every stage changed."""
    return replace(setup, stages=tuple(change(stage) for stage in setup.stages))


def with_recipe(setup: Setup, **changes: Any) -> Setup:
    """The same setup with other settings."""
    return replace(setup, recipe=replace(setup.recipe, **changes))


def on_nodes(setup: Setup, change: Callable[[NodeGroup], NodeGroup]) -> Setup:
    """The same setup on changed nodes."""
    sites = tuple(replace(site, nodes=tuple(change(nodes) for nodes in site.nodes)) for site in setup.cluster.sites)
    return replace(setup, cluster=replace(setup.cluster, sites=sites))


def on_device(setup: Setup, change: Callable[[Device], Device]) -> Setup:
    """The same setup on changed devices."""
    return on_nodes(setup, lambda nodes: replace(nodes, device=change(nodes.device)))


def with_links(setup: Setup, change: Callable[[Link], Link], *, fabric: bool = True, inside: bool = True) -> Setup:
    """The same setup with changed links: NICs and fabric, islands and host links."""
    if inside:
        setup = on_nodes(
            setup,
            lambda nodes: replace(nodes, island_link=change(nodes.island_link), host_link=change(nodes.host_link)),
        )
    if not fabric:
        return setup
    setup = on_nodes(setup, lambda nodes: replace(nodes, nic_link=change(nodes.nic_link)))
    sites = tuple(replace(site, fabric_link=change(site.fabric_link)) for site in setup.cluster.sites)
    return replace(setup, cluster=replace(setup.cluster, sites=sites))


def assert_never_faster(slow: Setup, fast: Setup, tolerance: float = 1e-9) -> None:
    """An iteration of `fast` takes no longer than one of `slow`."""
    longer, shorter = evaluated(slow), evaluated(fast)
    limit_s = longer.iteration_time_s * (1 + tolerance)
    assert shorter.iteration_time_s <= limit_s, (longer.breakdown, shorter.breakdown)


def faster_hardware(setup: Setup, which: str) -> Setup:
    """The same setup with twice the peak, the memory bandwidth, the links' bandwidth, or half of their latencies."""
    match which:
        case "peak":
            return on_device(
                setup,
                lambda device: replace(
                    device, peak_flops_per_s=tuple((name, 2 * peak) for name, peak in device.peak_flops_per_s)
                ),
            )
        case "memory bandwidth":
            return on_device(
                setup,
                lambda device: replace(device, memory_bandwidth_bytes_per_s=2 * device.memory_bandwidth_bytes_per_s),
            )
        case "inside":
            return with_links(
                setup, lambda link: replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s), fabric=False
            )
        case "fabric":
            return with_links(
                setup, lambda link: replace(link, bandwidth_bytes_per_s=2 * link.bandwidth_bytes_per_s), inside=False
            )
        case _:
            return with_links(
                setup,
                lambda link: replace(
                    link,
                    latency_s=link.latency_s / 2,
                    startup_s=link.startup_s / 2,
                    quick_latency_s=link.quick_latency_s and link.quick_latency_s / 2,
                ),
            )


def _power_of_two(draw: st.DrawFn, most: int) -> int:
    return draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= most]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A random setup by the words it was made of, which are easier to read than the setup."""

    model: str
    cluster: str
    recipe: Recipe
    degrees: dict[str, Any]

    def setup(self, **changes: Any) -> Setup:
        """The setup, with other settings."""
        return with_recipe(
            build(MODELS[self.model], load_cluster(self.cluster), self.recipe, **self.degrees), **changes
        )


@st.composite
def drafts(draw: st.DrawFn, models: tuple[str, ...] = tuple(MODELS)) -> Draft:
    """Any legal combination of degrees, schedule, sharding, recomputation and offloading on at most 32 devices."""
    name = draw(st.sampled_from(models))
    tp, pp, cp = _power_of_two(draw, 4), _power_of_two(draw, 4), _power_of_two(draw, 2)
    dp = _power_of_two(draw, 32 // (tp * pp * cp))
    ep = _power_of_two(draw, min(8, tp * cp * dp)) if name == "experts" else 1
    schedules = ["gpipe", "1f1b", "zb-h1", *(["interleaved", "dualpipe"] if pp > 1 else [])]
    schedule: ScheduleName = draw(st.sampled_from(schedules))
    per_rank = draw(st.sampled_from([1, 2]))
    rounds = draw(st.sampled_from([2, 3] if schedule == "dualpipe" else [1, 4]))
    recipe = Recipe(
        global_batch=per_rank * dp * rounds * pp,
        seq_len=512,
        schedule=schedule,
        attention=draw(st.sampled_from(["flash", "math"])),
        grad_dtype=draw(st.sampled_from(["fp32", "bf16"])),
        optimizer=draw(st.sampled_from(["adamw", "sgd", "adam8bit", "muon", "adafactor"])),
        overlap=draw(st.frozensets(st.sampled_from(["dp", "tp", "p2p"]))),
        moe_capacity_factor=draw(st.sampled_from([None, 1.25])) if name == "experts" else None,
        moe_imbalance=draw(st.sampled_from([1.0, 1.5])) if name == "experts" else 1.0,
        lora_rank=draw(st.sampled_from([0, 0, 8])),
        frozen_layers=draw(st.sampled_from([None, None, (0, 4)])),
        software=draw(softwares()),
    )
    degrees = {
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": ep,
        "etp": _power_of_two(draw, min(2, tp * cp * dp // ep)) if name == "experts" else 1,
        "vpp": 2 if schedule == "interleaved" else 1,
        "micro_batch_per_rank": per_rank,
        "sequence_parallel": tp > 1 and draw(st.booleans()),
        "zero": draw(st.sampled_from([0, 1, 2, 3])),
        "shard": draw(st.sampled_from([n for n in (None, 1, 2) if n is None or dp * cp % n == 0])),
        "recompute": draw(st.sampled_from(["none", "selective", "full"])),
        "recompute_layers": draw(st.sampled_from([None, 1])),
        "offload": draw(st.frozensets(st.sampled_from(["optimizer", "activations"]))),
    }
    cluster = draw(st.sampled_from(["a100-80gb:4x8", "h100:4x8", "a100-40gb-pcie:4x8"]))
    return Draft(model=name, cluster=cluster, recipe=recipe, degrees=degrees)


@st.composite
def softwares(draw: st.DrawFn) -> Software:
    """What a framework may be declared to do."""
    return Software(
        name="s",
        kernels=draw(st.sampled_from(["fused", "eager"])),
        launch=draw(st.sampled_from(["eager", "graph"])),
        fused_cross_entropy=draw(st.booleans()),
        fused_accumulation=draw(st.booleans()),
        bucket_bytes=draw(st.sampled_from([0, 10_000_000])),
        grown_buckets=draw(st.booleans()),
        broadcast_weights=draw(st.booleans()),
        copies_pieces=draw(st.booleans()),
        weights_in_turn=draw(st.booleans()),
    )


def convolutions(cluster: Cluster = CLUSTER) -> Setup:
    """A model that is no transformer."""
    return build(load_model("resnet-50"), cluster, Recipe(global_batch=64, seq_len=0), dp=4, micro_batch_per_rank=4)
