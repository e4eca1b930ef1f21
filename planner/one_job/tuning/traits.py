"""Where a plan lies among the plans of one model on one cluster, in numbers whose distance says how alike two are."""

from __future__ import annotations

import math
from collections.abc import Callable

from estimator.pricing.recipe import Setup
from profiles.vocabulary import RecomputeKind

RECOMPUTES: dict[RecomputeKind, float] = {"none": 0.0, "selective": 0.5, "full": 1.0}

TRAITS: dict[str, tuple[Callable[[Setup], float], float]] = {
    "tp": (lambda setup: math.log2(setup.stages[0].tp), 0.26),
    "pp": (lambda setup: math.log2(len(setup.stages)), 3.6),
    "dp": (lambda setup: math.log2(setup.stages[0].dp * setup.stages[0].cp), 3.5),
    "samples": (lambda setup: math.log2(setup.micro_batch / setup.stages[0].dp), 0.83),
    "recompute": (lambda setup: RECOMPUTES[setup.stages[0].recompute], 3.1),
    "cp": (lambda setup: math.log2(setup.stages[0].cp), 1.0),
    "ep": (lambda setup: math.log2(setup.stages[0].ep), 1.0),
    "chunks": (lambda setup: math.log2(len(setup.stages[0].chunks)), 1.0),
    "zero": (lambda setup: float(setup.stages[0].zero > 0) + float(setup.stages[0].zero == 3), 1.0),
    "schedule": (lambda setup: float(setup.recipe.schedule in ("gpipe", "zb-h1", "dualpipe")), 1.0),
}
"""How each trait is read off a plan's first stage, and the distance in it at which likeness has fallen to e^(-1/2).

The first five lengths are the most likely ones given the fit half of the run tables (`python -m bench.tuning --fit`):
errors of other tp are their own, those of other pp and dp much the same. In the others too few groups of that half
differ to tell, and they are set so that one step makes a plan another one.
"""


def traits_of(setup: Setup) -> tuple[float, ...]:
    """Each trait in units of its length."""
    return tuple(read(setup) / length for read, length in TRAITS.values())
