"""Valid command lines over every file format, which the fuzzer spoils: the files are made once, in a folder."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import numpy as np

from bench.fuzz.texts import (
    CLOS,
    CLUSTER,
    CONFIG,
    CONTENDERS,
    COUNTERS,
    DEEPSPEED,
    FAILURES,
    FOUNDRY,
    GAINS,
    HELIOS,
    HOSTS,
    HYPERNODES,
    JOBS,
    LABELLED,
    LEVELS,
    LINKS,
    MEASURED,
    MEGATRON,
    NAMED,
    NAMED_FREE,
    NANOTRON,
    NCCL,
    PAI,
    PHILLY,
    PREDICTED,
    PRICES,
    QUEUES,
    RUNNING,
    RUNS,
    SACCT,
    SPREAD,
    SQUEUE,
    SUBNET,
    TITAN,
    TOPOLOGY_CONF,
    TOPOLOGY_YAML,
    TRACES,
    WIRED,
)
from estimator.host.cpu import cpu_name
from planner import api
from planner.cli.main import main
from planner.many_jobs.traces.read import SMALL_TRACE
from planner.one_job.exporting.formats import FORMATS
from profiles.measurements import DeviceRates
from profiles.store import ProfileStore
from profiles.vocabulary import LinkTable

FREE_DEVICES = Path(__file__).parents[2] / "tests" / "data" / "free_devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A command line that means something, and the files it reads, by name in the folder; `weight` says how often it is
    taken."""

    words: tuple[str, ...]
    files: tuple[str, ...] = ()
    weight: int = 4


