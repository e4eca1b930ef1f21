"""Settings that `cellplan contention --emit` wrote, applied on the emulated fabric, and held against its counters.

    python -m bench.testbed.fabric --emitted [--lasts 12]

Four jobs on hosts of their own, each half under one leaf, half under the other, meet on the uplinks. The command alone
decides: it is told a cluster file whose ways `network probe` found, a file of jobs, the switches' map of DSCPs (a
`config_db.json`, of which the links' queues are made, too) and the addresses of hosts. Its nftables files are loaded on
the hosts, its ports are what the jobs' connections leave from, and the queues' counters go back into `--verify`.
"""

from __future__ import annotations

import json
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.testbed.fabric.cases import QUEUE_S, Case, Job, Kind
from bench.testbed.fabric.deciding import apply_choices, probe_ways, trace_own
from bench.testbed.fabric.gains import utilization
from bench.testbed.fabric.mixes import Choice, job_name, jobs_text, with_ports_by_chance
from bench.testbed.fabric.queues import class_name
from bench.testbed.fabric.running import Ran, marking, run_quietly
from bench.testbed.fabric.shape import Shape, host_name, place_address, spine_name
from bench.testbed.fabric.simulated import Simulator
from bench.testbed.fabric.spaces import host_space, lay_out_fabric
from bench.testbed.namespaces import run_tool
from bench.testbed.network import standing
from profiles.errors import MachineError
from profiles.records import dataclass, replace

CLASS_OF_DSCP = {46: 6, 34: 5, 26: 4, 18: 3}
"""The map of the switches: a class, a queue and a priority of its own for each level, the most urgent first."""
JOBS: tuple[Kind, ...] = ("ring", "ring", "flow", "flow")
SHARED = 3
"""Jobs that share links at least, on ways by chance."""
LEAST_BYTES = 100_000
"""Of a job on a spine: less is how connections begin and end."""
_TRIES = 100
_UNMARKED = "table ip levels {}\ndelete table ip levels\n"
"""Takes away what a round before had loaded in a container."""


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """What came of it: the rounds before and after with what is simulated of them, the files that were loaded, the
    command's verdict on the counters, and of each job and spine the bytes that its class of the level had there."""

    cases: tuple[Case, Case]
    ran: tuple[Ran, Ran]
    simulated: tuple[tuple[float, ...], tuple[float, ...]]
    loaded: tuple[str, ...]
    verified: dict[str, Any]
    crossed: Mapping[tuple[int, int, int], int]
    from_s: float
    until_s: float


def config_db() -> str:
    """Return the map as a SONiC switch has it: strict queues."""
    classes = sorted(CLASS_OF_DSCP.values())
    return json.dumps(
        {
            "DSCP_TO_TC_MAP": {"LEVELS": {str(dscp): str(number) for dscp, number in CLASS_OF_DSCP.items()}},
            "TC_TO_QUEUE_MAP": {"LEVELS": {str(number): str(number) for number in classes}},
            "SCHEDULER": {"strict": {"type": "STRICT"}},
            "QUEUE": {f"Ethernet0|{number}": {"scheduler": "strict"} for number in classes},
            "PORT_QOS_MAP": {"Ethernet0": {"dscp_to_tc_map": "LEVELS", "tc_to_queue_map": "LEVELS"}},
        },
        indent=1,
    )


def draw_apart(shape: Shape, seed: int) -> tuple[Job, ...]:
    """Return jobs on hosts of their own, drawn again until three share links on ways by chance."""
    rng = random.Random(f"emitted {seed}")
    jobs: list[Job] = []
    for _ in range(_TRIES):
        jobs = []
        for place, kind in enumerate(JOBS):
            compute_s, sent_s = rng.uniform(0.15, 0.4), rng.uniform(*QUEUE_S)
            job = Job(
                kind=kind,
                hosts=(place, shape.hosts_per_leaf + place),
                place=place,
                compute_s=compute_s,
                begins_s=compute_s,
                size_bytes=4 * round(sent_s * shape.nic_bytes_per_s / 4),
                spines=(0, 0),
            )
            jobs.append(with_ports_by_chance(shape, job, rng))
        links = [job.links(shape).keys() for job in jobs]
        if sum(any(own & other for other in links if other is not own) for own in links) >= SHARED:
            break
    return tuple(jobs)


