"""The cluster file as its author writes it (`schema: cellplan.cluster/1`). Types and keys are checked here; what the
values of a cluster must satisfy together stands at the records of `profiles.cluster`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from profiles.limits import LIMITS
from profiles.routing import HashName, RoutingKind
from profiles.schema import FileModel, printable
from profiles.vocabulary import DType, LinkKind, PeakBasis


def _written_as(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    return "inline" if isinstance(value, dict | FileModel) else None


def _all_or_number(value: Any) -> Any:
    if value != "all" and (isinstance(value, bool) or not isinstance(value, int)):
        raise PydanticCustomError("free", "all, or a number of devices")
    return value


def _ascending(value: tuple[tuple[int, float], ...]) -> tuple[tuple[int, float], ...]:
    workers = [count for count, _ in value]
    if workers != sorted(set(workers)):
        raise PydanticCustomError("contention", "[workers, slowdown] with ascending workers")
    return value


Name = Annotated[str, Field(max_length=253), printable("a name")]
"""It stands in what is written for cluster managers and shown on terminals: nothing in it ends a line there."""

Rate = Annotated[float, Field(ge=1.0, le=1e18)]
"""Bytes/s: from one a second to fifty times what a wafer's memory moves; what is outside is a slip, and what it divides
overflows."""
Flops = Annotated[float, Field(ge=1.0, le=1e21)]
Delay = Annotated[float, Field(ge=0, le=1000.0)]
"""Seconds: a message to Mars."""
Share = Annotated[float, Field(ge=1e-6, le=1)]

RankShare = Annotated[tuple[Annotated[int, Field(ge=1)], Share], Field(strict=False)]

Slowdown = Annotated[
    tuple[Annotated[int, Field(ge=2)], Annotated[float, Field(ge=1, le=1e6)]],
    Field(strict=False),
]


class LinkModel(FileModel):
    """A link defined in place. `kind`, `name` and `source` have defaults by where it stands."""

    bandwidth_bytes_per_s: Rate
    latency_s: Delay
    efficiency: Share = 1.0
    startup_s: Delay = 0.0
    quick_latency_s: Delay | None = None
    quick_efficiency: Share | None = None
    in_network_efficiency: Share | None = None
    exchange_efficiency: Share | None = None
    share_by_ranks: tuple[RankShare, ...] = Field(default=(), strict=False)
    torus_dimensions: int = Field(default=1, ge=1, le=8)
    ramp_exponent: float = Field(default=1.0, ge=0.3, le=1)
    kind: LinkKind | None = None
    name: Name | None = None
    source: str | None = None


class DeviceModel(FileModel):
    """A device defined in place; rates are dense peaks. `contention` is [workers, slowdown] of busy neighbours."""

    name: Name = Field(min_length=1)
    memory_bytes: int = Field(gt=0, le=2**50)
    memory_bandwidth_bytes_per_s: Rate
    peak_flops_per_s: dict[DType, Flops] = Field(min_length=1)
    power_w: float | None = Field(default=None, gt=0, le=1e9)
    flash_attention: bool = False
    peak_basis: PeakBasis = "datasheet"
    source: str | None = None
    contention: Annotated[tuple[Slowdown, ...], AfterValidator(_ascending)] = Field(default=(), strict=False)


LinkRef = Annotated[
    Annotated[str, Tag("name")] | Annotated[LinkModel, Tag("inline")],
    Discriminator(
        _written_as,
        custom_error_type="link",
        custom_error_message="a link's name, or bandwidth_bytes_per_s and latency_s",
    ),
]
DeviceRef = Annotated[
    Annotated[str, Tag("name")] | Annotated[DeviceModel, Tag("inline")],
    Discriminator(
        _written_as,
        custom_error_type="device",
        custom_error_message="a device's name, or its memory, bandwidth and peaks",
    ),
]


class IslandModel(FileModel):
    """Devices joined by the fast link."""

    link: LinkRef
    size: int = Field(le=LIMITS.devices.most)


class NicsModel(FileModel):
    """A node's network cards."""

    count: int = Field(le=LIMITS.devices.most)
    link: LinkRef


