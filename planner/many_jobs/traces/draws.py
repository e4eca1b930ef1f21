"""Random numbers for the rows of a trace: one stream a purpose, so that drawing one thing never changes another."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

Purpose = Literal["pool", "family", "size", "batch", "deadline"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def draws(seed: int, purpose: Purpose, count: int) -> list[float]:
    """`count` numbers of [0, 1), which depend on seed and purpose alone; those of fewer rows are the first of these."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, *purpose.encode()])))
    numbers: list[float] = generator.random(count).tolist()
    return numbers
