"""`contention`'s second half: what jobs are to do, what that brings, and what it refuses."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner import api
from planner.cli.contention_plan import _print_begins
from planner.cli.main import main
from planner.contention.contention_file import contention_json_schema, load_contention
from planner.contention.policies.catalogue import NETWORK_POLICIES
from profiles.errors import InputError, NothingFits

CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes: [{{count: 8, device: h100, names: "gpu[1-8]"}}]
    fabric: {{link: {link}, topology: {{kind: clos2, leaves: 2, spines: {spines}, cables: 1}}{routing}}}
"""
REACHED = 44e9
"""Bytes/s that training reaches of a cable of RoCE's 400 Gb/s."""


def cluster_file(folder: Path, *, link: str = "roce400", spines: int = 2, routing: str = "", name: str = "c") -> str:
    path = folder / f"{name}.yaml"
    path.write_text(CLUSTER.format(link=link, spines=spines, routing=routing), encoding="utf-8")
    return str(path)


def job(name: str, first: int, compute_s: float, wire_s: float, flops: float, **more: object) -> str:
    keys = "".join(f", {key}: {value}" for key, value in more.items() if key in ("level", "weight"))
    traffic = f"compute_s: {compute_s}, bytes: {wire_s * REACHED:.0f}" + (f", flops: {flops}" if flops else "")
    begins = f", begins_s: {more['begins_s']}" if "begins_s" in more else ""
    return f"  - {{id: {name}, hosts: 'gpu[{first},{first + 4}]', gpus: '0', traffic: {{{traffic}{begins}}}{keys}}}\n"


TWO = (job("long", 1, 2.0, 2.0, 2e15), job("short", 2, 1.0, 1.0, 1e15))
"""Crux, section 4.2, example 1, where they meet."""
THREE = (*TWO, job("hidden", 3, 0.5, 0.45, 2e14, begins_s=0.1))


def jobs_file(folder: Path, *jobs: str, name: str = "jobs") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text("schema: cellplan.jobs/1\njobs:\n" + "".join(jobs), encoding="utf-8")
    return path


def decide(folder: Path, *jobs: str, cluster: str = "", **options: Any) -> dict[str, Any]:
    options = {"jitter": 0.0, **options}
    found = api.contention(jobs_file(folder, *jobs), cluster=cluster or cluster_file(folder, spines=1), **options)
    jsonschema.validate(found, api.answer_schema("contention"))
    return found


def by_id(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in found["jobs"]}


def error_of(folder: Path, *jobs: str, **options: Any) -> InputError:
    with pytest.raises(InputError) as raised:
        decide(folder, *jobs, **options)
    return raised.value


def test_the_shorter_goes_first_on_one_link(tmp_path: Path) -> None:
    """4 and 6 s on the wire of 12: 41.7% busy in place of what fair shares give."""
    found = decide(tmp_path, *TWO, levels=4)
    jobs = by_id(found)
    assert (jobs["short"]["level"], jobs["long"]["level"]) == (0, 1)
    assert (jobs["short"]["planned_s"], jobs["long"]["planned_s"]) == pytest.approx((2.0, 6.0), rel=0.02)
    assert jobs["short"]["priority"] == 0
    assert jobs["long"]["planned_slowed_by"][0]["id"] == "short"
    work = found["gpu_utilization"]
    assert work["planned"]["busy"] == pytest.approx(0.41667, rel=0.02)
    assert work["planned"]["flops_per_s"] == pytest.approx(2e15 / 6 + 1e15 / 2, rel=0.02)
    assert work["now"]["busy"] < work["planned"]["busy"] <= work["bound"]["busy"] <= work["alone"]["busy"] + 1e-9
    assert (found["proved"], found["policy"]["name"], found["levels"]) == (True, "ours", 4)


def test_on_two_spines_each_gets_its_own(tmp_path: Path) -> None:
    found = decide(tmp_path, *TWO, cluster=cluster_file(tmp_path, spines=2))
    for each in found["jobs"]:
        assert each["level"] is None
        assert each["planned_s"] == pytest.approx(each["alone_s"], rel=1e-3)
        assert {path["way"][1] for path in each["paths"]} <= {f"leaf{a} -> spine{b}" for a in (0, 1) for b in (0, 1)}
        assert all(path["ports"] and path["hashed"] for path in each["paths"])
    assert found["proved"]


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    texts = []
    for number in (1, 2):
        output = tmp_path / f"contention-{number}.json"
        found = decide(tmp_path, *THREE, cluster=cluster_file(tmp_path), output=output)
        texts.append((json.dumps({**found, "output": None}), output.read_bytes()))
    assert texts[0] == texts[1]
    jsonschema.validate(json.loads(texts[0][1]), json.loads(contention_json_schema()))


