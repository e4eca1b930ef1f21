"""Passes of many chunks at once: what layers add is a matrix product, what a pass makes of it is done on arrays.

The same rules as `estimator.pricing.pass_time.PassSum`, whose sums are linear in the layers.
"""

from __future__ import annotations

from operator import attrgetter, itemgetter

import numpy as np

from estimator.pricing.amounts import Floats
from estimator.pricing.host_time import HOST_WORK, HostWork
from estimator.pricing.pass_time import KIND_FIELDS, SECONDS, Machine, PassSum, finish_pass

HIDABLE = ("cp_s", "tp_s", "ep_s")
NAMES = (*SECONDS, *HOST_WORK, *(f"hidable_{axis}" for axis in HIDABLE))
_KINDS = tuple(NAMES.index(name) for name in dict.fromkeys(KIND_FIELDS.values()))
_AXES = tuple(NAMES.index(name) for name in HIDABLE)
_HOST = tuple(NAMES.index(name) for name in HOST_WORK)
_RECOMPUTED, _CHECKPOINTS, _STEPS = (NAMES.index(name) for name in ("recompute_s", "checkpoints", "steps"))
_seconds_of, _hidable_of, _work_of = itemgetter(*SECONDS), itemgetter(*HIDABLE), attrgetter(*HOST_WORK)
NOTHING = (0.0,) * len(NAMES)
"""What no operator adds."""


def vector_of(total: PassSum) -> tuple[float, ...]:
    """A sum as a vector in the order of NAMES."""
    return (*_seconds_of(total.seconds), *_work_of(total.host), *_hidable_of(total.hidable_s))


def at_an_end(computed: tuple[float, ...]) -> tuple[float, ...]:
    """Return the forward pass of an embedding or a head, whose operators add up to `computed`."""
    return (*computed[:_STEPS], computed[_STEPS] + 1, *computed[_STEPS + 1 :])


def repeat_forward(computed: tuple[float, ...], talked: tuple[float, ...]) -> tuple[float, ...]:
    """Return what a layer's whole forward pass adds to a backward one that runs it again: what its rank computes in it,
    and what ranks tell each other, which nothing hides there (`PassSum.again`, `PassSum.talk_again`)."""
    again = [0.0] * len(NAMES)
    again[_RECOMPUTED] = sum(computed[place] for place in _KINDS)
    for place in _AXES:
        again[place] = talked[place]
    for place in _HOST:
        again[place] = computed[place] + talked[place]
    again[_CHECKPOINTS] += 1
    return tuple(again)


def finish_one(sums: tuple[float, ...], machine: Machine) -> float:
    """Return seconds of one pass, from sums in the order of NAMES."""
    columns = dict(zip(NAMES, sums, strict=True))
    done = finish_pass(
        {name: columns[name] for name in SECONDS},
        {axis: columns[f"hidable_{axis}"] for axis in HIDABLE},
        HostWork(**{name: columns[name] for name in HOST_WORK}),
        machine,
    )
    return float(sum(seconds for name, seconds in done.items() if name != "weight_s"))


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
