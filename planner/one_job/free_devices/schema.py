"""What is read of the JSON that Slurm and Kubernetes print: the keys that matter, all others let pass."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class Loose(BaseModel):
    """Base: the declared keys have the declared types, whatever else there is."""

    model_config = ConfigDict(extra="ignore", frozen=True)


# Slurm: `scontrol show node --json`, `sinfo --json`


class SlurmNode(Loose):
    """A node. `state` is text with `state_flags` beside it, or a list of base state and flags, by version."""

    name: str = Field(min_length=1)
    gres: str
    gres_used: str | None = None
    state: str | list[str]
    state_flags: list[str] | None = None
    tres: str | None = None
    tres_used: str | None = None
    active_features: list[str] | str | None = None
    features: list[str] | str | None = None


class SlurmNodes(Loose):
    """`scontrol show node --json`, and `sinfo --json` of Slurm 22.05."""

    nodes: list[SlurmNode]


class SinfoNames(Loose):
    """The names of a row's nodes, as host lists."""

    nodes: list[str]


class SinfoGres(Loose):
    """GRES of each of a row's nodes."""

    total: str
    used: str | None = None


class SinfoState(Loose):
    """The state of a row's nodes."""

    state: str | list[str]


class SinfoRow(Loose):
    """Nodes that are alike."""

    nodes: SinfoNames
    gres: SinfoGres
    node: SinfoState
    features: dict[str, Any] | None = None


class SinfoRows(Loose):
    """`sinfo --json` after Slurm 22.05."""

    sinfo: list[SinfoRow]


# Slurm: `squeue --json`


Whole = Annotated[int, Field(ge=0, strict=True)]


class SlurmNumber(Loose):
    """A number that may be none, as the data parsers of Slurm 23.02 and later write it."""

    set: bool = Field(default=True, strict=True)
    infinite: bool = Field(default=False, strict=True)
    number: float | None = Field(default=None, ge=0, strict=True)


class SlurmNodeList(Loose):
    """The nodes of a job's resources, since Slurm 24.05."""

    list: str | None = None


class SlurmJobResources(Loose):
    """What a job was given."""

    nodes: str | SlurmNodeList | None = None


class SlurmJob(Loose):
    """A job: `job_state` a text or a list of state and flags, times in seconds since 1970, `time_limit` in minutes, by
    version as numbers or objects. `gres_detail` has its GRES on each of its nodes, `requeue` whether it may be."""

    job_id: Whole
    job_state: str | list[str]
    nodes: str | None = None
    job_resources: SlurmJobResources | None = None
    start_time: Whole | SlurmNumber | None = None
    end_time: Whole | SlurmNumber | None = None
    time_limit: Whole | SlurmNumber | None = None
    gres_detail: list[str] | None = None
    requeue: bool | None = None
    submit_time: Whole | SlurmNumber | None = None
    name: str | None = None
    user_name: str | None = None
    partition: str | None = None


class SlurmJobs(Loose):
    """`squeue --json`; `last_update` since Slurm 23.11."""

    jobs: list[SlurmJob]
    last_update: Whole | SlurmNumber | None = None


# Kubernetes 1.31: core/v1


class Owner(Loose):
    """What a pod belongs to; a `controller` starts another in its place."""

    controller: bool | None = None


class Metadata(Loose):
    """Of a node or a pod."""

    name: str = Field(min_length=1, max_length=253)
    namespace: str | None = Field(default=None, max_length=63)
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    ownerReferences: list[Owner] | None = None  # noqa: N815  (Kubernetes' own name)


class Taint(Loose):
    """What keeps pods off a node unless they tolerate it."""

    key: str
    effect: str


class Condition(Loose):
    """Of a node."""

    type: str
    status: str


class NodeSpec(Loose):
    """What an administrator says of a node."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None


class NodeStatus(Loose):
    """What a node says of itself."""

    allocatable: dict[str, str | int]
    conditions: list[Condition] | None = None


class KubernetesNode(Loose):
    """A node."""

    kind: Literal["Node"]
    metadata: Metadata
    spec: NodeSpec = Field(default_factory=NodeSpec)
    status: NodeStatus


class Resources(Loose):
    """What a container asks for."""

    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class Container(Loose):
    """Of a pod; `restartPolicy` Always makes an init container one that runs beside the others."""

    resources: Resources = Field(default_factory=Resources)
    restartPolicy: str | None = None  # noqa: N815


class PodSpec(Loose):
    """Where a pod runs and what in it."""

    nodeName: str | None = None  # noqa: N815
    containers: list[Container] = Field(default_factory=list)
    initContainers: list[Container] | None = None  # noqa: N815
    activeDeadlineSeconds: Whole | None = None  # noqa: N815


class PodStatus(Loose):
    """How far a pod is."""

    phase: str | None = None
    startTime: str | None = None  # noqa: N815


class Pod(Loose):
    """A pod."""

    kind: Literal["Pod"]
    metadata: Metadata
    spec: PodSpec
    status: PodStatus = Field(default_factory=PodStatus)