ONE = "gpt-tiny --cluster a100-80gb:1x4"
SMALL = "simulate small.csv --cluster a100-80gb:2x8 --head 12"
IN_PODS = "place gpt-tiny --cluster levels.yaml --devices 8 --pp 1 --dp 8"
WAITING = f"{IN_PODS} --running squeue.json --alternatives 0"
RUN = "run local.json --device cpu"
EXAMPLES: tuple[tuple[str, str, int], ...] = (
    # words, files that are read, weight
    (f"estimate {ONE} --json", "", 6),
    (f"estimate {ONE} --tp 2 --pp 2 --global-batch 16 --micro-batch 2 --json", "", 8),
    ("estimate gpt-tiny --cluster cluster.yaml --tp 2 --dp 2 --devices 4 --json", "cluster.yaml", 8),
    ("estimate gpt-tiny --cluster cluster.yaml --json", "cluster.yaml", 4),
    ("estimate config.json --cluster a100-80gb:1x4 --tp 2 --json", "config.json", 8),
    ("estimate --plan plan.json --json", "plan.json", 10),
    ("estimate --plan plan.json -o out.json --timeline out.svg", "plan.json", 3),
    ("estimate --plan plan.json --cluster cluster.yaml", "plan.json cluster.yaml", 3),
    ("estimate --from megatron @run.sh --cluster a100-80gb:1x8 --json", "run.sh", 6),
    ("estimate --from torchtitan titan.toml --cluster h100:1x8", "titan.toml", 3),
    ("estimate gpt-tiny --from deepspeed ds.json --cluster a100-80gb:1x8", "ds.json", 4),
    ("estimate --from nanotron nanotron.yaml --cluster a100-80gb:1x8", "nanotron.yaml", 4),
    ("estimate --from llm-foundry foundry.yaml --cluster a100-80gb:1x8", "foundry.yaml", 4),
    (f"plan {ONE} --global-batch 16 -o out.json", "", 6),
    ("estimate --plan plan.json --report out.html", "plan.json", 3),
    ("validate runs.csv --report out.html", "runs.csv", 2),
    (f"{SMALL} --report out.html", "small.csv", 3),
    ("place gpt-tiny --cluster cluster.yaml --devices 4 --global-batch 16 --report out.html", "cluster.yaml", 2),
    ("plan gpt-tiny --free sinfo.txt --cluster h100:3x6 --global-batch 12", "sinfo.txt", 4),
    ("plan gpt-tiny --cluster a100-80gb:2x8 --free nodes.json --global-batch 16", "nodes.json", 3),
    ("plan config.json --cluster a100-80gb:1x2 --global-batch 8 --compare plan.json", "config.json plan.json", 3),
    (f"plan {ONE} --global-batch 16 --front memory", "", 1),
    ("place gpt-tiny --cluster cluster.yaml --devices 4 --global-batch 16 --types a100-80gb", "cluster.yaml", 5),
    (
        "place gpt-tiny --cluster cluster.yaml --devices 8 --types a100-80gb --comm measured.json --now 10",
        "cluster.yaml measured.json",
        3,
    ),
    ("place gpt-tiny --cluster cluster.yaml --devices 4 --links links.json --now 10", "cluster.yaml links.json", 3),
    ("export plan.json --to megatron", "plan.json", 5),
    ("export plan.json --to torchtitan -o outs", "plan.json", 2),
    *((f"export plan.json --to {form}", "plan.json", 1) for form in FORMATS if form != "megatron"),
    (f"{RUN} --data tokens.npy --threads 100000", "local.json tokens.npy", 5),
    (f"{RUN} --trace out.json --learn --profile --threads 100000", "local.json", 2),
    ("profile config.json --threads 100000 --store out.sqlite", "config.json", 3),
    ("profile gpt-tiny --cluster cluster.yaml --global-batch 8 --threads 100000 --store out.sqlite", "cluster.yaml", 2),
    (
        "comm measure --link loopback --sizes 1024 --ops all_reduce --ranks 100000 --store store.sqlite",
        "store.sqlite",
        2,
    ),
    ("validate runs.csv --json", "runs.csv", 5),
    (SMALL, "small.csv", 4),
    (f"{SMALL} --policy crius --option depth=2 --json", "small.csv", 1),
    (f"{SMALL} --failures failures.csv --round 300 --checkpoint out.ckpt", "small.csv failures.csv", 4),
    (f"{SMALL} --policy sjf --jobs-csv out.csv --series-csv out2.csv --timeline out.json", "small.csv", 2),
    (f"{SMALL} --round 20 --checkpoint run.ckpt --resume", "run.ckpt", 3),
    (f"{SMALL} --cells cells.json", "cells.json", 3),
    (f"{SMALL} --seeds 0..1 --csv out.csv", "small.csv", 2),
    ("simulate small.csv.gz --cluster a100-80gb:2x8 --head 12 --lenient", "small.csv.gz", 3),
    ("simulate philly.json --cluster a100-80gb:2x8", "philly.json", 4),
    ("simulate helios.csv --cluster a100-80gb:2x8", "helios.csv", 3),
    ("simulate sacct.txt --cluster a100-80gb:2x8", "sacct.txt", 3),
    ("simulate pai_task_table.csv --cluster v100-16gb:2x8 --format pai", "pai_task_table.csv pai_job_table.csv", 3),
    ("jct train small.csv -o out.model", "small.csv", 1),
    ("jct evaluate helios.csv", "helios.csv", 1),
    ("jct predict jct.model small.csv --json", "jct.model small.csv", 3),
    ("comm fit nccl.txt --link nvswitch3 --store out.sqlite", "nccl.txt", 4),
    ("hardware topology --cluster named.yaml --topology topology.conf", "named.yaml topology.conf", 4),
    ("hardware topology --cluster named.yaml --topology topology.yaml --to kueue", "topology.yaml", 3),
    ("hardware topology --cluster named.yaml --topology labels.json", "labels.json", 3),
    ("hardware topology --cluster named.yaml --topology hosts.csv -o out.conf", "hosts.csv", 3),
    ("network show wired.yaml -o out.yaml", "wired.yaml", 5),
    ("network show clos.yaml --between n1,n4", "clos.yaml", 4),
    ("contention contenders.yaml --cluster clos.yaml", "contenders.yaml", 6),
    ("network show named.yaml --topology subnet.txt", "subnet.txt", 4),
    ("network probe clos.yaml n4 --source n1 --read traces.txt -o out.yaml", "traces.txt clos.yaml", 4),
    ("network paths clos.yaml n1 n4 --ports 50000-50063", "clos.yaml", 4),
    ("network measure counters.csv", "counters.csv", 4),
    ("network show named.yaml --topology hypernodes.json", "hypernodes.json", 3),
    ("estimate gpt-tiny --cluster levels.yaml --tp 2 --dp 8 --global-batch 16", "levels.yaml", 5),
    (f"{IN_PODS} --affinity gains.csv", "levels.yaml gains.csv", 4),
    ("place gpt-tiny --cluster levels.yaml --free named.txt --devices 8 --dp 8 --max-spread dp=2", "named.txt", 3),
    ("place --plan pods.json --free named.txt --method spread", "pods.json named.txt", 3),
    (f"{WAITING} --reserve --train-tokens 1G", "levels.yaml squeue.json", 4),
    (f"{WAITING} --jct predicted.json --train-tokens 1G", "squeue.json predicted.json", 4),
    (f"{IN_PODS} --running running.csv --now 1000 --spares 1", "running.csv", 3),
    (f"{IN_PODS} --measure-affinity gains.csv", "gains.csv", 2),
    ("place --plan pods.json --replace n1 -o out.json", "pods.json", 3),
    ("plan gpt-tiny --cluster a100-80gb:1x2 --prices prices.yaml --train-tokens 1G", "prices.yaml", 3),
    ("comm fit spread.txt --link ib-ndr400 --cluster levels.yaml --spread pod", "spread.txt", 4),
    ("comm show --store store.sqlite --json", "store.sqlite", 2),
    ("profiles import profiles.json --store out.sqlite", "profiles.json", 5),
    ("profiles export out.json --store store.sqlite", "store.sqlite", 2),
    ("profiles show --store store.sqlite", "store.sqlite", 2),
    (f"estimate {ONE} --tp 2 --store store.sqlite", "store.sqlite", 2),
    ("models show config.json --json", "config.json", 5),
    ("models show gpt-tiny", "", 1),
    ("models list", "", 1),
    ("hardware show a100-80gb", "", 1),
    ("export --list", "", 1),
)


