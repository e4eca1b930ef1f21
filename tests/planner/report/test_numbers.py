"""The numbers that people see on each page are those that the command prints with --json, to the digits shown."""

from __future__ import annotations

import re

import pytest

from planner.report.jct_page import jct_page
from planner.report.page import page_html
from planner.shared.words import RUN_PARTS, TIME_NAMES
from tests.planner.report.pages import JCT, page_of, run_page
from tests.planner.report.shown import amount, read_page

DIGITS = 6e-3
"""Three digits are shown."""


def same(text: str, value: float, *, within: float = DIGITS) -> bool:
    """Whether what is shown is the value."""
    return amount(text) == pytest.approx(value, rel=within, abs=1e-12)


def ends(note: str) -> tuple[float, float]:
    """Both ends of an interval that a note tells, in the unit that it ends in."""
    matched = re.search(r"90%: ([\d.,]+)(?: (\w+) to |-)([\d.,]+) ?(\w*)", note)
    assert matched is not None, note
    low, own, high, unit = matched.groups()
    return amount(f"{low} {own or unit}"), amount(f"{high} {unit}")


@pytest.mark.parametrize("name", ["plan", "estimate", "place", "place-pods"])
def test_the_figures_that_a_plans_page_opens_with(name: str) -> None:
    text, answer = page_of(name)
    facts, plan = read_page(text).facts, answer["plan"]
    estimate, devices = plan["estimate"], len(plan["devices"])
    assert same(facts["iteration"][0], estimate["iteration_time_s"])
    assert ends(facts["iteration"][1]) == pytest.approx(estimate["interval_90_s"], rel=DIGITS)
    assert same(facts["throughput"][0], estimate["tokens_per_s_per_device"] * devices)
    assert same(facts["samples"][0], estimate["samples_per_s"])
    assert same(facts["efficiency"][0], estimate["tflops_per_device"])
    assert facts["efficiency"][1] == f"per device, MFU {estimate['mfu']:.1%}"
    assert same(facts["memory of a device"][0], estimate["peak_memory_bytes"])
    assert ends(facts["memory of a device"][1]) == pytest.approx(estimate["memory_interval_90_bytes"], rel=DIGITS)
    assert facts["memory of a device"][1].endswith(estimate["memory_fit"]["verdict"])


def test_what_a_whole_training_takes() -> None:
    text, answer = page_of("plan")
    facts, training = read_page(text).facts, answer["training"]
    for label, key, unit in (
        ("whole training", "days", 86400.0),
        ("device-hours", "device_hours", 1.0),
        ("cost", "price", 1.0),
        ("energy", "energy_kwh", 1.0),
    ):
        value, note = facts[label]
        # A small one is shown in whole units.
        assert amount(value) == pytest.approx(training[key] * unit, rel=DIGITS, abs=0.51)
        assert ends(note) == pytest.approx([end * unit for end in training[f"{key}_interval_90"]], rel=DIGITS, abs=0.51)


@pytest.mark.parametrize("name", ["plan", "estimate", "place"])
def test_the_tables_of_a_plans_page(name: str) -> None:
    text, answer = page_of(name)
    shown, plan = read_page(text), answer["plan"]
    breakdown, whole = plan["estimate"]["breakdown"], plan["estimate"]["iteration_time_s"]
    parts = {row["part"]: row for row in shown.table("Parts of an iteration")}
    for key, seconds in breakdown.items():
        if seconds > 1e-6 * whole:
            assert same(parts[TIME_NAMES[key]]["seconds"], seconds)
            assert parts[TIME_NAMES[key]]["share"] == f"{seconds / whole:.1%}"
    for row, stage in zip(shown.table("Stages"), plan["stages"], strict=True):
        assert same(row["compute"], stage["compute_s"])
        assert same(row["communication"], stage["communication_s"])
        assert same(row["memory"], stage["memory_bytes"])
    rows = shown.table("Memory by stage")
    for number, stage in enumerate(plan["stages"]):
        told = sum(amount(row["memory"]) for row in rows if row["stage"] == f"stage {number}")
        assert told == pytest.approx(stage["memory_bytes"] + stage["memory"]["reserve_bytes"], rel=DIGITS)
    guesses = answer["guesses"]
    for row, guess in zip(shown.table("What stands in"), guesses, strict=True):
        assert (row["share"], row["modelled"], row["measured by"]) == (
            f"{guess['share']:.1%}",
            guess["what"],
            guess["remedy"],
        )


