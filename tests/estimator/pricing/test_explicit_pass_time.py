"""A pass through layers: its kinds, the host's launches, profiles, overlap, and which product runs in which type."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.host_time import Host, host_of
from estimator.pricing.operator_time import memory_seconds, time_operator
from estimator.pricing.pass_time import KIND_FIELDS, Machine, PassTime, backward_pass, forward_pass
from estimator.pricing.recipe import Software
from models_zoo.catalogue import load_model
from models_zoo.layers import Experts, Head, TransformerBlock
from profiles.efficiencies import load_operator_efficiencies
from profiles.hardware import load_device
from profiles.training_parameters import TrainingParameters, load_training_parameters
from profiles.vocabulary import Collective, Device, LayerTime, Operator
from tests.explicit_examples import EXPERTS, LLAMA

BLOCK, MOE_BLOCK, HEAD = LLAMA.layers[1], EXPERTS.layers[1], LLAMA.layers[-1]
H100 = load_device("h100")


def machine(**changes: Any) -> Machine:
    values: dict[str, Any] = {
        "device": H100,
        "efficiencies": load_operator_efficiencies("h100"),
        "parameters": load_training_parameters(),
        "dtype": "bf16",
        "collective_s": lambda one: one.bytes * 1e-11,
        "overlap_tp": False,
        "tensor_overlap": "backward",
        "overlap_ep": False,
        "shared_beside": False,
        "host": None,
        "kernels": "fused",
        "accumulation_bytes": 0,
        "accumulator_bytes": 4,
        "attention_kernel": None,
        "flash_generation": 2,
        "fp8_attention": "no",
        "fp8_scaling": "delayed",
        "bandwidth_bytes_per_s": H100.memory_bandwidth_bytes_per_s,
    }
    return Machine(**values | changes)


def with_parameters(**changes: float) -> TrainingParameters:
    known = load_training_parameters()
    return replace(known, values={**known.values} | {name.replace("__", "."): value for name, value in changes.items()})


def host(parameters: TrainingParameters | None = None, device: Device = H100, **features: Any) -> Host:
    software = Software(**{"name": "any", "fused_accumulation": True, **features})
    driving = host_of(software, device, "bf16", parameters or load_training_parameters())
    assert driving is not None
    return driving


def work(layer: Any = BLOCK, **split: Any) -> Work:
    found = layer_work(layer, Split(**{"samples": 4, "seq_len": 512, **split}))
    assert isinstance(found, Work), found
    return found


def time_of(forward_s: float, backward_s: float) -> LayerTime:
    return LayerTime(forward_s=forward_s, backward_s=backward_s, optimizer_s=0.0, provenance="measured", profile_id="p")


MOE = work(MOE_BLOCK)
SCALINGS = ("delayed", "current")
WAYS: tuple[Callable[..., PassTime], ...] = (forward_pass, backward_pass)
works = st.builds(
    work,
    st.sampled_from([BLOCK, MOE_BLOCK, HEAD, LLAMA.layers[0]]),
    samples=st.sampled_from([1, 4]),
    tp=st.sampled_from([1, 2, 4]),
    sequence_parallel=st.booleans(),
    cp=st.sampled_from([1, 2]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    attention=st.sampled_from(["flash", "math"]),
    kernels=st.sampled_from(["fused", "eager"]),
)
machines = st.builds(
    machine,
    overlap_tp=st.booleans(),
    host=st.sampled_from([None, host(), host(modules="transformer_engine")]),
    accumulation_bytes=st.sampled_from([0, 10]),
    collective_s=st.sampled_from([lambda one: one.bytes * 1e-11, lambda _: 1e-3]),
)


@given(chosen=works, count=st.integers(1, 5), on=machines)
def test_kinds_sum_to_the_pass(chosen: Work, count: int, on: Machine) -> None:
    for way in WAYS:
        found = way([(chosen, count)], on)
        kinds = {part.name: getattr(found, part.name) for part in fields(found) if part.name != "weight_s"}
        assert math.fsum(kinds.values()) == found.total_s
        assert min(kinds.values()) >= 0
        assert 0 <= found.weight_s <= found.total_s


def test_kinds_are_those_of_the_operators() -> None:
    chosen, on = work(HEAD), machine()
    expected = dict.fromkeys(KIND_FIELDS.values(), 0.0)
    shares = {"gemm": "gemm_share", "attention": "attention_share", "memory": "memory_share"}
    assert {op.kind for op in chosen.operators} <= set(shares)
    for op in chosen.operators:
        seconds = time_operator(op, device=H100, dtype="bf16", efficiencies=on.efficiencies, pass_="forward")
        qualifiers = {"gemm": (), "attention": ("flash2",), "memory": ("fused",)}[op.kind]
        share = on.parameters.of(shares[op.kind], *qualifiers, "h100", "hopper")
        expected[KIND_FIELDS[op.kind]] += seconds / share
    found = forward_pass([(chosen, 1)], on)
    assert {name: getattr(found, name) for name in expected} == pytest.approx(expected)
    assert found.total_s == pytest.approx(sum(expected.values()))


@given(chosen=works, count=st.integers(2, 5))
def test_a_pass_is_linear_in_layers(chosen: Work, count: int) -> None:
    for way in WAYS:
        for on in (machine(), machine(host=host())):
            one, many = way([(chosen, 1)], on), way([(chosen, count)], on)
            assert many.total_s == pytest.approx(count * one.total_s)
            assert many.weight_s == pytest.approx(count * one.weight_s)


def test_a_profile_wins_and_keeps_the_shares() -> None:
    chosen, on = work(), machine(host=host())
    for way, seconds in ((forward_pass, 0.1), (backward_pass, 0.3)):
        modelled = way([(chosen, 3)], machine())
        found = way([(chosen, 3)], on, [time_of(0.1, 0.3)])
        assert found.total_s == pytest.approx(3 * seconds)
        # The profile holds the launches.
        assert found.launch_s == 0
        for name in ("gemm_s", "attention_s", "memory_bound_s", "weight_s"):
            share = getattr(modelled, name) / modelled.total_s
            assert getattr(found, name) == pytest.approx(share * found.total_s)


def test_a_profile_leaves_other_layers_and_collectives_alone() -> None:
    chosen, other, on = work(tp=2), work(HEAD, tp=2), machine()
    found = forward_pass([(chosen, 1), (other, 1)], on, [time_of(0.1, 0.3), None])
    expected = 0.1 + forward_pass([(other, 1)], on).total_s + forward_pass([(chosen, 1)], on).tp_s
    assert found.total_s == pytest.approx(expected)


def test_full_recomputation_of_a_profiled_layer_takes_its_forward() -> None:
    found = backward_pass([(work(recompute="full"), 2)], machine(), [time_of(0.1, 0.3)])
    assert found.recompute_s == pytest.approx(0.2)
    assert found.total_s == pytest.approx(0.8)


def test_full_recomputation_is_a_second_forward() -> None:
    chosen, on = work(tp=2, recompute="full"), machine()
    ahead, plain = forward_pass([(chosen, 1)], on), backward_pass([(work(tp=2), 1)], on)
    found = backward_pass([(chosen, 1)], on)
    assert found.recompute_s == pytest.approx(ahead.total_s - ahead.tp_s)
    assert found.total_s == pytest.approx(plain.total_s + ahead.total_s)


def test_where_the_device_waits_a_pass_is_the_hosts_launches() -> None:
    slow = with_parameters(
        launch_s=0.5,
        launch_inner_s=0.0,
        call_s=0.125,
        call_backward_s=0.0625,
        launch_collective_s=0.25,
        launch_checkpoint_s=2.0,
    )
    on = machine(host=host(slow), parameters=slow)
    chosen = work(tp=2, recompute="full")
    operators = len(chosen.operators)
    ahead = 0.5 * sum(op.forward_kernels for op in chosen.operators) + 0.125 * operators
    assert forward_pass([(chosen, 3)], on).total_s == pytest.approx(3 * (ahead + 0.25 * 2))
    back = 0.5 * sum(op.backward_kernels for op in chosen.operators) + 0.0625 * operators
    assert backward_pass([(chosen, 3)], on).total_s == pytest.approx(3 * (ahead + back + 0.25 * 4 + 2.0))


@given(chosen=works, launch=st.floats(1e-7, 1e-3))
def test_a_pass_is_longer_than_either_side_and_shorter_than_both(chosen: Work, launch: float) -> None:
    others = ("launch_collective_s", "launch_checkpoint_s", "launch_inner_s", "call_s", "call_backward_s", "step_s")
    known = with_parameters(launch_s=launch, **dict.fromkeys(others, 0.0))
    for way in WAYS:
        device_s = way([(chosen, 1)], machine()).total_s
        driven = way([(chosen, 1)], machine(host=host(known), parameters=known))
        operators = (*chosen.operators, *(chosen.again if way is backward_pass else ()))
        kernels = sum(op.forward_kernels for op in operators)
        if way is backward_pass:
            kernels = sum(op.forward_kernels for op in chosen.again)
            kernels += sum(op.backward_kernels for op in chosen.operators)
        assert max(device_s, launch * kernels) <= driven.total_s * (1 + 1e-9)
        assert driven.total_s <= (device_s + launch * kernels) * (1 + 1e-9)
        assert driven.launch_s == pytest.approx(driven.total_s - device_s, abs=1e-12)


def test_a_captured_graph_has_no_launches() -> None:
    slow = with_parameters(launch_s=0.5)
    assert host_of(Software(name="any", launch="graph"), H100, "bf16", slow) is None
    assert forward_pass([(work(), 1)], machine(host=None, parameters=slow)).launch_s == 0


def test_attention_is_in_fp8_where_products_are_narrow_and_the_software_says_so() -> None:
    share = load_training_parameters().of("fp8_attention_share", "hopper")
    size = next(op.shape[5] for op in work().operators if op.kind == "attention")
    for dtype, faster in (("bf16", 1.0), ("fp8", 1 + (share - 1) * size / 128)):
        plain, narrow = (
            forward_pass([(work(), 1)], machine(dtype=dtype, fp8_attention=fp8)).attention_s for fp8 in ("no", "yes")
        )
        assert plain == pytest.approx(narrow * faster)


def test_fp8_gains_attention_of_small_heads_half_as_much() -> None:
    """Their exponentials, which no type makes fewer, are as many beside half the products."""
    gains = []
    for size in (64, 128, 192):
        shape = (1, 8, 8, 8192, 8192, size, size, 1)
        flash = Operator(name="attention.flash", kind="attention", shape=shape, forward_flops=1, forward_kernels=1)
        one = replace(work(), operators=(flash,), collectives=())
        on = machine(dtype="fp8", flash_generation=3)
        plain, narrow = (forward_pass([(one, 1)], replace(on, fp8_attention=fp8)) for fp8 in ("no", "yes"))
        gains.append(plain.attention_s / narrow.attention_s - 1)
    share = load_training_parameters().of("fp8_attention_share", "hopper")
    assert gains == pytest.approx([(share - 1) / 2, share - 1, share - 1])


def test_single_products_alone_reach_more_than_the_tables_of_nvfp4() -> None:
    share = load_training_parameters().of("nvfp4_share")
    for dtype, faster in (("bf16", 1.0), ("mxfp8", 1.0), ("nvfp4", share)):
        on = machine(device=load_device("b200"), efficiencies=load_operator_efficiencies("b200"), dtype=dtype)
        plain = replace(on, parameters=with_parameters(nvfp4_share=1.0))
        for kind, expected in (("gemm", faster), ("grouped_gemm", 1.0)):
            matrix = next(op for op in MOE.operators if op.kind == kind and op.name != "experts.router")
            one = replace(MOE, operators=(matrix,), collectives=())
            assert forward_pass([(one, 1)], plain).gemm_s == pytest.approx(
                expected * forward_pass([(one, 1)], on).gemm_s
            )


@pytest.mark.parametrize("way", WAYS)
def test_a_scale_found_in_the_tensor_takes_one_more_kernel_a_product(way: Callable[..., PassTime]) -> None:
    matrix = next(op for op in work().operators if op.kind == "gemm")
    (rows, columns, inner), one = matrix.shape, replace(work(), operators=(matrix,), collectives=())
    read = rows * (inner if way is forward_pass else columns) * 2
    for dtype in ("bf16", "fp8", "fp8_block"):
        plain, current = (way([(one, 1)], machine(dtype=dtype, fp8_scaling=each)).gemm_s for each in SCALINGS)
        kernel_s = memory_seconds(read, device=H100, efficiencies=machine().efficiencies) if dtype == "fp8" else 0.0
        assert current - plain == pytest.approx(kernel_s / machine().parameters.of("gemm_share", "hopper"))


@pytest.mark.parametrize("way", WAYS)
def test_products_of_wide_layers_are_in_16_bits(way: Callable[..., PassTime]) -> None:
    narrow, wide = machine(dtype="fp8", fp8_attention="yes"), work(wide=True)
    assert way([(wide, 2)], narrow) == way([(work(), 2)], machine())
    assert way([(work(), 2)], narrow).gemm_s != way([(wide, 2)], narrow).gemm_s
    driven = host(modules="transformer_engine")
    casting = replace(driven, narrow=True)
    assert casting.forward(wide.operators) == driven.forward(work().operators)


@pytest.mark.parametrize("way", WAYS)
def test_a_shared_expert_hides_as_much_of_the_exchange_as_it_takes(way: Callable[..., PassTime]) -> None:
    def shared(**changes: Any) -> PassTime:
        assert isinstance(MOE_BLOCK, TransformerBlock)
        assert isinstance(MOE_BLOCK.feed_forward, Experts)
        one = replace(MOE_BLOCK, feed_forward=replace(MOE_BLOCK.feed_forward, shared_hidden=4096))
        return way([(work(one, ep=2), 3)], machine(**changes))

    def plain(**changes: Any) -> PassTime:
        return way([(work(MOE_BLOCK, ep=2), 3)], machine(shared_beside=True, **changes))

    felt = load_training_parameters().of("overlap_cost", "tp")
    for seconds in (1e-6, 1.0):
        exchange: dict[str, Any] = {"collective_s": lambda one, seconds=seconds: seconds * (one.axis == "ep")}
        alone, beside = shared(**exchange), shared(shared_beside=True, **exchange)
        hidden_s = alone.ep_s - beside.ep_s
        expert_s = alone.total_s - plain(**exchange).total_s
        assert hidden_s == pytest.approx((1 - felt) * min(alone.ep_s, expert_s))
        # Where another micro-batch hides the exchange, its own shared expert has nothing to hide.
        assert shared(shared_beside=True, overlap_ep=True, **exchange) == shared(overlap_ep=True, **exchange)
        assert plain(**exchange).ep_s == way([(work(MOE_BLOCK, ep=2), 3)], machine(**exchange)).ep_s


@given(chosen=works, on=machines)
def test_tensor_parallel_overlap_never_costs(chosen: Work, on: Machine) -> None:
    for way in WAYS:
        alone = way([(chosen, 1)], replace(on, overlap_tp=False))
        beside = way([(chosen, 1)], replace(on, overlap_tp=True))
        assert beside.total_s <= alone.total_s * (1 + 1e-12)
        assert beside.gemm_s == alone.gemm_s


def test_overlap_hides_the_inputs_collectives_of_backward_alone() -> None:
    """Megatron runs the sum (or gathering) of a product's input beside products; what is hidden costs its share."""
    chosen = work(tp=4)
    entered = [one for one in chosen.collectives if one.phase == "backward"]
    seconds = {True: 1e-6, False: 0.0}
    on = machine(collective_s=lambda one: seconds[one.phase == "backward"], overlap_tp=True)
    cost = on.parameters.of("overlap_cost", "tp")
    found = backward_pass([(chosen, 1)], on)
    assert found.gemm_s > 2e-6
    assert found.tp_s == pytest.approx(cost * len(entered) * 1e-6)
    assert forward_pass([(chosen, 1)], machine(overlap_tp=True)) == forward_pass([(chosen, 1)], machine())
    # In pieces all but the first or last of each is hidden, forward too.
    shared = work(tp=4, sequence_parallel=True)
    pieces = replace(on, tensor_overlap="pipelined", collective_s=lambda _: 1e-6)
    assert forward_pass([(shared, 1)], pieces).tp_s == pytest.approx(4e-6 * (1 - 0.75 * (1 - cost)))
    # Products cover no more than they take.
    long = backward_pass([(chosen, 1)], replace(on, collective_s=lambda one: seconds[one.phase == "backward"] * 1e6))
    assert long.tp_s == pytest.approx(2.0 - (1 - cost) * long.gemm_s)


