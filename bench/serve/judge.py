"""Hostile requests sent to a server of this process, one after the other, and what they must not bring about."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bench.serve.hostile import GOOD, Request, Target
from estimator.host.descendants import descendants_of
from planner.cli.serve_server import PageServer
from planner.shared.options.serve import ServeOptions

STATUSES = frozenset({400, 403, 404, 405, 408, 411, 413, 414, 415, 429, 431, 501, 505})
MOST_S = 20.0
"""For an answer, or for the server to hang up."""
REQUEST_S = 2.0
"""What the server under test gives a request to arrive."""
ROOT = Path(__file__).resolve().parents[2]
CANARY = "import pathlib\npathlib.Path(__file__).with_name('touched').write_text('run')\nmake = None\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came of a request: the status (0: the server hung up), the seconds it took, and what is wrong with that."""

    number: int
    kind: str
    status: int
    seconds: float
    wrong: tuple[str, ...]


@contextmanager
def serving(options: ServeOptions | None = None, *, request_s: float = REQUEST_S) -> Iterator[PageServer]:
    """A server in a thread of this process."""
    with PageServer(options or ServeOptions(), request_s=request_s) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def bait() -> Iterator[Path]:
    """A folder to work in with files that requests name: code that leaves a mark, and pipes that nobody writes to, on
    which whoever opens them waits for ever."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="cellplan-bait-") as name:
        folder = Path(name)
        (folder / "canary.py").write_text(CANARY, encoding="utf-8")
        for pipe in ("canary.yaml", "canary.json"):
            os.mkfifo(folder / pipe)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def send(request: Request, target: Target) -> bytes:
    """Return all that the server answers until it hangs up. Raise TimeoutError where it does neither."""
    received = bytearray()
    with socket.create_connection(("127.0.0.1", target.port), timeout=MOST_S) as connection:
        try:
            for piece in request.pieces:
                connection.sendall(piece)
                if request.pause_s:
                    time.sleep(request.pause_s)
            if request.half_close:
                connection.shutdown(socket.SHUT_WR)
        except TimeoutError:
            raise
        except OSError:
            pass  # A server that has refused hangs up while we still send.
        if request.leaves:
            return b""
        with suppress(ConnectionResetError):
            while part := connection.recv(65536):
                received += part
    return bytes(received)


def judge(number: int, request: Request, target: Target) -> Answered:
    """Send a request and say what is wrong with the answer."""
    begun_s = time.monotonic()
    try:
        answer, wrong = send(request, target), []
    except TimeoutError:
        answer, wrong = b"", [f"no answer after {MOST_S:.0f} s"]
    seconds = time.monotonic() - begun_s
    matched = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    status = int(matched.group(1)) if matched else 0
    if status == 200 and not request.may_succeed:
        wrong.append("it succeeded")
    if status not in (0, 200) and status not in STATUSES:
        wrong.append(f"status {status}")
    wrong += [f"the answer holds {word!r}" for word in _leaks() if word.encode() in answer]
    if target.token.encode() in answer:
        wrong.append("the answer holds the random word")
    return Answered(number=number, kind=request.kind, status=status, seconds=seconds, wrong=tuple(wrong))


def _leaks() -> Sequence[str]:
    """What no answer may hold."""
    return ("Traceback", "root:x:", str(ROOT), tempfile.gettempdir() + "/cellplan", "site-packages", 'File "')


def good_request(target: Target) -> float:
    """Return the seconds that a good estimate takes. Raise AssertionError unless it is answered."""
    begun_s = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", target.port, timeout=MOST_S)
    try:
        connection.request(
            "POST", f"/{target.token}/estimate", json.dumps(GOOD).encode(), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        answer = json.loads(reply.read())
    finally:
        connection.close()
    assert reply.status == 200, answer
    assert answer["plan"] is True, answer
    return time.monotonic() - begun_s


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all that it has started and that still runs (Linux)."""
    ticks = 0
    for process in descendants_of(os.getpid()):
        with suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def left_behind(folder: Path) -> list[str]:
    """Return what hostile requests have left where the server works: nothing, if all is well."""
    known = {"canary.py", "canary.yaml", "canary.json"}
    return sorted(path.name for path in folder.iterdir() if path.name not in known)


def by_kind(answers: Sequence[Answered]) -> list[tuple[str, int, str, float, int]]:
    """A row for each kind: how many, which statuses, the longest, how many went wrong."""
    rows = []
    for kind in dict.fromkeys(answer.kind for answer in answers):
        own = [answer for answer in answers if answer.kind == kind]
        statuses = Counter(str(answer.status) if answer.status else "hung up" for answer in own)
        said = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
        rows.append((kind, len(own), said, max(answer.seconds for answer in own), sum(bool(a.wrong) for a in own)))
    return rows