Index = Annotated[int, Field(ge=0, le=LIMITS.devices.most)]


class PcieModel(FileModel):
    """What hangs under one PCIe switch: so many devices and NICs as come next, or which, by number. `count` such."""

    devices: Index | list[Index] = 0
    nics: Index | list[Index] = 0
    count: int = Field(default=1, ge=1, le=64)
    link: LinkRef | None = None


class NodesModel(FileModel):
    """Equal nodes. What is left out is the device's reference node's. `names` are a host list or a list."""

    count: int = Field(ge=1)
    device: DeviceRef
    devices: int | None = Field(default=None, ge=1)
    island: IslandModel | None = None
    nics: NicsModel | None = None
    host_link: LinkRef | None = None
    pcie: list[PcieModel] | None = Field(default=None, min_length=1, max_length=64)
    free: Annotated[int | Literal["all"], BeforeValidator(_all_or_number)] = "all"
    price_per_device_hour: float | None = Field(default=None, ge=0, le=1e9)
    power_w: float | None = Field(default=None, ge=0, le=1e9)
    names: str | list[str] | None = None


Oversubscription = Annotated[float, Field(ge=1e-6, le=1e6)]


class PartModel(FileModel):
    """What is under one switch: `nodes` at the lowest level, `parts` of the level below at others, so many as come next
    or by name. `count` such parts. Of the uplinks what the level says, where the part does not."""

    name: Name | None = Field(default=None, min_length=1)
    count: int = Field(default=1, ge=1, le=LIMITS.nodes.most)
    nodes: int | str | list[int] | list[str] | None = None
    parts: int | list[str] | None = None
    oversubscription: Oversubscription | None = None
    uplink_bytes_per_s: Rate | None = None


class SpreadModel(FileModel):
    """The share of a level's rate over 1, 2, ... of its parts."""

    collective: list[Share] = Field(min_length=1)
    message: list[Share] = Field(min_length=1)
    source: str | None = None


SpreadRef = Annotated[
    Annotated[str, Tag("name")] | Annotated[SpreadModel, Tag("inline")],
    Discriminator(
        _written_as,
        custom_error_type="spread",
        custom_error_message="the name of a spread table, or collective and message",
    ),
]


class LevelModel(FileModel):
    """A level of the fabric. Without a word on uplinks they carry all that the NICs below send; without parts they are
    those of the tree beside the cluster (`--topology`)."""

    name: Name = Field(min_length=1)
    oversubscription: Oversubscription | None = None
    uplink_bytes_per_s: Rate | None = None
    hop_latency_s: Delay = 0.0
    spread: SpreadRef | None = None
    parts: list[PartModel] | None = Field(default=None, min_length=1)


Many = Annotated[int, Field(ge=1, le=LIMITS.nodes.most)]
Parallel = Annotated[int, Field(ge=1, le=4096)]


class Clos2Model(FileModel):
    """Leaves under spines: every leaf is joined with every spine by `cables` parallel ones."""

    kind: Literal["clos2"]
    leaves: Many
    spines: Many
    nodes_per_leaf: Many | None = None
    cables: Parallel = 1
    link: LinkRef | None = None


class Clos3Model(FileModel):
    """Pods of leaves under aggregation switches, these under cores. `leaves` and `aggregations` are of one pod; core i
    is joined with one aggregation switch of each pod, `cores` of them in turn with the first, as many with the next."""

    kind: Literal["clos3"]
    pods: Many
    leaves: Many
    aggregations: Many
    cores: Many
    nodes_per_leaf: Many | None = None
    cables: Parallel = 1
    link: LinkRef | None = None
    core_cables: Parallel = 1
    core_link: LinkRef | None = None


