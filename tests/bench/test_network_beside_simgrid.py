"""The player beside SimGrid, where a Python of this machine has its binding."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from random import Random

import pytest

from bench.network.beside_simgrid import draw_network, simgrid_ends
from bench.network.packets import PacketFlow, fluid_ends

PYTHONS = (sys.executable, "/usr/bin/python3")


@pytest.fixture(scope="module")
def python() -> str:
    for name in PYTHONS:
        words = [name, "-c", "import simgrid"]
        if Path(name).exists() and subprocess.run(words, capture_output=True, check=False).returncode == 0:
            return name
    pytest.skip("no Python here has SimGrid's binding")


def test_three_flows_over_two_links(python: str) -> None:
    flows = [
        PacketFlow(way=(0,), packets=10**8, starts_s=0.0, level=0),
        PacketFlow(way=(0, 1), packets=10**8, starts_s=0.5, level=0),
        PacketFlow(way=(1,), packets=10**8, starts_s=0.0, level=0),
    ]
    assert simgrid_ends(flows, [1e8, 1e8], python) == pytest.approx([1.5, 2.0, 1.5])
    assert fluid_ends(flows, [1e8, 1e8]) == pytest.approx([1.5, 2.0, 1.5])


@pytest.mark.parametrize("seed", range(10))
def test_ends_are_simgrids(seed: int, python: str) -> None:
    flows, rates = draw_network(Random(seed))
    assert fluid_ends(flows, rates) == pytest.approx(simgrid_ends(flows, rates, python), rel=1e-9)


@pytest.mark.skipif(find_spec("simgrid") is not None, reason="this Python has SimGrid's binding")
def test_a_python_without_it_is_told() -> None:
    with pytest.raises(RuntimeError, match="simgrid"):
        simgrid_ends([PacketFlow(way=(0,), packets=1, starts_s=0.0, level=0)], [1.0], sys.executable)
