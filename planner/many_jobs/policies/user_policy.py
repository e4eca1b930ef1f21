"""A policy or a rule of placement of the user's own, which runs in a fork of this process alone, where each call of it
is watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from estimator.frontends.factory import first_line, user_code
from estimator.host.answering import changed_builtins
from estimator.host.pulse import Pulse
from models_zoo.user_code import UserFactory
from planner.many_jobs.jobs.records import Decision, NodeCounts, Policy, View
from planner.many_jobs.placers.catalogue import make_placer, make_users_placer
from planner.many_jobs.placers.moves import Move, MoveRequest, MovingPlacer, SeatedNodes
from planner.many_jobs.placers.records import FreeNodes, Later, Placer, Request
from planner.many_jobs.policies.catalogue import make_here, make_policy
from profiles.errors import InputError, MachineError
from profiles.records import dataclass

if TYPE_CHECKING:
    from estimator.host.user_process import UserProcess, Work

T = TypeVar("T")


class Watch:
    """Watches calls of the code of `factory` in a fork: what it raises is an InputError, and so is what it does to
    Python's own functions; the process that this is a fork of knows by `pulse` how long it may take."""

    def __init__(self, factory: UserFactory, pulse: Pulse, kind: str = "policy") -> None:
        self._factory, self._pulse, self._changed, self._kind = factory, pulse, changed_builtins(), kind

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
        return InputError(where=f"{self._kind} {self._factory.reference}", key=method, found=found, expected=expected)


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


class WatchedPlacer:
    """The user's rule of placement, watched."""

    def __init__(self, placer: Placer, watch: Watch) -> None:
        self._placer, self._watch = placer, watch
        self.name = placer.name

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts | Later:
        """As `Placer`."""
        return self._watch.call("place", lambda: self._placer.place(nodes, request), passing=Exception)


class WatchedMovingPlacer(WatchedPlacer):
    """One that moves jobs, watched."""

    def __init__(self, placer: MovingPlacer, watch: Watch) -> None:
        super().__init__(placer, watch)
        self._moving = placer

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        """As `MovingPlacer`."""
        return self._watch.call("moves", lambda: self._moving.moves(nodes, request), passing=Exception)


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """Who makes a run's policy and its rule of placement: a name of the catalogue, or code of the user's (`_factory`).
    `placer_name` None: the simulator's own rule."""

    policy_name: str
    policy_options: Mapping[str, object]
    policy_factory: UserFactory | None
    placer_name: str | None
    placer_options: Mapping[str, object]
    placer_factory: UserFactory | None

    @property
    def of_user(self) -> tuple[tuple[str, UserFactory], ...]:
        """What is code of the user's, each with what it is."""
        both = (("policy", self.policy_factory), ("placer", self.placer_factory))
        return tuple((kind, factory) for kind, factory in both if factory is not None)

    def policy(self, pulse: Pulse | None) -> Policy:
        """Make the policy; the user's in the fork that shares `pulse`. Raise InputError where it cannot be had."""
        if self.policy_factory is None:
            return make_policy(self.policy_name, **self.policy_options)
        assert pulse is not None
        factory, watch = self.policy_factory, Watch(self.policy_factory, pulse)
        return WatchedPolicy(watch.call("making it", lambda: make_here(factory, self.policy_options)), watch)

    def placer(self, pulse: Pulse | None) -> Placer | None:
        """Make the rule of placement likewise."""
        if self.placer_name is None:
            return None
        if self.placer_factory is None:
            return make_placer(self.placer_name, **self.placer_options)
        assert pulse is not None
        factory, watch = self.placer_factory, Watch(self.placer_factory, pulse, "placer")
        made = watch.call("making it", lambda: make_users_placer(factory, self.placer_options))
        return WatchedMovingPlacer(made, watch) if isinstance(made, MovingPlacer) else WatchedPlacer(made, watch)


def code_process(makers: Makers, work: Work, pulse: Pulse) -> UserProcess:
    """Return a fork of this process that does `work` with the user's code."""
    from estimator.host.user_process import UserProcess

    name = ", ".join(f"{kind} {factory.reference}" for kind, factory in makers.of_user)
    expected = "one that decides" if len(makers.of_user) > 1 else f"a {makers.of_user[0][0]} that decides"
    limit_s = makers.of_user[0][1].limit_s
    return UserProcess(work, name=name, expected=expected, limit_s=limit_s, pulse=pulse)


def try_apart(makers: Makers) -> None:
    """Import and make them in a fork that ends then. Raise InputError where that fails, ends the process or changes
    Python itself, MachineError where it takes too long or too much memory."""
    pulse = Pulse()

    def names(_: object) -> list[str]:
        placer = makers.placer(pulse)
        return [makers.policy(pulse).name, "" if placer is None else placer.name]

    with code_process(makers, names, pulse) as process:
        process.result()
