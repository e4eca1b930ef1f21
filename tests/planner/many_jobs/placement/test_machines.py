"""A job on single free GPUs of partly used machines: which, in which order, against every way there is."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Hashable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from estimator.frontends.load import load_any_model
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.stage_cost import StageCost
from planner import api
from planner.cli.main import main
from planner.many_jobs.placement.machines.choices import (
    choice_of,
    enumerate_choices,
    fewest_machines,
    seat_parts,
)
from planner.many_jobs.placement.machines.job import job_on
from planner.many_jobs.placement.machines.occupied import Machine, Occupied, read_occupied
from planner.many_jobs.placement.machines.placing import by_kind, place_on, plan_whole
from planner.many_jobs.placement.machines.rules import RULES, choose_by
from planner.many_jobs.placement.machines.seating import improve, reseat, seat
from planner.many_jobs.placers.dividing import partitions
from planner.one_job.search.spaces.request import read_search
from planner.shared.inputs import place_of
from planner.shared.options.place import PlaceOptions
from profiles.errors import InputError, NothingFits
from profiles.records import replace
from tests.documents import document_of
from tests.oracles.machines_oracle import brute_least_time
from tests.planner.one_job.free_devices.test_running_pods import pod, written

THIN = """\
schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 4, device: a100-80gb, devices: 4, names: "n[1-4]", nics: {count: 1, link: ethernet-25g}}
    fabric: {link: ethernet-25g}
