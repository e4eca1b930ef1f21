"""Crux's testbed as figures 19 to 22 play it: who sits where, what blocks on PCIe, what counts as the paper's."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.contention import figures_19_22, testbed_cases
from bench.contention.figures_19_22 import (
    HASHES,
    HOWS,
    Outcome,
    Setting,
    _blocking,
    _fabric,
    _rows,
    has_sign,
    outcomes,
    settings,
)
from bench.contention.testbed_cases import Case, cases
from estimator.network.player.play import Settings, play
from estimator.network.steps import Mover, Playing, Step, Transfer
from estimator.network.wires import Floats
from profiles.records import replace

CASES = {case.name: case for case in cases()}


def setting(case: Case) -> Setting:
    return Setting(
        case=case,
        switches="one leaf a host",
        oversubscription=4,
        reach=0.25,
        behind=False,
        samples=tuple((kind, 8) for kind in case.kinds),
        hash_seed=0,
    )


def test_jobs_sit_where_the_paper_has_room() -> None:
    """96 GPUs, each of one job at most; where PCIe alone is shared no job leaves its leaf."""
    gpus = {"GPT 32": 32, "BERT 8": 8, "GPT 48": 48, "BERT 16": 16, "ResNet 8": 8, "ResNet 4": 4, "BERT 24": 24}
    for name, case in CASES.items():
        devices = [device for job in case.jobs for device in job.devices]
        assert len(set(devices)) == len(devices) <= 96
        assert all(0 <= host < 12 and 0 <= gpu < 8 for host, gpu in devices)
        assert {len(job.devices) for job in case.jobs} <= {gpus[words] for words in gpus if words in name}
        if case.inside:
            assert max(host for host, _ in devices) < 6
    assert len(CASES["GPT 48, 2 BERT 16, 2 ResNet 8"].jobs) == 5
    assert len({len(job.devices) for job in CASES["ResNet 8, BERT 24"].jobs}) == 2


@pytest.mark.parametrize(("switches", "ups"), [("one leaf a host", 24), ("a leaf for each NIC", 6)])
def test_uplinks_are_as_many_as_nics_or_fewer(switches: str, ups: int) -> None:
    for oversubscription in (1, 2):
        links = _fabric((switches, oversubscription, 1.0), 0).links
        leaf = links.names.index("leaf0") if "leaf0" in links.names else links.names.index("pod0/leaf0")
        up = [
            link
            for link in range(links.count)
            if links.ends[link, 0] == leaf and links.tier_of[links.ends[link, 1]] > 1
        ]
        assert len(up) == ups // oversubscription


def test_who_comes_first_on_a_pcie_link_blocks_the_other() -> None:
    """Half of the link each: with queues both send at once, each as alone; blocked, the other has the gaps alone."""
    fabric = _fabric(("one leaf a host", 1, 1.0), 0)
    assert fabric.pcie is not None
    link = int(fabric.pcie.nic_links[0])
    half = fabric.links.bytes_per_s[link] / 2

    def job(compute_s: float, level: int) -> Playing:
        transfer = Transfer(movers=(Mover(way=((link, half),), seconds=1.0),))
        return Playing(steps=(Step(compute_s=compute_s, begins_s=compute_s, transfers=(transfer,)),), level=level)

    def seconds(jobs: list[Playing], rates: Floats) -> list[float]:
        return [each.seconds for each in play(jobs, rates, settings=Settings(jitter=0.0, compiled=False)).jobs]

    jobs = [job(1.0, 0), job(0.5, 1)]
    assert seconds(jobs, fabric.links.bytes_per_s) == pytest.approx([2.0, 1.5])
    assert seconds(*_blocking(jobs, fabric)) == pytest.approx([2.0, 2.0])
    assert seconds(*_blocking([job(1.0, 0), job(0.5, 0)], fabric))[0] > 2.0


def test_signs_and_ranges() -> None:
    assert has_sign(-0.1, -0.25, -0.11)
    assert not has_sign(0.1, -0.25, -0.11)
    assert has_sign(0.2, 0.0, 0.03)
    assert not has_sign(-0.01, 0.0, 0.03)
    assert has_sign(-0.004, 0.0, 0.03)
    case = CASES["GPT 32, 2 BERT 8"]
    good = Outcome(setting=setting(case), work=(0.9, 0.99), busy=(0.9, 0.99), longer=(("GPT", -0.2), ("BERT", 0.02)))
    assert good.inside
    assert good.signs
    assert good.ordered
    assert good.contends
    other = replace(good, longer=(("GPT", 0.1), ("BERT", -0.1)))
    assert (other.inside, other.signs, other.ordered) == (False, False, False)
    rows = list(_rows("19", "crux", [good, other]))
    assert rows[0].startswith("| 19 | crux | 2 | 2 | utilisation | +8.3% to +12.9% | +10.0% |")
    assert "| 50% | 50% |" in rows[1]


def test_fewer_settings_are_some_of_all() -> None:
    """So that what is kept of a short run goes on to a long one."""
    case = CASES["BERT 16, 2 ResNet 4"]
    names = [each.name for each in settings(case, 1)]
    assert len(set(names)) == len(names)
    assert [each.name for each in settings(case, 13)] == names[::13]
    assert len({each.hash_seed for each in settings(case, 13)}) == HASHES


def test_what_is_kept_is_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything lost of it on the way to the file and back."""
    monkeypatch.setattr(figures_19_22, "PLAYING", Settings(jitter=0.01, compiled=False))
    case = CASES["BERT 16, 1 ResNet 4"]
    monkeypatch.setattr(figures_19_22, "cases", lambda: iter([case]))
    monkeypatch.setattr(figures_19_22, "settings", lambda *_: iter([setting(case)]))
    first = list(figures_19_22.lines(1, tmp_path / "kept"))
    monkeypatch.setattr(figures_19_22, "outcomes", lambda _: pytest.fail("it was played again"))
    assert list(figures_19_22.lines(1, tmp_path / "kept"))[1:] == first[1:]
    assert first[0].startswith("1 settings")


def test_settings_are_played_and_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a quarter of the uplinks and of their rate; Crux does no less than hashes."""
    monkeypatch.setattr(figures_19_22, "PLAYING", Settings(jitter=0.01, compiled=False))
    for name in ("GPT 32, 2 BERT 8", "BERT 16, 2 ResNet 4"):
        case = CASES[name]
        found = outcomes(setting(case))
        assert tuple(found) == HOWS[case.inside]
        assert found == outcomes(setting(case))
        for one in found.values():
            assert one.work[1] >= one.work[0] - 0.02
    assert testbed_cases.testbed("one leaf a host", 4, 0.25).sites[0].fabric_link.efficiency == pytest.approx(0.22)