def test_context_parallel_steps_hide_behind_attention() -> None:
    chosen, on = work(cp=2), machine()
    took = sum(on.collective_s(one) for one in chosen.collectives if one.phase == "forward")
    found = forward_pass([(chosen, 1)], on)
    assert found.cp_s == pytest.approx(
        took - min(took, found.attention_s) * (1 - on.parameters.of("overlap_cost", "tp"))
    )
    assert found.cp_s < took


def test_context_parallelism_hides_no_tensor_parallel_collectives() -> None:
    chosen, on = work(tp=2, cp=2), machine()
    for way, phase in ((forward_pass, "forward"), (backward_pass, "backward")):
        took = sum(on.collective_s(one) for one in chosen.collectives if one.axis == "tp" and one.phase == phase)
        assert way([(chosen, 1)], on).tp_s == pytest.approx(took)


def collective_times(**seconds: float) -> Callable[[Collective], float]:
    return lambda one: seconds.get(one.axis, 0.0)


def test_collectives_of_each_axis_are_told_apart() -> None:
    chosen = work(MOE_BLOCK, tp=2, sequence_parallel=True, ep=2, etp=1)
    on = machine(collective_s=collective_times(tp=1.0, ep=0.5))
    count = {
        axis: sum(one.axis == axis and one.phase == "forward" for one in chosen.collectives) for axis in ("tp", "ep")
    }
    found = forward_pass([(chosen, 1)], on)
    assert (found.tp_s, found.ep_s, found.cp_s) == (count["tp"] * 1.0, count["ep"] * 0.5, 0)
    assert found.communication_s == found.tp_s + found.ep_s


