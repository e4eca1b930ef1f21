"""A case run in a child of this process, within limits of time and memory, and what it did wrong."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jsonschema import Draft202012Validator

from bench.fuzz.cases import Case, OptionCase
from planner.cli.main import asks_json, main
from planner.shared.documents import answer_schema, command_of

MOST_CPU_S = 5.0
MOST_WALL_S = 300.0
MOST_BYTES = 2**30
"""Beyond what the parent holds."""
WORKING = ("run", "profile", "comm", "jct")
"""Commands that really compute, with torch and in processes: what they take, they may work at for longer."""
MOST_WORK_S = 240.0
MOST_WORK_BYTES = 2**35
"""Of addresses, of which torch takes many."""
STATUSES = (0, 2, 3, 130)
"""Those of DESIGN.md, but 4: no machine fails here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case ended. `wrong` says what should not be, empty where all is well."""

    case: Case
    status: int
    cpu_s: float
    said: str
    wrong: tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class _Child:
    case: Case
    folder: Path
    began_s: float
    before: frozenset[str]


def run_cases(examples: Path, cases: Iterator[Case], *, workers: int, scratch: Path) -> Iterator[Outcome]:
    """Run the cases, so many at a time, each in a folder of its own below `scratch` with the files of `examples`; give
    outcomes as they come."""
    running: dict[int, _Child] = {}
    left = True
    while left or running:
        while left and len(running) < workers:
            case = next(cases, None)
            if case is None:
                left = False
                break
            child = _prepare(examples, case, scratch)
            running[_start(child)] = child
        yield from _finished(running)


def _finished(running: dict[int, _Child]) -> Iterator[Outcome]:
    """Wait for a child that has ended, or has been at it for too long."""
    while running:
        for pid, child in list(running.items()):
            ended, status, usage = os.wait4(pid, os.WNOHANG)
            late = time.monotonic() - child.began_s > MOST_WALL_S
            if not ended and late:
                os.killpg(pid, signal.SIGKILL)
                ended, status, usage = os.wait4(pid, 0)
            if ended:
                del running[pid]
                yield _judge(child, status, usage, late=late)
                return
        time.sleep(0.002)


def _prepare(examples: Path, case: Case, scratch: Path) -> _Child:
    folder = scratch / case.name.replace("/", "-")
    folder.mkdir()
    for path in examples.iterdir():
        if path.suffix == ".sqlite":
            shutil.copy(path, folder / path.name)
        elif path.is_file():  # what we write takes the place of a file, and leaves the file
            os.link(path, folder / path.name)
    for name, content in case.files:
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_bytes(content)
    os.mkfifo(folder / "pipe")
    return _Child(
        case=case, folder=folder, began_s=time.monotonic(), before=frozenset(path.name for path in folder.iterdir())
    )


def _start(child: _Child) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        os.setsid()
        os.chdir(child.folder)
        for descriptor, name in ((1, "STDOUT"), (2, "STDERR")):
            os.dup2(os.open(child.folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        _limit(works=_works(child.case))
        status = main(child.case.words)
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _works(case: Case) -> bool:
    return bool(set(WORKING) & set(case.words[:1]))


def _limit(*, works: bool) -> None:
    held = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    most_bytes = held + (MOST_WORK_BYTES if works else MOST_BYTES)
    most_s = int(MOST_WORK_S if works else MOST_CPU_S) + 4
    resource.setrlimit(resource.RLIMIT_AS, (most_bytes, most_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _judge(child: _Child, status: int, usage: resource.struct_rusage, *, late: bool) -> Outcome:
    code = os.waitstatus_to_exitcode(status)
    cpu_s = usage.ru_utime + usage.ru_stime
    said = (child.folder / "STDERR").read_bytes().decode("utf-8", "replace")
    printed = (child.folder / "STDOUT").read_bytes()
    wrong = tuple(_wrong(child, code, cpu_s, said, printed, late=late))
    if not wrong:
        shutil.rmtree(child.folder, ignore_errors=True)
    return Outcome(case=child.case, status=code, cpu_s=cpu_s, said=said, wrong=wrong)


def _wrong(child: _Child, code: int, cpu_s: float, said: str, printed: bytes, *, late: bool) -> Iterator[str]:
    """What DESIGN.md's contract does not allow."""
    if late:
        yield f"no end after {MOST_WALL_S:g} s"
    if code not in STATUSES and not (code == 4 and _works(child.case)):
        yield f"status {code}"
    if cpu_s > (MOST_WORK_S if code in (0, 4) and _works(child.case) else MOST_CPU_S):
        yield f"{cpu_s:.1f} s of CPU"
    lines = said.splitlines()
    if "Traceback (most recent call last)" in said:
        yield f"a traceback: {lines[-1][:200]}"
    if code in (2, 3) and (len(lines) != 1 or not said.startswith("cellplan: error: ")):
        yield f"{len(lines)} lines on stderr, not one message"
    case = child.case
    if isinstance(case, OptionCase) and code in (2, 3) and not _names(case, said):
        yield f"names neither {case.option} nor {case.value!r}"
    if code in (2, 3) and re.search(r": found .{3000}", said):
        yield "a message of thousands of characters"
    if code == 0 and any(not line.startswith("note: ") for line in lines):
        yield f"says {lines[0][:100]!r} and ends well"
    helped = {"-h", "--help", "--version"} & set(child.case.words)
    if code in STATUSES and asks_json(case.words) and not helped:
        yield from _wrong_document(case, code, said, printed)
    yield from _wrong_files(child)


