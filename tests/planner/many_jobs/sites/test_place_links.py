"""Links between sites as measured: the files, smoothing and ages, and what `place` makes of them."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner import api
from planner.many_jobs.sites.current_links import routes_between, with_topology
from planner.many_jobs.sites.link_measurements import links_now, load_measurements, save_measurements
from planner.many_jobs.sites.monitor import LinkMeasurement
from planner.many_jobs.sites.state import table_of_cluster
from planner.many_jobs.sites.topology import make_topology
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.vocabulary import LinkTable
from tests.planner.many_jobs.placement.place_examples import a100, three_sites, write_cluster
from tests.seeds import examples

NOW = 1.8e9
NAMES = ("north", "south", "west")


def measured(between: tuple[str, str], width: float, *, ago: float = 0.0, far: float | None = None) -> LinkMeasurement:
    return LinkMeasurement(between=between, at_s=NOW - ago, bandwidth_bytes_per_s=width, latency_s=far)


def write_state(path: Path, *found: LinkMeasurement) -> Path:
    save_measurements(path, found, now_s=NOW)
    return path


def table_of(link: str, *, width: float = 5e8, alpha: float = 3e-3) -> LinkTable:
    return LinkTable(
        link=link,
        op="send_recv",
        ranks=2,
        nodes=2,
        points=((1024, alpha + 1024 / width), (2**20, alpha + 2**20 / width)),
        alpha_s=alpha,
        beta_s_per_byte=1 / width,
        fit_error=0.0,
        source="test",
    )


def place(folder: Path, **words: Any) -> dict[str, Any]:
    now = {"now": NOW} if {"links", "comm"} & set(words) else {}
    return api.place(
        "gpt-tiny",
        cluster=three_sites(folder),
        **{"devices": 18, "alternatives": 0, "all_sites": True, **now, **words},
    )


def test_a_state_comes_back_as_it_was_written(tmp_path: Path) -> None:
    found = (measured(("north", "south"), 1e9, ago=100, far=4e-3), measured(("south", "west"), 0.0, ago=50))
    path = write_state(tmp_path / "links.json", *found, found[0])
    assert load_measurements(path, NAMES) == found
    again = path.read_bytes()
    save_measurements(path, load_measurements(path, NAMES), now_s=NOW)
    assert path.read_bytes() == again


def test_what_is_too_old_is_dropped_but_for_the_last_word_on_a_link(tmp_path: Path) -> None:
    old, older = measured(("north", "south"), 0.0, ago=1e7), measured(("north", "south"), 1e9, ago=2e7)
    path = write_state(tmp_path / "links.json", old, older, measured(("south", "west"), 1e9, ago=10))
    assert load_measurements(path, NAMES) == (old, measured(("south", "west"), 1e9, ago=10))


def test_link_tables_are_measurements_of_when_the_file_was_written(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([asdict(table_of("north--south")), asdict(table_of("nvlink"))]))
    os.utime(path, (NOW - 60, NOW - 60))
    (found,) = load_measurements(path, NAMES)
    assert found.at_s == NOW - 60
    assert found.between == ("north", "south")
    assert found.bandwidth_bytes_per_s == pytest.approx(5e8)
    assert found.latency_s == pytest.approx(3e-3)


def test_what_comm_prints_is_read(tmp_path: Path) -> None:
    """`comm show --json --size` has keys beside those of a table."""
    tables = [asdict(table_of("west--south")) | {"size": 1024, "seconds": {"line": 1.0}}]
    path = tmp_path / "tables.json"
    path.write_text(json.dumps(tables))
    assert load_measurements(path, NAMES)[0].between in (("west", "south"), ("south", "west"))


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "links.json"),
        ("{}", "schema: found nothing, expected the schema cellplan.links/1"),
        ('{"schema": "cellplan.links/2", "measurements": []}', "schema: found"),
        ("3", "schema: found int"),
        ('{"schema": "cellplan.links/1", "measurements": [{"between": ["north"], "at_s": 1}]}', r"measurements\[0\]"),
        (
            '{"schema": "cellplan.links/1", "measurements":'
            ' [{"between": ["north", "north"], "at_s": 1, "bandwidth_bytes_per_s": 1}]}',
            "north twice",
        ),
        (
            '{"schema": "cellplan.links/1", "measurements":'
            ' [{"between": ["north", "south"], "at_s": 1, "bandwidth_bytes_per_s": -1}]}',
            "bandwidth_bytes_per_s",
        ),
        (
            '{"schema": "cellplan.links/1", "measurements":'
            ' [{"between": ["north", "south"], "at_s": 1, "bandwidth_bytes_per_s": 1e-300}]}',
            r"measurements\[0\].bandwidth_bytes_per_s: found 1e-300, expected 0 \(nothing came through\)",
        ),
        (
            '{"schema": "cellplan.links/1", "measurements":'
            ' [{"between": ["north", "east"], "at_s": 1, "bandwidth_bytes_per_s": 1}]}',
            "found north and east, expected links between two of north, south, west",
        ),
        ("[1]", "list of other things"),
        ('[{"link": "north--south"}]', r"\[0\]"),
    ],
)
def test_wrong_files_are_named(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "links.json"
    path.write_text(content)
    with pytest.raises(InputError, match=what):
        load_measurements(path, NAMES)


def test_tables_of_other_links_alone_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps([asdict(table_of("loopback"))]))
    with pytest.raises(InputError, match="link: found loopback, expected a link called after two of the sites"):
        load_measurements(path, NAMES)


def test_measurements_override_the_file_and_age_back_to_it() -> None:
    topology = make_topology(NAMES, [(0, 1, 1e9, 2e-3), (1, 2, 5e8, 5e-3)])
    widths = []
    for ago in (0.0, 3600.0, 7200.0, 36000.0):
        now, links = links_now(topology, [measured(("north", "south"), 2e8, ago=ago)], now_s=NOW)
        assert links[0].basis == "measured"
        assert links[0].age_s == ago
        assert links[0].filed == (1e9, 2e-3)
        assert links[1].basis == "file"
        assert links[1].age_s is None
        widths.append(float(now.bandwidth_bytes_per_s[0]))
    assert widths == sorted(widths)
    assert widths[0] < 2.6e8
    assert widths[-1] > 9.8e8


def test_a_link_through_which_nothing_came_is_down_until_something_does() -> None:
    topology = make_topology(NAMES, [(0, 1, 1e9, 2e-3), (1, 2, 5e8, 5e-3)])
    down = measured(("south", "north"), 0.0, ago=500)
    now, links = links_now(topology, [down], now_s=NOW)
    assert links[0].basis == "down"
    assert [edge[:2] for edge in now.edges] == [(1, 2)]
    now, links = links_now(topology, [down, measured(("north", "south"), 3e8, ago=100)], now_s=NOW)
    assert links[0].basis == "measured"
    assert [edge[:2] for edge in now.edges] == [(0, 1), (1, 2)]


def test_a_link_that_the_file_does_not_have_is_added() -> None:
    topology = make_topology(NAMES, [(0, 1, 1e9, 2e-3)])
    now, links = links_now(topology, [measured(("west", "north"), 7e8, far=1e-3)], now_s=NOW)
    assert [edge[:2] for edge in now.edges] == [(0, 1), (0, 2)]
    assert next(link for link in links if link.between == ("north", "west")).filed is None


def test_a_time_to_come_is_refused_beyond_what_clocks_differ() -> None:
    topology = make_topology(NAMES, [(0, 1, 1e9, 2e-3)])
    _, links = links_now(topology, [measured(("north", "south"), 1e9, ago=-20)], now_s=NOW)
    assert links[0].age_s == 0
    with pytest.raises(InputError, match="a time that has been"):
        links_now(topology, [measured(("north", "south"), 1e9, ago=-4000)], now_s=NOW)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0, 7200), st.one_of(st.just(0.0), st.floats(1e6, 1e10))),
        min_size=1,
        max_size=8,
        unique=True,
    )
)
def test_a_link_is_as_wide_as_measured_or_filed_or_down(rows: list[tuple[float, float]]) -> None:
    topology = make_topology(NAMES, [(0, 1, 1e9, 2e-3)])
    found = [measured(("north", "south"), width, ago=ago) for ago, width in rows]
    now, _ = links_now(topology, found, now_s=NOW)
    width = float(now.bandwidth_bytes_per_s[0])
    ups = [one.bandwidth_bytes_per_s for one in found if one.bandwidth_bytes_per_s] + [1e9]
    assert width == 0 or min(ups) * (1 - 1e-9) <= width <= max(ups) * (1 + 1e-9)
    last = max(found, key=lambda one: one.at_s)
    if sum(one.at_s == last.at_s for one in found) == 1:
        assert (width == 0) == (last.bandwidth_bytes_per_s == 0)


def test_ways_over_other_sites_are_the_estimators(tmp_path: Path) -> None:
    sites = {name: [a100(1)] for name in "abcd"}
    links = [("a", "b", 4e8, 1e-3), ("b", "d", 4e8, 1e-3), ("a", "c", 9e8, 5e-3), ("c", "d", 6e8, 5e-3)]
    cluster = load_cluster(write_cluster(tmp_path, sites, links))
    (route,) = routes_between(cluster, ("a", "d"))
    assert route.sites == ("a", "c", "d")
    assert route.bandwidth_bytes_per_s == 6e8
    assert route.latency_s == pytest.approx(0.01)
    assert routes_between(cluster, ("a", "b")) == ()
    apart = load_cluster(write_cluster(tmp_path, sites, links[:1], name="apart.yaml"))
    assert routes_between(apart, ("a", "c")) == ()


def test_the_cluster_has_the_links_as_they_are_now(tmp_path: Path) -> None:
    cluster = load_cluster(three_sites(tmp_path))
    topology = table_of_cluster(cluster).topology
    assert set(with_topology(cluster, topology).site_links) == set(cluster.site_links)
    now, _ = links_now(topology, [measured(("south", "west"), 0.0)], now_s=NOW)
    assert [link.between for link in with_topology(cluster, now).site_links] == [("north", "south")]


def test_place_goes_by_measured_links(tmp_path: Path) -> None:
    """North and south are said to be joined the widest; measured, that link is down."""
    before = place(tmp_path)
    assert {site["name"] for site in before["sites"]} == {"north", "south"}
    assert before["score"]["basis"]["links"] == "file"
    state = write_state(
        tmp_path / "links.json",
        measured(("north", "south"), 0.0, ago=120),
        measured(("north", "west"), 8e8, ago=60, far=3e-3),
    )
    plan = tmp_path / "plan.json"
    found = place(tmp_path, links=state, output=plan)
    assert {site["name"] for site in found["sites"]} == {"north", "west"}
    by_ends = {tuple(link["between"]): link for link in found["links"]}
    assert by_ends["north", "south"]["basis"] == "down"
    assert by_ends["north", "south"]["age_s"] == 120
    assert by_ends["north", "west"]["used"]
    assert by_ends["north", "west"]["age_s"] == 60
    assert found["score"]["basis"]["links"] == "measured"
    again = api.estimate(plan=plan)
    assert again["estimate"]["iteration_time_s"] == pytest.approx(found["score"]["iteration_time_s"], rel=1e-9)
    filed = place(tmp_path, links=state, alternatives=4)
    assert any(way["name"] == "by the cluster file's links" for way in filed["alternatives"])


def test_new_measurements_are_added_to_the_state(tmp_path: Path) -> None:
    state, tables = tmp_path / "links.json", tmp_path / "tables.json"
    tables.write_text(json.dumps([asdict(table_of("north--south"))]))
    os.utime(tables, (NOW - 300, NOW - 300))
    found = place(tmp_path, links=state, comm=(tables,))
    (link,) = [one for one in found["links"] if one["basis"] == "measured"]
    assert link["age_s"] == 300
    (kept,) = load_measurements(state, NAMES)
    assert kept.at_s == NOW - 300
    # Once more: nothing counts twice.
    assert place(tmp_path, links=state, comm=(tables,))["links"] == found["links"]
    assert load_measurements(state, NAMES) == (kept,)
    later = place(tmp_path, links=state, now=NOW + 3600)
    assert next(one for one in later["links"] if one["basis"] == "measured")["age_s"] == 3900


def test_a_state_that_is_not_there_is_an_error_unless_it_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json"):
        place(tmp_path, links=tmp_path / "nowhere.json")


def test_one_site_has_no_links_to_measure(tmp_path: Path) -> None:
    path = write_cluster(tmp_path, {"only": [a100(4)]}, name="one.yaml")
    state = write_state(tmp_path / "links.json", measured(("north", "south"), 1e9))
    with pytest.raises(InputError, match="expected links between two of only"):
        api.place("gpt-tiny", cluster=path, devices=2, links=state, now=NOW)
