"""Files that programs read, by their published schemas; what releases of NCCL are told; jobs of other networks."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema
import pytest

from planner.contention.emitting.axis_levels import axis_levels_snippet
from planner.contention.emitting.environment import environment_of, takes_axis_levels, variables_of
from planner.contention.emitting.fabric_levels import levels_of_fabric
from planner.contention.emitting.folder import Settings, settings_files
from planner.contention.emitting.nccl_release import AXES_SINCE, FIFO_SINCE, read_release, release_name
from planner.contention.emitting.planned import PlannedConnection, PlannedEnd, PlannedJob
from planner.contention.emitting.priority_map import default_map, warnings_of
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.settings_json import settings_json_schema
from planner.contention.emitting.source_ports import source_ports_json_schema
from planner.contention.emitting.transports import Transport, other_sites, service_levels
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.records import replace

SCHEMAS = {"contention-settings": settings_json_schema, "udp-source-ports": source_ports_json_schema}
FOUR = default_map(4)
CONNECTION = PlannedConnection(
    axis="dp",
    source=PlannedEnd(host="gpu1", nic=0),
    destination=PlannedEnd(host="gpu2", nic=0),
    queue_pair=0,
    way=("gpu1 -> leaf0", "leaf0 -> gpu2"),
    ports=(49152, 49160),
    hashed=False,
)
JOBS = (
    PlannedJob(id="gpt", hosts=("gpu1", "gpu2"), level=0, connections=(CONNECTION, replace(CONNECTION, ports=()))),
    PlannedJob(id="moe", hosts=("gpu3", "gpu4"), axis_levels=(("dp", 2), ("ep", 0))),
    PlannedJob(id="lone", hosts=("gpu5",)),
    PlannedJob(id="far", hosts=("gpu6", "gpu7"), level=1, transport="infiniband"),
)
PAIRS = (
    PricedPair(queue_pairs=4, split_data=True, work_share=0.9, range=(0.85, 0.95)),
    PricedPair(queue_pairs=1, split_data=False, work_share=0.8, range=(0.7, 0.9)),
)


def _published(name: str) -> dict[str, Any]:
    text = files("planner.shared").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_schemas_are_published(name: str) -> None:
    published = files("planner.shared").joinpath(f"schemas/{name}.schema.json").read_text(encoding="utf-8")
    assert published == SCHEMAS[name](), f"regenerate {name}.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(published))


@pytest.mark.parametrize("transport", ["roce", "tcp", "infiniband", "other"])
@pytest.mark.parametrize("with_map", [False, True])
def test_what_is_written_for_programs_keeps_to_its_schema(transport: Transport, with_map: bool) -> None:
    of = service_levels(4) if transport == "infiniband" else FOUR
    settings = Settings(
        jobs=JOBS, map=of, transport=transport, addresses={}, pairs=PAIRS, release=(2, 22, 3), with_map=with_map
    )
    written = settings_files(settings)
    index = json.loads(written["settings.json"])
    jsonschema.validate(index, _published("contention-settings"))
    assert index["nccl"] == "2.22.3"
    named = {f"{job['folder']}/{file}" for job in index["jobs"] for file in job["files"]}
    assert named == {name for name in written if name.startswith("jobs/")}
    ports = [json.loads(text) for name, text in written.items() if name.endswith("udp_source_ports.json")]
    assert len(ports) == (transport == "roce")
    for file in ports:
        jsonschema.validate(file, _published("udp-source-ports"))
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**file, "call": "ibv_modify_qp"}, _published("udp-source-ports"))


def test_releases_are_read_by_their_numbers() -> None:
    assert read_release("2.22.3-1") == FIFO_SINCE
    assert read_release("v2.26.2+cuda12.8") == (2, 26, 2)
    assert read_release("2.26") == AXES_SINCE
    assert release_name(FIFO_SINCE) == "2.22.3"
    for wrong in ("", "2", "2.22.x", "two", "2.22.3.4", "2.22.3 or so"):
        with pytest.raises(InputError, match="a release of NCCL"):
            read_release(wrong)


@pytest.mark.parametrize(
    ("release", "fifo", "axes"),
    [
        (None, True, True),
        ("2.26.0", True, True),
        ("2.25.9", True, False),
        ("2.22.3", True, False),
        ("2.22.2", False, False),
    ],
)
def test_each_release_is_told_what_it_takes(release: str | None, fifo: bool, axes: bool) -> None:
    number = None if release is None else read_release(release)
    gpt, moe, *_ = JOBS
    assert takes_axis_levels("roce", number) is axes
    assert ("NCCL_IB_FIFO_TC" in environment_of(gpt, FOUR, "roce", number).by_name) is fifo
    told = environment_of(moe, FOUR, "roce", number)
    snippet = axis_levels_snippet(moe, FOUR, "roce", number)
    assert (snippet is not None) is axes
    assert ("NCCL_IB_TC" in told.by_name) is not axes, "one of the two, never both"
    if not axes:
        assert told.by_name["NCCL_IB_TC"] == str(FOUR.levels[2].tos), "the least urgent of its axes"
        assert any("all axes have level 2" in note for note in told.notes)
    lanes = environment_of(moe, service_levels(4), "infiniband", number).by_name
    assert lanes == ({} if axes else {"NCCL_IB_SL": "1", "UCX_IB_SL": "1"})


def test_one_function_says_all_that_a_job_is_told() -> None:
    gpt, moe, lone, far = JOBS
    told = variables_of(gpt, FOUR, "roce", pairs=PAIRS)
    assert told.all.variables == (*told.level.variables, *told.stock_nccl.variables)
    assert told.stock_nccl.by_name == {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
    assert "90.0%" in told.all.notes[-1]
    assert "80.0%" in told.all.notes[-1]
    others: tuple[tuple[PlannedJob, Transport], ...] = (
        (moe, "roce"),
        (lone, "roce"),
        (far, "roce"),
        (gpt, "tcp"),
        (gpt, "infiniband"),
    )
    for job, transport in others:
        of = service_levels(4) if transport == "infiniband" else FOUR
        assert variables_of(job, of, transport, pairs=PAIRS).stock_nccl.variables == ()
    assert variables_of(far, FOUR, "roce").all.variables == ()
    assert "network is InfiniBand" in variables_of(far, FOUR, "roce").all.notes[0]


def test_sites_of_another_network_are_named(tmp_path: Any) -> None:
    def cluster(*links: str) -> Cluster:
        sites = "".join(
            f"  - name: s{number}\n    nodes: [{{count: 2, device: h100}}]\n    fabric: {{link: {link}}}\n"
            for number, link in enumerate(links)
        )
        between = "links_between_sites:\n  - {between: [s0, s1], bandwidth_bytes_per_s: 1.0e9, latency_s: 0.005}\n"
        path = tmp_path / "c.yaml"
        path.write_text(f"schema: cellplan.cluster/1\nsites:\n{sites}{between}", encoding="utf-8")
        return load_cluster(str(path))

    assert other_sites(cluster("roce400", "roce400"), "roce") == {}
    assert other_sites(cluster("roce400", "ib-ndr400"), "roce") == {"s1": "infiniband"}
    assert other_sites(cluster("ib-ndr400", "ethernet-100g"), "infiniband") == {"s1": "tcp"}
    assert other_sites(cluster("ethernet-100g", "ib-ndr400"), "roce") == {}, "the user says what all are"


def test_a_network_that_nobody_can_tell_levels_says_so() -> None:
    assert any(
        "nothing of the plan can be set" in said for said in warnings_of(levels_of_fabric(None, "other", levels=4))
    )
