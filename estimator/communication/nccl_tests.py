"""Reading what nccl-tests prints: one link table for each collective and placement of ranks in the text."""

from __future__ import annotations

import re
from dataclasses import field

from estimator.communication.fit import make_table
from estimator.communication.tables import bus_factor
from profiles.errors import InputError
from profiles.files import text_lines
from profiles.numerals import read_number, read_whole
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp, LinkTable

OP_OF_PROGRAM: dict[str, CollectiveOp] = {
    "all_reduce_perf": "all_reduce",
    "all_gather_perf": "all_gather",
    "reduce_scatter_perf": "reduce_scatter",
    "alltoall_perf": "all_to_all",
    "sendrecv_perf": "send_recv",
}

_PROGRAM = re.compile(
    r"\b((?:all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf)\b"
)
_THREADS = re.compile(r"#\s*nThread\s+(\d{1,6})\s+nGpus\s+(\d{1,6})\b", re.ASCII)
_RANK = re.compile(r"#\s+Rank\s+(\d{1,9})\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+", re.ASCII)
_HEADER = re.compile(r"#\s+size\s")
_MPI_TAG = re.compile(r"^\[\d+,\d+\]<\w+>:\s?")
_LOG_LINE = re.compile(r"\bNCCL (INFO|WARN|TRACE)\b")
_MICROSECONDS = 1e6
_LEAST_S, _MOST_S = 1e-12, 1e6
"""Light goes a third of a millimetre, and a week is over."""
_BUS_TOLERANCE = 0.01


