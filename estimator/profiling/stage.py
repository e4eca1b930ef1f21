"""A whole stage profiled as one piece, and set against the sum of its layers.

Crius (section 5.1) compiles a stage as it would run and profiles that ("distributed-equivalent compilation"): a
compiler fuses across operators, so that a stage may take less than its layers one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from estimator.profiling.plan import ProfileTask
from estimator.profiling.setting import Setting, layer_key, low_quantile, stage_key
from estimator.profiling.user_layers import user_layers, users_own
from models_zoo.layers import Layer
from profiles.measurements import Measurement, MeasurementKey
from profiles.records import dataclass
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class StageComparison:
    """Seconds and saved bytes of a stage as one piece and as the sum of its layers, each measured alone."""

    layers_forward_s: float
    layers_backward_s: float
    layers_optimizer_s: float
    layers_saved_bytes: int
    stage_forward_s: float
    stage_backward_s: float
    stage_optimizer_s: float
    stage_saved_bytes: int

    @property
    def ratio(self) -> float:
        """Forward and backward of the stage over those of its layers: below 1 the whole is faster."""
        return (self.stage_forward_s + self.stage_backward_s) / (self.layers_forward_s + self.layers_backward_s)


def profile_stage(
    store: ProfileStore, layers: Sequence[Layer], shard: Shard, setting: Setting, *, compiled: bool
) -> StageComparison | Infeasible:
    """Measure contiguous `layers` as one piece, and each alone where `store` lacks it, on the device of `setting`.

    All of it goes into the store; what is there is not measured again. Infeasible with the reason if a layer or the
    stage cannot be had or compiled; InputError for a device that torch does not have here.
    """
    from estimator.profiling.measure_torch import measure_layer
    from estimator.profiling.rates_torch import identify_device
    from estimator.profiling.stage_torch import measure_stage

    identity = identify_device(setting)
    alone: dict[Layer, Measurement] = {}
    with user_layers() as measure_user:
        for layer in dict.fromkeys(layers):
            key = layer_key(layer, shard, identity, optimizer=setting.optimizer)
            task = ProfileTask(layer=layer, shard=shard, name=type(layer).__name__, multiplicity=1)
            users = partial(measure_user, users_own((layer,)), shard, setting)
            measurement = _stored(store, key, users if users_own((layer,)) else partial(measure_layer, task, setting))
            if isinstance(measurement, Infeasible):
                return measurement
            alone[layer] = measurement
        key = stage_key(layers, shard, identity, optimizer=setting.optimizer, compiled=compiled)
        of_user = users_own(layers)
        measure = partial(measure_user, of_user) if of_user else partial(measure_stage, layers)
        stage = _stored(store, key, partial(measure, shard, setting, compiled=compiled))
    return stage if isinstance(stage, Infeasible) else compare_stage(layers, stage, alone)


def compare_stage(
    layers: Sequence[Layer], stage: Measurement, measured: Mapping[Layer, Measurement]
) -> StageComparison:
    """`stage` against the sum over `layers` of what each took alone, low quantiles both. Raise KeyError for a layer
    that is
    not in `measured`."""
    alone = [measured[layer] for layer in layers]
    return StageComparison(
        layers_forward_s=sum(low_quantile(layer.forward_s) for layer in alone),
        layers_backward_s=sum(low_quantile(layer.backward_s) for layer in alone),
        layers_optimizer_s=sum(low_quantile(layer.optimizer_s) for layer in alone),
        layers_saved_bytes=sum(layer.saved_bytes for layer in alone),
        stage_forward_s=low_quantile(stage.forward_s),
        stage_backward_s=low_quantile(stage.backward_s),
        stage_optimizer_s=low_quantile(stage.optimizer_s),
        stage_saved_bytes=stage.saved_bytes,
    )


def _stored(
    store: ProfileStore, key: MeasurementKey, measure: Callable[[], Measurement | Infeasible]
) -> Measurement | Infeasible:
    """What `store` has under `key`, or what `measure` gives, which is then stored."""
    stored = store.get(key)
    if stored is not None:
        return stored
    measured = measure()
    if isinstance(measured, Measurement):
        store.put(key, measured)
    return measured
