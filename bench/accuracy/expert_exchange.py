"""How far the exchange of tokens with their experts is from measured dispatch and combine, by device, ranks and kernel.

    python -m bench.accuracy.expert_exchange --data DIR

from the root of the repository; DIR holds kernels/expert_comm.csv.gz (README.md there). DeepEP's normal kernels with 20
multiprocessors are the dispatcher `deduplicated`, TensorRT-LLM's one-sided exchange over NVLink stands for `hybrid`;
128 tokens a rank and more, as in training. Three shapes in ten (by a hash of tokens, hidden, top-k, experts and ranks)
are held; the figures of profiles/data/dispatchers.toml rest on the others. "links alone" is what stood before.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bench.accuracy.comm_rows import KERNEL_FAMILIES, place
from bench.accuracy.kernel_rows import read_table
from estimator.communication.collectives import time_collective
from estimator.communication.groups import Group
from estimator.pricing.link_times import deduplicated, dispatched_s
from profiles.dispatchers import Dispatcher, load_dispatcher

DISPATCHERS = {"normal": "deduplicated", "NVLinkOneSided": "hybrid"}
MULTIPROCESSORS = ("", "20")
LEAST_TOKENS = 128
WIDTHS = {"nvfp4": 0.5625, "fp8": 1.0, "bf16": 2.0}
"""Bytes an element of what is dispatched; DeepEP's has 8 bits and a scale of 4 bytes for 128 of them."""

SCALED = 1 + 4 / 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A measured dispatch or combine. `size_bytes`: what a rank would send with a copy for each expert."""

    id: str
    gpu: str
    op: str
    dispatcher: Dispatcher
    group: Group
    size_bytes: float
    experts: int
    measured_s: float
    held: bool


def read_exchanges(path: Path) -> tuple[Exchange, ...]:
    """Return the rows of `path` that a training's exchange is like."""
    exchanges = []
    for row in read_table(path):
        tokens, hidden = int(row["tokens"]), int(row["hidden"])
        if row["mode"] not in DISPATCHERS or tokens < LEAST_TOKENS or row["sms"] not in MULTIPROCESSORS:
            continue
        if row["op"] not in ("dispatch", "combine"):
            continue
        combined = 2.0 if row["op"] == "combine" else WIDTHS.get(row["dtype"], SCALED)
        shape = " ".join(row[name] for name in ("tokens", "hidden", "topk", "experts", "gpus"))
        exchanges.append(
            Exchange(
                id=row["id"],
                gpu=row["gpu"],
                op=row["op"],
                dispatcher=load_dispatcher(DISPATCHERS[row["mode"]]),
                group=place(KERNEL_FAMILIES[row["gpu"]].machine, int(row["gpus"]), int(row["nodes"])),
                size_bytes=tokens * hidden * int(row["topk"]) * combined,
                experts=int(row["topk"]),
                measured_s=float(row["seconds"]),
                held=sha256(shape.encode()).digest()[0] % 10 < 3,
            )
        )
    return tuple(exchanges)


def over_links_s(row: Exchange) -> float:
    """Return the seconds that the links alone give the exchange."""
    return time_collective("all_to_all", row.size_bytes, deduplicated(row.group, row.experts)).seconds


def modelled_s(row: Exchange) -> float:
    """Return the seconds that links and the dispatcher's kernel give the exchange."""
    return dispatched_s(row.dispatcher, row.size_bytes, deduplicated(row.group, row.experts), 1, row.experts)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 0, or 2 where DIR has no kernels/expert_comm.csv.gz."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds kernels/expert_comm.csv.gz")
    options = parser.parse_args(arguments)
    path = options.data / "kernels" / "expert_comm.csv.gz"
    if not path.is_file():
        print(f"skipped: no {path}")
        return 2
    rows = read_exchanges(path)
    head = f"{'device':10} {'dispatcher':13} {'op':9} {'ranks':>5} {'part':5} {'rows':>5} {'mean':>7} {'bias':>7}"
    print(f"{head}   links alone")
    keys = sorted({(row.gpu, row.dispatcher.name, row.op, row.group.ranks, row.held) for row in rows})
    for key in keys:
        mine = [r for r in rows if (r.gpu, r.dispatcher.name, r.op, r.group.ranks, r.held) == key]
        errors, before = ([seconds(r) / r.measured_s - 1 for r in mine] for seconds in (modelled_s, over_links_s))
        gpu, name, op, ranks, held = key
        print(
            f"{gpu:10} {name:13} {op:9} {ranks:5d} {'held' if held else 'fit':5} {len(mine):5d}"
            f" {statistics.mean(map(abs, errors)):7.1%} {statistics.mean(errors):+7.1%}"
            f" {statistics.mean(map(abs, before)):8.1%} {statistics.mean(before):+7.1%}"
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
