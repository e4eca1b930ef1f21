"""What a layer's local shard takes and holds on a device that nobody has profiled, as one layer of an explicit plan.

A transformer's layers run as training frameworks run them (`estimator.layers.work`), the others by their own
operators. Collectives are not in it: who asks for a shard's time adds those of its groups.
"""

from __future__ import annotations

from dataclasses import replace

from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.memory import layer_bytes
from estimator.pricing.memory_features import GENERIC
from estimator.pricing.pass_time import Machine, attention_kernel_of, backward_pass, forward_pass
from estimator.pricing.recipe import Software
from models_zoo.layers import Embedding, Experts, Head, Layer, TransformerBlock
from profiles.efficiencies import load_operator_efficiencies
from profiles.training_parameters import TrainingParameters, load_training_parameters, neutral_parameters
from profiles.vocabulary import Collective, Device, DType, Infeasible, LayerTime, LocalLayer, Shard, held_bytes

SOFTWARE = Software(name="generic")
"""What is taken for granted of a framework that nobody named."""


def model_layer_time(
    layer: Layer, shard: Shard, local: LocalLayer, *, device: Device, optimizer_bytes_per_parameter: float
) -> LayerTime | Infeasible:
    """Seconds of one micro-batch through `layer` held as `shard`, whose local shard is `local`, without recomputation.

    `optimizer_bytes_per_parameter` is the optimizer step's memory traffic. Infeasible if the device has no unit for the
    shard's dtype.
    """
    if device.peak(shard.dtype) is None:
        known = ", ".join(name for name, _ in device.peak_flops_per_s)
        return Infeasible(
            reason=f"{device.name} has no {shard.dtype} rate in the catalogue (it has {known})", lacking="support"
        )
    machine = bare_machine(device, shard.dtype, SOFTWARE, parameters_on(device))
    works = [(_work(layer, shard, local), 1)]
    stream = machine.bandwidth_bytes_per_s * machine.parameters.of("memory_share", "fused")
    return LayerTime(
        forward_s=forward_pass(works, machine).total_s,
        backward_s=backward_pass(works, machine).total_s,
        optimizer_s=local.parameters * optimizer_bytes_per_parameter / stream,
        provenance="modelled",
    )


def parameters_on(device: Device) -> TrainingParameters:
    """The parameters of whole runs; none for a device whose rates were measured, as they hold all that there is."""
    return load_training_parameters() if device.peak_basis == "datasheet" else neutral_parameters()


def bare_machine(device: Device, dtype: DType, software: Software, parameters: TrainingParameters) -> Machine:
    """`device` under `software`, with collectives that take no time and no sums of gradients."""
    efficiencies = load_operator_efficiencies(device.name)
    return Machine(
        device=device,
        efficiencies=efficiencies,
        parameters=parameters,
        dtype=dtype,
        collective_s=_nothing,
        overlap_tp=False,
        overlap_ep=False,
        host_launches=software.launch == "eager" and device.peak_basis == "datasheet",
        kernels=software.kernels,
        accumulation_bytes=0,
        fused_accumulation=software.fused_accumulation,
        attention_kernel=attention_kernel_of(software.flash_generation, efficiencies),
        flash_generation=software.flash_generation,
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s * efficiencies.bandwidth_share,
    )


def _nothing(_collective: Collective) -> float:
    return 0.0


def model_working_bytes(layer: Layer, shard: Shard, local: LocalLayer) -> int:
    """The most bytes that live only while `layer` runs, beyond what it keeps for backward: copies, gradients of
    activations and, with recomputation, what was computed again. As an explicit plan of the generic software has it."""
    work = _whole_work(layer, shard)
    if work is None:
        recomputed = local.saved_bytes if shard.recompute == "full" else 0
        work = Work(
            operators=local.operators,
            again=local.operators if recomputed else (),
            trainable_parameters=local.parameters,
            temporary_bytes=recomputed,
            input_bytes=local.input_bytes,
            output_bytes=local.output_bytes,
        )
    return layer_bytes(work, held_bytes(shard.dtype), GENERIC)


def _work(layer: Layer, shard: Shard, local: LocalLayer) -> Work:
    """The layer's operators without collectives and recomputation."""
    work = _whole_work(layer, replace(shard, recompute="none"))
    return Work(operators=local.operators if work is None else work.operators)


def _whole_work(layer: Layer, shard: Shard) -> Work | None:
    """The layer's work as frameworks do it; None where that is not how a Cell has it. Experts split over
    tensor-parallel ranks that all have all tokens are no framework's: they run by the shard's own operators."""
    if not isinstance(layer, TransformerBlock | Embedding | Head):
        return None
    if isinstance(layer, TransformerBlock) and (isinstance(layer.feed_forward, Experts) or layer.parallel):
        return None
    split = Split(
        samples=shard.micro_batch_per_rank,
        seq_len=shard.seq_len,
        dtype=shard.dtype,
        tp=shard.tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
        attention=shard.attention,
        kernels=SOFTWARE.kernels,
        recompute=shard.recompute,
    )
    work = layer_work(layer, split)
    return work if isinstance(work, Work) else None
