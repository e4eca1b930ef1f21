"""A network policy of the user's own, which decides in a fork of this process, where what it does is watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, cast

from models_zoo.user_code import UserFactory
from planner.contention.checked_decision import check_decision
from planner.contention.policies.records import Decision, NetworkPolicy, View
from planner.shared.made_by_name import make_with
from profiles.errors import InputError

DOCUMENTED = "NETWORK_POLICIES.md"


class UsersPolicy:
    """What `package.module:Class` makes, with its options. Every decision is a fork's, which has the view; back comes
    the answer, as values of JSON."""

    def __init__(
        self, factory: UserFactory, options: Mapping[str, object], *, key: str = "--policy-option", kind: str = "policy"
    ) -> None:
        """`key` is how messages name its options, `kind` what they call it."""
        self._factory, self._options, self._key = factory, options, key
        self.name, self._where = factory.reference, f"{kind} {factory.reference}"

    def decide(self, view: View) -> Decision:
        """As `NetworkPolicy`. Raise InputError where the code cannot be had, raises, ends its process, changes Python
        itself, or answers what is no decision on the view; NothingFits as the policy does; MachineError where it takes
        too long or too much memory."""
        where = self._where
        values = self._apart(lambda made: asdict(check_decision(made.decide(view), view, where=where)))
        return check_decision(_decision_of(values, where), view, where=where)

    def try_apart(self) -> None:
        """Import and make it, and let it decide nothing. Raise as `decide`."""
        self._apart(lambda made: made.name)

    def _apart(self, ask: Callable[[NetworkPolicy], object]) -> Any:
        """What the policy answers in a fork, as values of JSON."""
        from estimator.host.pulse import Pulse
        from estimator.host.user_process import UserProcess

        pulse = Pulse()

        def work(_: Callable[[object], None]) -> object:
            return self._ask_here(ask, pulse)

        expected, limit_s = "a network policy that decides", self._factory.limit_s
        with UserProcess(work, name=self._where, expected=expected, limit_s=limit_s, pulse=pulse) as process:
            return process.result()

    def _ask_here(self, ask: Callable[[NetworkPolicy], object], pulse: Any) -> object:
        from estimator.frontends.factory import find_factory, first_line, user_code
        from estimator.host.answering import changed_builtins
        from profiles.errors import MachineError, NothingFits

        changed, where = changed_builtins(), self._where
        try:
            with pulse.calling("decide", self._factory.limit_s), user_code():
                maker = find_factory(self._factory, "a network policy")
                made = make_with(
                    maker,
                    self._options,
                    where=where,
                    key=self._key,
                    methods=("decide",),
                    kind=f"a network policy ({DOCUMENTED})",
                )
                answer = ask(cast("NetworkPolicy", made))
        except (InputError, NothingFits, MachineError):
            raise
        except BaseException as error:
            raise InputError(
                where=where, key="decide", found=first_line(error), expected="a decide that ends well"
            ) from error
        others = changed()
        if others:
            found = f"code that changes Python's own {', '.join(others[:5])}"
            raise InputError(where=where, key="decide", found=found, expected="one that leaves them alone")
        return answer


def _decision_of(values: Any, where: str) -> object:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(Decision).validate_python(values)
    except ValidationError as error:
        expected = f"a Decision ({DOCUMENTED})"
        raise InputError(where=where, key="decide", found=str(error).splitlines()[0], expected=expected) from error