def test_the_schema_is_the_published_one() -> None:
    published = files("planner.shared").joinpath("schemas/contention.schema.json").read_text(encoding="utf-8")
    assert published == contention_json_schema(), "regenerate it from contention_json_schema()"


def test_jobs_that_share_nothing_need_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    apart = ("  - {id: a, hosts: 'gpu[3-4]', traffic: {compute_s: 0.1, bytes: 1.0e+10}}\n", TWO[1])
    found = decide(tmp_path, *apart)
    assert [each["level"] for each in found["jobs"]] == [None, None]
    assert found["shares_links"] is False
    assert found["notes"][-1].startswith("nothing to do")
    cluster = cluster_file(tmp_path, spines=1)
    assert main(["contention", str(tmp_path / "jobs.yaml"), "--cluster", cluster, "--levels", "2"]) == 0
    assert "What to do: nothing. No two jobs share a link." in capsys.readouterr().out


@pytest.mark.parametrize("policy", sorted(NETWORK_POLICIES))
def test_every_policy_by_its_name(tmp_path: Path, policy: str) -> None:
    found = decide(tmp_path, *THREE, cluster=cluster_file(tmp_path), policy=policy, levels=2)
    work = found["gpu_utilization"]
    assert 0 < work["planned"]["flops_per_s"] <= work["bound"]["flops_per_s"] * (1 + 1e-6)
    assert found["policy"]["name"] == policy
    levels = {each["level"] for each in found["jobs"]} - {None}
    assert all(level < found["levels"] for level in levels)
    if policy == "ours":
        assert found["proved"]


def test_ours_is_never_behind_another(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path)
    work = {}
    for name in ("ours", "crux", "ecmp", "sincronia", "varys", "tacclstar"):
        found = decide(tmp_path, *THREE, cluster=cluster, policy=name, levels=3)
        work[name] = found["gpu_utilization"]["planned"]["flops_per_s"]
    assert work["ours"] >= max(work.values()) * (1 - 1e-6)


def test_parts_are_mixed_by_name(tmp_path: Path) -> None:
    found = decide(
        tmp_path,
        *THREE,
        cluster=cluster_file(tmp_path),
        policy="crux",
        paths="hashed",
        compression="algorithm-1",
        priorities="varys",
        levels=2,
    )
    parts = {name: found["policy"][name] for name in ("paths", "priorities", "compression", "offsets")}
    assert parts == {"paths": "hashed", "priorities": "varys", "compression": "algorithm-1", "offsets": "none"}
    assert not any(path["changed"] for each in found["jobs"] for path in each["paths"])


def test_kept_paths_and_few_changes(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path)
    kept = decide(tmp_path, *THREE, cluster=cluster, keep_paths=True)
    assert not any(path["changed"] for each in kept["jobs"] for path in each["paths"])
    for most in (0, 1):
        found = decide(tmp_path, *THREE, cluster=cluster, change_at_most=most)
        changed = [
            each["id"]
            for each in found["jobs"]
            if any(path["changed"] for path in each["paths"]) or each["level"] not in (None, 0) or each["axis_levels"]
        ]
        assert len(changed) <= most
    work = kept["gpu_utilization"]
    assert work["planned"]["flops_per_s"] >= work["now"]["flops_per_s"] * (1 - 0.02)


