"""contention.json: what each job of a cluster is to do on its network, for who sets it and who reads it again.

The same inputs give the same bytes. Seconds, bytes and FLOP; hosts and links by their names.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from planner.contention.emitting.file_rows import (
    EndRow,
    Level,
    MapLevelRow,
    Name,
    Natural,
    NotNegative,
    Port,
    Rows,
    Text,
)
from planner.contention.emitting.nccl_release import read_release
from planner.shared.plan_file import layout
from planner.shared.version import VERSION
from profiles.cluster import Cluster
from profiles.errors import InputError
from profiles.files import parse_json, read_text, write_atomically
from profiles.schema import FileModel, validate_json

CONTENTION_SCHEMA: Literal["cellplan.contention/1"] = "cellplan.contention/1"

Scalar = str | int | float | bool | None
Positive = Annotated[float, Field(gt=0)]


class PolicyRow(FileModel):
    """What decided: a policy's name, its parts where it was mixed by name, and its options."""

    name: Name
    paths: Text | None
    priorities: Text | None
    compression: Text | None
    offsets: Text | None
    options: dict[str, Scalar]


class ClusterRow(FileModel):
    """The cluster by its name, as a plan has it; `digest` is of its hosts, devices, NICs and cables. `transport`: how
    bytes cross its network."""

    name: Text
    digest: Text
    hosts: Annotated[int, Field(ge=1)]
    devices: Annotated[int, Field(ge=1)]
    transport: Literal["roce", "infiniband", "tcp", "other"]
    routing: Literal["ecmp", "spray", "infiniband", "dimension-order"]


class MapRow(FileModel):
    """The fabric's levels, the most urgent first, and who said so."""

    source: Text
    levels: Annotated[tuple[MapLevelRow, ...], Field(strict=False, min_length=1, max_length=15)]


class PathRow(FileModel):
    """A queue pair that may take several ways: the one that it takes, and the source ports that lead there (any of
    them). `hashed`: nobody told or probed that they do, a hash that was assumed says so. `changed`: it takes another
    than now. Without a way its bytes are spread over all."""

    axis: Name
    source: EndRow = Field(alias="from")
    destination: EndRow = Field(alias="to")
    queue_pair: Natural
    way: Rows[Name]
    ports: Rows[Port]
    hashed: bool
    changed: bool


class JobRow(FileModel):
    """A job: its level (null: it shares no link and needs none), or those of its axes; how much later than the others
    its iterations begin, and how long each is held to; what an iteration takes, in `range_s` as compute varies; who
    slows it. A time of null has no end. `transport` is that of its hosts' site where it is not the cluster's."""

    id: Name
    hosts: Rows[Name]
    devices: Annotated[int, Field(ge=1)]
    flops: NotNegative | None
    intensity_flops_per_s: NotNegative | None
    factor: NotNegative | None
    priority: Natural | None
    level: Level | None
    axis_levels: dict[str, Level] | None
    dscp: Annotated[int, Field(ge=0, le=63)] | None
    offset_s: NotNegative
    period_s: Positive | None
    alone_s: Positive | None
    now_s: Positive | None
    planned_s: Positive | None
    range_s: Annotated[tuple[Positive | None, Positive | None], Field(strict=False)]
    slowed_by: Rows[Name]
    transport: Literal["roce", "infiniband", "tcp", "other"] | None = None
    provenance: Literal["modelled"]
    paths: Rows[PathRow]


class LinkJobRow(FileModel):
    """A job on a link, and its level there."""

    id: Name
    level: Level | None


class LinkRow(FileModel):
    """A link that jobs share, now or as planned: what it carries in the mean over what it can."""

    name: Name
    bandwidth_bytes_per_s: NotNegative
    busy_now: NotNegative
    busy_planned: NotNegative
    jobs: Rows[LinkJobRow]


class WorkRow(FileModel):
    """GPU utilisation both ways: work done a second (Crux, eq. 1), and the share of the jobs' GPU-seconds in which they
    compute."""

    flops_per_s: NotNegative | None
    busy: NotNegative


class UtilizationRow(FileModel):
    """If nobody met, now, as planned, and what nothing can pass."""

    alone: WorkRow
    now: WorkRow
    planned: WorkRow
    bound: WorkRow


class QueuePairsRow(FileModel):
    """What a pair of NCCL's settings for queue pairs does where NCCL cannot be told ports, all jobs alike: work done,
    of what jobs do that meet nobody, in the mean of draws of hashes; `range` is from the least to the most. Chance."""

    queue_pairs: Annotated[int, Field(ge=1, le=128)]
    split_data: bool
    work_share: NotNegative
    range: Annotated[tuple[NotNegative, NotNegative], Field(strict=False)]


