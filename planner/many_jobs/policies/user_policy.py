"""A policy of the user's own, which runs in a fork of this process alone, where each call of it is watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from estimator.frontends.factory import first_line, user_code
from estimator.host.answering import changed_builtins
from estimator.host.pulse import Pulse
from models_zoo.user_code import UserFactory
from planner.many_jobs.jobs.records import Decision, Policy, View
from planner.many_jobs.policies.catalogue import make_here
from profiles.errors import InputError, MachineError

if TYPE_CHECKING:
    from estimator.host.user_process import UserProcess, Work

T = TypeVar("T")


class Watch:
    """Watches calls of the code of `factory` in a fork: what it raises is an InputError, and so is what it does to
    Python's own functions; the process that this is a fork of knows by `pulse` how long it may take."""

    def __init__(self, factory: UserFactory, pulse: Pulse) -> None:
        self._factory, self._pulse, self._changed = factory, pulse, changed_builtins()

    def call(self, method: str, call: Callable[[], T], *, passing: type[Exception] = InputError) -> T:
        """Return what `call` returns; errors of the class `passing` are another's to report."""
        try:
            with self._pulse.calling(method, self._factory.limit_s), user_code():
                answer = call()
        except (passing, InputError, MachineError):
            self._check(method)
            raise
        except BaseException as error:
            raise self._wrong(method, first_line(error), f"a {method} that ends well") from error
        self._check(method)
        return answer

    def _check(self, method: str) -> None:
        changed = self._changed()
        if changed:
            stated = f"code that changes Python's own {', '.join(changed[:5])}"
            raise self._wrong(method, stated, "one that leaves them alone: it decides in the simulation's own process")

    def _wrong(self, method: str, found: str, expected: str) -> InputError:
        return InputError(where=f"policy {self._factory.reference}", key=method, found=found, expected=expected)


class WatchedPolicy:
    """The user's policy, watched."""

    def __init__(self, policy: Policy, watch: Watch) -> None:
        self._policy, self._watch = policy, watch
        self.name = policy.name

    def decide(self, view: View) -> Decision:
        """As `Policy`."""
        return self._watch.call("decide", lambda: self._policy.decide(view), passing=Exception)

    def state(self) -> object:
        """As `Policy`."""
        return self._watch.call("state", self._policy.state)

    def restore(self, state: object) -> None:
        """As `Policy`."""
        self._watch.call("restore", lambda: self._policy.restore(state))


def make_watched(factory: UserFactory, options: Mapping[str, object], pulse: Pulse) -> WatchedPolicy:
    """Import and make the policy, in the fork that shares `pulse`. Raise InputError where it cannot be had."""
    watch = Watch(factory, pulse)
    return WatchedPolicy(watch.call("making it", lambda: make_here(factory, options)), watch)


def policy_process(factory: UserFactory, work: Work, pulse: Pulse) -> UserProcess:
    """Return a fork of this process that does `work` with the policy of `factory`."""
    from estimator.host.user_process import UserProcess

    name, expected = f"policy {factory.reference}", "a policy that decides"
    return UserProcess(work, name=name, expected=expected, limit_s=factory.limit_s, pulse=pulse)


def try_apart(factory: UserFactory, options: Mapping[str, object]) -> None:
    """Import and make the policy in a fork that ends then. Raise InputError where that fails, ends the process or
    changes Python itself, MachineError where it takes too long or too much memory."""
    pulse = Pulse()
    with policy_process(factory, lambda _: make_watched(factory, options, pulse).name, pulse) as process:
        process.result()