@dataclass(slots=True)
class _Block:
    """One run of one program, as far as it has been read, to `line`. `columns` are the names over the table."""

    line: int = 0
    op: CollectiveOp | None = None
    devices: int = 1
    hosts: list[str] = field(default_factory=list)
    columns: tuple[str, ...] = ()
    samples: dict[int, list[float]] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.hosts) or self.devices

    @property
    def started(self) -> bool:
        """Whether a header or a table has been read: what follows a program's name belongs to the next run."""
        return bool(self.hosts or self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRun:
    """One run: its collective, its ranks, the hosts that it names, each once in order (none where it names none), and
    the least seconds of each size in bytes."""

    op: CollectiveOp
    ranks: int
    hosts: tuple[str, ...]
    seconds: tuple[tuple[int, float], ...]


def read_nccl_tests(text: str, *, where: str, link: str, op: CollectiveOp | None = None) -> tuple[LinkTable, ...]:
    """Return the link tables of the runs of nccl-tests in `text`, in order; those that differ only in size are joined.

    The text is the output of all_reduce_perf, all_gather_perf, reduce_scatter_perf, alltoall_perf or sendrecv_perf, or
    several in a row, with or without shell lines, mpirun's tags and NCCL's log in between. Ranks and nodes are those of
    the `Rank` lines, else the threads times GPUs of one node. nccl-tests' size column is the convention of
    `Collective.bytes`. Of the out-of-place and in-place times the smaller one counts; rows of 0 bytes are left out.

    Args:
        where: name of the text for messages and the tables' `source`.
        link: name of the link that the ranks communicate over, which the output does not tell.
        op: the collective, for output of versions that do not print the program's name.

    Raises:
        InputError: with the line, for a row that is cut short or is none, wrong results, ranks that are missing or
            split into groups, a program that is not known, and bandwidths that belong to another collective.
    """
    return _tables(where, link, _read_blocks(text, where=where, op=op))


def read_nccl_runs(text: str, *, where: str, op: CollectiveOp | None = None) -> tuple[NcclRun, ...]:
    """Return the runs of nccl-tests in `text`, each by itself. Arguments and what is raised are those of
    `read_nccl_tests`."""
    return tuple(
        NcclRun(
            op=block.op,
            ranks=block.ranks,
            hosts=tuple(dict.fromkeys(block.hosts)),
            seconds=tuple((size, min(seconds)) for size, seconds in sorted(block.samples.items())),
        )
        for block in _read_blocks(text, where=where, op=op)
        if block.op is not None and block.samples
    )


def _read_blocks(text: str, *, where: str, op: CollectiveOp | None) -> list[_Block]:
    """The runs in `text`, checked."""
    blocks = [_Block(op=op)]
    for number, raw in enumerate(text_lines(text, where=where), start=1):
        line = _MPI_TAG.sub("", raw).strip()
        place = f"{where}, line {number}"
        program, threads = _PROGRAM.search(line), _THREADS.match(line)
        if (program or threads) and blocks[-1].started:
            blocks.append(_Block(op=op))
        block = blocks[-1]
        block.line = number
        if program and op is None:
            block.op = _op_of(place, program[1])
        if threads:
            block.devices = int(threads[1]) * int(threads[2])
        elif rank := _RANK.match(line):
            _read_rank(place, rank, block)
        elif _HEADER.match(line):
            block.columns = _read_header(place, line, block)
        elif block.columns and line and not line.startswith("#") and not _LOG_LINE.search(line):
            _read_row(place, line, block)
    _check_results(where, blocks)
    return blocks


def _op_of(place: str, program: str) -> CollectiveOp:
    if program not in OP_OF_PROGRAM:
        raise InputError(where=place, key="program", found=program, expected=f"one of {', '.join(OP_OF_PROGRAM)}")
    return OP_OF_PROGRAM[program]


def _read_rank(place: str, rank: re.Match[str], block: _Block) -> None:
    number, group, host = rank.groups()
    if group not in (None, "0"):
        raise InputError(where=place, key="Group", found=group, expected="a single group, 0")
    if int(number) != len(block.hosts):
        raise InputError(where=place, key="Rank", found=number, expected=f"{len(block.hosts)}, ranks in order")
    block.hosts.append(host)


def _read_header(place: str, line: str, block: _Block) -> tuple[str, ...]:
    """The columns' names, once all that the rows need is known."""
    columns = tuple(line.removeprefix("#").split())
    if not {"time", "algbw", "busbw"} <= set(columns):
        raise InputError(
            where=place, key="columns", found=" ".join(columns), expected="time, algbw and busbw among them"
        )
    if block.hosts and len(block.hosts) % block.devices:
        raise InputError(
            where=place,
            key="Rank",
            found=f"{len(block.hosts)} ranks",
            expected=f"a multiple of the {block.devices} that a process has",
        )
    if block.ranks < 2:
        raise InputError(where=place, key="Rank", found=f"{block.ranks} rank", expected="at least 2")
    if block.op is None:
        raise InputError(
            where=place,
            key="program",
            found="no name above the table",
            expected=f"one of {', '.join(OP_OF_PROGRAM)}, or the op given",
        )
    return columns


def _read_row(place: str, line: str, block: _Block) -> None:
    values = line.split()
    if len(values) != len(block.columns):
        raise InputError(
            where=place,
            key="row",
            found=f"{len(values)} values: {line[:60]!r}",
            expected=f"{len(block.columns)} values",
        )
    cells: dict[str, list[float]] = {}
    try:
        size = read_whole(values[0])
        for column, value in zip(block.columns, values, strict=True):
            if column in ("time", "algbw", "busbw", "#wrong") and value != "N/A":
                cells.setdefault(column, []).append(read_number(value))
    except ValueError:
        raise InputError(
            where=place, key="row", found=repr(line[:60]), expected="numbers under size and time"
        ) from None
    times = [microseconds / _MICROSECONDS for microseconds in cells.get("time", ())]
    if not times or not all(_LEAST_S <= seconds <= _MOST_S for seconds in times):
        expected = f"times from {_LEAST_S * _MICROSECONDS:g} to {_MOST_S * _MICROSECONDS:g} us"
        raise InputError(where=place, key="time", found=repr(line[:60]), expected=expected)
    if any(cells.get("#wrong", ())):
        raise InputError(where=place, key="#wrong", found=f"{max(cells['#wrong']):.0f}", expected="0")
    _check_bandwidths(place, block, cells)
    if size:
        block.samples.setdefault(size, []).extend(times)


def _check_bandwidths(place: str, block: _Block, cells: dict[str, list[float]]) -> None:
    """The ratio of bus to algorithm bandwidth gives op and ranks away; below 1 GB/s its two decimals say too little."""
    assert block.op is not None
    factor = bus_factor(block.op, block.ranks)
    for algorithm, bus in zip(cells.get("algbw", ()), cells.get("busbw", ()), strict=False):
        if algorithm >= 1 and abs(bus / algorithm - factor) > _BUS_TOLERANCE * factor:
            raise InputError(
                where=place,
                key="busbw",
                found=f"{bus / algorithm:.3f} of algbw",
                expected=f"{factor:.3f}, as {block.op} over {block.ranks} ranks has",
            )


def _check_results(where: str, blocks: list[_Block]) -> None:
    """Every run that has begun has a result, and there is one."""
    for block in blocks:
        if not block.samples and (block.started or len(blocks) == 1):
            raise InputError(
                where=f"{where}, line {block.line}",
                found=f"the end of {block.op or 'a run'} before any result",
                expected="nccl-tests output with at least one row of more than 0 bytes",
            )


def _tables(where: str, link: str, blocks: list[_Block]) -> tuple[LinkTable, ...]:
    joined: dict[tuple[CollectiveOp, int, int], dict[int, list[float]]] = {}
    for block in blocks:
        if block.op is not None and block.samples:
            samples = joined.setdefault((block.op, block.ranks, len(set(block.hosts)) or 1), {})
            for size, seconds in block.samples.items():
                samples.setdefault(size, []).extend(seconds)
    return tuple(
        make_table(link=link, op=op, ranks=ranks, nodes=nodes, samples=samples, source=f"nccl-tests: {where}")
        for (op, ranks, nodes), samples in joined.items()
    )