def run_emitted(shape: Shape, *, policy: str, begin_s: float, lasts_s: float, jitter: float, seed: int) -> Emitted:
    """Run the jobs as they are, and under what was emitted for them. Raise MachineError where the fabric cannot be
    made, a command fails, or a worker dies."""
    jobs, until_s = draw_apart(shape, seed), begin_s + lasts_s
    with standing(lay_out_fabric(shape)) as (prefix, _), TemporaryDirectory() as name:
        folder = Path(name)
        probe_ways(prefix, shape, jobs, folder / "fabric.yaml")
        trace_own(prefix, shape, jobs)
        plan = _emit(folder, jobs, policy)
        choice = _choice(shape, jobs, plan)
        before = Case(name="as they are", mode="ecmp", jobs=jobs)
        (after,) = apply_choices(prefix, shape, [replace(before, name=f"emitted by {policy}", mode="crux")], [choice])

        def run(case: Case, rules: Sequence[str]) -> Ran:
            limit_s = 60 + 3 * until_s
            how = {"lasts_s": until_s, "jitter": jitter, "limit_s": limit_s}
            (ran,) = run_quietly(prefix, shape, [case], **how, seed=seed, rules=[rules])
            return ran

        ran_before = run(before, [marking(shape, 0)] * len(jobs))
        loaded = _load(prefix, folder, jobs)
        counted = Counters(prefix, shape)
        ran_after = run(after, [_UNMARKED] * len(jobs))
        sent, crossed = counted.since()
        senders = {path["from"]["host"] for row in plan["jobs"] for path in row["paths"]}
        verified = _verify(folder, {key: count for key, count in sent.items() if key[0] in senders})
    simulator = Simulator(shape, from_s=begin_s, until_s=until_s)
    simulated = tuple(
        tuple(
            mean(row[place] for row in simulator.plays(case, jitter=jitter, seeds=3)[0]) for place in range(len(jobs))
        )
        for case in (before, after)
    )
    return Emitted(
        cases=(before, after),
        ran=(ran_before, ran_after),
        simulated=(simulated[0], simulated[1]),
        loaded=loaded,
        verified=verified,
        crossed=crossed,
        from_s=begin_s,
        until_s=until_s,
    )


def _contention(folder: Path, *words: str) -> dict[str, Any]:
    """What the command says of the folder's jobs."""
    files = ("--priority-map", str(folder / "config_db.json"), "--reserved", "none", "--transport", "tcp")
    command = ("-m", "cellplan", "contention", str(folder / "jobs.json"), "--cluster", str(folder / "fabric.yaml"))
    answer: dict[str, Any] = json.loads(run_tool(sys.executable, *command, *files, *words, "--json"))
    return answer


def _emit(folder: Path, jobs: Sequence[Job], policy: str) -> dict[str, Any]:
    """Have the command decide and write its settings; return its contention.json."""
    (folder / "config_db.json").write_text(config_db(), encoding="utf-8")
    (folder / "jobs.json").write_text(jobs_text(jobs, apart=True), encoding="utf-8")
    known = "".join(f"{place_address(host, job.place)} {host_name(host)}\n" for job in jobs for host in job.hosts)
    (folder / "hosts").write_text(known, encoding="utf-8")
    settings = ("--emit", str(folder / "settings"), "--addresses", str(folder / "hosts"))
    _contention(folder, "--policy", policy, *settings, "-o", str(folder / "contention.json"))
    plan: dict[str, Any] = json.loads((folder / "contention.json").read_text(encoding="utf-8"))
    return plan


def _choice(shape: Shape, jobs: Sequence[Job], plan: Mapping[str, Any]) -> Choice:
    """The plan by ranks: each connection's spine, and the ports that are said to lead there."""
    levels, ways = [], []
    for job in jobs:
        row = next(row for row in plan["jobs"] if row["id"] == job_name(job))
        levels.append(row["level"] or 0)
        of_rank: list[tuple[int, tuple[int, ...]] | None] = [None] * len(job.hosts)
        for path in row["paths"]:
            rank = [host_name(host) for host in job.hosts].index(path["from"]["host"])
            spine = next(
                spine
                for spine in range(shape.spines)
                if any(link.endswith(f" -> {spine_name(spine)}") for link in path["way"])
            )
            of_rank[rank] = spine, tuple(path["ports"])
        ways.append(tuple(of_rank))
    return Choice(levels=tuple(levels), ways=tuple(ways))


def _load(prefix: str, folder: Path, jobs: Sequence[Job]) -> tuple[str, ...]:
    """Load each job's nftables file on its hosts, as the file itself says; return the names of the files."""
    index = json.loads((folder / "settings" / "settings.json").read_text(encoding="utf-8"))
    loaded = []
    for job in jobs:
        row = next(row for row in index["jobs"] if row["id"] == job_name(job))
        file = next((name for name in row["files"] if name.endswith(".nft")), None)
        if file is None:
            raise MachineError(f"fabric: no nftables file for {job_name(job)}: {row['notes']}")
        text = (folder / "settings" / row["folder"] / file).read_text(encoding="utf-8")
        for host in job.hosts:
            run_tool("ip", "netns", "exec", prefix + host_space(host), "nft", "-f", "-", text=text)
        loaded.append(f"{row['folder']}/{file}")
    return tuple(loaded)


