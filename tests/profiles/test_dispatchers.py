"""Dispatchers of tokens as the file has them: each that software can declare, with what it rests on."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from estimator.pricing.recipe import Dispatch
from profiles.dispatchers import load_dispatcher


@pytest.mark.parametrize("name", get_args(Dispatch))
def test_every_dispatcher_that_software_declares_is_there(name: str) -> None:
    dispatcher = load_dispatcher(name)
    assert dispatcher.name == name
    assert dispatcher.basis
    assert dispatcher.once == bool(dispatcher.rows)
    assert dispatcher.copying_s(2e9) == 2 * dispatcher.copying_s(1e9)
    assert (dispatcher.copying_s(1e9) > 0) == (dispatcher.multiprocessors > 0)


def test_a_kernel_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="expected both or neither"):
        replace(load_dispatcher("deduplicated"), bytes_per_s=0.0)
