"""What can go wrong and how it leaves the program; the command line maps each class to its exit status."""

from __future__ import annotations

LONGEST_FOUND = 1000


class InputError(ValueError):
    """The user's input is wrong (exit 2): says where, which key, what was found and what was expected. Of a value that
    fills a screen the message has the beginning."""

    def __init__(self, *, where: str, found: object, expected: str, key: str | None = None) -> None:
        place = f"{where}: {key}" if key else where
        shown = str(found)
        if len(shown) > LONGEST_FOUND:
            shown = f"{shown[:LONGEST_FOUND]}... ({len(shown):,} characters)"
        super().__init__(f"{place}: found {shown}, expected {expected}")
        self.where, self.key, self.found, self.expected = where, key, found, expected


class NothingFits(Exception):  # noqa: N818  it is a result that has no plan, not an error of anybody
    """No feasible choice is left (exit 3): the message names the nearest miss and what it lacks.

    `result` is what the function that raised it would have returned, for whoever wants its figures all the same.
    """

    def __init__(self, message: str, *, result: object = None) -> None:
        super().__init__(message)
        self.result = result


class MachineError(Exception):
    """The machine failed (exit 4): disk full, worker died, port taken, time-out."""
