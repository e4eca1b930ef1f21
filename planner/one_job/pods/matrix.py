"""A plan as Arnold's matrix of nodes (section 5.1): a column is a stage's nodes (its DP groups), a row the nodes at the
same place of every stage (a PP group), with what a rank holds and sends on every node.

Eq. 1 knows TP up to a node's eight devices and stages of whole nodes. Here a cell is what stays together: a node; the
nodes of one tensor-parallel group, or of one rack whose devices NVLink joins, where these span several; and where a
stage has less than a node, the node holds several stages, which are one column then.
"""

from __future__ import annotations

from math import lcm

from estimator.pricing.held import held_parameters
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.stage_work import stage_chunks
from planner.one_job.pods.records import PodRequest
from planner.one_job.pods.traffic import DATA_AXES, AxisBytes, stage_bytes
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import Infeasible, held_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """The nodes of a stage, or of several that share nodes: `cells` of them from the first PP group on, `ranks[i]` the
    plan's ranks on cell i. Of a rank: the bytes of its weights, and what it sends an iteration to replicas and to the
    stages before and after; Arnold's [v_w, v_d, v_p]."""

    stages: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    weight_bytes: float
    dp_bytes: float
    pp_bytes: float

    @property
    def cells(self) -> int:
        """Cells of the column."""
        return len(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMatrix:
    """The columns of a job, and the nodes of a cell."""

    columns: tuple[Column, ...]
    nodes_a_cell: int

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.nodes_a_cell * sum(column.cells for column in self.columns)

    @property
    def shape(self) -> tuple[int, int] | Infeasible:
        """Rows and columns; why not, where stages have different numbers of nodes: PP groups are not alike then, and no
        unit stands for all (Arnold, section 5.2)."""
        heights = [column.cells for column in self.columns]
        if len(set(heights)) > 1:
            return Infeasible(
                reason=f"stages have {', '.join(map(str, heights))} groups of nodes: PP groups are not alike, so that "
                "no placement of one stands for all",
                lacking="divisibility",
            )
        return heights[0], len(heights)

    def request(
        self, free: tuple[int, ...], *, alpha: float, leaves: tuple[tuple[int, ...], ...] | None = None
    ) -> PodRequest | Infeasible:
        """Return the request to place it on pods with so many free nodes; why not, where PP groups are not alike."""
        shape = self.shape
        if isinstance(shape, Infeasible):
            return shape
        rows, columns = shape
        return PodRequest(
            rows=rows, columns=columns, nodes_a_cell=self.nodes_a_cell, free=free, alpha=alpha, leaves=leaves
        )


def matrix_of(setup: Setup) -> JobMatrix | Infeasible:
    """Return the matrix of a plan; Infeasible where a stage ends inside a node that another one needs, or nodes differ.

    Raises:
        InputError: a stage's degrees divide nothing.
    """
    groups = {setup.cluster.group_of(slot) for stage in setup.stages for slot in stage.slots}
    sizes = {(group.devices, group.island_size) for group in groups}
    if len(sizes) > 1:
        return Infeasible(
            reason=f"nodes of {', '.join(str(devices) for devices, _ in sorted(sizes))} devices in one job: "
            "the cells of its matrix are not alike",
            lacking="support",
        )
    devices, island = sizes.pop()
    counts = [len(stage.slots) for stage in setup.stages]
    cell = _cell_devices(setup.stages, devices, island)
    columns = _stages_by_column(counts, cell)
    if columns is None:
        return Infeasible(
            reason=f"stages of {', '.join(map(str, sorted(set(counts))))} devices do not fill nodes of {cell}: "
            "a node would hold parts of two stages",
            lacking="divisibility",
        )
    first = [sum(counts[:number]) for number in range(len(counts) + 1)]
    sent = stage_bytes(setup)
    vectors = [_vector(setup, number, sent) for number in range(len(counts))]
    return JobMatrix(
        nodes_a_cell=max(1, cell // devices),
        columns=tuple(
            Column(
                stages=stages,
                ranks=tuple(
                    tuple(range(start, start + cell)) for start in range(first[stages[0]], first[stages[-1] + 1], cell)
                ),
                weight_bytes=max(vectors[stage][0] for stage in stages),
                dp_bytes=max(vectors[stage][1] for stage in stages),
                pp_bytes=max(vectors[stage][2] for stage in stages),
            )
            for stages in columns
        ),
    )


def _cell_devices(stages: tuple[StageSetup, ...], devices: int, island: int) -> int:
    """Devices that stay together: a node's, a tensor-parallel group's, a rack's where every stage fills racks."""
    cell = lcm(devices, *(stage.tp for stage in stages if stage.tp > devices))
    if island > devices and all(len(stage.slots) % lcm(cell, island) == 0 for stage in stages):
        return lcm(cell, island)
    return cell


def _stages_by_column(counts: list[int], cell: int) -> list[tuple[int, ...]] | None:
    """The stages of every column: one each, or as many as fill a cell; None where a cell would be left half."""
    columns: list[tuple[int, ...]] = []
    open_stages: list[int] = []
    for number in range(len(counts)):
        open_stages.append(number)
        held = sum(counts[stage] for stage in open_stages)
        if held % cell == 0:
            columns.append(tuple(open_stages))
            open_stages = []
        elif held > cell:
            return None
    return None if open_stages else columns


def _vector(setup: Setup, number: int, sent: tuple[AxisBytes, ...]) -> tuple[float, float, float]:
    """[v_w, v_d, v_p] of a rank of stage `number`."""
    chunks = stage_chunks(setup, number)
    if isinstance(chunks, Infeasible):
        raise InputError(where="plan", key=f"stages[{number}]", found=chunks.reason, expected="degrees that divide")
    dense, experts = held_parameters(chunks, setup.stages[number])
    here = [part for part in sent if part.stage == number]
    return (
        (dense.held + experts.held) * float(held_bytes(setup.recipe.dtype)),
        sum(part.sent_bytes for part in here if part.axis in DATA_AXES),
        sum(part.sent_bytes for part in here if part.axis == "pp"),
    )
