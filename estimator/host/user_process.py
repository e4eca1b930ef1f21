"""A process of its own for code of the user's: whatever that code does to its process, this one goes on and says what.

It may end the process, print, change Python's own functions, never return or take all memory. The process answers
questions, one at a time and in JSON: lines go in over its standard input, come back over a pipe of their own. What the
code prints goes to our standard error.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, NoReturn, Self

from estimator.host.children import child_processes
from estimator.host.memory import free_host_memory_bytes, resident_bytes_of
from estimator.host.worker_processes import package_path, python_worker
from profiles.errors import InputError, MachineError
from profiles.files import parse_json

MEMORY_SHARE = 0.5
"""Of the memory that is free when the process starts, so much it may take: the rest keeps the machine usable."""
LONGEST_ANSWER_BYTES = 2**28

_POLL_S = 0.05
_ANSWER, _INPUT, _MACHINE, _RAISED = "answer", "input", "machine", "raised"


class UserProcess:
    """Code called `name` in messages, at work in `module`, whose `main` calls `serve`. It may take `limit_s` seconds to
    answer a question, starting included, and `MEMORY_SHARE` of the free memory; `expected` says of the code what it is
    to do."""

    def __init__(self, module: str, *, name: str, expected: str, limit_s: float) -> None:
        self._name, self._expected, self._limit_s = name, expected, limit_s
        self._most_bytes = int(free_host_memory_bytes() * MEMORY_SHARE)
        self._unread = b""
        with ExitStack() as stack:
            self._answers, theirs = os.pipe()
            stack.callback(os.close, self._answers)
            try:
                children = stack.enter_context(child_processes())
                self._process = children.start(
                    (*python_worker(module), str(theirs)),
                    stdin=subprocess.PIPE,
                    stdout=2,
                    env=package_path(os.environ),
                    pass_fds=(theirs,),
                )
            except OSError as error:
                raise MachineError(f"{name}: no process could be started for it: {error}") from error
            finally:
                os.close(theirs)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill the process with all that it has started."""
        self._open.close()

    def ask(self, question: dict[str, Any]) -> Any:
        """Return the answer to `question`, both values of JSON.

        Raises:
            InputError: the code raised something, ended its process or answered nonsense.
            MachineError: time or memory ran out; or the code's own.
        """
        with suppress(BrokenPipeError):  # It died at once: `_line` says of what.
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        answer = parse_json(self._line(), where=self._name)
        if not isinstance(answer, dict) or len(answer) != 1:
            raise self._wrong("an answer of no known form")
        ((kind, value),) = answer.items()
        if kind == _INPUT and isinstance(value, dict) and set(value) == {"where", "key", "found", "expected"}:
            raise InputError(**value)
        if kind == _MACHINE:
            raise MachineError(str(value))
        if kind == _RAISED:
            raise self._wrong(value)
        return value

    def _wrong(self, found: object) -> InputError:
        return InputError(where=self._name, found=found, expected=self._expected)

    def _line(self) -> str:
        """What it writes next, up to the end of the line."""
        end = time.monotonic() + self._limit_s
        parts = [self._unread]
        size = len(self._unread)
        while b"\n" not in parts[-1]:
            self._check(end, size)
            ended = self._process.poll() is not None
            if not select.select((self._answers,), (), (), 0.0 if ended else _POLL_S)[0]:
                if ended:
                    raise self._died()
                continue
            part = os.read(self._answers, 2**20)
            if not part:
                raise self._died()
            parts.append(part)
            size += len(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode("utf-8", errors="replace")

    def _check(self, end: float, size: int) -> None:
        """Raise MachineError for code that takes too long or too much."""
        if time.monotonic() > end:
            raise MachineError(
                f"{self._name}: not done after {self._limit_s:g} s, and ended; --user-code-limit SECONDS gives it more"
            )
        taken = resident_bytes_of(self._process.pid)
        if taken > self._most_bytes:
            raise MachineError(
                f"{self._name}: ended when it had taken {taken / 2**30:.1f} GiB of memory, of which"
                f" {self._most_bytes / 2**30:.1f} GiB may be taken here ({MEMORY_SHARE:.0%} of what was free)"
            )
        if size > LONGEST_ANSWER_BYTES:
            raise self._wrong(f"an answer of more than {LONGEST_ANSWER_BYTES / 2**20:.0f} MiB")

    def _died(self) -> InputError | MachineError:
        """What the end of the process says; it may have closed the pipe alone."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        status = self._process.poll()
        if status == -signal.SIGKILL:
            return MachineError(f"{self._name}: its process was killed (out of memory?)")
        if status is None:
            return self._wrong("code that closed what it was to answer by")
        how = f"died of {_signal_name(-status)}" if status < 0 else f"ended itself with status {status}"
        return self._wrong(f"code whose process {how}")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def serve(answer: Callable[[dict[str, Any]], Any]) -> NoReturn:
    """Answer questions with `answer` until nobody asks any more.

    What is used after user code has run is bound before: that code may have put something else in its place.
    """
    # Whoever reads its standard input, as `input()` does, finds it empty.
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pipe, write, dumps, leave = int(sys.argv[1]), os.write, json.dumps, os._exit
    reply = _replies(answer)
    for line in questions:
        try:
            rest = memoryview(dumps(reply(line)).encode() + b"\n")
            while rest:
                rest = rest[write(pipe, rest) :]
        except BaseException:  # Nothing is as it was; that there is no answer says so.
            leave(1)
    leave(0)
    raise SystemExit


def _replies(answer: Callable[[dict[str, Any]], Any]) -> Callable[[str], dict[str, Any]]:
    """What makes a reply of a question, whatever becomes of it."""
    loads, text, wrong, failed, anything = json.loads, str, InputError, MachineError, BaseException

    def reply(line: str) -> dict[str, Any]:
        try:
            return {_ANSWER: answer(loads(line))}
        except wrong as error:
            words = {"where": error.where, "key": error.key, "found": text(error.found), "expected": error.expected}
            return {_INPUT: words}
        except failed as error:
            return {_MACHINE: text(error)}
        except anything as error:
            name, said = error.__class__.__name__, text(error).strip().splitlines()
            return {_RAISED: f"{name}: {said[0]}" if said else name}

    return reply
