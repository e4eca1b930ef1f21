"""Jobs on an emulated fabric of hosts, leaves and spines, over real TCP: iterations measured beside the simulator's.

    python -m bench.testbed.fabric [--short] [--pairs 12] [--queues 3] [--lasts 20] [--seed 0] [--json FILE]
    python -m bench.testbed.fabric --probe
    python -m bench.testbed.fabric --mixes 6 [--lasts 20]
    python -m bench.testbed.fabric --emitted [--lasts 20]

Twelve pairs and three queues of five jobs, each three times: with fair shares on ways by chance, with a level for each
job, and on ways that were chosen. Jobs sleep as long as they would compute, and sum (gloo's all-reduce) or send (a
plain TCP connection) what takes about as long. Everything is namespaces of this machine: veth pairs whose rates and
levels `htb` keeps, rules by source port in place of a switch's hash. The simulator is the product's
(`estimator.network`), on the same fabric as a cluster file would have it; nothing is fitted. `--probe` has `cellplan
network probe` find the ways instead, beside what the rules say; `--mixes` runs mixes of four to six jobs under network
policies (`gains.py`), on four levels that `nft` and the links tell by DSCP; `--emitted` applies what `cellplan
contention --emit` wrote (`emitted.py`).

Namespaces need root, or a kernel that lets anybody make user namespaces; without, this says why, and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bench.testbed.fabric.cases import PAIRS, QUEUES, Case, make_cases
from bench.testbed.fabric.probing import print_probed, probe_fabric
from bench.testbed.fabric.report import Row, print_rows, verdicts
from bench.testbed.fabric.running import Timed, run_cases
from bench.testbed.fabric.shape import Shape
from bench.testbed.fabric.simulated import Simulator
from bench.testbed.fabric.unprivileged import in_user_namespace
from bench.testbed.namespaces import tool
from bench.testbed.network import why_not
from estimator.host.cpu import cpu_name
from profiles.records import replace

BEGIN_S, LOOKED_AT_S = 1.5, 20.0
"""What is left out at the beginning of a round, when windows open; and how long is looked at."""

MIX_PLACES, MIX_DSCPS = 6, (46, 34, 26, 18)
"""How many jobs a host can have part in, and the DSCP of each level, in mixes."""

SHORT = {"pairs": 6, "queues": 2, "lasts": 5.0}
"""Under five minutes."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the cases and print the table."""
    args = _parse(argv)
    shape = Shape(
        hosts=args.hosts,
        leaves=args.leaves,
        spines=args.spines,
        nic_bytes_per_s=args.nic * 1e6 / 8,
        uplink_bytes_per_s=args.uplink * 1e6 / 8,
        seed=args.seed,
    )
    again = in_user_namespace("bench.testbed.fabric", sys.argv[1:] if argv is None else argv)
    if again is not None:
        return again
    reason = why_not()
    if reason is not None:
        print(f"nothing is emulated: {reason}")
        return 0
    print(f"{cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, Linux {platform.release()}")
    print(
        f"seed {args.seed}: {shape.hosts} hosts under {shape.leaves} leaves under {shape.spines} spines; NICs"
        f" {args.nic:g} Mb/s, uplinks {args.uplink:g} Mb/s",
        flush=True,
    )
    if args.mixes or args.emitted:
        return _run_policies(shape, args)
    if args.probe:
        pairs = ((0, shape.hosts - 1), (shape.hosts - 1, 0), (0, 1))
        return 1 if print_probed(shape, probe_fabric(shape, pairs)) else 0
    cases = make_cases(shape, args.seed, pairs=args.pairs, queues=args.queues)
    lasts_s = BEGIN_S + args.lasts
    idle = _idle_s()
    found = run_cases(
        shape, cases, lasts_s=lasts_s, jitter=args.jitter, seed=args.seed, limit_s=60 + 3 * lasts_s * len(cases)
    )
    print(f"{_busy_share(idle):.0%} of the machine was busy, with whatever else it does;", end=" ")
    again, disturbed = sum(ran.rounds > 1 for ran in found), sum(ran.disturbed for ran in found)
    print(f"{again} of {len(found)} rounds were disturbed and run again, {disturbed} still were")
    rows = _rows(shape, cases, [ran.jobs for ran in found], lasts_s, jitter=args.jitter, seeds=args.seeds)
    print_rows(rows)
    print()
    for line in verdicts(rows):
        print(line)
    _save((row.to_json() for row in rows), args.json)
    return 0