def test_weights_are_of_shares_and_of_work_by_name_alone(tmp_path: Path) -> None:
    def weighing(long: float, short: float, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        jobs = job("long", 1, 2.0, 2.0, 2e15, weight=long), job("short", 2, 1.0, 1.0, 1e15, weight=short)
        found = decide(tmp_path, *jobs, levels=2, **options)
        return {each["id"]: each for each in found["jobs"]}, found

    light, _ = weighing(1, 1, policy="ecmp")
    heavy, _ = weighing(1, 9, policy="ecmp")
    assert heavy["short"]["planned_s"] < light["short"]["planned_s"]
    for policy in ("ours", "crux"):
        own, found = weighing(100, 1, policy=policy)
        for long, short in ((100, 1), (1, 100)):
            alike, _ = weighing(long, short, policy=policy)
            assert [each["level"] for each in alike.values()] == [each["level"] for each in own.values()]
            counted, its = weighing(long, short, policy=policy, policy_option={"worth": "weighted"})
            assert (counted["long"]["level"] < counted["short"]["level"]) == (long > short)
            # What is printed is eq. 1's, whose proof is not that of weighted work.
            assert its["gpu_utilization"]["alone"] == found["gpu_utilization"]["alone"]
            assert its["proved"] is False
        assert any("inside a level" in note for note in found["notes"])
    wrong = error_of(tmp_path, *TWO, policy_option={"worth": "fame"})
    assert "--policy-option worth" in str(wrong)


def test_what_is_given_up_for_fewer_changes_is_told(tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path)
    most, less = (
        decide(tmp_path, *THREE, cluster=cluster, policy_option={"give_up": share, "offsets": False})
        for share in (0.0, 0.5)
    )
    work = [each["gpu_utilization"]["planned"]["flops_per_s"] for each in (most, less)]
    assert work[0] > work[1] > 0.5 * work[0]
    assert (most["proved"], less["proved"]) == (True, False)
    said = [[note for note in each["notes"] if "given up" in note] for each in (most, less)]
    assert not said[0]
    assert float(said[1][0].split("%")[0]) == pytest.approx(100 * (1 - work[1] / work[0]), abs=0.5)


def test_a_cap_is_kept_or_refused_with_the_smallest_that_works(tmp_path: Path) -> None:
    free = decide(tmp_path, *TWO)
    worst = max(each["planned_s"] / each["alone_s"] for each in free["jobs"])
    capped = decide(tmp_path, *TWO, slowdown_cap=1.45)
    assert worst == pytest.approx(1.5, rel=0.02)
    assert max(each["planned_s"] / each["alone_s"] for each in capped["jobs"]) <= 1.45 * (1 + 1e-6)
    for policy in ("ours", "crux", "ecmp"):
        with pytest.raises(NothingFits, match="smallest cap") as raised:
            decide(tmp_path, *TWO, slowdown_cap=1.01, policy=policy)
        assert "job long" in str(raised.value) or "job short" in str(raised.value)
        said = float(str(raised.value).split("smallest cap")[1].split("is ")[1].split(";")[0])
        decide(tmp_path, *TWO, slowdown_cap=said, policy=policy)


def test_a_front_of_less_work_for_less_loss(tmp_path: Path) -> None:
    front = decide(tmp_path, *TWO, front="fairness")["front"]
    assert len(front) > 1
    work, worst = ([point[name] for point in front] for name in ("flops_per_s", "slowdown"))
    assert work == sorted(work, reverse=True)
    assert worst == sorted(worst, reverse=True)
    assert {point["job"] for point in front} <= {"long", "short"}
    assert "--front" in str(error_of(tmp_path, *TWO, front="fairness", policy="crux"))


def test_wrong_beliefs_and_what_they_cost(tmp_path: Path) -> None:
    beliefs = decide(tmp_path, *THREE, cluster=cluster_file(tmp_path), believe=(0.05, 0.2))["beliefs"]
    assert [belief["error"] for belief in beliefs] == [0.05, 0.2]
    assert all(-1e-6 <= belief["lost"] < 0.5 for belief in beliefs)


def test_no_decision_without_the_work_and_none_is_guessed(tmp_path: Path) -> None:
    jobs = (TWO[0], job("secret", 2, 1.0, 1.0, 0))
    found = decide(tmp_path, *jobs)
    assert (found["policy"], found["gpu_utilization"], found["proved"]) == (None, None, None)
    assert found["jobs"][0]["level"] == 0
    assert "nothing is decided" in found["notes"][-1]
    error = error_of(tmp_path, *jobs, levels=2)
    assert (error.key, "secret" in str(error.found)) == ("traffic.flops", True)
    nothing = "  - {id: silent, hosts: 'gpu[3,7]'}\n"
    assert "network measure" in error_of(tmp_path, TWO[0], nothing).expected


def test_infiniband_and_sprayed_fabrics_have_levels_alone(tmp_path: Path) -> None:
    for link, routing, word in (
        ("ib-ndr400", "", "InfiniBand"),
        ("roce400", ", routing: {kind: spray}", "sprays"),
    ):
        found = decide(tmp_path, *TWO, cluster=cluster_file(tmp_path, link=link, routing=routing), levels=2)
        assert any(word in note and "levels alone" in note for note in found["notes"])
        assert all(each["paths"] == [] for each in found["jobs"])


def test_ports_that_are_known_are_not_called_hashed(tmp_path: Path) -> None:
    told = ", ".join(
        f"{{from: gpu{a}, to: gpu{b}, nics: [0, 0], ports: '{50000 + 10 * spine}-{50005 + 10 * spine}',"
        f" through: [leaf{x}, spine{spine}, leaf{1 - x}]}}"
        for a, b, x in ((1, 5, 0), (5, 1, 1), (2, 6, 0), (6, 2, 1))
        for spine in (0, 1)
    )
    cluster = cluster_file(tmp_path, routing=f", routing: {{kind: ecmp, paths: [{told}]}}")
    found = decide(tmp_path, *TWO, cluster=cluster)
    chosen = [path for each in found["jobs"] for path in each["paths"] if path["changed"]]
    assert chosen
    assert not any(path["hashed"] for path in chosen)
    assert all(50000 <= port < 50020 for path in chosen for port in path["ports"])
    output = tmp_path / "contention.json"
    decide(tmp_path, *TWO, cluster=cluster, output=output)
    again = decide(tmp_path, *TWO, cluster=cluster, network_plan=output)
    assert [each["planned_s"] for each in again["jobs"]] == [each["planned_s"] for each in found["jobs"]]
    unprobed = cluster_file(tmp_path, name="unprobed")
    error = error_of(tmp_path, *TWO, cluster=unprobed, network_plan=output)
    assert error.key is not None
    assert error.key.endswith(".ports")


def test_what_was_decided_is_read_back_for_the_jobs_of_now(tmp_path: Path) -> None:
    cluster, output = cluster_file(tmp_path), tmp_path / "contention.json"
    made = decide(tmp_path, *THREE, cluster=cluster, output=output, levels=3)
    given = decide(tmp_path, *THREE, cluster=cluster, network_plan=output)
    assert given["policy"] == made["policy"]
    for mine, theirs in zip(given["jobs"], made["jobs"], strict=True):
        assert mine["planned_s"] == pytest.approx(theirs["planned_s"], rel=1e-9)
        assert [path["way"] for path in mine["paths"]] == [path["way"] for path in theirs["paths"]]
    newcomer = job("new", 4, 1.0, 0.5, 5e14)
    beside = by_id(decide(tmp_path, newcomer, *THREE, cluster=cluster, network_plan=output))
    assert [beside[name]["level"] for name in ("long", "short")] == [
        by_id(made)[name]["level"] for name in ("long", "short")
    ]
    assert beside["new"]["level"] == 0


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    cluster, output = cluster_file(tmp_path), tmp_path / "contention.json"
    decide(tmp_path, *THREE, cluster=cluster, output=output, levels=3)
    here = {"cluster": cluster, "network_plan": output}
    other = cluster_file(tmp_path, spines=3, name="other")
    assert error_of(tmp_path, *THREE, cluster=other, network_plan=output).key == "cluster"
    assert error_of(tmp_path, *THREE[1:], **here).key == "jobs[0].id"
    moved = job("long", 4, 2.0, 2.0, 2e15)
    assert error_of(tmp_path, moved, *THREE[1:], **here).key == "jobs[0].hosts"
    assert error_of(tmp_path, *THREE, **here, policy="crux").key == "--policy"
    changes: tuple[tuple[Callable[[dict[str, Any]], object], str], ...] = (
        (lambda said: said["jobs"][0].update(level=3), "jobs[0].level"),
        (lambda said: said["jobs"][0].update(axis_levels={"dp": 7}), "jobs[0].axis_levels.dp"),
        (lambda said: said["jobs"][0].update(axis_levels={"ep": 1}), "axis_levels of job long"),
        (lambda said: said["jobs"][0]["paths"][0].update(way=["a -> b"]), "jobs[0].paths[0].way"),
        (lambda said: said["jobs"][0]["paths"][0].update(queue_pair=9), "jobs[0].paths[0]"),
        (lambda said: said["jobs"][0]["paths"][0].update(ports=SOME_PORTS), "jobs[0].paths[0].ports"),
        (lambda said: said["jobs"][0]["paths"].append(said["jobs"][0]["paths"][0]), "jobs[0].paths[2]"),
        (lambda said: said["jobs"].append(said["jobs"][0]), "jobs"),
        (lambda said: said["jobs"][0].update(offset_s=-1.0), "jobs[0].offset_s"),
        (lambda said: said.pop("schema"), "schema"),
        (lambda said: said.update(levels=0), "levels"),
    )
    for change, key in changes:
        said = json.loads(output.read_text())
        change(said)
        broken = tmp_path / "broken.json"
        broken.write_text(json.dumps(said))
        error = error_of(tmp_path, *THREE, cluster=cluster, network_plan=broken)
        assert (error.key, "broken.json" in error.where) == (key, True)


SOME_PORTS = list(range(0xC000, 0xC010))
"""Of which some lead one way and some another."""


def test_levels_that_there_are_not(tmp_path: Path) -> None:
    assert error_of(tmp_path, *TWO, levels=0).key == "--levels"
    assert error_of(tmp_path, *TWO, levels=9).key == "--levels"
    high = (job("long", 1, 2.0, 2.0, 2e15, level=5), TWO[1])
    error = error_of(tmp_path, *high, policy="static", levels=2)
    assert (error.key, error.found) == ("jobs[0].level", 5)
    assert by_id(decide(tmp_path, *high, policy="static", levels=8))["long"]["level"] == 5


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"policy": "cruks"}, "--policy"),
        ({"policy": "crux", "paths": "nowhere"}, "--paths"),
        ({"compression": "zip"}, "--compression"),
        ({"policy": "crux", "priorities": "x"}, "--priorities"),
        ({"policy": "crux", "offsets": "x"}, "--offsets"),
        ({"slowdown_cap": 0.5}, "--slowdown-cap"),
        ({"change_at_most": -1}, "--change-at-most"),
        ({"believe": (1.5,)}, "--believe"),
        ({"policy_option": {"pace": 3}}, "--policy-option pace"),
        ({"policy_option": {"plays": "many"}}, "--policy-option plays"),
        ({"policy": "mine:Policy", "paths": "crux"}, "--paths"),
        ({"user_code_limit": 3.0}, "--user-code-limit"),
    ],
)
def test_what_cannot_be_asked(tmp_path: Path, options: dict[str, Any], key: str) -> None:
    assert error_of(tmp_path, *TWO, **options).key == key


