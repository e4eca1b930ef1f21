"""settings.json: all that a folder of settings says, for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from planner.contention.emitting.file_rows import Level, MapLevelRow, Name, NotNegative, Rows, Text
from planner.contention.emitting.priority_map import PriorityMap, warnings_of
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.transports import Transport
from planner.shared.plan_file import layout
from profiles.schema import FileModel

SETTINGS_SCHEMA: Literal["cellplan.contention-settings/1"] = "cellplan.contention-settings/1"

Variables = dict[str, str]
"""Of an environment, by name."""


class SettingsMapRow(FileModel):
    """The fabric's levels, the most urgent first, who said so, and those that are kept for other traffic."""

    source: Text
    levels: Annotated[tuple[MapLevelRow, ...], Field(strict=False, min_length=1, max_length=15)]
    reserved: Annotated[tuple[MapLevelRow, ...], Field(strict=False, max_length=15)]


class PricedPairRow(FileModel):
    """What a pair of NCCL's settings for queue pairs does, all jobs alike: work done, of what jobs do that meet nobody,
    in the mean of draws of hashes, `range` from the least to the most. `certain` is false: it is chance."""

    environment: Variables
    work_share: NotNegative
    range: Annotated[tuple[NotNegative, NotNegative], Field(strict=False)]
    certain: Literal[False]


class JobSettingsRow(FileModel):
    """A job: its level, or those of its axes, as the plan has them; the DSCP of its level, null where packets have none
    or it has no level; what its ranks find in their environment, and beside it with a stock NCCL; the folder of its
    files (null: it needs none), their names, and what is to be known of them."""

    id: Name
    level: Level | None
    axis_levels: dict[str, Level] | None
    dscp: Annotated[int, Field(ge=0, le=63)] | None
    environment: Variables
    stock_nccl: Variables
    folder: Text | None
    files: Rows[Name]
    notes: Rows[Text]


class SettingsFile(FileModel):
    """The whole file. `nccl`: the release that jobs run, null where nobody declared it."""

    format: Literal["cellplan.contention-settings/1"] = Field(alias="schema")
    transport: Literal["roce", "infiniband", "tcp", "other"]
    nccl: Text | None
    map: SettingsMapRow
    warnings: Rows[Text]
    queue_pairs: Rows[PricedPairRow]
    jobs: Rows[JobSettingsRow]


def settings_json(
    of: PriorityMap,
    transport: Transport,
    jobs: Sequence[Mapping[str, Any]],
    *,
    nccl: str | None,
    pairs: Sequence[PricedPair],
) -> str:
    """Return the text of the file; `jobs` by the keys of `JobSettingsRow`."""
    file = SettingsFile.model_validate(
        {
            "schema": SETTINGS_SCHEMA,
            "transport": transport,
            "nccl": nccl,
            "map": describe_map(of),
            "warnings": warnings_of(of),
            "queue_pairs": [describe_pair(pair) for pair in pairs],
            "jobs": jobs,
        }
    )
    return layout(file.model_dump(mode="json", by_alias=True)) + "\n"


def describe_map(of: PriorityMap) -> dict[str, Any]:
    """Return a map as JSON has it."""
    rows = [
        [
            {
                "dscp": each.dscp if not of.is_infiniband else None,
                "traffic_class": each.traffic_class,
                "priority": each.priority,
                "pfc": each.pfc,
            }
            for each in levels
        ]
        for levels in (of.levels, of.reserved)
    ]
    return {"source": of.source, "levels": rows[0], "reserved": rows[1]}


def describe_pair(pair: PricedPair) -> dict[str, Any]:
    """Return a pair of NCCL's settings as JSON has it."""
    return {
        "environment": dict(pair.variables),
        "work_share": pair.work_share,
        "range": list(pair.range),
        "certain": False,
    }


def settings_json_schema() -> str:
    """Return the JSON Schema of the file, as published in `planner/shared/schemas/contention-settings.schema.json`."""
    schema = SettingsFile.model_json_schema(by_alias=True, mode="validation")
    return layout({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}) + "\n"