def _save(rows: Iterable[dict[str, Any]], file: Path | None) -> None:
    """Add rows to a file of lines, if one is named."""
    if file is not None:
        with file.open("a", encoding="utf-8") as lines:
            for row in rows:
                print(json.dumps(row), file=lines)


def _run_policies(shape: Shape, args: argparse.Namespace) -> int:
    """Print what policies gain, or what came of settings that were emitted."""
    from bench.testbed.fabric.emitted import CLASS_OF_DSCP, emitted_lines, run_emitted
    from bench.testbed.fabric.gains import report, run_mixes

    if tool("nft") is None:
        print("nothing is run: nft is not installed (nftables)")
        return 0
    if args.emitted:
        narrow = replace(shape, places=4, levels=len(CLASS_OF_DSCP), dscps=tuple(CLASS_OF_DSCP))
        emitted = run_emitted(
            narrow, policy="crux", begin_s=BEGIN_S, lasts_s=args.lasts, jitter=args.jitter, seed=args.seed
        )
        print()
        for line in emitted_lines(emitted):
            print(line)
        return 0
    wide = replace(shape, places=MIX_PLACES, levels=len(MIX_DSCPS), dscps=MIX_DSCPS)
    found = run_mixes(
        wide,
        args.mixes,
        begin_s=BEGIN_S,
        lasts_s=args.lasts,
        jitter=args.jitter,
        seed=args.seed,
        seeds=args.seeds,
    )
    print()
    for line in report(found):
        print(line)
    _save((each.to_json() for mix in found for each in mix), args.json)
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=PAIRS, help="of jobs (default: %(default)s)")
    parser.add_argument("--queues", type=int, default=QUEUES, help="of five jobs (default: %(default)s)")
    parser.add_argument(
        "--lasts", type=float, default=LOOKED_AT_S, help="look at so many seconds of each case (default: %(default)s)"
    )
    parser.add_argument("--short", action="store_true", help=f"in less than five minutes: {SHORT}")
    parser.add_argument("--seed", type=int, default=0, help="draws jobs and ways (default: %(default)s)")
    parser.add_argument("--jitter", type=float, default=0.01, help="of compute times (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="of the simulator's jitter (default: %(default)s)")
    parser.add_argument("--hosts", type=int, default=8, help="(default: %(default)s)")
    parser.add_argument("--leaves", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--spines", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--nic", type=float, default=80.0, help="Mb/s of a host's NIC (default: %(default)s)")
    parser.add_argument("--uplink", type=float, default=80.0, help="Mb/s of a leaf's uplink (default: %(default)s)")
    parser.add_argument("--probe", action="store_true", help="find ways by port, and run no jobs")
    parser.add_argument("--emitted", action="store_true", help="apply settings that contention emits, and no cases")
    parser.add_argument("--mixes", type=int, default=0, help="run so many mixes under network policies, and no cases")
    parser.add_argument("--json", type=Path, help="add the rows to this file of lines")
    args = parser.parse_args(argv)
    if args.short:
        vars(args).update(SHORT)
    return args


def _rows(
    shape: Shape, cases: Sequence[Case], found: Sequence[Sequence[Timed]], lasts_s: float, *, jitter: float, seeds: int
) -> list[Row]:
    simulator = Simulator(shape, from_s=BEGIN_S, until_s=lasts_s)
    return [
        Row(
            case=case.name,
            mode=case.mode,
            job=job,
            measured_s=timed.mean_s(BEGIN_S, lasts_s),
            iterations=len(timed.iterations_s(BEGIN_S, lasts_s)),
            simulated=simulated,
            looked_at_s=lasts_s - BEGIN_S,
        )
        for case, times in zip(cases, found, strict=True)
        for job, timed, simulated in zip(
            case.jobs, times, simulator.simulate(case, jitter=jitter, seeds=seeds), strict=True
        )
    ]


def _idle_s() -> tuple[float, float]:
    """Now, and the seconds that all cores have been idle."""
    with Path("/proc/stat").open(encoding="ascii") as lines:
        fields = lines.readline().split()
    return time.monotonic(), (int(fields[4]) + int(fields[5])) / os.sysconf("SC_CLK_TCK")


def _busy_share(since: tuple[float, float]) -> float:
    now_s, idle_s = _idle_s()
    return 1 - (idle_s - since[1]) / ((now_s - since[0]) * (os.cpu_count() or 1))


if __name__ == "__main__":
    raise SystemExit(main())
