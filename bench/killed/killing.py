"""Commands are started, killed at seeded moments, and what they leave is looked at."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from bench.killed.processes import TOKEN, processes_with
from bench.killed.scenarios import ROOT, Scenario, Words
from estimator.host.children import Children, child_processes

GONE_S = 5.0
"""No process of a killed command, nor what they had made to work in, may live longer."""

MOST_KILLS = 12
"""In a row, before the command may end and starts anew."""

MOST_DEATHS = 5
"""Of the process that commands are forks of, before something is wrong with this machine."""

COLD = 0.05
"""The share of moments at which a command is killed that was started as users start it, imports and all."""

TOUCHED = 0.5
"""The share of moments that come within milliseconds of a change in the command's folder."""

_TOUCH_S = 0.01
_LOOK_S = 0.002


@dataclass(slots=True, kw_only=True)
class Verdict:
    """What came of a scenario: how many moments, seconds until the last process was gone, and what was wrong."""

    name: str
    moments: int = 0
    touched: int = 0
    completed: int = 0
    slowest_s: float = 0.0
    warm_deaths: int = 0
    wrong: list[str] = field(default_factory=list)


class Started:
    """A command that runs, as a process of its own or as a fork of a warm one."""

    def __init__(self, pid: int, *, cold: subprocess.Popen[bytes] | None, warm: subprocess.Popen[bytes] | None) -> None:
        self.pid, self._cold, self._warm = pid, cold, warm

    def wait(self) -> int:
        """Return how it ended, once it has. Raise WarmDied where nobody can say."""
        if self._cold is not None:
            return self._cold.wait()
        assert self._warm is not None
        return _answer(self._warm)


class WarmDied(Exception):  # noqa: N818  of this bench, not of the command
    """The process whose forks the commands are has ended, for lack of memory say."""


def _answer(warm: subprocess.Popen[bytes]) -> int:
    assert warm.stdout is not None
    line = warm.stdout.readline()
    if not line.strip():
        raise WarmDied
    return int(line)


