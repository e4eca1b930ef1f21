"""The other end of `user_process`: in the process of the user's code, what answers for it.

What is used after that code has run is bound before: it may have put something else in its place.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from profiles.errors import InputError, MachineError, NothingFits

ANSWER, INPUT, MACHINE, NOTHING_FITS = "answer", "input", "machine", "nothing fits"
PROGRESS, RAISED = "progress", "raised"


def serve(answer: Callable[[dict[str, Any]], Any]) -> NoReturn:
    """Answer questions with `answer` until nobody asks any more."""
    # Whoever reads its standard input, as `input()` does, finds it empty.
    questions = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    loads, say, leave = json.loads, _sayer(int(sys.argv[1])), os._exit
    reply = _replies(answer)
    for line in questions:
        try:
            say(reply(loads(line)))
        except BaseException:  # Nothing is as it was; that there is no answer says so.
            leave(1)
    leave(0)
    raise SystemExit


def be_fork(work: Callable[[Callable[[object], None]], object], answering: int, printing: int) -> None:
    """Do `work` in a fork whose standard streams are empty and `printing`, and say over `answering` what came of it."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, taken in enumerate((nothing, printing, printing)):
        os.dup2(taken, number)
    sys.stdout = sys.stderr = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace", buffering=1)
    sys.stdin = os.fdopen(os.dup(0), encoding="utf-8")
    say, leave = _sayer(answering), os._exit
    reply = _replies(lambda _: work(lambda value: say({PROGRESS: value})))
    try:
        say(reply({}))
        sys.stdout.flush()
        leave(0)
    except BaseException:
        leave(1)


def changed_builtins() -> Callable[[], tuple[str, ...]]:
    """Return what tells which of Python's own functions are others than now, or gone, and puts them back: without them
    nothing could be said of it."""
    names, before = vars(builtins), dict(vars(builtins))
    same, ordered, every = before.__eq__, sorted, tuple

    def changed() -> tuple[str, ...]:
        if same(names) is True:
            return ()
        others = {name for name, value in names.items() if before.get(name) is not value and name != "_"}
        others |= before.keys() - names.keys()
        for name in others - before.keys():
            del names[name]
        names.update(before)
        return every(ordered(others))

    return changed


def _sayer(pipe: int) -> Callable[[dict[str, Any]], None]:
    """What writes a line of JSON, and ends a fork of this process that goes on where it did not begin."""
    write, dumps, view, process, leave = os.write, json.dumps, memoryview, os.getpid, os._exit
    began_in = process()

    def say(values: dict[str, Any]) -> None:
        if process() != began_in:
            leave(1)
        rest = view(dumps(values).encode() + b"\n")
        while rest:
            rest = rest[write(pipe, rest) :]

    return say


def _replies(answer: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """What makes a reply of a question, whatever becomes of it."""
    text, wrong, failed, nothing_fits, anything = str, InputError, MachineError, NothingFits, BaseException

    def reply(question: dict[str, Any]) -> dict[str, Any]:
        try:
            return {ANSWER: answer(question)}
        except wrong as error:
            words = {"where": error.where, "key": error.key, "found": text(error.found), "expected": error.expected}
            return {INPUT: words}
        except failed as error:
            return {MACHINE: text(error)}
        except nothing_fits as error:
            return {NOTHING_FITS: text(error)}
        except anything as error:
            name, said = error.__class__.__name__, text(error).strip().splitlines()
            return {RAISED: f"{name}: {said[0]}" if said else name}

    return reply
