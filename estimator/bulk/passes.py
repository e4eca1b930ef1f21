"""Passes of many chunks at once: what layers add is a matrix product, what a pass makes of it is done on arrays.

The same rules as `estimator.pricing.pass_time.PassSum`, whose sums are linear in the layers.
"""

from __future__ import annotations

from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.pass_time import Machine, PassSum, PassTime

Floats = NDArray[np.float64]

SECONDS = tuple(part.name for part in fields(PassTime))
NAMES = (*SECONDS, "kernels", "collectives", "checkpoints", "hidable_cp_s", "hidable_tp_s", "hidable_ep_s")
PLACE = {name: place for place, name in enumerate(NAMES)}
DEVICE = [PLACE[name] for name in SECONDS if name != "weight_s"]
COMMUNICATION = [PLACE[name] for name in ("tp_s", "cp_s", "ep_s")]


def vector_of(total: PassSum) -> list[float]:
    """A sum as a vector in the order of NAMES."""
    counts = (total.kernels, total.collectives_launched, total.checkpoints)
    hidable = (total.hidable_s[axis] for axis in ("cp_s", "tp_s", "ep_s"))
    return [*(total.seconds[name] for name in SECONDS), *map(float, counts), *hidable]


def finish(raw: Floats, machine: Machine) -> tuple[Floats, Floats]:
    """Seconds of each pass, and of its weight gradients alone, from sums (n, len(NAMES))."""
    raw = raw.copy()
    parameters = machine.parameters
    compute_s = raw[:, PLACE["gemm_s"]] + raw[:, PLACE["attention_s"]] + raw[:, PLACE["memory_bound_s"]]
    covers = {"cp_s": raw[:, PLACE["attention_s"]].copy(), "tp_s": raw[:, PLACE["gemm_s"]].copy(), "ep_s": compute_s}
    for axis, cover in covers.items():
        hidden = np.minimum(raw[:, PLACE[f"hidable_{axis}"]], cover)
        raw[:, PLACE[axis]] -= hidden * (1 - parameters.of("overlap_cost", "tp"))
    device_s = raw[:, DEVICE].sum(axis=1)
    weight_s = raw[:, PLACE["weight_s"]]
    if not machine.host_launches:
        return device_s, weight_s
    host_s = (
        raw[:, PLACE["kernels"]] * parameters.of("launch_s")
        + raw[:, PLACE["collectives"]] * parameters.of("launch_collective_s")
        + raw[:, PLACE["checkpoints"]] * parameters.of("launch_checkpoint_s")
    )
    power = parameters.of("launch_norm")
    longer, shorter = np.maximum(host_s, device_s), np.minimum(host_s, device_s)
    both = shorter > 0
    ratio = np.divide(shorter, longer, out=np.zeros_like(longer), where=both)
    total_s = np.where(both, longer * (1 + ratio**power) ** (1 / power), device_s)
    scale = np.divide(total_s, device_s, out=np.ones_like(device_s), where=both)
    return total_s, weight_s * scale