class ContentionFile(FileModel):
    """The whole file. `levels`: how many the fabric leaves free, `map` what they are there. `proved`: no paths and
    levels do more work. `unstable`: jobs whose iterations move by more than 5% as compute varies. `nccl`: the release
    that jobs run, where it was declared. `queue_pairs`: those of stock NCCL, the best first; empty if not played."""

    format: Literal["cellplan.contention/1"] = Field(alias="schema")
    version: Text
    policy: PolicyRow
    cluster: ClusterRow
    levels: Annotated[int, Field(ge=1)]
    jobs: Rows[JobRow]
    links: Rows[LinkRow]
    gpu_utilization: UtilizationRow
    proved: bool
    unstable: Rows[Name]
    map: MapRow | None = None
    nccl: Text | None = None
    queue_pairs: Rows[QueuePairsRow] = ()


def cluster_row(cluster: Cluster, transport: str) -> ClusterRow:
    """Return how the file says which cluster it is for, and how bytes cross its network."""
    from estimator.network.fabric import fabric_of

    fabric = fabric_of(cluster)
    return ClusterRow.model_validate(
        {
            "name": cluster.text,
            "digest": cluster_digest(cluster),
            "hosts": fabric.links.nodes,
            "devices": len(cluster.slots),
            "transport": transport,
            "routing": fabric.routing.kind or "ecmp",
        }
    )


def cluster_digest(cluster: Cluster) -> str:
    """Return what is equal for clusters of the same hosts, devices, NICs and cables, whatever is free there, and
    whichever ways are known."""
    from hashlib import sha256

    from estimator.network.fabric import fabric_of

    fabric = fabric_of(cluster)
    links, digest = fabric.links, sha256()
    digest.update("\n".join(links.names).encode())
    for column in (links.ends, links.nic_begins, links.ports, links.port_begins, fabric.device_begins):
        digest.update(b"|" + column.astype("<i8").tobytes())
    digest.update(b"|" + links.bytes_per_s.astype("<f8").tobytes())
    return digest.hexdigest()[:16]


def contention_to_json(contention: ContentionFile) -> str:
    """Return the text of the file: keys as declared, floats in full."""
    return layout(contention.model_dump(mode="json", by_alias=True)) + "\n"


def save_contention(contention: ContentionFile, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_atomically(path, contention_to_json(contention))


def parse_contention(text: str, where: str) -> ContentionFile:
    """Return what `text` holds. InputError names `where` and the key if it is no such file, or says a job twice, or a
    level that it has not."""
    value = parse_json(text, where=where)
    if isinstance(value, dict) and "schema" not in value:
        raise InputError(where=where, key="schema", found="nothing", expected=repr(CONTENTION_SCHEMA))
    contention = validate_json(ContentionFile, text, where=where)
    _check(contention, where)
    return contention


def _check(contention: ContentionFile, where: str) -> None:
    counts = Counter(job.id for job in contention.jobs)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise InputError(where=where, key="jobs", found=f"{twice!r} twice", expected="each job once")
    if contention.nccl is not None:
        read_release(contention.nccl, where=where, key="nccl")
    counted = {row.queue_pairs for row in contention.queue_pairs}
    if counted and 1 not in counted:
        found, expected = f"those of {sorted(counted)}", "one queue pair among them, to be held against"
        raise InputError(where=where, key="queue_pairs", found=found, expected=expected)
    for number, job in enumerate(contention.jobs):
        for key, level in (("level", job.level), *(job.axis_levels or {}).items()):
            if level is not None and level >= contention.levels:
                name = f"jobs[{number}]." + (key if key == "level" else f"axis_levels.{key}")
                raise InputError(where=where, key=name, found=level, expected=f"0 to {contention.levels - 1}")


def load_contention(path: Path) -> ContentionFile:
    """Return the file at `path`. InputError if there is none, or as `parse_contention`."""
    return parse_contention(read_text(path), str(path))


def check_cluster(contention: ContentionFile, cluster: Cluster, where: str) -> None:
    """Raise InputError unless the file is for this cluster."""
    if contention.cluster.digest != cluster_digest(cluster):
        found = f"{contention.cluster.name}, {contention.cluster.hosts} hosts, digest {contention.cluster.digest}"
        expected = f"{cluster.text}, digest {cluster_digest(cluster)}: the cluster that it was made for"
        raise InputError(where=where, key="cluster", found=found, expected=expected)


def contention_json_schema() -> str:
    """Return the JSON Schema of the file, as published in `planner/shared/schemas/contention.schema.json`."""
    schema = ContentionFile.model_json_schema(by_alias=True, mode="validation")
    return layout({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}) + "\n"


def this_version() -> str:
    """Return the version that a file of now says."""
    return f"cellplan {VERSION}"
