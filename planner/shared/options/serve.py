"""The options of `serve`."""

from __future__ import annotations

import ipaddress
from typing import Annotated, ClassVar

from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import Option, Options
from planner.shared.options.values import PATIENCE
from profiles.records import dataclass

LOOPBACK = "127.0.0.1"
MOST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class ServeOptions(Options):
    """Where the page is served, and how long what it asks for may take."""

    command: ClassVar[str] = "serve"

    host: Annotated[str, Option("the address to listen at (default: 127.0.0.1)", "ADDRESS")] = LOOPBACK
    port: Annotated[int, Option("(default: 0, any that is free)")] = 0
    allow_remote: Annotated[bool, Option("also listen where others may reach it: who has the address may compute")] = (
        False
    )
    store: StoreIfAny = None
    call_limit: Annotated[float, Option("end what takes longer (default: 300)", "SECONDS", PATIENCE)] = 300.0

    def check(self) -> None:
        """Raise InputError for what is no address or port, and for one that others reach where that was not allowed."""
        try:
            address = ipaddress.ip_address(LOOPBACK if self.host == "localhost" else self.host)
        except ValueError:
            raise self.wrong("host", found=repr(self.host), expected="an address such as 127.0.0.1 or ::1") from None
        if not address.is_loopback and not self.allow_remote:
            expected = "127.0.0.1, or --allow-remote beside it: whoever reaches the address may compute there"
            raise self.wrong("host", found=self.host, expected=expected)
        if not 0 <= self.port <= MOST_PORT:
            raise self.wrong("port", found=self.port, expected=f"0 to {MOST_PORT}")
