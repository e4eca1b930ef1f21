"""A process of its own for code of the user's: whatever that code does to its process, this one goes on and says what.

It may end the process, print, change Python's own functions, never return, start others or take all memory. The process
answers questions, one at a time and in JSON, or is a fork of this one that does a work and says what came of it. What
the code prints goes to our standard error.
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
from typing import Any, Self

from estimator.host.answering import ANSWER, INPUT, MACHINE, NOTHING_FITS, PROGRESS, RAISED, be_fork
from estimator.host.children import Child, Children, child_processes
from estimator.host.descendants import descendants_of
from estimator.host.memory import free_host_memory_bytes, own_bytes_of, resident_bytes_of
from estimator.host.pulse import Pulse
from estimator.host.worker_processes import package_path, python_worker
from profiles.errors import InputError, MachineError, NothingFits
from profiles.files import parse_json

MEMORY_SHARE = 0.5
"""Of the memory that is free when the process starts, so much it may take: the rest keeps the machine usable."""
MOST_PROCESSES = 256
LONGEST_ANSWER_BYTES = 2**28
MOST_PRINTED_BYTES = 2**20
"""What code prints beyond this is dropped: a loop of prints fills a disk."""

_POLL_S = 0.05
_LOOK_S = 0.2
_READ_BYTES = 2**20
_CLOSED_S, _ENDING_S = 2.0, 30.0
"""A process that lives on so long after it closed its pipe has not ended; one that is about to may take so long."""

Work = Callable[[Callable[[object], None]], object]
"""What a fork does: a function of one that tells this process how far it is. What is told and returned are values of
JSON."""


class UserProcess:
    """Code called `name` in messages, which `expected` says what it is to do: at work in the module `code`, whose
    `main` calls `serve`, or in a fork of this process, which does the work `code`.

    It may take `limit_s` seconds to answer a question, starting included (a fork: what its `pulse` says), and
    `MEMORY_SHARE` of the free memory; `more` says what gives it more time.
    """

    def __init__(
        self,
        code: str | Work,
        *,
        name: str,
        expected: str,
        limit_s: float,
        pulse: Pulse | None = None,
        more: str = "--user-code-limit SECONDS gives it more",
    ) -> None:
        self._name, self._expected, self._limit_s, self._pulse, self._more = name, expected, limit_s, pulse, more
        self._most_bytes = int(free_host_memory_bytes() * MEMORY_SHARE)
        self._unread, self._printed_bytes, self._prints_more, self._next_look = b"", 0, True, 0.0
        with ExitStack() as stack:
            self._answers, answering = os.pipe()
            stack.callback(os.close, self._answers)
            self._prints, printing = os.pipe()
            stack.callback(os.close, self._prints)
            try:
                children = stack.enter_context(child_processes())
                self._process = _start(code, children, answering, printing)
            except OSError as error:
                raise MachineError(f"{name}: no process could be started for it: {error}") from error
            finally:
                os.close(answering)
                os.close(printing)
            stack.callback(self._print_rest)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Kill the process with all that it has started."""
        self._open.close()

    def runs(self) -> bool:
        """Return whether it can be asked any more."""
        return self._process.poll() is None

    def ask(self, question: dict[str, Any], *, check: Callable[[], object] | None = None) -> Any:
        """Return the answer to `question`, both values of JSON. `check` is called now and then, and may raise.

        Raises:
            InputError: the code raised something, ended its process or answered nonsense.
            MachineError: time or memory ran out; or the code's own.
        """
        with suppress(BrokenPipeError):  # It died at once: `_line` says of what.
            assert isinstance(self._process, subprocess.Popen)
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        return self._result(None, check)

    def result(self, *, told: Callable[[Any], None] | None = None, stop: Callable[[], bool] | None = None) -> Any:
        """Return what comes of a fork's work, a value of JSON, after it has `told` how far it is. Raise as `ask`, and
        NothingFits where the work did. Its `pulse` is stopped once `stop` says so."""

        def check() -> None:
            if self._pulse is not None and stop is not None and stop():
                self._pulse.stop()

        return self._result(told, check)

    def _result(self, told: Callable[[Any], None] | None, check: Callable[[], object] | None) -> Any:
        while True:
            kind, value = self._answer(check)
            if kind != PROGRESS:
                break
            if told is not None:
                told(value)
        if kind == INPUT and isinstance(value, dict) and set(value) == {"where", "key", "found", "expected"}:
            raise InputError(**value)
        if kind == MACHINE:
            raise MachineError(str(value))
        if kind == NOTHING_FITS:
            raise NothingFits(str(value))
        if kind == RAISED:
            raise self._wrong(value)
        if kind != ANSWER:
            raise self._wrong("an answer of no known form")
        return value

    def _answer(self, check: Callable[[], object] | None) -> tuple[str, Any]:
        answer = parse_json(self._line(check), where=self._name)
        if not isinstance(answer, dict) or len(answer) != 1:
            raise self._wrong("an answer of no known form")
        ((kind, value),) = answer.items()
        return kind, value

    def _wrong(self, found: object) -> InputError:
        return InputError(where=self._name, key=self._asked(), found=found, expected=self._expected)

    def _asked(self) -> str | None:
        """What a fork is asking of the code just now."""
        call = self._pulse.call() if self._pulse is not None else None
        return call[0] if call else None

    def _line(self, check: Callable[[], object] | None) -> str:
        """What it writes next, up to the end of the line."""
        end = time.monotonic() + self._limit_s if self._pulse is None else None
        parts = [self._unread]
        size = len(self._unread)
        while b"\n" not in parts[-1]:
            if check is not None:
                check()
            self._check(end, size)
            ended = self._process.poll() is not None
            ready = select.select((self._answers, *self._print_pipe()), (), (), 0.0 if ended else _POLL_S)[0]
            if self._prints in ready:
                self._print_some()
            if self._answers not in ready:
                if ended and not ready:
                    raise self._died()
                continue
            part = os.read(self._answers, _READ_BYTES)
            if not part:
                raise self._died()
            parts.append(part)
            size += len(part)
        line, _, self._unread = b"".join(parts).partition(b"\n")
        return line.decode("utf-8", errors="replace")

    def _check(self, end: float | None, size: int) -> None:
        """Raise MachineError for code that takes too long or too much."""
        now = time.monotonic()
        call = self._pulse.call() if self._pulse is not None else None
        if now > (call[1] if call else now if end is None else end):
            raise MachineError(f"{self._where()}: not done after {self._limit_s:g} s, and ended; {self._more}")
        if now > self._next_look:
            self._check_processes()
            self._next_look = time.monotonic() + _LOOK_S
        if size > LONGEST_ANSWER_BYTES:
            raise self._wrong(f"an answer of more than {LONGEST_ANSWER_BYTES / 2**20:.0f} MiB")

    def _check_processes(self) -> None:
        """Raise MachineError where it and all that it has started are too many or take too much."""
        pids = descendants_of(self._process.pid)[1:]  # The first is its keeper's other half.
        if len(pids) > MOST_PROCESSES:
            raise MachineError(
                f"{self._where()}: ended when it had started {len(pids):,} processes, of which {MOST_PROCESSES} may run"
                " here"
            )
        if sum(map(resident_bytes_of, pids)) <= self._most_bytes:
            return
        taken = sum(map(own_bytes_of, pids))
        if taken > self._most_bytes:
            processes = f" over {len(pids)} processes" if len(pids) > 1 else ""
            raise MachineError(
                f"{self._where()}: ended when it had taken {taken / 2**30:.1f} GiB of memory{processes}, of which"
                f" {self._most_bytes / 2**30:.1f} GiB may be taken here ({MEMORY_SHARE:.0%} of what was free)"
            )

    def _where(self) -> str:
        asked = self._asked()
        return f"{self._name}: {asked}" if asked else self._name

    def _died(self) -> InputError | MachineError:
        """What the end of the process says; it may have closed the pipe alone."""
        start = time.monotonic()
        while (status := self._process.poll()) is None and time.monotonic() < start + _ENDING_S:
            if time.monotonic() > start + _CLOSED_S and descendants_of(self._process.pid):
                break
            time.sleep(_POLL_S / 10)
        if status == -signal.SIGKILL:
            return MachineError(f"{self._where()}: its process was killed (out of memory?)")
        if status is None:
            return self._wrong("code that closed what it was to answer by")
        how = f"died of {_signal_name(-status)}" if status < 0 else f"ended itself with status {status}"
        return self._wrong(f"code whose process {how}")

    def _print_pipe(self) -> tuple[int, ...]:
        return (self._prints,) if self._prints_more else ()

    def _print_some(self) -> None:
        """Pass on some of what the code has printed."""
        text = os.read(self._prints, _READ_BYTES)
        self._prints_more = bool(text)
        left = MOST_PRINTED_BYTES - self._printed_bytes
        self._printed_bytes += len(text)
        if text and left >= 0 and sys.stderr is not None:
            shown = text[:left].decode("utf-8", errors="replace")
            if len(text) > left:
                shown += f"\n{self._name}: what it prints beyond {MOST_PRINTED_BYTES / 2**20:.0f} MiB is left out\n"
            with suppress(OSError, ValueError):  # Nobody listens any more.
                sys.stderr.write(shown)
                sys.stderr.flush()

    def _print_rest(self) -> None:
        """Pass on what was printed and not passed on yet."""
        while self._printed_bytes <= MOST_PRINTED_BYTES and select.select(self._print_pipe(), (), (), 0.0)[0]:
            self._print_some()


def _start(code: str | Work, children: Children, answering: int, printing: int) -> Child:
    if not isinstance(code, str):
        return children.fork(lambda: be_fork(code, answering, printing))
    return children.start(
        (*python_worker(code), str(answering)),
        kept=True,
        stdin=subprocess.PIPE,
        stdout=printing,
        stderr=printing,
        env=package_path(os.environ),
        pass_fds=(answering,),
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
