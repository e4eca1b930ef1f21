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

from planner import api
from planner.cli.main import main
from planner.many_jobs.traces.read import SMALL_TRACE
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


CLUSTER = """schema: cellplan.cluster/1
sites:
  - name: north
    nodes:
      - {count: 1, device: a100-80gb, devices: 4, island: {link: nvswitch3, size: 4}, nics: {count: 2, link: ib-hdr200}}
      - count: 1
        device: {name: wafer, memory_bytes: 80000000000, memory_bandwidth_bytes_per_s: 1e12, peak_flops_per_s: {bf16: 1e14, fp32: 1e13}}
        devices: 2
        island: {link: {bandwidth_bytes_per_s: 1e11, latency_s: 1e-6}, size: 2}
        nics: {count: 2, link: {name: fast, kind: ethernet, bandwidth_bytes_per_s: 5e10, latency_s: 2e-6, efficiency: 0.9}}
        host_link: pcie5-x16
    fabric: {link: ib-hdr200, oversubscription: 1.0, pods: 1}
  - name: south
    nodes:
      - {count: 1, device: a100-80gb, devices: 4, free: 4, price_per_device_hour: 1.9}
links_between_sites:
  - {between: [north, south], bandwidth_bytes_per_s: 1.25e9, latency_s: 5.0e-3}
"""  # noqa: E501
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 128,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": False,
}
MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 256 --num-attention-heads 4"
    " --seq-length 128 --max-position-embeddings 128 --micro-batch-size 1 --global-batch-size 16"
    " --tensor-model-parallel-size 2 --bf16 --vocab-size 512 --train-iters 10\n"
)
TITAN = """[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 8
[activation_checkpoint]
mode = "full"
"""
DEEPSPEED = {
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 1,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 1, "reduce_bucket_size": 500000000},
    "gradient_accumulation_steps": 2,
}
NCCL = """# nThread 1 nGpus 2 minBytes 8 maxBytes 1024 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
# all_reduce_perf
#  Rank  0 Group  0 Pid  10 on  host device  0 [0x00] NVIDIA A100
#  Rank  1 Group  0 Pid  10 on  host device  1 [0x01] NVIDIA A100
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1     5.00    0.20    0.20      0     5.10    0.20    0.20      0
     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    51.00   20.56   20.56      0
"""
RUNS = """id,model,gpu,gpus,nodes,tp,pp,dp,micro_batch,global_batch,seq_len,iter_time_s,precision,peak_mem_gb
A-1,gpt2-350m,a100-80gb,8,1,1,1,8,4,64,1024,0.5,bf16,20
A-2,gpt2-350m,a100-80gb,8,1,2,1,4,4,64,1024,0.6,bf16,18
"""
FAILURES = "time_s,pool,node,repair_s\n100,a100-80gb,0,3600\n5000,a100-80gb,1,60\n"
PHILLY = [
    {
        "status": "Pass",
        "vc": "v",
        "user": "u",
        "jobid": f"application_{number}",
        "submitted_time": f"2017-10-0{number} 01:00:00",
        "attempts": [
            {
                "start_time": f"2017-10-0{number} 01:01:00",
                "end_time": f"2017-10-0{number} 02:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}],
            }
        ],
    }
    for number in (1, 2)
]
HELIOS = (
    "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
    "1,u,v,1,4,1,COMPLETED,2020-04-01 00:00:00,2020-04-01 00:00:10,2020-04-01 01:00:10,3600,10\n"
)
SACCT = (
    "JobID|User|Account|Submit|Start|End|Elapsed|State|AllocTRES|NNodes|AllocCPUS|ReqMem\n"
    "1|u|a|2024-01-01T00:00:00|2024-01-01T00:00:10|2024-01-01T01:00:10|01:00:00|COMPLETED|gres/gpu=1|1|4|4G\n"
)
PAI = "job,worker,1.0,Terminated,100.0,4000.0,600.0,29.0,100.0,V100\n"
QUEUES = "a: {share: 0.5}\nb: {share: 0.5}\n"
MEASURED = [
    {
        "link": "north--south",
        "op": "send_recv",
        "ranks": 2,
        "nodes": 2,
        "points": [[1024, 0.01], [1048576, 0.9]],
        "alpha_s": 0.01,
        "beta_s_per_byte": 8e-7,
        "fit_error": 0.1,
        "source": "fuzz",
    }
]

ONE = "gpt-tiny --cluster a100-80gb:1x4"
SMALL = "simulate small.csv --cluster a100-80gb:2x8 --head 12"
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
    (f"plan {ONE} --global-batch 16 -o out.json", "", 6),
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
    ("export plan.json --to megatron", "plan.json", 5),
    ("export plan.json --to torchtitan -o outs", "plan.json", 2),
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
    ("simulate pai_task_table.csv --cluster v100-16gb:2x8 --format pai", "pai_task_table.csv", 3),
    ("jct train small.csv -o out.model", "small.csv", 1),
    ("jct predict jct.model small.csv --json", "jct.model small.csv", 3),
    ("comm fit nccl.txt --link nvswitch3 --store out.sqlite", "nccl.txt", 4),
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
        "small.csv": SMALL_TRACE.read_text(encoding="utf-8"),
        "sinfo.txt": (FREE_DEVICES / "sinfo_used.txt").read_text(encoding="utf-8"),
        "nodes.json": (FREE_DEVICES / "kubectl_nodes.json").read_text(encoding="utf-8"),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "small.csv.gz").write_bytes(gzip.compress(texts["small.csv"].encode(), mtime=0))
    np.save(folder / "tokens.npy", np.arange(5000, dtype=np.uint16) % 500)
    _store(folder / "store.sqlite")
    run_quietly(folder, f"plan {ONE} --global-batch 16 -o plan.json".split())
    run_quietly(folder, ["profiles", "export", "profiles.json", "--store", "store.sqlite"])
    run_quietly(folder, ["jct", "train", "small.csv", "-o", "jct.model", "--cap", "6"])
    run_quietly(folder, [*SMALL.split(), "--cells", "cells.json"])
    _stop_in_the_middle(folder)
    for example in all_examples():
        if example.words[0] != "jct":  # the threads that LightGBM starts do not outlive a fork
            run_quietly(folder, example.words)
    _stop_in_the_middle(folder)  # again: a run that goes on to its end takes the file away
    for left in folder.glob("out*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def _train_apart(folder: Path) -> None:
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
    with ProfileStore(path) as store:
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