def test_fp8_is_for_the_blocks_products_alone() -> None:
    def seconds(dtype: Any, layer: Any) -> PassTime:
        return forward_pass([(work(layer, dtype=dtype, samples=8), 1)], machine(dtype=dtype))

    # So wide that what products gain pays for the casts of their activations.
    block = load_model("llama3-8b").layers[1]
    narrow, wide = seconds("fp8", block), seconds("bf16", block)
    assert narrow.gemm_s < wide.gemm_s
    assert narrow.attention_s == wide.attention_s
    assert narrow.memory_bound_s == wide.memory_bound_s
    assert seconds("fp8", HEAD) == seconds("bf16", HEAD)
    math_ = [
        forward_pass([(work(dtype=dtype, attention="math"), 1)], machine(dtype=dtype)) for dtype in ("fp8", "bf16")
    ]
    assert math_[0].attention_s == math_[1].attention_s


def test_weight_gradients_are_half_of_backwards_products() -> None:
    found = backward_pass([(work(), 1)], machine())
    assert found.weight_s == pytest.approx(found.gemm_s / 2, rel=1e-9)
    assert forward_pass([(work(), 1)], machine()).weight_s == 0


def test_a_frozen_layer_has_no_weight_gradients_to_put_off() -> None:
    assert backward_pass([(work(frozen=True), 1)], machine()).weight_s == 0


