"""The options of `mcp`."""

from __future__ import annotations

from typing import Annotated, ClassVar

from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import Option, Options
from planner.shared.options.values import PATIENCE
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class McpOptions(Options):
    """What the tools of the server read."""

    command: ClassVar[str] = "mcp"

    store: StoreIfAny = None
    call_limit: Annotated[float, Option("end a call that takes longer (default: 300)", "SECONDS", PATIENCE)] = 300.0