def test_other_plans_and_what_would_help() -> None:
    text, answer = page_of("plan")
    shown, explanation = read_page(text), answer["explanation"]
    others = [each for each in explanation["runners_up"] if each["iteration_time_s"] is not None]
    for row, other in zip(shown.table("Runners-up"), others, strict=True):
        assert row["plan"] == other["plan"]
        assert same(row["iteration"], other["iteration_time_s"])
        assert amount(row["loss"]) == pytest.approx(other["loss"], abs=6e-4)
        assert same(row["memory"], other["peak_memory_bytes"])
    for row, each in zip(shown.table("What more"), explanation["sensitivities"], strict=True):
        assert row["change"] == each["name"]
        assert (row["iteration"] == "-") == (each["change"] is None)
        if each["change"] is not None:
            assert amount(row["iteration"]) == pytest.approx(each["change"], abs=6e-4)
    for row, effect in zip(shown.table("The same as a table"), explanation["assumption_effects"], strict=True):
        assert row["assumed"] == effect["assumed"]
        assert amount(row["iteration"].partition(",")[0]) == pytest.approx(effect["time_ratio"] - 1, abs=6e-3)


def test_links_and_their_loads() -> None:
    text, answer = page_of("estimate")
    links = answer["link_loads"]["links"]
    rows = read_page(text).table("Links between nodes")
    assert len(links) > 1
    for row, link in zip(rows, links, strict=True):
        ends = tuple(link[end].replace("above", "fabric") for end in ("from", "to"))
        assert (row["from"], row["to"], row["cables"]) == (*ends, str(link["cables"]))
        assert same(row["bytes an iteration"], link["bytes"])
        assert same(row["rate of all"], link["bytes_per_s"])
        assert row["busy"] == f"{link['busy']:.1%}"
        whole_s = answer["plan"]["estimate"]["iteration_time_s"]
        assert link["busy"] >= link["bytes"] / link["bytes_per_s"] / whole_s * (1 - 1e-9)
    for node in answer["link_loads"]["nodes"]:
        assert f"inside {node['inside_busy']:.1%}" in text


def test_memory_over_time_is_at_its_fullest_what_the_plan_needs() -> None:
    text, answer = page_of("estimate")
    told = dict(re.findall(r"(stage \d+): ([\d.]+ \w+) at its fullest", text))
    stages = answer["plan"]["stages"]
    assert set(told) == {"stage 0", f"stage {len(stages) // 2}", f"stage {len(stages) - 1}"}
    for name, full in told.items():
        stage = stages[int(name.split()[1])]
        assert same(full, stage["memory_bytes"] + stage["memory"]["reserve_bytes"])


def test_cells() -> None:
    text, answer = page_of("cells")
    for row, cell in zip(read_page(text).table("Cells"), answer["cells"], strict=True):
        assert (row["device"], row["devices"], row["stages"]) == (
            cell["device"],
            str(cell["devices"]),
            str(cell["stages"]),
        )
        if cell["fits"]:
            assert same(row["iteration"], cell["iteration_time_s"])
            assert same(row["memory"], cell["peak_memory_bytes"])
            assert same(row["tokens/s"], cell["tokens_per_s_per_device"] * cell["devices"])


def test_a_placement() -> None:
    text, answer = page_of("place")
    shown = read_page(text)
    for row, way in zip(shown.table("Other ways"), answer["alternatives"], strict=True):
        assert (row["way"], row["loses"]) == (way["name"], way["loses"] or "-")
        if way["iteration_time_s"] is not None:
            assert same(row["iteration"], way["iteration_time_s"])
    for link in answer["links"]:
        assert f"{8 * link['bandwidth_bytes_per_s'] / 1e9:.3g} Gb/s" in text


def test_a_simulation() -> None:
    text, answer = page_of("simulate")
    shown = read_page(text)
    for label, key in (("mean JCT", "jct_mean_s"), ("mean queueing", "queue_mean_s"), ("makespan", "makespan_s")):
        assert same(shown.facts[label][0], answer[key])
    assert shown.facts["utilization"][0] == f"{answer['utilization_mean']:.1%}"
    assert shown.facts["finished"][0] == f"{answer['finished']} of {answer['jobs']}"
    bounds = {row["figure"]: row for row in shown.table("This run")}
    assert same(bounds["mean JCT"]["bound"].removeprefix("at least "), answer["bounds"]["jct_mean_s"])
    assert same(bounds["makespan"]["bound"].removeprefix("at least "), answer["bounds"]["makespan_s"])
    for caption in ("By size", "By user"):
        rows = shown.table(caption)
        assert sum(int(row["jobs"]) for row in rows) == answer["jobs"]
        means = sum(int(row["jobs"]) * amount(row["mean JCT"]) for row in rows)
        assert means / answer["jobs"] == pytest.approx(answer["jct_mean_s"], rel=2 * DIGITS)


