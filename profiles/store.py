"""The profile store: measured profiles, rates of local devices and link tables in one SQLite file.

Several processes may read and write it at once (write-ahead log, busy timeout); each `put` is one transaction, so a
process that is killed loses at most what it was measuring. Everything is JSON text.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

from profiles.errors import InputError, MachineError
from profiles.files import read_text, write_atomically
from profiles.limits import LIMITS
from profiles.measurements import (
    DeviceRates,
    Measurement,
    MeasurementKey,
    Mode,
    Origin,
    Profile,
    ProfileSet,
    canonical,
)
from profiles.opening import check_regular, open_at_once
from profiles.records import dataclass
from profiles.vocabulary import DType, LinkTable, Shard

T = TypeVar("T")
Outcome = Literal["added", "kept", "replaced"]

_APPLICATION_ID = 0x63656C6C
"""Marks the file as ours in SQLite's header: "cell"."""
_STORE_VERSION = 1
_SQLITE_HEAD = b"SQLite format 3\0"
_BUSY_TIMEOUT_S = 30.0
_DAMAGES = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_TOOBIG)
_DAMAGE_WORDS = ("malformed JSON", "Could not decode to UTF-8")
"""Of errors that have no code of their own."""
_TABLES = (
    "CREATE TABLE profiles (id TEXT PRIMARY KEY, subject TEXT NOT NULL, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE INDEX profiles_by_subject ON profiles (subject)",
    "CREATE TABLE rates (device TEXT, hardware TEXT, threads INTEGER, body TEXT NOT NULL,"
    " PRIMARY KEY (device, hardware, threads)) WITHOUT ROWID",
    "CREATE TABLE link_tables (link TEXT, op TEXT, ranks INTEGER, nodes INTEGER, backend TEXT, hardware TEXT,"
    " body TEXT NOT NULL, PRIMARY KEY (link, op, ranks, nodes, backend, hardware)) WITHOUT ROWID",
)
_KEYS = {
    "profiles": ("id",),
    "rates": ("device", "hardware", "threads"),
    "link_tables": ("link", "op", "ranks", "nodes", "backend", "hardware"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportCount:
    """What an import did: entries that were new, that were there and stayed, that were there and gave way."""

    added: int
    kept: int
    replaced: int


class ProfileStore:
    """An open store; use it in a `with` statement. The file is made where there is none.

    Raise InputError for a file that is damaged, no store of ours or of a newer version, and for a missing folder;
    MachineError where the machine fails (disk full, no permission, locked for longer than 30 s).
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._check_place()
        with self._translate():
            self._db = sqlite3.connect(self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None)
            try:
                self._distrust()
                # One transaction, lest another process makes the store between two of the questions.
                with self._transaction("DEFERRED"):
                    ours = self._is_ours()
                if not ours:
                    self._create()
                self._check_end()
                self._db.execute("PRAGMA synchronous = FULL")
            except BaseException:
                self._db.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; the store cannot be used any more."""
        self._db.close()

    def get(self, key: MeasurementKey) -> Measurement | None:
        """Return the measurement of exactly this key, None where there is none."""
        for profile in self._read(Profile, "SELECT body FROM profiles WHERE id = ?", key.id):
            if profile.key == key:
                return profile.measurement
        return None

    def put(self, key: MeasurementKey, measurement: Measurement) -> None:
        """Store one measurement, durably; one of the same key gives way to it."""
        with self._transaction():
            self._insert_profile(Profile(key=key, measurement=measurement), replace=True)

    def find(
        self,
        layer: object,
        shard: Shard,
        *,
        device: str,
        optimizer: str,
        mode: Mode = "eager",
        origin: Origin | None = None,
        workers: int = 1,
    ) -> Profile | None:
        """Return the profile of one layer's shard on what is called `device`, of exactly that `origin`, measured with
        so many busy workers; None where there is none.

        Of several where `origin` is None: that of the newest software (versions compared as numbers), then of the last
        hardware by name, then of the fewest threads.
        """
        subject = _subject("layer", (canonical(layer),), shard, device, mode, optimizer)
        profiles = self._read(Profile, "SELECT body FROM profiles WHERE subject = ?", subject)
        fitting = [
            profile
            for profile in profiles
            if origin in (None, _origin_of(profile.key)) and profile.key.workers == workers
        ]
        return max(fitting, key=lambda profile: _preference(profile.key), default=None)

    def origins(
        self, layers: Iterable[object], *, device: str, optimizer: str, dtype: DType, seq_len: int
    ) -> tuple[Origin, ...]:
        """Return the origins of the eager profiles of any of `layers`, at any degree and micro-batch; best first, as
        `find` prefers them."""
        query = (
            "SELECT DISTINCT json_extract(body, '$.key.hardware'), json_extract(body, '$.key.software'),"
            " json_extract(body, '$.key.threads') FROM profiles WHERE json_extract(body, '$.key.kind') = 'layer'"
            " AND json_extract(body, '$.key.mode') = 'eager' AND json_extract(body, '$.key.device') = ?"
            " AND json_extract(body, '$.key.optimizer') = ? AND json_extract(body, '$.key.shard.dtype') = ?"
            " AND json_extract(body, '$.key.shard.seq_len') = ?"
            " AND json_extract(body, '$.key.layers[0]') IN (SELECT value FROM json_each(?))"
        )
        texts = json.dumps(sorted({canonical(layer) for layer in set(layers)}))
        with self._translate():
            rows = self._db.execute(query, (device, optimizer, dtype, seq_len, texts)).fetchall()
        origins = [
            Origin(hardware=hardware, software=software, threads=threads) for hardware, software, threads in rows
        ]
        return tuple(sorted(origins, key=_preference, reverse=True))

    def profiles(self) -> tuple[Profile, ...]:
        """Return all profiles, by id."""
        return tuple(self._read(Profile, "SELECT body FROM profiles ORDER BY id"))

    def put_rates(self, rates: DeviceRates) -> None:
        """Store a device's rates; those of the same device, hardware and threads give way to them."""
        with self._transaction():
            self._insert_rates(rates, replace=True)

    def rates(self, device: str, *, hardware: str | None = None, threads: int | None = None) -> DeviceRates | None:
        """Return rates of `device`, on any hardware and with any threads where None; of several, chosen as in
        `find`."""
        all_rates = self._read(DeviceRates, "SELECT body FROM rates WHERE device = ?", device)
        fitting = [
            rates for rates in all_rates if hardware in (None, rates.hardware) and threads in (None, rates.threads)
        ]
        return max(fitting, key=_preference, default=None)

    def put_link_table(self, table: LinkTable) -> None:
        """Store a link table; one of the same link, operation, ranks, nodes, backend and hardware gives way to it."""
        with self._transaction():
            self._insert_link_table(table, replace=True)

    def link_tables(self, link: str | None = None) -> tuple[LinkTable, ...]:
        """Return the link tables of `link` (None: of all links), by link, operation, ranks, nodes, backend and
        hardware."""
        order = "ORDER BY link, op, ranks, nodes, backend, hardware"
        if link is None:
            return tuple(self._read(LinkTable, f"SELECT body FROM link_tables {order}"))
        return tuple(self._read(LinkTable, f"SELECT body FROM link_tables WHERE link = ? {order}", link))

    def contents(self) -> ProfileSet:
        """Return everything in the store."""
        rates = self._read(DeviceRates, "SELECT body FROM rates ORDER BY device, hardware, threads")
        return ProfileSet(profiles=self.profiles(), rates=tuple(rates), link_tables=self.link_tables())

    def merge(self, entries: ProfileSet, *, replace: bool = False) -> ImportCount:
        """Add all of `found` or nothing of it; where an entry is there already, it stays unless `replace`."""
        with self._transaction():
            outcomes = [self._insert_profile(profile, replace=replace) for profile in entries.profiles]
            outcomes += [self._insert_rates(rates, replace=replace) for rates in entries.rates]
            outcomes += [self._insert_link_table(table, replace=replace) for table in entries.link_tables]
        return ImportCount(
            added=outcomes.count("added"), kept=outcomes.count("kept"), replaced=outcomes.count("replaced")
        )

    def _insert_profile(self, profile: Profile, *, replace: bool) -> Outcome:
        key = profile.key
        subject = _subject(key.kind, key.layers, key.shard, key.device, key.mode, key.optimizer)
        return self._insert("profiles", {"id": profile.id, "subject": subject}, profile, replace=replace)

    def _insert_rates(self, rates: DeviceRates, *, replace: bool) -> Outcome:
        columns: dict[str, str | int] = {"device": rates.device, "hardware": rates.hardware, "threads": rates.threads}
        return self._insert("rates", columns, rates, replace=replace)

    def _insert_link_table(self, table: LinkTable, *, replace: bool) -> Outcome:
        columns: dict[str, str | int] = {column: getattr(table, column) for column in _KEYS["link_tables"]}
        return self._insert("link_tables", columns, table, replace=replace)

    def _insert(self, table: str, columns: Mapping[str, str | int], record: Any, *, replace: bool) -> Outcome:
        same = " AND ".join(f"{column} = ?" for column in _KEYS[table])
        present = self._db.execute(
            f"SELECT 1 FROM {table} WHERE {same}", [columns[column] for column in _KEYS[table]]
        ).fetchone()
        if present and not replace:
            return "kept"
        names, marks = ", ".join([*columns, "body"]), ", ".join("?" * (len(columns) + 1))
        body = json.dumps(asdict(record), sort_keys=True, allow_nan=False)
        self._db.execute(f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})", [*columns.values(), body])
        return "replaced" if present else "added"

    def _read(self, kind: type[T], query: str, *values: str) -> list[T]:
        with self._translate():
            rows = self._db.execute(query, values).fetchall()
        if not rows:
            return []
        from profiles.schema import validate_json  # which takes as long as everything else here

        return [validate_json(kind, body, where=str(self._path)) for (body,) in rows]

    @contextmanager
    def _transaction(self, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> Iterator[None]:
        with self._translate():
            self._db.execute(f"BEGIN {kind}")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translate(self) -> Iterator[None]:
        """SQLite's errors as ours."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGES or any(words in str(error) for words in _DAMAGE_WORDS):
                raise self._damaged(str(error)) from error
            raise MachineError(f"{self._path}: the profile store failed: {error}") from error

    def _damaged(self, why: str) -> InputError:
        return InputError(where=str(self._path), found=f"a damaged or foreign file ({why})", expected="a profile store")

    def check(self) -> None:
        """Read the whole file and raise InputError if it is damaged. Opening alone finds what is cut off."""
        with self._translate():
            verdict = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if verdict != "ok":
                raise self._damaged(" ".join(verdict.split()))

    def _check_end(self) -> None:
        """SQLite refuses a file that lacks whole pages, but reads what its last one lacks as zeros."""
        page_bytes = self._db.execute("PRAGMA page_size").fetchone()[0]
        if self._path.stat().st_size % page_bytes:
            self.check()

    def _version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _check_place(self) -> None:
        try:
            if not self._path.parent.is_dir():
                expected = "a path in an existing folder"
                raise InputError(where=str(self._path), found=f"no folder {self._path.parent}", expected=expected)
            if not self._path.exists():
                return
            LIMITS.store_bytes.check(check_regular(self._path, expected="a profile store"), where=str(self._path))
            try:
                with open_at_once(self._path) as file:
                    head = file.read(len(_SQLITE_HEAD))
            except BlockingIOError:
                raise self._damaged("no SQLite database") from None
            # SQLite takes a file of a few bytes for an empty database and would write over it.
            if head not in (b"", _SQLITE_HEAD):
                raise self._damaged("no SQLite database")
        except OSError as error:
            raise MachineError(f"{self._path}: the profile store failed: {error.strerror or error}") from error

    def _distrust(self) -> None:
        """Take nothing for granted of a file from elsewhere: no value beyond the limit, no code in its schema."""
        self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMITS.store_value_bytes.most)
        self._db.execute("PRAGMA trusted_schema = OFF")

    def _check_tables(self) -> None:
        """Raise InputError unless the tables are those that `_create` makes, and nothing else is there: a view in the
        place of one, or a trigger, would be a program."""
        # What SQLite itself has beside them, indexes of keys and statistics, is called sqlite_.
        query = "SELECT name, sql FROM sqlite_master WHERE NOT (name GLOB 'sqlite_*' AND type IN ('table', 'index'))"
        rows = self._db.execute(query).fetchall()
        for name, statement in rows:
            if statement not in _TABLES:
                raise self._damaged(f"{name} in it is none of ours")
        if len(rows) != len(_TABLES):
            raise self._damaged("a table is missing")

    def _is_ours(self) -> bool:
        """Whether the file is a store already; False if it is empty. Raise InputError if it is something else."""
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        version = self._version()
        if application == _APPLICATION_ID and version == _STORE_VERSION:
            self._check_tables()
            return True
        where, expected = str(self._path), f"a profile store of version {_STORE_VERSION}"
        if application == _APPLICATION_ID:
            version_said = f"version {version}, written by another version of cellplan"
            raise InputError(where=where, found=version_said, expected=f"{expected}, or that cellplan")
        if application or version or self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
            raise InputError(where=where, found="a database of another program", expected=expected)
        return False

    def _create(self) -> None:
        deadline = time.monotonic() + _BUSY_TIMEOUT_S
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                break
            except sqlite3.OperationalError as error:
                # The busy timeout does not hold for this statement while another process does the same.
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        with self._transaction():
            if not self._is_ours():
                for statement in _TABLES:
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {_STORE_VERSION}")


def export_profiles(store: ProfileStore, path: str | Path) -> None:
    """Write all of `store`, once it is checked, into one JSON file; the same contents give the same bytes."""
    from profiles.profile_file import profile_set_to_json

    store.check()
    write_atomically(path, profile_set_to_json(store.contents()))


def import_profiles(store: ProfileStore, path: str | Path, *, replace: bool = False) -> ImportCount:
    """Add a profile file to `store`, once that is checked, all or nothing; what is there already stays unless
    `replace`."""
    from profiles.profile_file import parse_profile_set

    store.check()
    return store.merge(parse_profile_set(read_text(path), where=str(path)), replace=replace)


def _subject(kind: str, layers: tuple[str, ...], shard: Shard, device: str, mode: str, optimizer: str) -> str:
    """What `find` looks for: all of a key but hardware, software and threads."""
    text = canonical((kind, layers, shard, device, mode, optimizer))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def _origin_of(key: MeasurementKey) -> Origin:
    return Origin(hardware=key.hardware, software=key.software, threads=key.threads)


def _preference(source: MeasurementKey | DeviceRates | Origin) -> tuple[list[tuple[int, str]], str, int]:
    """Sorts by version numbers in the software's text (torch 2.13 after 2.9), then hardware, then fewest threads."""
    parts = re.findall(r"\d+|\D+", source.software)
    versions = [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
    return versions, source.hardware, -source.threads
