"""What a real slurmctld makes of our script and reservation; skipped where Slurm is not at hand."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from bench.pods.real_slurm import controller, find_slurm
from planner.many_jobs.placement.holding import Held, HeldNode
from planner.one_job.launchers.slurm import export_slurm
from planner.one_job.tools.base.export_records import ExportContext
from profiles.cluster_file import load_cluster
from profiles.host_lists import expand_hosts
from tests.planner.one_job.launchers.test_export_managers import _plan, _text

HOSTS = ("gpu05", "gpu02", "gpu07", "gpu03", "gpu06", "gpu11")


def test_slurm_takes_exactly_our_nodes_in_our_reservation(tmp_path: Path) -> None:
    slurm = find_slurm()
    if isinstance(slurm, str):
        pytest.skip(slurm)
    rows = "".join(f"gpu{node:02},s{node % 3}\n" for node in range(12))
    (tmp_path / "tree.csv").write_text(f"host,pod\n{rows}", encoding="utf-8")
    (tmp_path / "c.yaml").write_text(
        "schema: cellplan.cluster/1\nsites:\n  - name: north\n    nodes:\n"
        '      - {count: 12, device: h100, devices: 4, names: "gpu[00-11]"}\n    fabric: {link: ib-ndr400}\n',
        encoding="utf-8",
    )
    (site,) = load_cluster(f"{tmp_path}/c.yaml@{tmp_path}/tree.csv").sites
    plan = _plan("h100:6x4", tp=4, pp=2, dp=3)
    named = replace(plan, devices=tuple(replace(one, host=HOSTS[one.node]) for one in plan.devices))
    text = _text(export_slurm(named, ExportContext()))
    # The controller of the trial knows neither GPUs nor memory.
    kept = [line for line in text.splitlines() if "--gres" not in line and "--mem" not in line]
    script = tmp_path / "plan.sbatch"
    script.write_text("\n".join(kept) + "\n", encoding="utf-8")
    nodes = tuple(HeldNode(host=host, free_s=0.0, devices=4) for host in sorted(HOSTS))
    now = Held(name="held", wait_s=0.0, run_s=7200.0, nodes=nodes, beyond_limits=False)
    later = Held(
        name="later", wait_s=11_520.0, run_s=None, nodes=(replace(nodes[0], host="gpu08"),), beyond_limits=True
    )
    with controller(slurm, site) as running:
        for held in (now, later):
            words = [word.replace("$USER", "root") for word in held.scontrol()]
            assert "Reservation created" in running._ask(*words).stdout
        told = shlex.join(running._ask("scontrol", "show", "reservation").stdout.split())
        assert "Duration=02:00:00" in told
        assert "Flags=IGNORE_JOBS,SPEC_NODES" in told
        said = running._ask("sbatch", "--test-only", "--time=60", "--reservation=held", str(script)).stderr
    match = re.search(r"on nodes (\S+)", said)
    assert match is not None, said
    assert set(expand_hosts(match[1], "sbatch", "nodes")) == set(HOSTS)
