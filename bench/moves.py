"""CPU time of choosing which jobs to move (`place --move 3`) on 1,000 nodes of 8, beside trying every set of jobs.

python -m bench.moves [--nodes 1000] [--seed 0] [--repeats 3] [--answer]

Jobs of three kinds: of one GPU alone; of 1 to 8 on a node; ten that hold a GPU of 300 nodes each, beside those. Trying
every set is timed for single jobs and told for three of them, by their number. `--answer`: the whole answer of `place`
for 20 GPUs of these nodes instead, with jobs of the second kind, all coming ends in it.
"""

from __future__ import annotations

import argparse
import random
import time
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory

from estimator.host.cpu import cpu_name
from planner import api
from planner.many_jobs.placement.machines.moving import cheapest_moves
from planner.many_jobs.placement.machines.occupied import Machine

SIZE, NOW_S = 8, 1000.0
CLUSTER = """\
schema: cellplan.cluster/1
sites:
  - name: s
    nodes:
      - {{count: {nodes}, device: a100-80gb, devices: 8, names: "n[0-{last}]", nics: {{count: 8, link: ib-hdr200}}}}
    fabric: {{link: ib-hdr200}}
"""
TARGET_S = 10.0  # issue on partly used machines: exact for K up to 3 on 1,000 nodes


def draw(kind: str, nodes: int, rng: random.Random) -> tuple[list[Machine], dict[str, float]]:
    """Return machines with jobs on them, and the device-hours that moving each loses."""
    jobs: list[dict[str, tuple[int, ...]]] = [{} for _ in range(nodes)]
    used, number = [0] * nodes, 0
    for _ in range(10 if kind == "wide" else 0):
        for node in rng.sample(range(nodes), 3 * nodes // 10):
            jobs[node][f"j{number}"] = (used[node],)
            used[node] += 1
        number += 1
    for node in range(nodes):
        jobs[node] = {job: gpus for job, gpus in jobs[node].items() if gpus[0] < SIZE}
        used[node] = min(used[node], SIZE)
        while used[node] < SIZE - rng.choice((0, 0, 1, 2)):
            count = 1 if kind == "single" else min(rng.choice((1, 2, 4, 8)), SIZE - used[node])
            jobs[node][f"j{number}"] = tuple(range(used[node], used[node] + count))
            used[node], number = used[node] + count, number + 1
    machines = [
        Machine(
            site="s", node=node, host=f"n{node}", group=0, device="h100", size=SIZE, island=SIZE, parts=(),
            free=tuple(range(used[node], SIZE)), jobs=jobs[node],
        )
        for node in range(nodes)
    ]  # fmt: skip
    return machines, {f"j{job}": rng.random() for job in range(number)}


def answer_s(nodes: int, rng: random.Random) -> tuple[int, float, int]:
    """Return how many jobs run, the CPU seconds of `place` for 20 GPUs beside them, and the starts that it tells."""
    machines, jobs = draw("mixed", nodes, rng)
    rows = ["job,hosts,end,gpus"]
    for machine in machines:
        for job, gpus in machine.jobs.items():
            rows.append(f"{job},{machine.host},{NOW_S + rng.randint(60, 200_000):.0f},{gpus[0]}-{gpus[-1]}")
    with TemporaryDirectory() as folder:
        cluster, running = Path(folder) / "cluster.yaml", Path(folder) / "running.csv"
        cluster.write_text(CLUSTER.format(nodes=nodes, last=nodes - 1), encoding="utf-8")
        running.write_text("\n".join(rows) + "\n", encoding="utf-8")
        started = time.process_time()
        answer = api.place("llama3-8b", cluster=str(cluster), running=running, now=NOW_S, devices=20)
        return len(jobs), time.process_time() - started, len(answer["waiting"]["starts"])


def every_single_s(machines: list[Machine], devices: int, cost: dict[str, float]) -> float:
    """Return CPU seconds of trying each job alone, of fifty of them and by that of all."""
    some = list(cost)[:50]
    started = time.process_time()
    for job in some:
        cheapest_moves([machine.without((job,)) for machine in machines], devices, {}, 0)
    return (time.process_time() - started) / len(some) * len(cost)


def main() -> None:
    """Print a row for each kind of jobs and size of the new one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--answer", action="store_true")
    asked = parser.parse_args()
    if asked.answer:
        for _ in range(asked.repeats):
            jobs, took_s, starts = answer_s(asked.nodes, random.Random(asked.seed))
            print(
                f"{cpu_name()}; 20 GPUs of {asked.nodes} nodes beside {jobs} jobs: {took_s:.1f} CPU s, {starts} starts"
            )
        return
    print(f"{cpu_name()}; {asked.nodes} nodes of {SIZE}, seed {asked.seed}, least of {asked.repeats}; CPU seconds")
    print(f"{'jobs':<8}{'number':>8}{'devices':>9}{'moved':>7}{'exact s':>9}{'sets of three':>15}{'ratio':>10}")
    slowest_s = 0.0
    for kind in ("single", "mixed", "wide"):
        machines, cost = draw(kind, asked.nodes, random.Random(asked.seed))
        one_s = every_single_s(machines, 12, cost) / len(cost)
        for devices in (8, 12, 20, 28):
            seconds = []
            for _ in range(asked.repeats):
                started = time.process_time()
                moves = cheapest_moves(machines, devices, cost)
                seconds.append(time.process_time() - started)
            every_s = one_s * comb(len(cost), 3)
            moved = "none" if moves is None else str(len(moves.jobs))
            print(
                f"{kind:<8}{len(cost):>8}{devices:>9}{moved:>7}{min(seconds):>9.3f}{every_s:>14.2g}s"
                f"{every_s / max(min(seconds), 1e-4):>10.2g}"
            )
            slowest_s = max(slowest_s, min(seconds))
    print(f"slowest: {slowest_s:.2f} s, {slowest_s / TARGET_S:.2f} of the target of {TARGET_S:.0f} s")


if __name__ == "__main__":
    main()
