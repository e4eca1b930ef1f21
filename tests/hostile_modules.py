"""Code that a user might name by mistake: each factory does to its process what no factory should."""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import sys
import time
from typing import Any, NoReturn


class StopEverything(BaseException):
    """What `except Exception` lets pass."""


def good() -> Any:
    import torch

    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), (torch.ones(2, 4),)


def prints() -> Any:
    print("printed")
    os.write(1, b"written\n")
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
    os.abort()


def reads_nowhere() -> NoReturn:
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
        if self.how == "exit":
            sys.exit(3)
        if self.how == "raise":
            raise StopEverything("no more")
        while self.how == "stay":
            pass
        from planner.many_jobs.policies.fcfs import Fcfs

        return Fcfs().decide(view)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        pass
