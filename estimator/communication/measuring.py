"""The words of a link measurement: what its ranks agree on, their place in the world, and what each case gave."""

from __future__ import annotations

from typing import Literal

from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp

Backend = Literal["gloo", "nccl", "xla"]
DEVICE_OF_BACKEND: dict[Backend, str] = {"gloo": "cpu", "nccl": "cuda", "xla": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """This process's place among ranks that a launcher has started, each of which calls `measure_links`.

    `agent_store` is True where the launcher itself serves the store at `address`:`port`, as torchrun does; else rank 0
    has to.
    """

    rank: int
    world_size: int
    ranks_per_node: int
    address: str
    port: int
    agent_store: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What all ranks of a measurement agree on. A case is an op and a rank count: the first n ranks run it."""

    backend: Backend
    cases: tuple[tuple[CollectiveOp, int], ...]
    ranks_per_node: int
    sizes: tuple[int, ...]
    repeats: int
    timeout_s: float
    busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each repeat of a collective at one size, the slowest rank's; or why the backend cannot run it."""

    op: CollectiveOp
    ranks: int
    nodes: int
    bytes: int = 0
    seconds: tuple[float, ...] = ()
    unsupported: str = ""

    @property
    def label(self) -> str:
        """What a person reads in a progress bar."""
        return f"{self.op} {self.bytes} bytes, {self.ranks} ranks"
