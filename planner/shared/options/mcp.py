"""The options of `mcp`."""

from __future__ import annotations

from typing import ClassVar

from planner.shared.options.common import StoreIfAny
from planner.shared.options.record import Options
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class McpOptions(Options):
    """What the tools of the server read."""

    command: ClassVar[str] = "mcp"

    store: StoreIfAny = None
