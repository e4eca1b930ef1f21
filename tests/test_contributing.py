"""Each recipe of CONTRIBUTING.md, done with the very lines that it shows."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from estimator.layers import kinds
from estimator.layers.graph import build_graph
from estimator.pricing.recipe import Recipe
from models_zoo import hugging_face
from models_zoo.catalogue import load_model
from models_zoo.model import Model
from planner import api
from planner.cli.main import main
from planner.one_job.exporting.formats import load_exporter
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import request_on
from planner.one_job.tools import catalogue
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext
from planner.shared.plan_file import load_plan
from profiles import hardware
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Shard
from tests.imports import ROOT

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
POLICIES = (ROOT / "planner/many_jobs/policies/POLICIES.md").read_text(encoding="utf-8")
SMALL_TRACE = ROOT / "planner/many_jobs/traces/small.csv"
LLAMA = ROOT / "models_zoo/configs/llama-3-8b.json"


def block(name: str) -> str:
    """The fenced block of the guide that is called `name`."""
    (text,) = re.findall(rf"^```\w+ {name}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
    return str(text)


def module_of(name: str, folder: Path) -> ModuleType:
    """The guide's Python block, written to a file and imported as a contributor's module is."""
    path = folder / f"contributed_{name}.py"
    path.write_text(block(name), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def add_to_catalogue(file: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if `text` stood in the data file, for this test alone."""
    read, caches = hardware._read, (hardware._devices, hardware._aliases, hardware._links)

    def with_addition(name: str) -> dict[str, Any]:
        return read(name) | (tomllib.loads(text) if name == file else {})

    monkeypatch.setattr(hardware, "_read", with_addition)
    for cache in caches:
        monkeypatch.setattr(hardware, cache.__name__, cache.__wrapped__)


def test_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    add_to_catalogue("devices.toml", block("device"), monkeypatch)
    assert hardware.load_device("My GPU").name == "my-gpu-96gb"
    estimated = api.estimate("gpt2-350m", cluster="my-gpu-96gb:1x8", tp=2, global_batch=64)
    assert 0 < estimated["estimate"]["mfu"] < 1
    assert estimated["plan"]["provenance"]["compute"] == "modelled"


def test_a_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    add_to_catalogue("links.toml", block("link"), monkeypatch)
    nodes = {"count": 1, "device": "h100", "devices": 8, "island": {"link": "my-link", "size": 8}}
    nodes |= {"nics": {"count": 8, "link": "ib-ndr400"}, "host_link": "pcie5-x16"}
    site = {"name": "here", "nodes": [nodes], "fabric": {"link": "ib-ndr400"}}
    path = tmp_path / "cluster.yaml"
    path.write_text(json.dumps({"schema": "cellplan.cluster/1", "sites": [site]}), encoding="utf-8")
    cluster = load_cluster(str(path))
    assert cluster.sites[0].nodes[0].island_link.bandwidth_bytes_per_s == 500e9
    slower, faster = (
        api.estimate("gpt2-1.3b", cluster=where, tp=8, global_batch=64)["estimate"]["iteration_time_s"]
        for where in (str(path), "h100:1x8")
    )
    assert slower != faster


def test_a_kind_of_layer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contributed = module_of("layer", tmp_path)
    monkeypatch.setitem(kinds.KINDS, contributed.Mixing, contributed.KIND)
    plain = load_model("gpt-tiny")
    embedding, *blocks, head = plain.layers
    mixing: Any = contributed.Mixing(hidden=256)
    mixed = Model(
        name="mixed",
        family="gpt",
        layers=(embedding, *blocks, mixing, head),
        layer_names=(*plain.layer_names[:-1], "mixing", plain.layer_names[-1]),
        input=plain.input,
        source="a test",
        kind="zoo",
    )
    shard = Shard(seq_len=plain.seq_len, micro_batch_per_rank=2)
    with_it, without = (build_graph(model, shard=shard, degrees=()).parameters for model in (mixed, plain))
    assert with_it - without == 256 * 256


def test_a_hugging_face_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contributed = module_of("family", tmp_path)
    values = json.loads(LLAMA.read_text(encoding="utf-8")) | {
        "model_type": "olmo",
        "architectures": ["OlmoForCausalLM"],
    }
    path = tmp_path / "olmo.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    assert main(["models", "show", str(path)]) == 2
    monkeypatch.setitem(hugging_face.FAMILIES, "olmo", ("Olmo", contributed.olmo))
    model = hugging_face.load_config_model(path)
    assert model.layers == hugging_face.load_config_model(LLAMA).layers
    assert "which OLMo has not" in model.source


def test_a_training_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contributed = module_of("tool", tmp_path)
    monkeypatch.setitem(catalogue.TOOLS, "my-trainer", contributed.MY_TRAINER)
    recipe = Recipe(global_batch=64, seq_len=512)
    named: Any = "my-trainer"
    request = request_on(
        load_model("gpt2-350m"), load_cluster("a100-80gb:1x4"), recipe, constraints=Constraints(tool=named)
    )
    (stage,) = find_best(request).plan.stages
    assert (stage.tp, stage.dp, stage.sharding.zero) == (1, 4, 0)
    written, refused = (load_plan(plan_file(tmp_path / f"tp{tp}.json", tp)) for tp in (1, 2))
    (file,) = load_exporter("my-trainer")(written, ExportContext()).files
    assert file.name == "accelerate.yaml"
    with pytest.raises(CannotExpress, match="it replicates all weights"):
        load_exporter("my-trainer")(refused, ExportContext())


def plan_file(path: Path, tp: int) -> Path:
    """A plan of four data- and tensor-parallel ranks without ZeRO, as `estimate` writes it."""
    api.estimate("gpt2-350m", cluster="a100-80gb:1x4", tp=tp, pp=1, zero=0, global_batch=64, output=path)
    return path


def test_a_policy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"^    # mine\.py\n(.*?)(?=^    \$ )", POLICIES, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.py").write_text(re.sub(r"^    ", "", text, flags=re.MULTILINE), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    command = ["simulate", str(SMALL_TRACE), "--cluster", "a40:8x2+a10:8x2", "--policy", "mine:SmallestFirst", "--json"]
    assert main([*command, "--head", "10"]) == 0
    assert json.loads(capsys.readouterr().out)["violations"] == 0
