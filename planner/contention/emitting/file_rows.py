"""What the files of contention have in common: names, numbers and rows as they stand in JSON."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field

from profiles.schema import FileModel, printable

Name = Annotated[str, Field(min_length=1, max_length=400), printable("a name")]
Text = Annotated[str, printable("a text")]
Level = Annotated[int, Field(ge=0, le=1_000_000)]
Natural = Annotated[int, Field(ge=0)]
NotNegative = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Priority = Annotated[int, Field(ge=0, le=15)]
"""Of Ethernet up to 7; service levels of InfiniBand."""
Each = TypeVar("Each")
Rows = Annotated[tuple[Each, ...], Field(strict=False)]
"""What JSON has as an array, and we as a tuple."""


class EndRow(FileModel):
    """A NIC of a host, by its number there."""

    host: Name
    nic: Natural


class MapLevelRow(FileModel):
    """A level's queue: the DSCP that leads there (null on InfiniBand), its class inside the fabric (there, its virtual
    lane), the priority (of
    InfiniBand the service level) that it is counted under, and whether it is lossless; null where nobody said."""

    dscp: Annotated[int, Field(ge=0, le=63)] | None
    traffic_class: Priority
    priority: Priority
    pfc: bool | None
