"""The modelled time of a shard: a layer of an explicit plan, never faster than its device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from estimator.compute import bare_machine, model_layer_time, parameters_on
from estimator.layers.shards import shard_layer
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.pass_time import backward_pass, forward_pass
from estimator.pricing.recipe import Software
from models_zoo.catalogue import load_model
from models_zoo.layers import Layer
from profiles.efficiencies import load_operator_efficiencies
from profiles.hardware import load_device
from profiles.training_parameters import load_training_parameters
from profiles.vocabulary import Device, Infeasible, LayerTime, LocalLayer, Shard

A100 = load_device("a100-80gb")


def time_of(layer: Layer, shard: Shard, device: Device = A100) -> LayerTime:
    local = shard_layer(layer, shard)
    assert isinstance(local, LocalLayer)
    time = model_layer_time(layer, shard, local, device=device, optimizer_bytes_per_parameter=28)
    assert isinstance(time, LayerTime)
    return time


def test_a_block_takes_what_it_takes_in_an_explicit_plan_without_its_collectives() -> None:
    model = load_model("llama3-8b")
    block = model.layers[1]
    found = time_of(block, Shard(tp=2, micro_batch_per_rank=2, seq_len=4096))
    work = layer_work(block, Split(samples=2, seq_len=4096, tp=2))
    assert isinstance(work, Work)
    machine = bare_machine(A100, "bf16", Software(name="generic"), parameters_on(A100))
    alone = [(Work(operators=work.operators), 1)]
    assert found.forward_s == forward_pass(alone, machine).total_s
    assert found.backward_s == backward_pass(alone, machine).total_s
    assert found.provenance == "modelled"


def test_experts_on_tensor_parallel_ranks_and_convolutions_run_their_own_operators() -> None:
    for name, layer in (("moe-2.4b", 2), ("resnet-50", 1)):
        model = load_model(name)
        shard = Shard(tp=1, micro_batch_per_rank=4, seq_len=model.seq_len)
        local = shard_layer(model.layers[layer], shard)
        assert isinstance(local, LocalLayer)
        machine = bare_machine(A100, "bf16", Software(name="generic"), parameters_on(A100))
        expected = forward_pass([(Work(operators=local.operators), 1)], machine).total_s
        assert time_of(model.layers[layer], shard).forward_s == expected


def test_the_optimizers_step_is_memory_traffic() -> None:
    layer = load_model("llama3-8b").layers[1]
    local = shard_layer(layer, Shard(seq_len=128))
    assert isinstance(local, LocalLayer)
    share = load_operator_efficiencies(A100.name).bandwidth_share * load_training_parameters().of(
        "memory_share", "fused"
    )
    expected = 28 * local.parameters / (share * A100.memory_bandwidth_bytes_per_s)
    assert time_of(layer, Shard(seq_len=128)).optimizer_s == pytest.approx(expected, rel=1e-12)


def test_measured_rates_hold_all_that_there_is() -> None:
    """A device whose rates were measured has neither host launches nor parameters of other machines' runs."""
    cpu = replace(A100, name="cpu", peak_basis="measured")
    assert parameters_on(cpu).of("gemm_share") == 1.0
    machine = bare_machine(cpu, "bf16", Software(name="generic"), parameters_on(cpu))
    assert not machine.host_launches
    assert parameters_on(A100) is load_training_parameters()


def test_a_dtype_without_unit_is_infeasible() -> None:
    layer, shard = load_model("llama3-8b").layers[1], Shard(seq_len=128, dtype="bf16")
    local = shard_layer(layer, shard)
    assert isinstance(local, LocalLayer)
    device = load_device("v100-32gb")
    time = model_layer_time(layer, shard, local, device=device, optimizer_bytes_per_parameter=28)
    assert isinstance(time, Infeasible)
    assert time.lacking == "support"
    assert time.reason.startswith("v100-32gb has no bf16 rate in the catalogue (it has fp32, ")


@pytest.mark.parametrize("name", ["gpt3-175b", "resnet-50", "moe-2.4b"])
def test_no_layer_beats_the_device(name: str) -> None:
    """No more FLOP/s than the datasheet's, for real layers on real devices, in flash attention's own count."""
    model = load_model(name)
    for device in map(load_device, ("v100-32gb", "a100-80gb", "h100", "b200", "mi300x")):
        for layer in dict.fromkeys(model.layers):
            shard = Shard(seq_len=model.seq_len, dtype="fp16", micro_batch_per_rank=2)
            local = shard_layer(layer, shard)
            assert isinstance(local, LocalLayer)
            time = time_of(layer, shard, device)
            causal = sum(op.forward_flops + op.backward_flops for op in local.operators if op.kind == "attention") / 2
            flops = local.forward_flops + local.backward_flops - causal
            peak = device.peak("fp16")
            assert peak is not None
            assert time.forward_s + time.backward_s > flops / peak, (device.name, layer)
