"""What a row measured, in SI units: an iteration's seconds from whichever metric it states, and memory by its kind."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from models_zoo.layers import TransformerBlock
from planner.one_job.validation.results import MemoryKind
from profiles.records import dataclass

if TYPE_CHECKING:
    from estimator.pricing.recipe import Setup
    from models_zoo.model import Model
    from planner.one_job.validation.columns import RunRow

FlopsConvention = Literal["model", "causal", "hardware"]
"""How a published TFLOP/s counts: attention in full and nothing twice (PaLM, appendix B), causal attention half, or
with what recomputation runs again."""

CONVENTIONS: dict[str, FlopsConvention] = {"": "model", "model": "model", "causal": "causal", "hardware": "hardware"}
MEMORY_KINDS: dict[str, MemoryKind] = {
    "": "reserved",
    "allocated": "allocated",
    "reserved": "reserved",
    "required": "required",
}
UNITS = {"": 10**9, "GB": 10**9, "GiB": 2**30, "MiB": 2**20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of an iteration and bytes of the fullest device, or of one of the last stage, None where the row does not
    tell; the bytes' kind."""

    iteration_time_s: float | None
    memory_bytes: float | None
    memory_kind: MemoryKind
    out_of_memory: bool
    of_last_stage: bool = False


def measured_of(row: RunRow, setup: Setup | None = None) -> Measured:
    """Return what `row` measured. `setup` is its plan: TFLOP/s and MFU need the FLOPs of its model."""
    return Measured(
        iteration_time_s=measured_time_s(row, setup),
        memory_bytes=None if row.peak_mem_gb is None else row.peak_mem_gb * UNITS[row.memory_unit],
        memory_kind=MEMORY_KINDS[row.memory_kind],
        out_of_memory=bool(row.out_of_memory),
        of_last_stage=row.memory_stage == "last",
    )


def measured_time_s(row: RunRow, setup: Setup | None = None) -> float | None:
    """Return seconds of an iteration: the stated time; the time that the table's author derived; else what tokens/s,
    TFLOP/s or MFU come to with batch, length and devices. None where these are not known."""
    value = row.metric_value
    if row.iter_time_s is not None:
        return row.iter_time_s
    if row.metric_name == "iter_time_s":
        return value
    if row.derived_iter_time_s is not None or value is None:
        return row.derived_iter_time_s
    if row.metric_name == "tokens_per_s_per_gpu":
        return _time_from_tokens(row, setup, value)
    return None if setup is None else _time_from_flops(row, setup, value)


def _time_from_tokens(row: RunRow, setup: Setup | None, value: float) -> float | None:
    """Seconds of an iteration from stated tokens/s of a device."""
    batch = row.global_batch or (setup.recipe.global_batch if setup else None)
    seq_len = row.seq_len or (setup.recipe.seq_len if setup else None)
    devices = row.gpus_total or (setup.devices if setup else None)
    return batch * seq_len / (value * devices) if batch and seq_len and devices else None


def _time_from_flops(row: RunRow, setup: Setup, value: float) -> float | None:
    """Seconds of an iteration from a stated TFLOP/s or MFU through the FLOPs of the row's own model.

    `model` FLOPs are three times forward's matrix products with attention in full (PaLM, appendix B), `causal` those
    with causal attention half, `hardware` those and the blocks' forward once more where the row recomputes in full
    (Narayanan et al. 2021, equation 3: 96 B s l h^2 ...). MFU is in percent of the device's dense peak in its dtype.
    """
    if not setup.model.seq_len:
        return None
    rate = value * 1e12
    if row.metric_name == "mfu":
        peak = setup.cluster.group_of(setup.stages[0].slots[0]).device.peak(setup.recipe.dtype)
        if peak is None:
            return None
        rate = value / 100 * peak
    batch = row.global_batch or setup.recipe.global_batch
    flops = _flops(setup.model, CONVENTIONS[row.tflops_convention], recomputed=row.recompute == "full")
    return batch * flops / (rate * setup.devices)


@lru_cache(maxsize=1024)
def _flops(model: Model, convention: FlopsConvention, *, recomputed: bool) -> int:
    """FLOPs of one sample by a convention."""
    from estimator.layers.flops import count_model_flops

    counted = count_model_flops(model, model.seq_len)
    if convention == "causal":
        return counted.causal
    again = counted.forward_by_layer if convention == "hardware" and recomputed else ()
    blocks = (f for f, layer in zip(again, model.layers, strict=False) if isinstance(layer, TransformerBlock))
    return counted.model + sum(blocks)