class Counters:
    """What the queues of NICs and uplinks have sent since this was made."""

    def __init__(self, prefix: str, shape: Shape) -> None:
        self._prefix, self._shape = prefix, shape
        self._ends = [(host_space(host), f"to-l{shape.leaf_of(host)}") for host in range(shape.hosts)]
        self._ups = [(f"l{leaf}", f"to-s{spine}") for leaf in range(shape.leaves) for spine in range(shape.spines)]
        self._before = {end: self._read(*end) for end in (*self._ends, *self._ups)}

    def _read(self, space: str, device: str) -> dict[str, int]:
        """Bytes by class."""
        shown = run_tool("tc", "-n", self._prefix + space, "-s", "class", "show", "dev", device).splitlines()
        names = [line.split()[2] for line in shown if line.startswith("class htb")]
        sent = [int(line.split()[1]) for line in shown if line.strip().startswith("Sent")]
        return dict(zip(names, sent, strict=True))

    def since(self) -> tuple[dict[tuple[str, int], int], dict[tuple[int, int, int], int]]:
        """Return bytes by host and priority; and by a job's place, its level and the spine, those of both leaves
        together."""
        by_priority: defaultdict[tuple[str, int], int] = defaultdict(int)
        crossed: defaultdict[tuple[int, int, int], int] = defaultdict(int)
        priorities = list(CLASS_OF_DSCP.values())
        for end in (*self._ends, *self._ups):
            after, before = self._read(*end), self._before[end]
            for place in range(self._shape.places):
                for level in range(self._shape.levels):
                    name = class_name(place, level, self._shape.levels)
                    sent = after[name] - before[name]
                    if end in self._ends:
                        by_priority[host_name(self._ends.index(end)), priorities[level]] += sent
                    else:
                        crossed[place, level, self._ups.index(end) % self._shape.spines] += sent
        return dict(by_priority), {key: sent for key, sent in crossed.items() if sent}


def _verify(folder: Path, sent: Mapping[tuple[str, int], int]) -> dict[str, Any]:
    """What the command says of the counters."""
    rows = "".join(f"{host},{priority},{count}\n" for (host, priority), count in sent.items())
    (folder / "counters.csv").write_text(f"host,priority,bytes\n{rows}", encoding="utf-8")
    plan = ("--network-plan", str(folder / "contention.json"), "--verify", str(folder / "counters.csv"))
    verified: dict[str, Any] = _contention(folder, *plan)["verified"]
    return verified


def emitted_lines(found: Emitted) -> Iterator[str]:
    """Yield the tables."""
    jobs = found.cases[1].jobs
    yield "| job | level | DSCP | spine by rank | bytes counted over spines | before | after | simulated |"
    yield "| :-- | --: | --: | :-- | :-- | --: | --: | --: |"
    dscps = list(CLASS_OF_DSCP)
    for place, job in enumerate(jobs):
        over = ", ".join(
            f"{spine_name(spine)} {count / 1e6:.1f} MB at level {level}"
            for (own, level, spine), count in sorted(found.crossed.items())
            if own == job.place and count >= LEAST_BYTES
        )
        before, after = (ran.jobs[place].mean_s(found.from_s, found.until_s) for ran in found.ran)
        yield (
            f"| {job_name(job)} | {job.level} | {dscps[job.level]} | {', '.join(map(str, job.spines))} | {over} |"
            f" {before * 1e3:.0f} ms | {after * 1e3:.0f} | {found.simulated[1][place] * 1e3:.0f} |"
        )
    yield ""
    for case, ran, simulated in zip(found.cases, found.ran, found.simulated, strict=True):
        seconds = [timed.mean_s(found.from_s, found.until_s) for timed in ran.jobs]
        yield (
            f"{case.name}: utilisation {utilization(case.jobs, seconds):.1%} measured,"
            f" {utilization(case.jobs, simulated):.1%} simulated (late {ran.late_s * 1e3:.1f} ms, busy {ran.busy:.0%})"
        )
    shares = found.verified["priorities"]
    right = sum(share["verdict"] == "as planned" for share in shares)
    yield f"loaded on the hosts: {', '.join(found.loaded)}"
    yield f"`--verify`: {right} of {len(shares)} shares of hosts and priorities as planned"
    for share in shares:
        if share["verdict"] != "as planned":
            yield f"  {share['host']}, priority {share['priority']}: {share['verdict']}, {share}"