USERS = """
import os
from planner.contention.policies.records import Decision

class Mine:
    name = "mine"

    def __init__(self, first: str = "long") -> None:
        self.first = first

    def decide(self, view):
        BODY
        levels = tuple(0 if job.id == self.first else 1 for job in view.jobs)
        return Decision(paths=tuple(job.now for job in view.jobs), levels=levels, offsets_s=(0.0,) * len(view.jobs))
"""


def users_policy(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str = "pass") -> str:
    (folder / f"{name}.py").write_text(USERS.replace("BODY", body), encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.delitem(sys.modules, name, raising=False)
    return f"{name}:Mine"


def test_a_policy_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = users_policy(tmp_path, monkeypatch, "net_mine")
    found = by_id(decide(tmp_path, *TWO, policy=policy))
    assert (found["long"]["level"], found["short"]["level"]) == (0, 1)
    assert found["long"]["planned_s"] == pytest.approx(found["long"]["alone_s"], rel=1e-6)
    other = by_id(decide(tmp_path, *TWO, policy=policy, policy_option={"first": "short"}))
    assert other["short"]["level"] == 0
    assert "net_mine" not in sys.modules


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('x')", "KeyError"),
        ("os._exit(3)", "net_bad"),
        ("return None", "NoneType"),
        ("return Decision(paths=(), levels=(), offsets_s=())", "0 of them"),
        ("return Decision(paths=tuple(j.now for j in view.jobs), levels=(9, 9), offsets_s=(0.0, 0.0))", "9"),
        (
            "return Decision(paths=tuple((7,) * len(j.now) for j in view.jobs), levels=(0, 0), offsets_s=(0.0, 0.0))",
            "7",
        ),
        ("return Decision(paths=tuple(j.now for j in view.jobs), levels=(0, 0), offsets_s=(-1.0, 0.0))", "-1.0"),
        ("return Decision(paths=tuple(j.now for j in view.jobs), levels=(0, 0.5), offsets_s=(0.0, 0.0))", "0.5"),
    ],
)
def test_users_code_that_does_not_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, said: str) -> None:
    policy = users_policy(tmp_path, monkeypatch, "net_bad", body)
    assert said in str(error_of(tmp_path, *TWO, policy=policy))


