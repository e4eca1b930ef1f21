"""The host's work: launches counted by hand, what features add and take away, and models so small that it is all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.host_time import Host, HostWork, host_of
from estimator.pricing.recipe import GroupedProducts, Launch, Modules, Recipe, Software
from estimator.pricing.software import load_framework
from profiles.cluster_file import load_cluster
from profiles.hardware import load_device
from profiles.training_parameters import load_training_parameters
from profiles.vocabulary import DType
from tests.explicit_examples import EXPERTS, LLAMA, build, evaluated
from tests.zoo_families import gpt

H100, GB200 = load_device("h100"), load_device("gb200")
KNOWN = load_training_parameters()
TINY = gpt("tiny", hidden=512, layers=12, heads=8, vocab=50257, seq_len=1024)

launches = st.sampled_from([launch for launch in get_args(Launch) if launch != "graph"])
softwares = st.builds(
    Software,
    name=st.just("any"),
    grouped_products=st.sampled_from(get_args(GroupedProducts)),
    modules=st.sampled_from(get_args(Modules)),
    deterministic=st.booleans(),
    fused_accumulation=st.booleans(),
)
splits = st.builds(
    Split,
    samples=st.just(4),
    seq_len=st.just(512),
    tp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2]),
    kernels=st.sampled_from(["fused", "eager"]),
    attention=st.sampled_from(["flash", "math"]),
)


def host(dtype: DType = "bf16", **features: Any) -> Host:
    """The host of an H100 under software of these features."""
    software = Software(**{"name": "any", "fused_accumulation": True, **features})
    driving = host_of(software, H100, dtype, KNOWN)
    assert driving is not None
    return driving


def work(layer: Any, split: Split | None = None) -> Work:
    done = layer_work(layer, split or Split(samples=4, seq_len=512))
    assert isinstance(done, Work), done
    return done


def of_layer(driving: Host, done: Work) -> HostWork:
    """What the host does for a layer, both ways."""
    total = driving.forward(done.operators)
    total.add(driving.backward(done.operators, learns=True))
    return total


def test_launches_of_a_dense_block_counted_by_hand() -> None:
    """Llama's: two norms (2 kernels backward each), four products (2), rotation of queries and keys (2 each way), fused
    attention (3), activation and two residuals (1)."""
    ahead, back = (
        host().forward(work(LLAMA.layers[1]).operators),
        host().backward(work(LLAMA.layers[1]).operators, learns=True),
    )
    assert ahead == HostWork(kernels=2 + 4 + 2 + 1 + 3, calls=11)
    assert back == HostWork(kernels=2 * 2 + 4 * 2 + 2 + 3 + 3, backward_calls=11)


def test_launches_of_a_block_of_experts_counted_by_hand() -> None:
    """Attention's half (7 kernels forward with its residual, 12 backward), a norm, the router and its choice (14
    kernels, 8 backward), four moves of tokens, two products, activation, residual."""
    chosen = work(EXPERTS.layers[1], Split(samples=4, seq_len=512, ep=2))
    ahead, back = host().forward(chosen.operators), host().backward(chosen.operators, learns=True)
    assert ahead == HostWork(kernels=7 + 1 + 1 + 14 + 4 + 2 + 1 + 1, calls=17)
    assert back == HostWork(kernels=12 + 2 + 2 + 8 + 4 + 4 + 1 + 1, backward_calls=17)


def test_products_of_experts_on_streams_are_launched_one_by_one() -> None:
    """Of 4 experts a rank: 3 launches more of each of two products forward, of each of four backward."""
    chosen = work(EXPERTS.layers[1], Split(samples=4, seq_len=512, ep=2))
    together, apart = host(), host(grouped_products="streams")
    assert apart.forward(chosen.operators).inner == 2 * 3
    assert apart.backward(chosen.operators, learns=True).inner == 4 * 3
    assert replace(of_layer(apart, chosen), inner=0) == of_layer(together, chosen)
    alone = host(grouped_products="sequential").forward(chosen.operators)
    assert (alone.calls, alone.kernels) == (17 + 2 * 3, 31 + 2 * 3)


def test_what_features_add() -> None:
    """Casts of four products each way, a filled result of each of 11 operators, four gradients added to their sums."""
    chosen = work(LLAMA.layers[1])
    assert of_layer(host("fp8"), chosen).inner == 2 * 4 * 2
    assert of_layer(host(deterministic=True), chosen).inner == 2 * 11
    assert of_layer(host(fused_accumulation=False), chosen).inner == 4


def test_what_graphs_take_away() -> None:
    """Of a block of experts only products and moves are left where all else is captured; of one captured whole a launch
    each way; a compiler leaves the launches and a call."""
    chosen = work(EXPERTS.layers[1], Split(samples=4, seq_len=512, ep=2))
    dense = host(launch="graph_dense").forward(chosen.operators)
    assert dense == HostWork(kernels=4 + 2 + 1 + 1, calls=4 + 2 + 1)
    assert not host(launch="graph_layers").launches(chosen.collectives[0])
    assert of_layer(host(launch="graph_layers"), chosen) == HostWork(kernels=2)
    compiled = host(launch="compiled").forward(chosen.operators)
    assert compiled == HostWork(kernels=31, calls=1)
    assert host_of(Software(name="any", launch="graph"), H100, "bf16", KNOWN) is None


@given(software=softwares, launch=launches, split=splits, layer=st.sampled_from([LLAMA.layers[1], EXPERTS.layers[1]]))
def test_no_graph_and_no_compiler_is_slower(software: Software, launch: Launch, split: Split, layer: Any) -> None:
    eager, other = (host_of(each, H100, "bf16", KNOWN) for each in (software, replace(software, launch=launch)))
    assert eager is not None
    assert other is not None
    chosen = work(layer, split)
    assert other.seconds(of_layer(other, chosen)) <= eager.seconds(of_layer(eager, chosen))


@given(software=softwares, layer=st.sampled_from([LLAMA.layers[1], EXPERTS.layers[1]]))
def test_the_host_of_a_device_is_a_parameter(software: Software, layer: Any) -> None:
    seconds = []
    for device in (H100, GB200):
        driving = host_of(software, device, "bf16", KNOWN)
        assert driving is not None
        seconds.append(driving.seconds(of_layer(driving, work(layer))))
    pace = KNOWN.of("host_pace", "grace") / KNOWN.of("host_pace")
    assert seconds[1] == pytest.approx(pace * seconds[0])


def tiny_s(layers: int = 12, micro_batches: int = 4, launch: Launch = "eager", **degrees: int) -> float:
    """Seconds of Megatron Core's functional tests: 12 layers of 512, four samples of 1024 tokens a micro-batch."""
    software = replace(load_framework("megatron-core").software, launch=launch)
    model = TINY if layers == 12 else gpt("tiny", hidden=512, layers=layers, heads=8, vocab=50257, seq_len=1024)
    recipe = Recipe(global_batch=8 * micro_batches, seq_len=1024, software=software)
    chosen = {"tp": 2, "pp": 2, "dp": 2, **degrees}
    setup = build(model, load_cluster("h100:1x8"), recipe, **chosen, micro_batch_per_rank=4)
    return evaluated(setup).iteration_time_s


def test_a_tiny_model_takes_what_its_host_takes() -> None:
    """118 ms on 8 H100 by tp 2, pp 2 (Megatron-LM, gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion of its functional
    tests), a few of which are the device's."""
    assert tiny_s() == pytest.approx(0.118, rel=0.3)
    assert tiny_s(launch="graph") < 0.3 * tiny_s()


def test_host_time_grows_with_layers_and_micro_batches() -> None:
    assert tiny_s(layers=4) < tiny_s(layers=8) < tiny_s()
    assert tiny_s(micro_batches=2) < tiny_s() < tiny_s(micro_batches=8)
    assert tiny_s(launch="graph_layers") < tiny_s(launch="compiled") < tiny_s()
