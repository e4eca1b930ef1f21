"""Commands in turn with another checkout's: what is ended or cannot be run there is said, and not run again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.planning.checkouts import HERE, Checkout, Failed, Ran, in_turn


class Stub(Checkout):
    """A checkout whose commands give these in turn; None: ended, "fails": refused."""

    def __init__(self, tree: Path, gives: list[float | str | None]) -> None:
        super().__init__(tree, "", 60)
        object.__setattr__(self, "gives", gives)

    def run(self, *words: str) -> Ran | None:
        gives: list[float | str | None] = self.__dict__["gives"]
        given = gives.pop(0)
        if isinstance(given, str):
            raise Failed(" ".join(words))
        return None if given is None else Ran(given, int(1000 * given), "{}")


def test_the_least_of_each_checkout_is_told() -> None:
    own, before = in_turn(Stub(HERE, [2.0, 1.0, 3.0]), Stub(Path("old"), [4.0, 5.0, 3.5]), ("plan",), 3)
    assert (str(own), str(before), own.peak_bytes) == ("1.00 s", "3.50 s", 3000)


def test_what_a_baseline_cannot_do_is_said_and_not_tried_again() -> None:
    own, ended = in_turn(Stub(HERE, [2.0, 1.0]), Stub(Path("old"), [None]), ("plan",), 2)
    assert (str(own), str(ended)) == ("1.00 s", "over 60 s")
    _, refused = in_turn(Stub(HERE, [2.0, 1.0]), Stub(Path("old"), ["fails"]), ("plan",), 2)
    assert str(refused) == "cannot"


def test_our_own_failure_is_one() -> None:
    with pytest.raises(Failed):
        in_turn(Stub(HERE, ["fails"]), None, ("plan",), 1)
