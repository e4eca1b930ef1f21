"""What an exporter makes of a plan: files, what the user should know of them, or why the tool cannot run the plan."""

from __future__ import annotations

from models_zoo.user_code import NO_CODE, UserCode
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """A file to write: its usual name and its text."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan in a tool's format. `notes` are sentences: what the format leaves to the user, what the tool does
    otherwise than the plan says."""

    files: tuple[ExportFile, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderCosts:
    """Seconds of an iteration as the plan has its nodes, with ranks by the names of the same nodes, and by name inside
    each part of the level by which it was placed."""

    time_s: float
    by_name_s: float
    in_parts_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportContext:
    """What the plan itself does not say: the training script that the launcher is to start (None: the tool's own, or a
    placeholder that a note names), what of the user's own code it may run, what an iteration takes where a manager
    orders the nodes otherwise (None: that was not priced), and variables that every rank has in its environment."""

    script: str | None = None
    code: UserCode = NO_CODE
    orders: OrderCosts | None = None
    environment: tuple[tuple[str, str], ...] = ()


class CannotExpress(Exception):  # noqa: N818  it is a result that has no file, not an error of anybody
    """The tool has no words for something in the plan: which key of the plan, what it is, what the tool can run."""

    def __init__(self, *, tool: str, key: str, found: object, expected: str) -> None:
        super().__init__(f"{tool} cannot express {key}: found {found}; it runs {expected}")
        self.tool, self.key, self.found, self.expected = tool, key, found, expected
