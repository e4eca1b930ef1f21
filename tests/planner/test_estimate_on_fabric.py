"""`estimate --plan P --network flow`: the closed form where nothing is in the way; hashes and thin uplinks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli.main import main

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: 8, device: h100}}]
    fabric: {{link: ib-ndr400, {fabric}}}
"""
FABRICS = {
    "nothing above": "oversubscription: 1.0",
    "sprayed": "topology: {kind: clos2, leaves: 4, spines: 4, cables: 4}, routing: {kind: spray}",
    "pods": "pods: 2, oversubscription: 4, routing: {kind: spray}",
    "thin pods": "pods: 2, oversubscription: 64, routing: {kind: spray}",
    "hashed": "topology: {kind: clos2, leaves: 4, spines: 4, cables: 4}, routing: {kind: ecmp}",
}
SIZES: dict[str, dict[str, Any]] = {
    "dp": {"tp": 8, "dp": 8},
    "zero": {"tp": 4, "dp": 16, "zero": 3},
    "pp": {"tp": 8, "pp": 4, "dp": 2, "zero": 1},
    "tree": {"model": "gpt-tiny", "tp": 1, "dp": 64, "zero": 0},
}
"""The last one's sums of gradients are small enough for a tree over the nodes, the others' are rings."""


def on_fabric(folder: Path, fabric: str, sizes: str) -> dict[str, Any]:
    (folder / "c.yaml").write_text(CLUSTER.format(fabric=FABRICS[fabric]), encoding="utf-8")
    output = folder / "plan.json"
    asked = {"model": "llama3-8b", "global_batch": 128, **SIZES[sizes]}
    api.estimate(cluster=str(folder / "c.yaml"), output=output, **asked)
    answer = api.estimate(plan=output, network="flow")
    jsonschema.validate(answer, api.answer_schema("estimate"))
    flow: dict[str, Any] = answer["network_flow"]
    assert flow["closed_form_s"] == answer["estimate"]["iteration_time_s"]
    return flow


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("fabric", ["nothing above", "sprayed"])
def test_both_agree_where_nothing_is_in_the_way(fabric: str, sizes: str, tmp_path: Path) -> None:
    flow = on_fabric(tmp_path, fabric, sizes)
    assert flow["iteration_time_s"] == pytest.approx(flow["closed_form_s"], rel=0.02)
    assert flow["notes"] == []
    assert flow["exchanges"]
    for each in flow["exchanges"]:
        assert each["flow_s"] == pytest.approx(each["free_s"], rel=1e-6)


def test_thin_uplinks_slow_flows_as_they_slow_the_closed_form(tmp_path: Path) -> None:
    wide, thin = (on_fabric(tmp_path, fabric, "dp") for fabric in ("pods", "thin pods"))
    assert wide["iteration_time_s"] == pytest.approx(wide["closed_form_s"], rel=0.02)
    assert thin["iteration_time_s"] > 1.1 * wide["iteration_time_s"]
    # What hides behind compute hides by formula in one, by time in the other.
    assert thin["iteration_time_s"] == pytest.approx(thin["closed_form_s"], rel=0.15)


def test_a_hash_is_never_faster(tmp_path: Path) -> None:
    hashed = on_fabric(tmp_path, "hashed", "pp")
    assert hashed["iteration_time_s"] >= hashed["closed_form_s"] * (1 - 1e-6)
    assert any(each["flow_s"] > 1.05 * each["free_s"] for each in hashed["exchanges"])


def test_people_read_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on_fabric(tmp_path, "hashed", "pp")
    assert main(["estimate", "--plan", str(tmp_path / "plan.json"), "--network", "flow"]) == 0
    shown = capsys.readouterr().out
    assert "As flows on the fabric (ecmp)" in shown
    assert "by the closed form" in shown


def test_degrees_alone_have_no_places(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "gpt-tiny", "--cluster", "t4:2x8", "--tp", "2", "--network", "flow", "--json"]) == 2
    assert "--plan beside it" in json.loads(capsys.readouterr().out)["failure"]["message"]
