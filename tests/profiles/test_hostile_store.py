"""A profile store from elsewhere: programs in its schema, values that are none, more than the limits allow."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from profiles.errors import InputError
from profiles.limits import LIMITS
from profiles.store import ProfileStore, import_profiles
from tests.profiles.profile_examples import KEY, MEASUREMENT

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS link, x AS body FROM n"
HOSTILE = {
    "a view without end": (f"DROP TABLE link_tables; CREATE VIEW link_tables AS {ENDLESS}", "link_tables in it"),
    "a trigger": (
        "CREATE TRIGGER also AFTER INSERT ON profiles BEGIN DELETE FROM rates; END",
        "also in it is none of ours",
    ),
    "a table more": ("CREATE TABLE more (x)", "more in it is none of ours"),
    "a table less": ("DROP TABLE rates", "a table is missing"),
    "another column": ("ALTER TABLE rates ADD COLUMN x", "rates in it is none of ours"),
    "a value beyond the limit": (
        f"UPDATE profiles SET body = zeroblob({LIMITS.store_value_bytes.most + 1})",
        "string or blob too big",
    ),
    "a body that is no text": ("UPDATE profiles SET body = 5", "found 5"),
    "a body that is no UTF-8": ("UPDATE profiles SET body = CAST(x'ff' AS TEXT)", "Could not decode to UTF-8"),
    "a body that is no JSON": ("UPDATE profiles SET body = '{'", "EOF while parsing"),
    "a body of ten thousand lists": (f"UPDATE profiles SET body = '{'[' * 10_000}'", "recursion limit"),
    "a newer version": ("PRAGMA user_version = 2", "version 2, written by another version of cellplan"),
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with ProfileStore(tmp_path / "store.sqlite") as opened:
        opened.put(KEY, MEASUREMENT)
    return tmp_path / "store.sqlite"


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_store_of_ours_is_refused_by_its_name(store: Path, name: str) -> None:
    script, message = HOSTILE[name]
    with closing(sqlite3.connect(store)) as database:
        database.executescript(script)
    with pytest.raises(InputError) as failure, ProfileStore(store) as opened:
        opened.contents()
    told = str(failure.value)
    assert told.startswith(f"{store}: ")
    assert message in told


def test_what_sqlite_adds_itself_is_no_harm(store: Path) -> None:
    with closing(sqlite3.connect(store)) as database:
        database.execute("ANALYZE")
    with ProfileStore(store) as opened:
        assert opened.get(KEY) == MEASUREMENT


def test_a_pipe_and_a_file_beyond_the_limit_are_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="found a pipe, expected a profile store"):
        ProfileStore(tmp_path / "pipe")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(LIMITS.store_bytes.most + 1)
    with pytest.raises(InputError, match="bytes in a profile store, expected at most"):
        ProfileStore(tmp_path / "large")


TABLES: dict[str, tuple[dict[str, object], str]] = {
    "no points": ({"points": []}, "expected one or more, rising"),
    "points that fall": ({"points": [[2048, 1e-4], [1024, 2e-4]]}, "expected one or more, rising"),
    "a time of nothing": ({"points": [[1024, 0.0]]}, "expected times above 0"),
    "a time beyond any": ({"points": [[1024, 1e300]]}, "expected times above 0"),
    "a latency below 0": ({"alpha_s": -1.0}, "expected times above 0"),
    "no ranks": ({"ranks": 0}, "0 ranks on 1 nodes"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_link_table_that_nobody_measured_is_none(tmp_path: Path, name: str) -> None:
    change, message = TABLES[name]
    table: dict[str, object] = {
        "link": "loopback",
        "op": "all_reduce",
        "ranks": 2,
        "nodes": 1,
        "points": [[1024, 1e-4]],
        "alpha_s": 0.0,
        "beta_s_per_byte": 1e-7,
        "fit_error": 0.0,
        "source": "elsewhere",
    }
    path = tmp_path / "profiles.json"
    path.write_text(json.dumps({"schema": "cellplan.profiles/1", "link_tables": [{**table, **change}]}))
    with (
        ProfileStore(tmp_path / "store.sqlite") as opened,
        pytest.raises(InputError, match=rf"profiles\.json: link_tables\[0\]: .*{message}"),
    ):
        import_profiles(opened, path)