def test_what_backward_cannot_put_off_is_never_longer_on_a_faster_device() -> None:
    fast = replace(H100, peak_flops_per_s=tuple((name, 2 * peak) for name, peak in H100.peak_flops_per_s))
    slow, quick = (
        backward_pass([(work(samples=1), 1)], machine(device=device, host=host())) for device in (H100, fast)
    )
    assert quick.total_s - quick.weight_s <= (slow.total_s - slow.weight_s) * (1 + 1e-9)


def test_gradients_are_accumulated_in_a_pass_of_their_own_where_products_do_not() -> None:
    chosen, on = work(), machine(accumulator_bytes=0, accumulation_bytes=10)
    without = backward_pass([(chosen, 2)], replace(on, accumulation_bytes=0))
    added = backward_pass([(chosen, 2)], on).memory_bound_s - without.memory_bound_s
    rate = on.bandwidth_bytes_per_s * on.parameters.of("memory_share", "fused", *on.qualifiers)
    assert added == pytest.approx(2 * 10 * chosen.trainable_parameters / rate)
    assert forward_pass([(chosen, 2)], on) == forward_pass([(chosen, 2)], replace(on, accumulation_bytes=0))


def test_an_operator_without_kernels_takes_no_time() -> None:
    idle = Operator(name="x", kind="memory", shape=(10,), forward_bytes=10**9, forward_kernels=0)
    assert forward_pass([(Work(operators=(idle,)), 1)], machine(host=host())).total_s == 0


def test_as_many_profiles_as_works() -> None:
    with pytest.raises(ValueError, match="shorter"):
        forward_pass([(work(), 1), (work(HEAD), 1)], machine(), [None])


def test_a_head_of_no_vocabulary_has_its_norm_alone() -> None:
    found = forward_pass([(work(Head(hidden=512, vocab=0)), 1)], machine())
    assert found.total_s == found.memory_bound_s > 0