def all_examples() -> tuple[Example, ...]:
    """Return the examples."""
    return tuple(
        Example(words=tuple(words.split()), files=tuple(files.split()), weight=weight)
        for words, files, weight in EXAMPLES
    )


def make_files(folder: Path) -> None:
    """Write what the examples read into `folder`. Every example is run once on the way, by which this process has
    loaded and remembered what the cases, its children, need."""
    texts = {
        "cluster.yaml": CLUSTER,
        "config.json": json.dumps(CONFIG, indent=1),
        "run.sh": MEGATRON,
        "titan.toml": TITAN,
        "ds.json": json.dumps(DEEPSPEED),
        "nccl.txt": NCCL,
        "runs.csv": RUNS,
        "failures.csv": FAILURES,
        "philly.json": json.dumps(PHILLY, indent=1),
        "helios.csv": HELIOS,
        "sacct.txt": SACCT,
        "pai_task_table.csv": PAI,
        "queues.yaml": QUEUES,
        "measured.json": json.dumps(MEASURED),
        "nanotron.yaml": NANOTRON,
        "foundry.yaml": FOUNDRY,
        "pai_job_table.csv": JOBS,
        "links.json": json.dumps(LINKS),
        "small.csv": SMALL_TRACE.read_text(encoding="utf-8"),
        "sinfo.txt": (FREE_DEVICES / "sinfo_used.txt").read_text(encoding="utf-8"),
        "named.yaml": NAMED,
        "levels.yaml": LEVELS,
        "wired.yaml": WIRED,
        "clos.yaml": CLOS,
        "contenders.yaml": CONTENDERS,
        "subnet.txt": SUBNET,
        "traces.txt": TRACES,
        "counters.csv": COUNTERS,
        "hypernodes.json": json.dumps(HYPERNODES),
        "topology.conf": TOPOLOGY_CONF,
        "topology.yaml": TOPOLOGY_YAML,
        "hosts.csv": HOSTS,
        "labels.json": json.dumps(LABELLED),
        "named.txt": NAMED_FREE,
        "gains.csv": GAINS,
        "squeue.json": json.dumps(SQUEUE),
        "predicted.json": json.dumps(PREDICTED),
        "running.csv": RUNNING,
        "prices.yaml": PRICES,
        "spread.txt": SPREAD,
        "nodes.json": (FREE_DEVICES / "kubectl_nodes.json").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "small.csv.gz").write_bytes(gzip.compress(texts["small.csv"].encode(), mtime=0))
    np.save(folder / "tokens.npy", np.arange(5000, dtype=np.uint16) % 500)
    _store(folder / "store.sqlite")
    run_quietly(folder, f"plan {ONE} --global-batch 16 -o plan.json".split())
    run_quietly(folder, f"{IN_PODS} -o pods.json".split())
    run_quietly(folder, ["profiles", "export", "profiles.json", "--store", "store.sqlite"])
    run_quietly(
        folder,
        ["estimate", "gpt-tiny", "--cluster", "local:1x2", "--tp", "2", "-o", "local.json", "--store", "store.sqlite"],
    )
    _train_apart(folder)
    run_quietly(folder, [*SMALL.split(), "--cells", "cells.json"])
    _stop_in_the_middle(folder)
    for example in all_examples():
        if example.words[0] != "jct":  # LightGBM's threads do not outlive a fork
            run_quietly(folder, example.words)
    _stop_in_the_middle(folder)  # again: a run that goes on to its end takes the file away
    for left in folder.glob("out*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _train_apart(folder: Path) -> None:
    """Leave a learned model; in a process of its own, for the threads that LightGBM starts there."""
    words = [sys.executable, "-m", "planner.cli.main", "jct", "train", "small.csv", "-o", "jct.model", "--cap", "6"]
    place = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(words, cwd=folder, env=place, check=True, capture_output=True)


def _stop_in_the_middle(folder: Path) -> None:
    """Leave the checkpoint of a run that was interrupted; it names the trace as the cases do."""
    with chdir(folder), suppress(KeyboardInterrupt):
        api.simulate(
            Path("small.csv"),
            cluster="a100-80gb:2x8",
            head=12,
            round_s=20.0,
            checkpoint=Path("run.ckpt"),
            stop=lambda: True,
        )


def run_quietly(folder: Path, words: Sequence[str]) -> tuple[int, str]:
    """Run a command in `folder` in this process; return its status and what it said of errors."""
    said = StringIO()
    with chdir(folder), redirect_stdout(StringIO()), redirect_stderr(said):
        status = main(words)
    return status, said.getvalue()


def _store(path: Path) -> None:
    rates = DeviceRates(
        device="cpu",
        hardware=cpu_name(),
        software="fuzz 1",
        threads=1,
        memory_bytes=2**34,
        memory_bandwidth_bytes_per_s=1e10,
        flops_per_s=(("bf16", 5e10), ("fp32", 5e10)),
        flash_attention=True,
    )
    with ProfileStore(path) as store:
        store.put_rates(rates)
        for op in ("all_reduce", "all_gather"):
            store.put_link_table(
                LinkTable(
                    link="nvswitch3",
                    op=op,
                    ranks=2,
                    nodes=1,
                    points=((1024, 1e-5), (1048576, 1e-4)),
                    alpha_s=1e-5,
                    beta_s_per_byte=1e-10,
                    fit_error=0.01,
                    source="fuzz",
                )
            )
