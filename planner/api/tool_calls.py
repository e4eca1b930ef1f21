"""The processes in which the tools of `cellplan mcp` do their work, one for each call that is under way."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio import from_thread, to_thread

from estimator.host.capacity import usable_cores
from estimator.host.user_process import UserProcess
from profiles.errors import InputError, NothingFits

_LEAST_AT_ONCE, _MOST_AT_ONCE = 2, 8
"""Whatever the cores are, a quick call need not wait for a long one; and each process takes memory."""


class Calls:
    """Answers calls, as many at once as there are cores; those beyond wait. A call that is cancelled, or is not done
    after `limit_s` seconds, ends with its process; the others' are used again, with what they have learnt."""

    def __init__(self, store: Path | None, *, limit_s: float) -> None:
        self._store, self._limit_s = store, limit_s
        self._at_once = anyio.CapacityLimiter(min(max(usable_cores(), _LEAST_AT_ONCE), _MOST_AT_ONCE))
        self._idle: list[UserProcess] = []

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """End the processes with the context."""
        try:
            yield
        finally:
            while self._idle:
                self._idle.pop().end()

    async def answer(self, tool: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return what `planner.api.tools` answers.

        Raises:
            InputError: an option is wrong.
            NothingFits: there is no such plan.
            MachineError: time or memory ran out, or the process was killed.
        """
        call = {"tool": tool, "options": options, "store": None if self._store is None else str(self._store)}
        async with self._at_once:
            # Started by this thread, which lives as long as the server: with others the kernel would end it.
            process = self._idle.pop() if self._idle else self._start()
            answered = False
            try:
                # A thread that asks looks now and then whether the call was cancelled, and then leaves.
                document: dict[str, Any] = await to_thread.run_sync(_ask, process, call)
                answered = True
            except (InputError, NothingFits):
                answered = process.runs()
                raise
            finally:
                if answered:
                    self._idle.append(process)
                else:
                    process.end()
        return document

    def _start(self) -> UserProcess:
        return UserProcess(
            "planner.api.tools",
            name="mcp",
            expected="an answer: this is a fault of cellplan's",
            limit_s=self._limit_s,
            more="cellplan mcp --call-limit SECONDS gives it more; with limit or fix a search takes less",
        )


def _ask(process: UserProcess, call: dict[str, Any]) -> Any:
    return process.ask(call, check=from_thread.check_cancelled)