def test_what_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "contention.json"
    jobs, cluster = jobs_file(tmp_path, *TWO), cluster_file(tmp_path, spines=1)
    command = ["contention", str(jobs), "--cluster", cluster, "--levels", "2", "-o", str(output), "--believe", "0.1"]
    assert main([*command, "--front", "fairness"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "What to do, by ours, 2 levels (modelled)",
        "long pays",
        "GPU utilisation (modelled)",
        "no paths and levels do more (proved)",
        "Less work for a smaller worst slowdown",
        "What wrong beliefs cost",
        f"written to {output}",
    ):
        assert words in printed
    assert load_contention(output).levels == 2
    assert main(["contention", str(jobs), "--cluster", cluster, "--slowdown-cap", "1.01"]) == 3
    assert main(["contention", str(jobs), "--cluster", cluster, "--policy", "none"]) == 2


def test_no_link_carries_more_than_it_can_under_several_hashes(tmp_path: Path) -> None:
    """Other hashes put jobs on other links: what these carry is in the mean of the runs, each by its own ways."""
    cluster = cluster_file(tmp_path)
    found = [decide(tmp_path, *THREE, cluster=cluster, seeds=seeds, keep_paths=True) for seeds in (1, 4)]
    for link in (*found[0]["links"], *found[1]["links"]):
        assert 0 <= link["busy_now"] <= 1 + 1e-9
        assert 0 <= link["busy_planned"] <= 1 + 1e-9
    assert {link["name"] for link in found[0]["links"]} < {link["name"] for link in found[1]["links"]}
    assert found[1]["jobs"][0]["range_s"][0] < found[1]["jobs"][0]["range_s"][1]


def test_begins_are_said_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    jobs = [
        {"id": name, "offset_s": offset_s, "period_s": period_s}
        for name, offset_s, period_s in (("a", 0.5, None), ("b", 0.0, 2.0), ("c", 0.5, 2.0), ("d", 0.0, None))
    ]
    _print_begins(jobs)
    assert capsys.readouterr().out.strip().splitlines() == [
        "- a begins its iterations 500 ms later",
        "  - b begins its iterations at least 2 s apart",
        "  - c begins its iterations 500 ms later and at least 2 s apart",
    ]


def test_who_pays_much_is_warned_of_with_the_cap_that_helps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A job that hides what it sends for longer than it computes leaves the other nothing, if it comes first."""
    greedy, small = job("greedy", 1, 1.0, 0.99, 9e15, begins_s=0.001), job("small", 2, 0.2, 0.3, 1e13)
    jobs, cluster = jobs_file(tmp_path, greedy, small), cluster_file(tmp_path, spines=1)
    command = ["contention", str(jobs), "--cluster", cluster, "--levels", "2", "--jitter", "0"]
    assert main(command) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Warning: the most work is bought with jobs that take more than 2 times as long as now: small (" in printed
    cap = printed.split("--slowdown-cap ")[1].split()[0]
    found = decide(tmp_path, greedy, small, levels=2)
    its = by_id(found)["small"]
    assert its["planned_s"] > 2 * its["now_s"]
    assert float(cap) == pytest.approx(2 * its["now_s"] / its["alone_s"], abs=0.1)
    assert found["much_slower"] == {
        "times": 2.0,
        "jobs": [{"id": "small", "times_now": its["planned_s"] / its["now_s"]}],
        "slowdown_cap": float(cap),
    }
    assert main([*command, "--slowdown-cap", cap]) == 0
    assert "Warning" not in capsys.readouterr().out
    assert decide(tmp_path, greedy, small, levels=2, slowdown_cap=float(cap))["much_slower"] is None
