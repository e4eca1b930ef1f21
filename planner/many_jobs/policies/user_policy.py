"""A policy of the user's own: tried in a process of its own, then at work in this one, where each decision is watched.

It decides on live jobs and Cells, which cannot be sent elsewhere; so it is first imported and made where nothing can
come of it.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from estimator.frontends.factory import first_line, user_code
from models_zoo.user_code import UserFactory
from planner.many_jobs.jobs.records import Decision, Policy, View
from profiles.errors import InputError, MachineError

T = TypeVar("T")


class WatchedPolicy:
    """The user's policy. What it prints goes to standard error, what it raises is an InputError, and a call that takes
    more than `limit_s` seconds a MachineError (where this is the process's main thread, which alone has a clock)."""

    def __init__(self, policy: Policy, reference: str, limit_s: float) -> None:
        self._policy, self._reference, self._limit_s = policy, reference, limit_s
        self.name = policy.name

    def decide(self, view: View) -> Decision:
        """As `Policy`."""
        return self._watched("decide", lambda: self._policy.decide(view), passing=Exception)

    def state(self) -> object:
        """As `Policy`."""
        return self._watched("state", self._policy.state)

    def restore(self, state: object) -> None:
        """As `Policy`."""
        self._watched("restore", lambda: self._policy.restore(state))

    def _watched(self, method: str, call: Callable[[], T], *, passing: type[Exception] = MachineError) -> T:
        """What `call` returns; errors of the class `passing` are another's to report."""
        where = f"policy {self._reference}"
        try:
            with user_code(), _limited(self._limit_s, f"{where}: {method}"):
                return call()
        except (passing, InputError, MachineError, KeyboardInterrupt):
            raise
        except BaseException as error:
            expected = f"a {method} that ends well"
            raise InputError(where=where, key=method, found=first_line(error), expected=expected) from error


@contextmanager
def _limited(seconds: float, what: str) -> Iterator[None]:
    """MachineError after so many seconds."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def give_up(_number: int, _frame: object) -> None:
        raise MachineError(f"{what}: not done after {seconds:g} s; --user-code-limit SECONDS gives it more")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def try_apart(factory: UserFactory, options: Mapping[str, object]) -> None:
    """Import and make the policy in a process of its own. Raise InputError where that fails, ends the process or
    changes Python itself, MachineError where it takes too long or too much memory."""
    _try(factory, tuple(options.items()), str(Path.cwd()), tuple(sys.path))


@lru_cache(maxsize=64)
def _try(factory: UserFactory, options: tuple[tuple[str, object], ...], folder: str, path: tuple[str, ...]) -> None:
    """`folder` and `path` are where its module is looked for."""
    del folder
    from estimator.host.user_process import UserProcess

    worker, name = "planner.many_jobs.policies.policy_worker", f"policy {factory.reference}"
    with UserProcess(worker, name=name, expected="a policy", limit_s=factory.limit_s) as process:
        process.ask({"reference": factory.reference, "options": dict(options), "path": path})