class Commands:
    """Starts commands whose processes carry `token` and keep temporary files in `temporary`. `folder` is for all that
    they do."""

    def __init__(self, children: Children) -> None:
        self.token = f"cellplan-killed-{secrets.token_hex(8)}"
        self.folder = children.folder
        self.temporary, self.printed = self.folder / "temporary", self.folder / "printed.txt"
        self.temporary.mkdir()
        self._children = children
        self._warm = self._start_warm()

    def _start_warm(self) -> subprocess.Popen[bytes]:
        warm: subprocess.Popen[bytes] = self._children.start(
            [sys.executable, "-m", "bench.killed.warm"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        )
        assert warm.stdout is not None
        warm.stdout.readline()
        return warm

    def start(self, words: Words, *, cold: bool) -> Started:
        """Start `words`; what it prints is in `printed`. Raise WarmDied where that happens meanwhile; the next start
        has another."""
        environment = {TOKEN: self.token, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        if cold:
            with self.printed.open("wb") as printed:
                process = subprocess.Popen(
                    [sys.executable, "-m", "planner.cli.main", *words],
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=printed,
                    stderr=subprocess.STDOUT,
                    cwd=ROOT,
                )
            return Started(process.pid, cold=process, warm=None)
        if self._warm.poll() is not None:
            self._children.stop(self._warm)
            self._warm = self._start_warm()
        assert self._warm.stdin is not None
        request = {"words": words, "environment": environment, "output": str(self.printed)}
        try:
            self._warm.stdin.write(json.dumps(request).encode() + b"\n")
            self._warm.stdin.flush()
        except BrokenPipeError as error:
            raise WarmDied from error
        return Started(_answer(self._warm), cold=None, warm=self._warm)

    def run(self, words: Words) -> None:
        """Run `words` to their end. RuntimeError with what they print where they fail."""
        status = self.start(words, cold=False).wait()
        if status:
            raise RuntimeError(f"{words[0]}: exit status {status}: {self.printed.read_text(errors='replace')[-600:]}")


@contextmanager
def warm_commands() -> Iterator[Commands]:
    """Commands to kill; neither processes nor files of theirs are left behind."""
    with child_processes() as children:
        yield Commands(children)


def kill_often(scenario: Scenario, moments: int, commands: Commands, folder: Path, draws: random.Random) -> Verdict:
    """Kill a scenario's command at so many moments drawn from `draws`, and return what was wrong after any of them."""
    verdict = Verdict(name=scenario.name)
    ready, place = folder / "ready", folder / "place"
    ready.mkdir(parents=True)
    # Files name the folder that they were made for.
    place.mkdir()
    scenario.prepare(place, commands.run)
    shutil.copytree(place, ready, dirs_exist_ok=True)
    start_s = time.monotonic()
    commands.run(scenario.words(place))
    whole_s = time.monotonic() - start_s
    expected = {name: (place / name).read_bytes() for name in scenario.same}
    everything = scenario.check(place)
    while verdict.moments < moments:
        shutil.rmtree(place)
        shutil.copytree(ready, place)
        kills = min(MOST_KILLS, moments - verdict.moments)
        try:
            if not _one_life(scenario, commands, place, kills, whole_s, draws, verdict):
                commands.run(scenario.words(place))
            if not everything <= scenario.check(place):
                verdict.wrong.append("its end lacks what it has when nobody kills it")
        except WarmDied:
            verdict.warm_deaths += 1
            if verdict.warm_deaths > MOST_DEATHS:
                raise
            _await_nobody(commands)
            continue
        except Exception as error:
            verdict.wrong.append(f"it does not go on: {error}")
        verdict.wrong += [
            f"{name} differs or is not there" for name in expected if _bytes(place / name) != expected[name]
        ]
        verdict.wrong += [f"{path.name} stays" for path in place.rglob(".cellplan-*")]
        verdict.completed += 1
    return verdict


def _one_life(
    scenario: Scenario,
    commands: Commands,
    place: Path,
    kills: int,
    whole_s: float,
    draws: random.Random,
    verdict: Verdict,
) -> bool:
    """Kill one folder's command so often, unless it ends before; whether it did, well."""
    kept: frozenset[str] = frozenset()
    for _ in range(kills):
        cold, touch = draws.random() < COLD, draws.random() < TOUCHED
        after_s, changes, soon_s = draws.uniform(0, whole_s), draws.randint(1, 8), draws.uniform(0, _TOUCH_S)
        started = commands.start(scenario.words(place), cold=cold)
        if touch:
            _await_changes(place, changes, 2 * whole_s, started.pid)
            time.sleep(soon_s)
        else:
            time.sleep(after_s)
        with suppress(ProcessLookupError):
            os.kill(started.pid, signal.SIGKILL)
        killed_s, status = time.monotonic(), started.wait()
        if status != -signal.SIGKILL:
            return status == 0
        verdict.moments += 1
        verdict.touched += touch
        left = _await_nobody(commands)
        verdict.slowest_s = max(verdict.slowest_s, time.monotonic() - killed_s)
        if left:
            verdict.wrong.append(f"after {GONE_S:g} s there is {left}")
        try:
            now = scenario.check(place)
        except Exception as error:
            verdict.wrong.append(f"{type(error).__name__}: {error}")
            continue
        if not kept <= now:
            verdict.wrong.append(f"lost: {sorted(kept - now)[:3]}")
        kept = now
    return False


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def _await_nobody(commands: Commands) -> list[str]:
    """Return what is still there of a killed command when it should be gone, at once where nothing is."""
    end_s = time.monotonic() + GONE_S
    while (left := _left(commands)) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return left


def _left(commands: Commands) -> list[str]:
    folders = [path.name for path in commands.temporary.iterdir() if path.name.startswith("cellplan-")]
    return [*processes_with(commands.token).values(), *folders]


def _await_changes(place: Path, changes: int, at_most_s: float, pid: int) -> None:
    """Until so many changes of the folder were seen, the command has ended, or time is up."""
    end_s, state = time.monotonic() + at_most_s, _state(place)
    while changes and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
        now = _state(place)
        changes -= now != state
        state = now
        if not Path(f"/proc/{pid}").exists():
            return


def _state(place: Path) -> list[tuple[str, int, int]]:
    with os.scandir(place) as entries:
        return sorted((entry.name, *_size(entry)) for entry in entries)


def _size(entry: os.DirEntry[str]) -> tuple[int, int]:
    try:
        status = entry.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
