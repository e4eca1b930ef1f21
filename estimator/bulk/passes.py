"""Passes of many chunks at once: what layers add is a matrix product, what a pass makes of it is done on arrays.

The same rules as `estimator.pricing.pass_time.PassSum`, whose sums are linear in the layers.
"""

from __future__ import annotations

import numpy as np

from estimator.pricing.amounts import Floats
from estimator.pricing.host_time import HOST_WORK, HostWork
from estimator.pricing.pass_time import SECONDS, Machine, PassSum, finish_pass

HIDABLE = ("cp_s", "tp_s", "ep_s")
NAMES = (*SECONDS, *HOST_WORK, *(f"hidable_{axis}" for axis in HIDABLE))


def vector_of(total: PassSum) -> tuple[float, ...]:
    """A sum as a vector in the order of NAMES."""
    seconds, driven, hidable_s = total.seconds, total.host, total.hidable_s
    return (
        *[seconds[name] for name in SECONDS],
        *[float(getattr(driven, name)) for name in HOST_WORK],
        *[hidable_s[axis] for axis in HIDABLE],
    )


def finish(sums: Floats, machine: Machine) -> tuple[Floats, Floats]:
    """Return seconds of each pass, and of its weight gradients alone, from sums (n, len(NAMES))."""
    columns = {name: sums[:, place] for place, name in enumerate(NAMES)}
    done = finish_pass(
        {name: columns[name] for name in SECONDS},
        {axis: columns[f"hidable_{axis}"] for axis in HIDABLE},
        HostWork(**{name: columns[name] for name in HOST_WORK}),
        machine,
    )
    total_s = sum(seconds for name, seconds in done.items() if name != "weight_s")
    return np.asarray(total_s), np.asarray(done["weight_s"])
