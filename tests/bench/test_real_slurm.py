"""A real slurmctld, where Slurm is installed or unpacked: it reads our tree, takes what our model says and we name."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.pods.cases import TABLE_1
from bench.pods.real_slurm import FOLDER, SELECTING, Slurm, controller, find_slurm
from bench.pods.slurm_trial import OCCUPANCIES, agreement, occupancies, trial_site
from profiles.topology_reading import network_under
from profiles.topology_slurm import read_topology_conf

SLURM = find_slurm()


@pytest.mark.skipif(isinstance(SLURM, str), reason=f"{SLURM} ({FOLDER}: a folder of unpacked packages)")
def test_slurmctld_reads_our_tree_and_takes_our_nodes() -> None:
    assert isinstance(SLURM, Slurm)
    site = trial_site(TABLE_1[2], 0)
    with controller(SLURM, site, selecting=SELECTING[1]) as running:
        tree = read_topology_conf(running.topology(), "scontrol show topology")
        under = network_under(tree, len(site.network.hosts), site.network.hosts, "the site")
        assert [level.part_of for level in under.levels[:2]] == [level.part_of for level in site.network.levels]
        result = agreement(running, site, list(occupancies(site, OCCUPANCIES)))
    assert result.asked == OCCUPANCIES == result.named
    assert result.nodes >= 0.95 * result.asked


def test_what_is_missing_of_slurm_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert find_slurm() == f"Slurm's slurmctld is not in {tmp_path}"
    monkeypatch.delenv(FOLDER)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_slurm() == "Slurm's slurmctld is not on the PATH"