class FatTreeModel(FileModel):
    """The three-tier fat tree of switches of `k` ports."""

    kind: Literal["fat-tree"]
    k: int = Field(ge=2, le=512, multiple_of=2)
    link: LinkRef | None = None


class RailModel(FileModel):
    """NIC i of every node of a pod on leaf i of that pod; with `spines` every leaf under every one of them."""

    kind: Literal["rail"]
    nodes_per_pod: Many
    spines: int = Field(default=0, ge=0, le=LIMITS.nodes.most)
    cables: Parallel = 1
    link: LinkRef | None = None


class DoubleSidedModel(FileModel):
    """Every node on two leaves, half of its NICs on either; leaves, in pairs, under every spine."""

    kind: Literal["double-sided"]
    leaves: int = Field(ge=2, le=LIMITS.nodes.most, multiple_of=2)
    spines: Many
    nodes_per_pair: Many | None = None
    cables: Parallel = 1
    link: LinkRef | None = None


class TorusModel(FileModel):
    """Nodes joined with their neighbours along two or three dimensions, without switches."""

    kind: Literal["torus"]
    dimensions: list[Many] = Field(min_length=1, max_length=6)
    link: LinkRef | None = None


class SwitchModel(FileModel):
    """One switch, or those of a list of names."""

    name: Name = Field(min_length=1)
    ports: Many | None = None


class CablesModel(FileModel):
    """Parallel cables between two ends; lists of names: between each of one and each of the other."""

    between: list[Name] = Field(min_length=2, max_length=2)
    count: Parallel = 1
    link: LinkRef | None = None
    down: bool = False


class SwitchesModel(FileModel):
    """Switches and cables one by one."""

    kind: Literal["wired"]
    switches: list[SwitchModel] = Field(min_length=1)
    cables: list[CablesModel] = Field(min_length=1)


WiringModel = Annotated[
    Clos2Model | Clos3Model | FatTreeModel | RailModel | DoubleSidedModel | TorusModel | SwitchesModel,
    Field(discriminator="kind"),
]


class KnownPathModel(FileModel):
    """The switches that connections from these UDP ports of one node pass on their way to another."""

    source: Name = Field(alias="from")
    destination: Name = Field(alias="to")
    nics: list[Index] | None = Field(default=None, min_length=2, max_length=2)
    ports: str | list[int]
    through: list[Name] = Field(min_length=1, max_length=64)


class RoutingModel(FileModel):
    """How the fabric chooses among equal ways, and ways that are known; addresses of hosts and switches."""

    kind: RoutingKind | None = None
    hash: HashName = "jenkins"
    seed: int = Field(default=0, ge=0, le=2**63)
    paths: list[KnownPathModel] = Field(default_factory=list)
    addresses: dict[Name, Name] = Field(default_factory=dict)


class FabricModel(FileModel):
    """The network between a site's nodes: `levels` from the nodes up, or the short form of equal `pods`; or
    switches and cables, out of which the levels follow."""

    link: LinkRef
    topology: WiringModel | None = None
    oversubscription: float | None = Field(default=None, ge=1, le=1e6)
    pods: int | None = None
    levels: list[LevelModel] | None = Field(default=None, min_length=1)
    routing: RoutingModel | None = None


class SiteModel(FileModel):
    """Nodes under one fabric; without one, its link is the nodes' own fastest."""

    name: Name
    nodes: list[NodesModel] = Field(min_length=1)
    fabric: FabricModel | None = None


class SiteLinkModel(FileModel):
    """The thin link between two sites."""

    between: list[str] = Field(min_length=2, max_length=2)
    bandwidth_bytes_per_s: Rate
    latency_s: Delay


class ClusterModel(FileModel):
    """The whole file."""

    schema_name: Literal["cellplan.cluster/1"] = Field(alias="schema")
    sites: list[SiteModel] = Field(min_length=1)
    links_between_sites: list[SiteLinkModel] = Field(default_factory=list)