"""


def machine(
    node: int, free: tuple[int, ...], *, size: int = 4, jobs: dict[str, tuple[int, ...]] | None = None
) -> Machine:
    """A machine with these GPUs free."""
    return Machine(
        site="north", node=node, host=f"n{node + 1}", group=0, device="a100-80gb", size=size, island=size, parts=(),
        free=free, jobs=jobs or {},
    )  # fmt: skip


def small_ground(folder: Path, free: list[int], devices: int, **more: Any) -> tuple[PlaceOptions, Occupied]:
    """Options of a small job on four machines of four, so many of each free, and what they are read as."""
    (folder / "c.yaml").write_text(THIN, encoding="utf-8")
    lines = ["NODELIST GRES GRES_USED STATE"]
    for number, count in enumerate(free, 1):
        held = f"gpu:a100:{4 - count}(IDX:{f'0-{3 - count}' if count < 3 else '0'})" if count < 4 else "gpu:a100:0"
        lines.append(f"n{number} gpu:a100:4 {held} {'idle' if count == 4 else 'mixed'}")
    (folder / "sinfo.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    options = PlaceOptions(
        model="gpt-tiny",
        cluster=str(folder / "c.yaml"),
        devices=devices,
        free=folder / "sinfo.txt",
        global_batch=60,
        **more,
    )
    model = load_any_model(options.model, options.user_code)
    return options, read_occupied(place_of(options.cluster, model, options, store=None), options)


DEGREES = ((1, 3, 1), (1, 4, 1), (1, 2, 2), (2, 2, 1), (2, 3, 1), (1, 3, 2))
"""pp, dp and tp of the plans that are tried in every way."""


def test_stages_that_are_known_change_no_figure(tmp_path: Path) -> None:
    options, state = small_ground(tmp_path, [3, 3, 2, 2], 8, pp=2, dp=2, tp=2)
    model = load_any_model(options.model, options.user_code)
    request = read_search(replace(options, schedule=("1f1b",)), store=None, model=model, place=state.cluster)
    job = job_on(request, 8)
    (machines,) = by_kind(state.machines).values()
    whole = plan_whole(job, machines)
    assert whole is not None
    plan, rng = whole.best.setup, random.Random(0)
    known: dict[Hashable, StageCost] = {}
    slots = [slot for machine in machines for slot in machine.slots(len(machine.free))]
    for _ in range(40):
        setup = reseat(plan, rng.sample(slots, 8))
        alone, beside = evaluate(setup, job.seats.pricing), evaluate(setup, job.seats.pricing, known=known)
        assert isinstance(alone, Evaluation)
        assert isinstance(beside, Evaluation)
        assert beside.iteration_time_s == alone.iteration_time_s
        assert beside.memory == alone.memory
        assert beside.breakdown == alone.breakdown
    assert known


@pytest.mark.parametrize("seed", range(24))
def test_no_choice_of_gpus_and_no_order_is_faster(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    pp, dp, tp = DEGREES[seed % len(DEGREES)]
    devices = pp * dp * tp
    while True:
        free = [rng.choice((0, 1, 1, 2, 3)) for _ in range(4)]
        if devices <= sum(free) <= 7:
            break
    options, state = small_ground(tmp_path, free, devices, pp=pp, dp=dp, tp=tp)
    model = load_any_model(options.model, options.user_code)
    request = read_search(replace(options, schedule=("1f1b",)), store=None, model=model, place=state.cluster)
    job = job_on(request, devices)
    (machines,) = by_kind(state.machines).values()
    placed = place_on(job, machines, state, plan_whole(job, machines))
    assert placed is not None
    price = partial(evaluate, pricing=job.seats.pricing)
    for plan in placed.plans:
        ways, _ = enumerate_choices(machines, devices, state.comes_free_s)
        seated = [one for way in ways for one in [seat(plan, way, price)] if one is not None]
        times = [improve(one, price).time_s for one in seated]
        least = brute_least_time(plan, machines, price)
        assert least is not None
        if fewest_machines(machines, devices) == 1:
            # On one machine where it fits, whatever else is as fast.
            assert {len(way.takes) for way in ways} == {1}
        else:
            assert min(times) <= least * (1 + 2e-4)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.integers(1, 12))
def test_every_rule_gives_each_free_gpu_once(free: list[int], devices: int) -> None:
    machines = [machine(node, tuple(range(4 - count, 4))) for node, count in enumerate(free)]
    if sum(free) < devices:
        assert fewest_machines(machines, devices) is None
        return
    for rule in RULES:
        choice = choose_by(rule, machines, devices, lambda _: None, model="gpt-tiny")
        assert choice is not None
        assert sum(choice.shape) == devices
        slots = [slot for one, count in choice.takes for slot in one.slots(count)]
        assert len(set(slots)) == devices
        assert all(slot.index in machines[slot.node].free for slot in slots)
    for choice in enumerate_choices(machines, devices, lambda _: None)[0]:
        assert sum(choice.shape) == devices
        assert all(count <= len(one.free) for one, count in choice.takes)


@given(st.integers(1, 9), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_partitions_are_all_there_are(devices: int, caps: list[int]) -> None:
    caps = sorted(caps, reverse=True)
    counts: list[tuple[int, ...]] = [()]
    for cap in caps:
        counts = [(*before, part) for before in counts for part in range(1, cap + 1)]
    brute = {parts for parts in counts if sum(parts) == devices and list(parts) == sorted(parts, reverse=True)}
    assert set(partitions(devices, caps)) == brute


def test_between_equal_machines_those_whose_jobs_end_together() -> None:
    machines = [machine(node, (2, 3)) for node in range(4)]
    ends = {0: 100.0, 1: 5000.0, 2: 90.0, 3: 4000.0}
    choice = seat_parts((2, 2), machines, lambda one: ends[one.node])
    assert {one.node for one, _ in choice.takes} == {0, 2}
    timed = seat_parts((2, 2), machines, lambda one: ends[one.node], end_s=4500.0)
    assert {one.node for one, _ in timed.takes} == {1, 3}


def test_gpus_of_one_island_are_taken_together() -> None:
    halves = replace(machine(0, (1, 2, 3, 4, 5), size=8), island=4)
    assert [slot.index for slot in halves.slots(2)] == [4, 5]
    assert [slot.index for slot in halves.slots(3)] == [1, 2, 3]
    assert [slot.index for slot in halves.slots(4)] == [1, 2, 3, 4]


def test_a_choice_names_its_machines_once() -> None:
    assert choice_of([(machine(1, (3,)), 1), (machine(0, (2, 3)), 2)]).shape == (2, 1)


# The command


def machine_files(
    folder: Path, jobs: str, *, used: str = "3(IDX:1,4-5) 4(IDX:0-3) 5(IDX:0-3,7) 7(IDX:0-6)"
) -> dict[str, str]:
    (folder / "c.yaml").write_text(THIN.replace("devices: 4", "devices: 8"), encoding="utf-8")
    rows = [f"n{number} gpu:a100:8 gpu:a100:{held} mixed" for number, held in enumerate(used.split(), 1)]
    (folder / "sinfo.txt").write_text("\n".join(["NODELIST GRES GRES_USED STATE", *rows]) + "\n", encoding="utf-8")
    (folder / "jobs").write_text(f"job|hosts|end|gpus|movable|lost\n{jobs}", encoding="utf-8")
    return {"cluster": str(folder / "c.yaml"), "free": str(folder / "sinfo.txt"), "running": str(folder / "jobs")}


JOBS = "71|n2|7200|0-3|yes|0\n72|n1|90000|1,4-5|yes|600\n73|n3|3600|0-3,7|no|\n74|n4|100|0-6|yes|\n"


def place_gpt(folder: Path, devices: int = 12, jobs: str = JOBS, **more: Any) -> dict[str, Any]:
    files = {key: value for key, value in machine_files(folder, jobs).items() if key not in more}
    options: dict[str, Any] = {"global_batch": 24} | more
    options |= {key: Path(value) if key in ("free", "running") else value for key, value in files.items()}
    options = {key: value for key, value in options.items() if value is not None}
    options |= {"now": 300.0} if "running" in options else {}
    options |= {"dp": 12} if devices == 12 else {}
    return api.place(PlaceOptions(model="gpt-tiny", devices=devices, tp=1, **options))


def test_the_answer_has_gpus_ranks_times_and_what_is_left(tmp_path: Path) -> None:
    found = place_gpt(tmp_path, move=2, output=tmp_path / "plan.json")
    score = found["score"]["machines"]
    assert sum(score["shape"]) == 12
    free = {"n1": [0, 2, 3, 6, 7], "n2": [4, 5, 6, 7], "n3": [4, 5, 6], "n4": [7]}
    assert all(one["free_before"] == free[one["name"]] for one in found["machines"])
    given_to = {
        (one["node"], device["index"]): device["rank"] for one in found["machines"] for device in one["devices"]
    }
    assert all(given_to[device["node"], device["index"]] == device["rank"] for device in found["plan"]["devices"])
    assert score["whole"]["machines"] == 2
    assert score["before"] == {"idle_machines": 0, "fragments": 13, "fragmented_machines": 4}
    assert score["after"]["fragments"] == 1
    assert found["score"]["iteration_time_s"] == score["iteration_time_s"] >= score["whole"]["iteration_time_s"] * 0.99
    assert any("end has passed" in note and "74" in note for note in score["notes"])
    # What is written is read again, on the very same GPUs.
    plan = json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert plan["devices"] == found["plan"]["devices"]


def test_waiting_for_whole_machines_is_faster_and_pays(tmp_path: Path) -> None:
    starts = place_gpt(tmp_path)["waiting"]["starts"]
    assert len(starts) > 1
    first, later = starts[0], starts[1]
    assert later["shape"] == [8, 4]
    gain = 1 - later["iteration_time_s"] / first["iteration_time_s"]
    assert later["pays_beyond_s"] == pytest.approx(later["wait_s"] / gain)
    assert "74" in later["jobs"]


def test_moves_leave_alone_who_may_not_be_moved(tmp_path: Path) -> None:
    (room,) = place_gpt(tmp_path, move=1)["moves"]
    # n4's job loses 7 * 60 device-seconds, n1's 3 * 660, n2's 4 * 60; n3's stays.
    assert [one["job"] for one in room["jobs"]] == ["71"]
    assert room["lost_device_hours"] == pytest.approx(4 * 60 / 3600)
    assert room["shape"] == [8, 4]
    assert sum(room["jobs"][0]["to"].values()) == 4
    assert "scontrol requeuehold 71" in room["slurm"]
    assert "/namespaces/default/pods/71/eviction" in room["kubernetes"][0]
    assert room["wins_s"] > 0
    parted = JOBS.replace("71|n2|7200|0-3|yes|0\n", "71|n2|7200|0-1|yes|0\n70|n2|7200|2-3|yes|0\n")
    parted = parted.replace("72|n1|90000|1,4-5|yes", "72|n1|90000|1,4-5|no").replace(
        "74|n4|100|0-6|yes", "74|n4|100|0-6|no"
    )
    found = place_gpt(tmp_path, jobs=parted, move=1)
    assert found["moves"] == []
    said = "no move of 1 job makes room on whole machines; --move 2 would"
    assert said in found["score"]["machines"]["notes"]
    assert [one["job"] for one in place_gpt(tmp_path, jobs=parted, move=2)["moves"][0]["jobs"]] == ["70", "71"]
    stay = JOBS.replace("|yes|", "|no|")
    assert place_gpt(tmp_path, jobs=stay, move=3)["moves"] == []


def test_pods_hold_as_many_gpus_as_they_request(tmp_path: Path) -> None:
    """Of the same file as the nodes: whose the held GPUs are, by number."""
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
    items: list[dict[str, Any]] = [
        {
            "kind": "Node",
            "metadata": {"name": f"n{number}", "labels": labels},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        for number in range(1, 5)
    ]
    items += [pod("a", "n1", 2), pod("b", "n1", 1, owner=False), pod("c", "n2", 4, deadline=7200), pod("d", "n3", 5)]
    items += [pod("e", "n4", 7)]
    files = machine_files(tmp_path, "")
    kubectl = str(written(tmp_path, *items))
    found = place_gpt(tmp_path, cluster=files["cluster"], free=kubectl, running=kubectl, move=2)
    held = {one["name"]: one["jobs"] for one in found["machines"]}
    assert held["n1"] == {"b": [7], "a": [5, 6]} or held["n1"] == {"a": [5, 6], "b": [7]}
    assert found["score"]["machines"]["shape"] in ([8, 4], [5, 4, 3], [5, 4, 1, 2])
    assert all("a" in [one["job"] for one in room["jobs"]] or "c" in [one["job"] for one in room["jobs"]]
               for room in found["moves"])  # fmt: skip
    assert all("b" not in [one["job"] for one in room["jobs"]] for room in found["moves"])


@pytest.mark.parametrize(
    ("jobs", "match"),
    [
        ("7|n1|9000|8|yes|\n", "GPU 8 of n1: found GPU 8, expected an index from 0 to 7"),
        ("7|n1|9000|1|yes|\n8|n1|9000|1,4|yes|\n", "job 8: GPU 1 of n1: found job 7 on it, too"),
        ("7|n1|9000|1|maybe|\n", "movable: found 'maybe', expected yes or no"),
        ("7|n1|9000|1-|yes|\n", "gpus: found '1-', expected indices"),
        ("7|n[1-3]|9000|1/2|yes|\n", "expected indices for each of 3 hosts"),
        ("7|n1|9000|1|yes|soon\n", "lost: found 'soon', expected seconds"),
    ],
)
def test_wrong_jobs_are_refused(tmp_path: Path, jobs: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        place_gpt(tmp_path, jobs=jobs)


def test_a_held_gpu_that_the_node_lacks_is_refused(tmp_path: Path) -> None:
    files = machine_files(tmp_path, JOBS, used="3(IDX:1,4,9) 4(IDX:0-3) 5(IDX:0-3,7) 7(IDX:0-6)")
    with pytest.raises(InputError, match="node n1, GRES_USED: found GPU 9, expected an index from 0 to 7"):
        api.place(
            PlaceOptions(
                model="gpt-tiny", cluster=files["cluster"], devices=4, free=Path(files["free"]), global_batch=8
            )
        )


def test_too_few_free_says_fewer_and_later(tmp_path: Path) -> None:
    with pytest.raises(
        NothingFits, match=r"16 devices wanted, 13 free now: 3 too few; 20 are in .* h, when job 74 ends"
    ):
        place_gpt(tmp_path, 16)
    with pytest.raises(NothingFits, match=r"--devices 1[0-3] would do, on 5"):
        place_gpt(tmp_path, 16)


def test_machines_are_reserved_for_when_enough_gpus_are_free(tmp_path: Path) -> None:
    """13 are free: 15 are when job 74 leaves n4; once 73 has left n3 two machines do: the plan that is written."""
    output = tmp_path / "plan.json"
    found = place_gpt(tmp_path, 15, reserve=True, dp=15, global_batch=60, output=output)
    starts, held = found["waiting"]["starts"], found["waiting"]["reservation"]
    assert (starts[0]["wait_s"], starts[0]["jobs"]) == (60.0, ["74"])
    assert "n4" in [one["name"] for one in found["machines"]]
    best = starts[found["waiting"]["best"]]
    assert (best["wait_s"], best["jobs"], best["shape"]) == (3300.0, ["73"], [8, 7])
    assert {node["host"]: node["devices"] for node in held["nodes"]} == best["machines"]
    assert {node["host"]: node["free_s"] for node in held["nodes"]} == {"n3": 3300.0, "n4": 60.0}
    assert held["idle_device_hours"] == pytest.approx((3300 - 60) * best["machines"]["n4"] / 3600)
    assert {one["host"] for one in json.loads(output.read_text(encoding="utf-8"))["devices"]} == {"n3", "n4"}


def test_what_fits_now_is_reserved_now(tmp_path: Path) -> None:
    stay = (
        JOBS.replace("|100|", "|N/A|").replace("|7200|", "|N/A|").replace("|3600|", "|N/A|").replace("|90000|", "|N/A|")
    )
    held = place_gpt(tmp_path, jobs=stay, reserve=True)["waiting"]["reservation"]
    assert (held["wait_s"], held["idle_device_hours"]) == (0.0, 0.0)
    assert [node["host"] for node in held["nodes"]] == ["n1", "n2", "n3"]
    assert "Flags=IGNORE_JOBS" in held["scontrol"]


def test_moves_want_the_jobs_that_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--move: found no --running"):
        place_gpt(tmp_path, running=None, move=1)
    with pytest.raises(InputError, match=r"--move: found 4, expected 1 to 3"):
        place_gpt(tmp_path, move=4)


def test_a_job_that_fits_on_one_machine_takes_the_tightest(tmp_path: Path) -> None:
    found = place_gpt(tmp_path, 3, running=None)
    assert [one["name"] for one in found["machines"]] == ["n3"]
    assert found["score"]["machines"]["after"]["fragmented_machines"] == 3


def test_the_document_is_by_its_schema_and_the_words_say_when_and_whom(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = machine_files(tmp_path, JOBS)
    line = ["place", "gpt-tiny", "--devices", "12", "--dp", "12", "--tp", "1", "--global-batch", "24", "--now", "300"]
    line += [word for key, value in files.items() for word in (f"--{key}", value)]
    line += ["--move", "2", "--train-samples", "1G", "-o", str(tmp_path / "plan.json")]
    document = document_of(line, 0, capsys)
    assert document["waiting"]["best"] == len(document["waiting"]["starts"]) - 1
    assert main(line) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "on 5 + 4 + 3:" in said
    assert re.search(r"now on 5 \+ 4 \+ 3: \S+ m?s an iteration; on 8 \+ 4 from \d\d:\d\d, in 1 min", said)
    assert "of training wait" in said
    assert "scontrol requeuehold 71" in said
    assert main(["estimate", "--plan", str(tmp_path / "plan.json"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["estimate"]["iteration_time_s"] == document["score"]["iteration_time_s"]
    taken = {(one["host"], one["index"]) for one in document["plan"]["devices"]}
    assert {(one["host"], one["index"]) for one in again["plan"]["devices"]} == taken


def test_whole_machines_are_placed_as_before(tmp_path: Path) -> None:
    files = machine_files(tmp_path, "", used="0 0 5(IDX:0-3,7) 7(IDX:0-6)")
    found = api.place(
        PlaceOptions(
            model="gpt-tiny",
            cluster=files["cluster"],
            devices=16,
            free=Path(files["free"]),
            global_batch=16,
            dp=16,
            tp=1,
        )
    )
    assert "machines" not in found
    assert {device["host"] for device in found["plan"]["devices"]} == {"n1", "n2"}
