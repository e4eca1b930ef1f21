"""UDP source ports by connection, as JSON for a network plugin of NCCL.

A port is set on a queue pair that is ready to send, by `mlx5dv_modify_qp_udp_sport(qp, port)` of rdma-core (queue pairs
of type RC and UC). `ibv_modify_qp` takes no port, and stock NCCL cannot be told one.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from planner.contention.emitting.file_rows import EndRow, Name, Natural, Port, Rows
from planner.contention.emitting.planned import PlannedConnection, PlannedEnd, PlannedJob
from planner.shared.plan_file import layout
from profiles.schema import FileModel

SCHEMA: Literal["cellplan.udp-source-ports/1"] = "cellplan.udp-source-ports/1"
CALL: Literal["mlx5dv_modify_qp_udp_sport"] = "mlx5dv_modify_qp_udp_sport"


class ConnectionRow(FileModel):
    """A queue pair, by its number among those of its axis between two NICs: the port that leads it its way, others that
    do so, too, and the links of the way. `known` is false of a port that an assumed hash leads there, where nobody told
    or probed it; a port of null leaves the connection to its hash."""

    axis: Name
    source: EndRow = Field(alias="from")
    destination: EndRow = Field(alias="to")
    queue_pair: Natural
    port: Port | None
    also: Rows[Port]
    known: bool
    way: Rows[Name]


class SourcePortsFile(FileModel):
    """The whole file: the call of rdma-core that sets a port, and a job's connections that may take several ways."""

    format: Literal["cellplan.udp-source-ports/1"] = Field(alias="schema")
    job: Name
    call: Literal["mlx5dv_modify_qp_udp_sport"]
    connections: Rows[ConnectionRow]


def source_ports_json(job: PlannedJob) -> str | None:
    """Return the text of a job's file; None where no connection has a port."""
    if not any(connection.ports for connection in job.connections):
        return None
    file = SourcePortsFile.model_validate(
        {"schema": SCHEMA, "job": job.id, "call": CALL, "connections": [_connection(own) for own in job.connections]}
    )
    return layout(file.model_dump(mode="json", by_alias=True)) + "\n"


def source_ports_json_schema() -> str:
    """Return the JSON Schema of the file, as published in `planner/shared/schemas/udp-source-ports.schema.json`."""
    schema = SourcePortsFile.model_json_schema(by_alias=True, mode="validation")
    return layout({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}) + "\n"


def _connection(connection: PlannedConnection) -> dict[str, object]:
    ports = connection.ports
    return {
        "axis": connection.axis,
        "from": _end(connection.source),
        "to": _end(connection.destination),
        "queue_pair": connection.queue_pair,
        "port": ports[0] if ports else None,
        "also": ports[1:],
        "known": bool(ports) and not connection.hashed,
        "way": connection.way,
    }


def _end(end: PlannedEnd) -> dict[str, object]:
    return {"host": end.host, "nic": end.nic}
