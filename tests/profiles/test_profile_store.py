"""The profile store: what goes in comes out, several processes at once, killed processes, damaged files."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings

import profiles.store
from profiles.errors import InputError, MachineError
from profiles.measurements import DeviceRates, MeasurementKey, Origin, ProfileSet, canonical
from profiles.store import ImportCount, ProfileStore, export_profiles, import_profiles
from profiles.vocabulary import LinkTable, Shard
from tests.processes import all_running
from tests.profiles.profile_examples import BLOCK, KEY, MEASUREMENT, profile_sets
from tests.seeds import examples

REPOSITORY = Path(__file__).parents[2]

WRITER = """
import resource, sys
from contextlib import AbstractContextManager
from dataclasses import replace
from profiles.errors import MachineError
from profiles.store import ProfileStore
from tests.profiles.profile_examples import KEY, MEASUREMENT
path, name, count, most_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
if most_bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
try:
    with ProfileStore(path) as store:
        for number in range(count):
            store.put(replace(KEY, hardware=f"{name} {number}"), MEASUREMENT)
            store.put(replace(KEY, hardware="shared"), MEASUREMENT)
            print(number, flush=True)
except MachineError as error:
    print(type(error).__name__, error)
"""


def writers(
    names: str, path: Path, count: int, most_bytes: int = 0
) -> AbstractContextManager[list[subprocess.Popen[str]]]:
    """A process for each letter that puts so many profiles into the store at `path`."""
    return all_running(
        [[sys.executable, "-c", WRITER, str(path), name, str(count), str(most_bytes)] for name in names],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def other(**change: object) -> MeasurementKey:
    return replace(KEY, **change)  # type: ignore[arg-type]


def table(ranks: int = 2, link: str = "loopback") -> LinkTable:
    return LinkTable(
        link=link,
        op="all_reduce",
        ranks=ranks,
        nodes=1,
        points=((1024, 1e-4), (2048, 1.5e-4)),
        alpha_s=5e-5,
        beta_s_per_byte=5e-8,
        fit_error=0.0,
        source="gloo",
    )


RATES = DeviceRates(
    device="cpu",
    hardware="Some CPU",
    software="torch 2.9",
    threads=1,
    memory_bytes=2**33,
    memory_bandwidth_bytes_per_s=1e10,
    flops_per_s=(("fp32", 9e10),),
    flash_attention=True,
)


def test_what_goes_in_comes_out_after_closing(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        assert store.contents() == ProfileSet()
        store.put(KEY, MEASUREMENT)
        store.put_rates(RATES)
        store.put_link_table(table())
        assert store.get(KEY) == MEASUREMENT
    with ProfileStore(tmp_path / "store.db") as store:
        assert store.get(KEY) == MEASUREMENT
        assert store.get(other(threads=2)) is None
        assert store.rates("cpu") == RATES
        assert store.rates("h200") is None
        assert store.link_tables() == store.link_tables("loopback") == (table(),)
        assert store.link_tables("nvlink3") == ()


def test_a_second_put_takes_the_place_of_the_first(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        for parameters in (1, 2):
            store.put(KEY, replace(MEASUREMENT, parameters=parameters))
            store.put_rates(replace(RATES, memory_bytes=parameters))
            store.put_link_table(replace(table(), alpha_s=float(parameters)))
        assert [profile.measurement.parameters for profile in store.profiles()] == [2]
        assert [found.memory_bytes for found in store.contents().rates] == [2]
        assert [found.alpha_s for found in store.link_tables()] == [2.0]


@settings(max_examples=examples(25))
@given(profile_sets)
def test_any_set_goes_through_store_and_file(found: ProfileSet) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with ProfileStore(f"{folder}/a.db") as first, ProfileStore(f"{folder}/b.db") as second:
            first.merge(found)
            contents = first.contents()
            assert set(contents.profiles) == set(found.profiles)
            assert set(contents.rates) == set(found.rates)
            assert set(contents.link_tables) == set(found.link_tables)
            export_profiles(first, f"{folder}/a.json")
            import_profiles(second, f"{folder}/a.json")
            export_profiles(second, f"{folder}/b.json")
            assert second.contents() == contents
        assert Path(folder, "a.json").read_bytes() == Path(folder, "b.json").read_bytes()


def test_find_prefers_new_software_then_hardware_then_few_threads(tmp_path: Path) -> None:
    keys = [
        other(software="torch 2.13.0", hardware="B", threads=1),
        other(software="torch 2.13.0", hardware="B", threads=2),
        other(software="torch 2.13.0", hardware="A", threads=1),
        other(software="torch 2.9.1", hardware="Z", threads=1),
    ]
    for order in (keys, keys[::-1]):
        path = tmp_path / f"{order[0].id}.db"
        with ProfileStore(path) as store:
            for key in order:
                store.put(key, MEASUREMENT)

            def found(origin: Origin | None = None, store: ProfileStore = store) -> MeasurementKey | None:
                profile = store.find(BLOCK, KEY.shard, device="cpu", optimizer="adamw", origin=origin)
                return None if profile is None else profile.key

            origins = tuple(Origin(hardware=key.hardware, software=key.software, threads=key.threads) for key in keys)
            assert found() == keys[0]
            assert [found(origin) for origin in origins] == keys
            assert found(replace(origins[0], threads=3)) is None
            about = {"device": "cpu", "optimizer": "adamw", "dtype": "bf16", "seq_len": 128}
            assert store.origins([BLOCK], **about) == origins  # type: ignore[arg-type]
            for change in ({"device": "h200"}, {"optimizer": "sgd"}, {"dtype": "fp32"}, {"seq_len": 64}):
                assert store.origins([BLOCK], **(about | change)) == ()  # type: ignore[arg-type]
            assert store.origins([replace(BLOCK, hidden=512)], **about) == ()  # type: ignore[arg-type]


def test_find_takes_nothing_that_is_another_figure(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        store.put(KEY, MEASUREMENT)
        store.put(other(kind="stage"), MEASUREMENT)
        profile = store.find(BLOCK, KEY.shard, device="cpu", optimizer="adamw")
        assert profile is not None
        assert profile.key == KEY
        assert store.find(BLOCK, KEY.shard, device="h200", optimizer="adamw") is None
        assert store.find(BLOCK, KEY.shard, device="cpu", optimizer="sgd") is None
        assert store.find(BLOCK, KEY.shard, device="cpu", optimizer="adamw", mode="compiled") is None
        assert store.find(BLOCK, Shard(), device="cpu", optimizer="adamw") is None
        assert store.find(BLOCK.attention, KEY.shard, device="cpu", optimizer="adamw") is None


def test_rates_of_several_machines(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        newer = replace(RATES, hardware="Another CPU", software="torch 2.13")
        for rates in (newer, RATES, replace(newer, threads=2)):
            store.put_rates(rates)
        assert store.rates("cpu") == newer
        assert store.rates("cpu", hardware="Some CPU") == RATES
        assert store.rates("cpu", threads=2) == replace(newer, threads=2)
        assert store.rates("cpu", hardware="Some CPU", threads=2) is None


def test_import_keeps_or_replaces_and_counts(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    with ProfileStore(tmp_path / "from.db") as source, ProfileStore(tmp_path / "to.db") as target:
        source.put(KEY, replace(MEASUREMENT, parameters=2))
        source.put(other(threads=2), MEASUREMENT)
        source.put_link_table(table())
        export_profiles(source, path)
        target.put(KEY, MEASUREMENT)
        assert import_profiles(target, path) == ImportCount(added=2, kept=1, replaced=0)
        assert target.get(KEY) == MEASUREMENT
        assert import_profiles(target, path, replace=True) == ImportCount(added=0, kept=0, replaced=3)
        assert target.get(KEY) == replace(MEASUREMENT, parameters=2)


def test_a_wrong_file_imports_nothing(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    with ProfileStore(tmp_path / "store.db") as store:
        store.put(KEY, MEASUREMENT)
        store.put(other(threads=2), MEASUREMENT)
        export_profiles(store, path)
    path.write_text(path.read_text()[:-30])
    with ProfileStore(tmp_path / "empty.db") as store:
        with pytest.raises(InputError, match=r"new\.json, line \d+, column \d+"):
            import_profiles(store, path)
        assert store.contents() == ProfileSet()


def test_several_processes_make_and_write_one_store(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writers("abc", path, 25) as started:
        for writer in started:
            output, _ = writer.communicate()
            assert (writer.returncode, output.split()[-1]) == (0, "24")
    with ProfileStore(path) as store:
        found = {profile.key.hardware for profile in store.profiles()}
    assert found == {"shared", *(f"{name} {number}" for name in "abc" for number in range(25))}


def test_a_killed_process_loses_nothing_that_it_had_put(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writers("a", path, 1_000_000) as (writer,):
        assert writer.stdout is not None
        printed = [int(writer.stdout.readline()) for _ in range(30)]
        writer.send_signal(signal.SIGKILL)
        printed += [int(line) for line in writer.communicate()[0].splitlines() if line.isdecimal()]
    with ProfileStore(path) as store:
        found = {profile.key.hardware for profile in store.profiles()}
        assert found >= {f"a {number}" for number in printed[:-1]}
        store.put(other(hardware="after"), MEASUREMENT)


def test_a_full_disk_is_the_machines_failure(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writers("a", path, 1_000_000, most_bytes=200_000) as (writer,):
        output, _ = writer.communicate()
    *_, last_number, message = output.splitlines()
    assert message.startswith(f"MachineError {path}: the profile store failed")
    with ProfileStore(path) as store:
        assert len(store.profiles()) >= int(last_number) + 2


def filled(path: Path) -> int:
    with ProfileStore(path) as store:
        store.merge(ProfileSet(link_tables=tuple(table(ranks) for ranks in range(2, 300))))
    return path.stat().st_size


@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.9, 0.99, 0.999])
def test_a_truncated_store_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "store.db"
    size = filled(path)
    os.truncate(path, int(size * share))
    with pytest.raises(InputError, match=r"store\.db: found (a damaged or foreign file|no JSON)"):  # noqa: SIM117
        with ProfileStore(path) as store:
            store.link_tables()


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read as one\n" * 20, b"x"])
def test_another_file_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store.db"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"store\.db: found a damaged or foreign file"):
        ProfileStore(path)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    database = sqlite3.connect(path)
    database.execute("CREATE TABLE theirs (x)")
    database.commit()
    database.close()
    before = path.read_bytes()
    with pytest.raises(InputError, match="found a database of another program"):
        ProfileStore(path)
    assert path.read_bytes() == before


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 3")
    database.close()
    with pytest.raises(InputError, match="found version 3, written by another version of cellplan"):
        ProfileStore(path)


def test_a_row_that_somebody_spoilt_is_named(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with ProfileStore(path) as store:
        store.put(KEY, MEASUREMENT)
    database = sqlite3.connect(path)
    database.execute("""UPDATE profiles SET body = replace(body, '"threads": 1', '"threads": "many"')""")
    database.commit()
    database.close()
    with ProfileStore(path) as store, pytest.raises(InputError, match=r"store\.db: key\.threads: found 'many'"):
        store.get(KEY)


@pytest.mark.parametrize(("place", "message"), [("missing/store.db", "found no folder"), (".", "found a folder")])
def test_places_where_no_store_can_be(tmp_path: Path, place: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ProfileStore(tmp_path / place)


def test_a_store_that_stays_locked_is_the_machines_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles.store, "_BUSY_TIMEOUT_S", 0.01)
    with ProfileStore(tmp_path / "store.db") as store:
        database = sqlite3.connect(tmp_path / "store.db", isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        with pytest.raises(MachineError, match="database is locked"):
            store.put(KEY, MEASUREMENT)
        database.execute("ROLLBACK")
        database.close()
        store.put(KEY, MEASUREMENT)


def test_making_a_store_waits_for_another_process_that_is_at_it(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)
    database.execute("BEGIN IMMEDIATE")
    release = threading.Timer(0.1, database.execute, ["ROLLBACK"])
    release.start()
    with ProfileStore(tmp_path / "store.db") as store:
        assert store.profiles() == ()
    release.join()
    database.close()


def test_hosts_and_backends_keep_their_own_link_tables(tmp_path: Path) -> None:
    tables = {
        replace(table(), backend=backend, hardware=hardware) for backend in ("gloo", "nccl") for hardware in ("A", "B")
    }
    with ProfileStore(tmp_path / "store.db") as store:
        for one in tables:
            store.put_link_table(one)
        assert len(store.link_tables()) == 4
        assert set(store.link_tables()) == tables
    assert len({one.id for one in tables}) == 4
    assert table().id == table().id != table(3).id


def test_an_export_finds_a_page_that_somebody_spoilt(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    filled(path)
    with path.open("r+b") as file:
        file.seek(10 * 4096)
        file.write(b"\0" * 4096)
    with ProfileStore(path) as store, pytest.raises(InputError, match="found a damaged or foreign file"):
        export_profiles(store, tmp_path / "out.json")


def test_layers_are_found_by_value_not_by_identity(tmp_path: Path) -> None:
    with ProfileStore(tmp_path / "store.db") as store:
        store.put(other(layers=(canonical(replace(BLOCK, hidden=512)),)), MEASUREMENT)
        assert store.find(replace(BLOCK, hidden=512), KEY.shard, device="cpu", optimizer="adamw") is not None
        assert store.find(BLOCK, KEY.shard, device="cpu", optimizer="adamw") is None
