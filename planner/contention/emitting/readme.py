"""The page of a folder of settings: what each file is, who takes it, what is to be known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set

from planner.contention.emitting.map_files import deal
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import OPENSM, PriorityMap, warnings_of
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.transports import NAMES, Transport
from profiles.records import dataclass

WHAT: Mapping[str, str] = {
    "environment.sh": "variables of every rank; a launcher takes them by `cellplan export --network`",
    "axis_levels.py": "a level for each axis: a module for the training script, options of its process groups",
    "udp_source_ports.json": "a UDP source port for each connection, for a NCCL plugin that calls"
    " `mlx5dv_modify_qp_udp_sport`; stock NCCL cannot be told one",
    "stock_nccl.sh": "queue pairs for stock NCCL in place of ports, which spread connections by chance",
    "dscp.nft": "DSCP of the job's TCP: `nft -f dscp.nft` on each of its hosts, as root",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """A job, the folder of its files, their names, and what is to be known of them."""

    job: PlannedJob
    folder: str
    files: tuple[str, ...]
    notes: tuple[str, ...]


def readme_text(
    jobs: Sequence[JobFiles],
    of: PriorityMap,
    transport: Transport,
    pairs: Sequence[PricedPair],
    *,
    with_map: bool,
) -> str:
    """Return the page as Markdown."""
    lines = [
        "# Settings of a plan of contention",
        "",
        "Nothing here has been run. Levels count from 0, the most urgent.",
        "",
    ]
    lines += _levels(of, transport)
    lines += ["", "## Files", ""]
    used = {file for job in jobs for file in job.files}
    lines += [f"- `jobs/JOB/{file}`: {what}" for file, what in WHAT.items() if file in used]
    lines += _map_lines(of, transport) if with_map else ()
    lines += ["- `contention.json`: the plan; `settings.json`: all of this for programs", ""]
    lines += _order(of, transport, used, with_map=with_map)
    lines += ["## Jobs", ""]
    lines += ["| job | hosts | level | folder |", "|---|---|---|---|"]
    for job in jobs:
        where = f"`{job.folder}`" if job.files else "nothing to set"
        lines.append(f"| {_cell(job.job.id)} | {len(job.job.hosts)} | {_level(job.job)} | {where} |")
    lines += ["", *_notes(jobs)]
    if pairs:
        lines += [
            "## Queue pairs of stock NCCL",
            "",
            "All jobs alike; work done, of what jobs do that meet nobody, under draws of hashes and ports.",
            "",
        ]
        lines += ["| NCCL_IB_QPS_PER_CONNECTION | NCCL_IB_SPLIT_DATA_ON_QPS | mean of draws | least | most |"]
        lines += ["|---|---|---|---|---|"]
        for pair in pairs:
            low, high = pair.range
            split = int(pair.split_data)
            lines.append(f"| {pair.queue_pairs} | {split} | {pair.work_share:.1%} | {low:.1%} | {high:.1%} |")
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _levels(of: PriorityMap, transport: Transport) -> list[str]:
    ethernet = transport in ("roce", "tcp")
    head = ("level", "DSCP", "traffic class", "priority", "PFC") if ethernet else ("level", "service level", "lane")
    source = f"; {of.source}" if ethernet or of.source == OPENSM else ""
    lines = [f"## Levels ({NAMES[transport]}{source})", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for number, level in enumerate(of.levels):
        pfc = {True: "yes", False: "no", None: "not said"}[level.pfc]
        own = (level.dscp, level.traffic_class, level.priority, pfc)
        row = own if ethernet else (level.priority, level.traffic_class)
        lines.append(f"| {' | '.join(map(str, (number, *row)))} |")
    if of.reserved and ethernet:
        kept = ", ".join(f"{level.traffic_class} (DSCP {level.dscp})" for level in of.reserved)
        lines += ["", f"Kept for others: traffic classes {kept}."]
    warnings = warnings_of(of)
    return [*lines, "", *(f"- {said}" for said in warnings)] if warnings else lines


def _map_lines(of: PriorityMap, transport: Transport) -> Iterator[str]:
    """What the files of the map are, and what they leave to those who set them."""
    if transport == "other":
        yield f"- no map: {NAMES[transport]} has no levels that are set from outside"
    elif of.source == OPENSM:
        yield "- no map: the subnet manager's lanes were read, and are what levels go by"
    elif transport == "infiniband":
        yield "- `map/opensm.conf`: lines for the subnet manager's file, with a virtual lane for each service level"
    else:
        ports = len(of.ports)
        yield "- `map/mlnx_qos.sh`: the map for the mlx5 NICs of hosts; `map/sonic_qos.json`: for SONiC switches"
        yield f"  (`config load`), bound to {ports or 'no'} port{'' if ports == 1 else 's'}"
        dealt = deal(of)
        if dealt.moved:
            shown = ", ".join(f"{number} (queue {dealt.queues[number]})" for number in dealt.moved)
            yield (
                f"- lossless priorities get other queues there: {shown}; what a switch sets by queue goes with them"
                " (BUFFER_QUEUE, the `wred_profile` of QUEUE, the PFC watchdog)"
            )
        if ports == 0:
            yield "- the tables are bound to no port: PORT_QOS_MAP and QUEUE of the switch must name CELLPLAN's maps"


def _order(of: PriorityMap, transport: Transport, used: Set[str], *, with_map: bool) -> Iterator[str]:
    """What is set first, and how it is undone."""
    steps = []
    if transport == "infiniband":
        before = "`map/opensm.conf`" if with_map else "virtual lanes of the service levels (`--emit-map` writes them)"
        if of.source != OPENSM:
            steps.append(f"The subnet manager: {before}. Undo: its lines of before, then SIGHUP.")
    elif transport in ("roce", "tcp"):
        if with_map:
            steps.append("Switches: `map/sonic_qos.json`. Undo: `config reload`, as long as it was not saved.")
            steps.append(
                "NICs: `map/mlnx_qos.sh`. Undo: what `mlnx_qos.INTERFACE.before` says, or start the host anew."
            )
        elif of.assumed:
            steps.append("The map of switches and NICs, if theirs is not as assumed (`--emit-map` writes it).")
    if "dscp.nft" in used:
        steps.append("Hosts: each job's `dscp.nft`. Undo: the command in its head.")
    if used - {"dscp.nft"}:
        steps.append("Jobs, when they start next: their files. Undo: start them without.")
    if not steps:
        return
    yield "## In which order"
    yield ""
    yield from (f"{number}. {step}" for number, step in enumerate(steps, start=1))
    yield ""


def _notes(jobs: Sequence[JobFiles]) -> Iterator[str]:
    """Notes by what they say, each with its jobs."""
    by_note: dict[str, list[str]] = {}
    for job in jobs:
        for note in job.notes:
            by_note.setdefault(note, []).append(job.job.id)
    for note, ids in by_note.items():
        shown = ", ".join(ids[:6]) + (f" and {len(ids) - 6} more" if len(ids) > 6 else "")
        yield f"- {shown if len(ids) < len(jobs) or len(jobs) == 1 else 'all jobs'}: {note}"
    if by_note:
        yield ""


def _level(job: PlannedJob) -> str:
    if job.axis_levels:
        return ", ".join(f"{axis} {level}" for axis, level in job.axis_levels)
    return "none" if job.level is None else str(job.level)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