def _wrong_document(case: Case, code: int, said: str, printed: bytes) -> Iterator[str]:
    """What is wrong with the document that a command which was asked for one has printed."""
    if not _is_json(printed):
        yield "no JSON on stdout"
        return
    document, command = json.loads(printed), command_of(case.words)
    failure = document.get("failure", {}) if isinstance(document, dict) else {}
    if failure.get("status", 0) != code or (code and f"cellplan: error: {failure['message']}\n" != said):
        yield f"the document says {failure}"
    fault = next(_validator(command or "models list").iter_errors(document), None)
    if fault is not None:
        yield f"the document is none by its schema: {fault.json_path}: {fault.message[:300]}"


@cache
def _validator(command: str) -> Draft202012Validator:
    return Draft202012Validator(answer_schema(command))


def _names(case: OptionCase, said: str) -> bool:
    """Whether a message names the option or its value: as it is, on one line, or a word of a list. A constraint on
    plans is told as one."""
    value, option = case.value, case.option.strip("-")
    words = [f"found {word}, expected" for word in value.split(",") if word.strip()]
    said_as = {value.strip()[:20], repr(value)[1:-1].strip()[:20], " ".join(value.split()), *words} - {""}
    named = said.startswith(f"cellplan: error: {option}: ") or f"your constraints on {option} " in said
    return named or case.option in said or any(value in said for value in said_as)


def _wrong_files(child: _Child) -> Iterator[str]:
    """Files that were begun and not ended."""
    for path in child.folder.iterdir():
        if path.name in child.before | {"STDOUT", "STDERR"} or not path.is_file():
            continue
        if path.name.startswith(".cellplan-"):
            yield f"a temporary file {path.name} is left"
        elif path.name.endswith(".json") and not _is_json(path.read_bytes()):
            yield f"{path.name} is no JSON"


def _is_json(content: bytes) -> bool:
    def refuse(word: str) -> None:
        raise ValueError(word)

    try:
        json.loads(content, parse_constant=refuse)
    except ValueError:
        return False
    return True


def summarize(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """Return how many cases ended with which status."""
    counts: dict[str, int] = {}
    for outcome in outcomes:
        counts[str(outcome.status)] = counts.get(str(outcome.status), 0) + 1
    return dict(sorted(counts.items()))
