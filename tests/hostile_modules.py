"""Code that a user might name by mistake: each factory does to its process what no factory should."""

from __future__ import annotations

import builtins
import ctypes
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

RUNAWAY = "CELLPLAN_TEST_RUNAWAY"


class StopEverything(BaseException):
    """What `except Exception` lets pass."""


def good() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), (torch.ones(2, 4),)


def prints() -> Any:
    print("printed")
    os.write(1, b"written\n")
    run_away()
    return good()


def ends_quietly() -> NoReturn:
    os._exit(0)


def ends_with_seven() -> NoReturn:
    os._exit(7)


def exits() -> NoReturn:
    sys.exit("enough")


def raises_past_everything() -> NoReturn:
    raise StopEverything("no more")


def interrupts() -> NoReturn:
    raise KeyboardInterrupt


def aborts() -> NoReturn:
    faulthandler.disable()  # What pytest would say of it is no news.
    os.abort()


def reads_nowhere() -> NoReturn:
    faulthandler.disable()
    ctypes.string_at(0)
    raise AssertionError


def patches_builtins() -> None:
    vars(builtins).update(dict.fromkeys(("len", "str", "open", "isinstance", "print", "type")))


def patches_json() -> None:
    json.dumps = json.loads = os.write = None  # type: ignore[assignment]


def closes_files() -> None:
    os.closerange(3, 256)
    time.sleep(3600)


def asks() -> str:
    return input("who are you? ")


def leaves_a_child() -> NoReturn:
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(0)


def run_away() -> None:
    """Start a process that is nobody's child, in a session of its own and with nothing in its environment; its number
    goes into the file that `RUNAWAY` names."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(os.environ[RUNAWAY]).write_text(str(os.getpid()), encoding="ascii")
            os.execve("/bin/sleep", ["sleep", "3600"], {})
        os._exit(0)
    os.wait()


def runs_away_and_stays() -> NoReturn:
    run_away()
    never_returns()


def kills_its_parent() -> NoReturn:
    run_away()
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)
    raise AssertionError


def ends_its_parent() -> NoReturn:
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(3600)
    raise AssertionError


def starts_many() -> NoReturn:
    for _ in range(20):
        if os.fork() == 0:
            time.sleep(3600)
    time.sleep(3600)
    raise AssertionError


def eats_memory_in_parts() -> NoReturn:
    for _ in range(4):
        if os.fork() == 0:
            held = bytearray(b"\1") * (100 * 2**20)
            time.sleep(3600)
            del held
    time.sleep(3600)
    raise AssertionError


def floods() -> NoReturn:
    for _ in range(2**8):
        os.write(1, b"x" * 2**16)
        os.write(2, b"y" * 2**16)
    os._exit(0)


def closes_all_files() -> NoReturn:
    os.closerange(0, 256)
    os._exit(0)


def recurses() -> Any:
    return recurses()


def recurses_past_the_limit() -> Any:
    sys.setrecursionlimit(10**9)
    value: list[Any] = []
    for _ in range(10**6):
        value = [value]
    return repr(value)


def holds_the_interpreter() -> None:
    pow(3, 10**9)


def never_returns() -> NoReturn:
    while True:
        pass


def eats_memory() -> NoReturn:
    held = []
    while True:
        held.append(bytearray(b"\1") * 2**24)
        time.sleep(0.002)


class HostilePolicy:
    """Decides as `fcfs`, but for what `how` says."""

    name = "hostile"

    def __init__(self, how: str = "") -> None:
        self.how = how
        if how == "end":
            os._exit(0)
        if how == "patch":
            vars(builtins)["sum"] = max

    def decide(self, view: Any) -> Any:
        if self.how in DEEDS:
            DEEDS[self.how]()
        from planner.many_jobs.policies.fcfs import Fcfs

        return Fcfs().decide(view)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass


def patch_len() -> None:
    vars(builtins)["len"] = None


def run_away_once() -> None:
    if not Path(os.environ[RUNAWAY]).exists():
        run_away()


DEEDS: dict[str, Callable[[], Any]] = {
    "exit": lambda: sys.exit(3),
    "end later": ends_quietly,
    "abort": aborts,
    "raise": raises_past_everything,
    "interrupt": interrupts,
    "patch later": patch_len,
    "close": closes_files,
    "stay": never_returns,
    "hold": holds_the_interpreter,
    "eat": eats_memory,
    "flood": floods,
    "kill": kills_its_parent,
    "run away": run_away_once,
    "run away and stay": runs_away_and_stays,
    "fork": os.fork,
    "read": lambda: input("who are you? "),
    "print": lambda: print("printed"),
}
"""What `HostilePolicy` does before each decision, by its option `how`."""
