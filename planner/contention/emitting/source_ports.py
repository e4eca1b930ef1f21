"""UDP source ports by connection, as JSON for a network plugin of NCCL.

A port is set on a queue pair that is ready to send, by `mlx5dv_modify_qp_udp_sport(qp, port)` of rdma-core (queue pairs
of type RC and UC). `ibv_modify_qp` takes no port, and stock NCCL cannot be told one.
"""

from __future__ import annotations

import json

from planner.contention.emitting.planned import PlannedConnection, PlannedJob

SCHEMA = "cellplan.udp-source-ports/1"
CALL = "mlx5dv_modify_qp_udp_sport"


def source_ports_json(job: PlannedJob) -> str | None:
    """Return the text; None where no connection has a port. `known` is false of a port that an assumed hash leads to
    its way, where nobody told or probed it; a connection without a port keeps what its hash gives it."""
    if not any(connection.ports for connection in job.connections):
        return None
    document = {
        "schema": SCHEMA,
        "job": job.id,
        "call": CALL,
        "connections": [_connection(connection) for connection in job.connections],
    }
    return json.dumps(document, indent=1) + "\n"


def _connection(connection: PlannedConnection) -> dict[str, object]:
    ports = connection.ports
    return {
        "axis": connection.axis,
        "from": {"host": connection.source.host, "nic": connection.source.nic},
        "to": {"host": connection.destination.host, "nic": connection.destination.nic},
        "queue_pair": connection.queue_pair,
        "port": ports[0] if ports else None,
        "also": list(ports[1:]),
        "known": bool(ports) and not connection.hashed,
        "way": list(connection.way),
    }
