"""The operator model's time of one layer's local shard, for benches whose workers sleep so long."""

from __future__ import annotations

from dataclasses import replace

from estimator.cells.job import cell_recipe
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work
from estimator.pricing.layer_times import Lookup
from estimator.pricing.optimizers import OPTIMIZERS
from estimator.pricing.pass_time import backward_pass, forward_pass
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_cost import stage_machine
from models_zoo.layers import Experts, Layer, TransformerBlock
from models_zoo.model import Model
from profiles.cluster import Cluster
from profiles.vocabulary import Device, LayerTime, Shard


def operator_times(model: Model, cluster: Cluster, device: Device) -> Lookup:
    """Return a lookup of what the operator model says of shards of `model`'s layers on `device`, collectives apart;
    None where a layer cannot be held so."""

    def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
        work = layer_work(layer, _split(layer, shard))
        if not isinstance(work, Work):
            return None
        # Two micro-batches, so that gradients are added to those before, as in training.
        recipe = cell_recipe(global_batch=2, seq_len=shard.seq_len, dtype=shard.dtype)
        stage = StageSetup(chunks=((0, 1),), slots=cluster.slots[:1])
        setup = Setup(model=model, cluster=cluster, recipe=recipe, stages=(stage,), micro_batch=1)
        machine = stage_machine(setup, device, Pricing(), lambda *_: 0.0)
        alone = [(replace(work, collectives=(), again_collectives=()), 1)]
        stream = machine.bandwidth_bytes_per_s * machine.parameters.of("memory_share", "fused", *machine.qualifiers)
        each = OPTIMIZERS[recipe.optimizer].step_bytes(recipe.dtype, recipe.grad_dtype)
        return LayerTime(
            forward_s=forward_pass(alone, machine).total_s,
            backward_s=backward_pass(alone, machine).total_s,
            optimizer_s=(work.parameters + work.expert_parameters) * each / stream,
            provenance="modelled",
        )

    return look_up


def _split(layer: Layer, shard: Shard) -> Split:
    experts = isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts)
    return Split(
        samples=shard.micro_batch_per_rank,
        seq_len=shard.seq_len,
        dtype=shard.dtype,
        tp=shard.tp,
        sequence_parallel=shard.sequence_parallel and shard.tp > 1,
        ep=shard.tp if experts else 1,
        attention=shard.attention,
        recompute=shard.recompute,
    )
