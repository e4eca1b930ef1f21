"""A short round of kills: of each command that writes, a few moments (`python -m bench.killed` tries 500)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench.killed.killing import Commands, kill_often, warm_commands
from bench.killed.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system has no /proc")


@pytest.fixture(scope="module")
def commands() -> Iterator[Commands]:
    with warm_commands() as started:
        yield started


SHORT = [scenario for scenario in SCENARIOS if scenario.name != "run --learn --trace"]
"""That one takes a minute for each moment, most of which its workers take to start."""


@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_nothing_is_lost_or_left(scenario: Scenario, commands: Commands, tmp_path: Path) -> None:
    verdict = kill_often(scenario, 3, commands, tmp_path / "killed", random.Random(scenario.name))
    assert verdict.moments == 3
    assert verdict.completed
    assert not verdict.wrong


def test_what_is_lost_or_left_is_told(commands: Commands, tmp_path: Path) -> None:
    """Of a command that writes as it should, by a check that holds of none."""

    def refuse(_folder: Path) -> frozenset[str]:
        raise AssertionError("no good")

    checked = [frozenset({"all"})]
    planning = next(scenario for scenario in SCENARIOS if scenario.name == "plan -o")
    lost = replace(planning, check=lambda folder: checked.pop() if checked else refuse(folder), same=())
    verdict = kill_often(lost, 1, commands, tmp_path / "killed", random.Random(0))
    assert any("no good" in fault for fault in verdict.wrong)


def test_shares_make_a_whole() -> None:
    assert sum(scenario.share for scenario in SCENARIOS) == pytest.approx(1)
    assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
