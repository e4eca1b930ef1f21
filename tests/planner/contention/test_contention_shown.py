"""What is printed of many jobs: those that it is about most, and how many there are of the others."""

from __future__ import annotations

from typing import Any

import pytest

from planner.cli.contention_plan import PARTS_OF_OURS, policy_named
from planner.cli.contention_shown import (
    ALL,
    FIRST,
    NAMES,
    devices_lost,
    devices_moved,
    devices_paid,
    names_shown,
    shown_jobs,
    shown_title,
)


def job(number: int, *, now: float | None, then: float | None = 1.0, devices: int = 8) -> dict[str, Any]:
    return {
        "id": f"job{number:03}",
        "devices": devices,
        "alone_s": 1.0,
        "iteration_time_s": now,
        "now_s": now,
        "planned_s": then,
    }


def test_few_jobs_are_printed_as_the_file_has_them() -> None:
    jobs = [job(number, now=1.0 + number % 7) for number in range(ALL)]
    shown = shown_jobs(jobs, devices_lost)
    assert (shown, shown_title("T", shown, jobs, "x")) == (jobs, "T (modelled)")


def test_of_many_jobs_those_come_first_that_it_is_about_most() -> None:
    jobs = [job(number, now=1.0 + number % 7, devices=8 * (1 + number % 3)) for number in range(ALL + 1)]
    jobs[3] = job(3, now=None, devices=800)
    shown = shown_jobs(jobs, devices_lost)
    assert (len(shown), shown[0]["id"]) == (FIRST, "job003")
    rest = [each for each in jobs if each not in shown]
    assert min(map(devices_lost, shown)) >= max(map(devices_lost, rest))
    assert shown_jobs(jobs[::-1], devices_lost) == shown
    title = shown_title("T", shown, jobs, "whose devices lose most")
    assert title == "T, of 51 jobs the 20 whose devices lose most (modelled; --json has all)"


def test_what_is_lost_moved_and_paid_is_counted_in_devices() -> None:
    gains, pays, stuck = job(0, now=2.0, then=1.0), job(1, now=1.0, then=2.0), job(2, now=1.0, then=None)
    assert [devices_lost(each) for each in (gains, pays, stuck)] == [4.0, 0.0, 0.0]
    assert [devices_moved(each) for each in (gains, pays, stuck)] == [4.0, 4.0, 8.0]
    assert [devices_paid(each) for each in (gains, pays, stuck)] == [-4.0, 4.0, 8.0]


@pytest.mark.parametrize(("count", "more"), [(NAMES, ""), (NAMES + 1_200, " and 1,200 more")])
def test_names_in_a_sentence_are_few(count: int, more: str) -> None:
    said = names_shown([f"j{number}" for number in range(count)])
    assert said == ", ".join(f"j{number}" for number in range(NAMES)) + more


@pytest.mark.parametrize(
    ("name", "other", "said"),
    [
        ("ours", {}, "ours"),
        ("ours", {"paths": "tacclstar", "offsets": "none"}, "ours (paths tacclstar, offsets none)"),
        ("users:Own", dict.fromkeys(PARTS_OF_OURS), "users:Own"),
        ("crux", {"paths": "crux"}, "crux (paths crux, priorities ours, compression exact, offsets ours)"),
    ],
)
def test_a_policy_is_named_with_the_parts_that_its_name_does_not_say(
    name: str, other: dict[str, Any], said: str
) -> None:
    assert policy_named({"name": name, **PARTS_OF_OURS, **other}) == said