def test_a_simulation_on_a_network() -> None:
    """What jobs do to each other there is said, and of a run without one nothing is."""
    text, answer = page_of("simulate-network")
    said = {row["figure"]: row["value"] for row in read_page(text).table("What jobs that share NICs")}
    assert said["slowdown by others, mean"] == f"{answer['slowdown_by_others_mean']:.2f}"
    assert said["job-hours lost to others"] == f"{answer['lost_to_others_hours']:.1f}"
    assert said["GPUs that compute, of all"] == f"{answer['gpu_utilization_mean']:.1%}"
    assert said["decisions of crux"] == str(answer["network_decisions"])
    assert said["jobs that it changed while they ran"] == str(answer["network_changes"])
    assert said["device-hours that they stood still"] == f"{answer['network_changes_device_hours']:.4g}"
    assert "On the network" not in page_of("simulate")[0]


def test_simulations_on_several_networks_are_told_apart() -> None:
    text, answer = page_of("sweep-networks")
    assert "under fcfs" in text
    shown = read_page(text)
    rows = shown.table("Means over seeds")
    assert [row["policy"] for row in rows] == ["fcfs, network none", "fcfs, network crux"]
    busy = answer["means"][1]["gpu_utilization_mean"]["mean"]
    assert [row["GPUs that compute"] for row in rows] == ["-", f"{busy:.1%}"]
    assert [row["run"] for row in shown.table("Every run")] == [f"{row['policy']}, seed 0" for row in rows]


def test_several_simulations() -> None:
    text, answer = page_of("sweep")
    shown = read_page(text)
    rows = shown.table("Means over seeds")
    logged = [row for row in rows if row["policy"] == "as logged"]
    assert bool(logged) == (answer["as_logged"] is not None)
    for row in logged:
        assert (row["finished"], row["deadlines met"]) == (str(answer["as_logged"]["jobs"]), "-")
    for row, mean in zip((row for row in rows if row not in logged), answer["means"], strict=True):
        assert row["policy"] == mean["policy"]
        for name, key in (("mean JCT", "jct_mean_s"), ("p99 JCT", "jct_p99_s"), ("makespan", "makespan_s")):
            assert amount(row[name].partition(" ± ")[0]) == pytest.approx(mean[key]["mean"], rel=0.06)
    for row, run in zip(shown.table("Every run"), answer["runs"], strict=True):
        assert row["run"] == f"{run['policy']}, seed {run['seed']}"
        assert row["finished"] == f"{run['finished']} of {run['jobs']}"
        assert row["utilization"] == f"{run['utilization_mean']:.1%}"


def test_runs_that_were_validated() -> None:
    text, answer = page_of("validate")
    shown = read_page(text)
    whole = answer["groups"]["all"]
    assert shown.facts["mean error of time"][0] == f"{whole['iteration_time']['mean_absolute']:.1%}"
    assert shown.facts["runs"] == (str(whole["predicted"]), f"of {whole['rows']}")
    rows = {row["id"]: row for row in answer["rows"]}
    told = shown.table("The 2 worst")
    assert len(told) == 2
    for row in told:
        run = rows[row["run"]]
        assert same(row["measured"], run["measured_iteration_time_s"])
        assert same(row["estimated"], run["estimated_iteration_time_s"])
        assert row["error"] == f"{run['error']:+.1%}"
        assert row["assumed"] == "; ".join(run["assumptions"])


def test_predictions() -> None:
    shown = read_page(page_html(jct_page(JCT, trace="week.csv")))
    assert shown.facts["within a factor of two"][0] == "50.0%"
    assert shown.facts["90% intervals hold"] == ("90.0%", "9.0 intervals wide")
    model, network, baseline = shown.table("Errors in intervals")
    assert network["RMSE of log"] == "1.100"
    assert (model["RMSE"], model["MAE"], model["RMSE of log"]) == ("3.000", "2.000", "0.900")
    assert (baseline[""], baseline["RMSE of log"], baseline["within 2x"]) == ("mean", "1.500", "25.0%")


def test_a_real_run() -> None:
    pytest.importorskip("torch")
    text, answer = run_page(("--steps", "2"))
    shown, measured, estimated = read_page(text), answer["measured"], answer["estimated"]
    assert same(shown.facts["measured"][0], measured["iteration_time_s"])
    assert same(shown.facts["estimated"][0], estimated["iteration_time_s"])
    assert shown.facts["estimated over measured"][0] == f"{answer['ratio']:.1%}"
    assert same(shown.facts["peak memory, measured"][0], measured["peak_memory_bytes"])
    for row, each in zip(shown.table("Parts of an iteration"), answer["differences"], strict=True):
        assert row["part"] == RUN_PARTS[each["part"]]
        assert same(row["measured"], each["measured_s"])
        assert same(row["estimated"], each["estimated_s"])
        assert same(row["difference"], each["difference_s"])
    for row, stage in zip(shown.table("Peak memory"), measured["stages"], strict=True):
        assert same(row["measured"], stage["peak_memory_bytes"])
