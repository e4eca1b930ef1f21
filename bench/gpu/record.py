"""What a run leaves behind, and the clock it keeps to: one file that a killed run keeps, and its log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from bench.gpu.shelf import Shelf
from profiles.errors import MachineError
from profiles.files import write_atomically
from profiles.measurements import PROFILES_SCHEMA

FILE = "gpu.profiles.json"
SAVE_EVERY_S = 3.0


class OutOfTime(BaseException):
    """The run's time is over. No Exception: nothing that goes on after a failure may go on after this."""


class DeviceLostError(Exception):
    """The device, not one piece of work, has failed: only a new process can go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment on the monotonic clock, which all processes of a machine share."""

    at_s: float

    @property
    def left_s(self) -> float:
        return self.at_s - monotonic()


class Log:
    """Lines on standard output, each written at once; with a file there too, behind the seconds since the start.

    Without a file somebody must be reading: OutOfTime where nobody is any more.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._start_s = monotonic()
        self._file = path.open("w", encoding="utf-8", buffering=1) if path else None

    def write(self, text: str) -> None:
        line = f"{monotonic() - self._start_s:7.1f}  {text}" if self._file else text
        if self._file:
            self._file.write(line + "\n")
        try:
            print(line, flush=True)
        except OSError:
            if self._file is None:
                raise OutOfTime from None

    def close(self) -> None:
        if self._file:
            self._file.close()


class Section:
    """Rows, failures and what was skipped of one section. Each thing of `planned`, in order, becomes a row or a
    failure; those that did not yet are the skipped ones."""

    def __init__(self, planned: Sequence[str], save: Callable[[], None]) -> None:
        self.planned, self._save = tuple(planned), save
        self.rows: list[str] = []
        self.failures: list[dict[str, str]] = []

    @property
    def done(self) -> int:
        """How many of what was planned were tried."""
        return len(self.rows) + len(self.failures)

    def add(self, row: Mapping[str, Any]) -> None:
        self.rows.append(json.dumps(row, allow_nan=False))
        self._save()

    def fail(self, error: BaseException) -> str:
        """What is to be done next has failed; the words for it."""
        self.failures.append({"what": self.planned[self.done], "error": describe_error(error)})
        self._save()
        return self.failures[-1]["error"]

    def to_json(self) -> str:
        """An entry a line."""
        parts = (self.rows, map(json.dumps, self.failures), map(json.dumps, self.planned[self.done :]))
        named = zip(("rows", "failures", "skipped"), parts, strict=True)
        return "{" + ",\n".join(f'"{name}": {_array(lines)}' for name, lines in named) + "}"


class ResultFile:
    """The run's one file: a profile file whose `bench` holds what is no profile, by framework and section.

    `path` may hold what another framework, or an earlier process of this one, has left there, which is kept. It is
    written whole every few seconds while results come in.
    """

    def __init__(self, path: Path, *, framework: str, provenance: Mapping[str, Any]) -> None:
        self._path, self._framework = path, framework
        found = read_results(path)
        self._kept = {name: list(found[name]) for name in ("profiles", "rates")}
        self._runs: list[dict[str, Any]] = [run for run in found["bench"]["runs"] if run["framework"] != framework]
        mine = (run["sections"] for run in found["bench"]["runs"] if run["framework"] == framework)
        self._before: dict[str, Any] = next(mine, {})
        self._provenance = dict(provenance)
        self.sections: dict[str, Section] = {}
        self.shelf = Shelf()
        self._saved_s = -SAVE_EVERY_S

    def begin(self, name: str, planned: Sequence[str]) -> Section:
        """A new section, in the file at once."""
        self.sections[name] = Section(planned, self.save_if_due)
        self.save()
        return self.sections[name]

    def save_if_due(self) -> None:
        """Fails silently: a later one, at the latest the last, may succeed or say so."""
        if monotonic() - self._saved_s >= SAVE_EVERY_S:
            with suppress(MachineError):
                self.save()

    def save(self) -> None:
        write_atomically(self._path, self._to_json())
        self._saved_s = monotonic()

    def _to_json(self) -> str:
        sections = {name: json.dumps(section) for name, section in self._before.items()}
        sections |= {name: section.to_json() for name, section in self.sections.items()}
        mine = (
            f'{{"framework": {json.dumps(self._framework)},\n'
            f'"provenance": {json.dumps(self._provenance)},\n"sections": {{'
            + ",\n".join(f"{json.dumps(name)}: {text}" for name, text in sections.items())
            + "}}"
        )
        profiles = _newest(self._kept["profiles"], self.shelf.profiles(), lambda entry: entry["key"])
        rates = _newest(self._kept["rates"], self.shelf.all_rates(), lambda entry: [entry["device"], entry["software"]])
        return (
            f'{{"schema": {json.dumps(PROFILES_SCHEMA)},\n"profiles": {_array(profiles)},\n'
            f'"rates": {_array(rates)},\n"link_tables": [],\n'
            f'"bench": {{"runs": {_array([*map(json.dumps, self._runs), mine])}}}}}\n'
        )


def read_results(path: Path) -> dict[str, Any]:
    """What a result file holds; nothing where there is none (or another program's)."""
    nothing: dict[str, Any] = {"profiles": [], "rates": [], "bench": {"runs": []}}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if found["bench"]["runs"] is not None else nothing
    except (OSError, ValueError, KeyError, TypeError):
        return nothing


def sections_begun(path: Path, framework: str) -> tuple[str, ...]:
    """Names of the sections that `framework` has begun in a result file."""
    runs = read_results(path)["bench"]["runs"]
    return tuple(name for run in runs if run["framework"] == framework for name in run["sections"])


def describe_error(error: BaseException) -> str:
    """Its type and the first line of its message (torch's and XLA's go on for pages)."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:400]


def _newest(
    kept: Sequence[dict[str, Any]], records: Sequence[Any], key_of: Callable[[dict[str, Any]], Any]
) -> Iterable[str]:
    """Their lines; of entries with one key only the last."""
    entries = [*kept, *map(asdict, records)]
    return {
        json.dumps(key_of(entry), sort_keys=True): json.dumps(entry, sort_keys=True, allow_nan=False)
        for entry in entries
    }.values()


def _array(lines: Iterable[str]) -> str:
    return "[" + ",".join(f"\n{line}" for line in lines) + "]"
