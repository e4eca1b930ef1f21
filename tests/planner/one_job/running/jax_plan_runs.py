"""One of four processes that train small models under plans of every kind with JAX, a device each.

The same four for all plans, since starting them takes longer than most plans. Each reports its part of every loss.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from estimator.host.worker_processes import (
    Limits,
    WorkerSpec,
    jax_environment,
    python_worker,
    read_request,
    run_workers,
)
from estimator.schedules.orders import shape_of
from models_zoo.families import nmt
from models_zoo.layers import Bottleneck, Classifier, ConvUnit, Embedding, TransformerBlock
from models_zoo.model import ImageInput, Model
from planner.one_job.running.program import Program, StageProgram
from profiles.vocabulary import Degrees
from tests.seeds import some
from tests.zoo_families import gpt, llama, mixtral

QUICK_TO_COMPILE = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"
STEPS = 5
SEED = 3
LEARNING_RATE = 1e-2
SEQ_LEN = 8
GLOBAL_BATCH = 8
MICRO_BATCH = 4
MOST_RANKS = 4


def _without_dropout(model: Model) -> Model:
    layers = (
        replace(layer, dropout=False) if isinstance(layer, Embedding | TransformerBlock) else layer
        for layer in model.layers
    )
    return replace(model, layers=tuple(layers))


_SIZES: dict[str, int] = {"hidden": 16, "layers": 2, "vocab": 19, "seq_len": SEQ_LEN}
_IMAGES = Model(
    name="images",
    family="resnet",
    layers=(
        ConvUnit(c_in=3, c_out=8, height=8, width=8, kernel=3, stride=2, padding=1, first=True),
        Bottleneck(c_in=8, width_channels=8, c_out=16, height=4, width=4),
        Classifier(features=(16, 6), height=4, width=4),
    ),
    layer_names=("conv", "block", "classifier"),
    input=ImageInput(channels=3, height=8, width=8),
)
MODELS: dict[str, Model] = {
    "gpt": _without_dropout(gpt("gpt", heads=2, **_SIZES)),
    "llama": llama("llama", heads=4, kv_heads=1, ffn_hidden=24, **_SIZES),
    "moe": mixtral("moe", heads=4, kv_heads=2, ffn_hidden=24, experts=4, top_k=2, **_SIZES),
    "nmt": _without_dropout(nmt("nmt", heads=2, ffn_hidden=24, **{**_SIZES, "layers": 1})),
    "images": _IMAGES,
}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A plan of `model` in a few words: of each stage what differs from one rank that holds `chunks`."""

    model: str
    stages: tuple[dict[str, Any], ...]
    changes: dict[str, Any]


def case(model: str, *stages: dict[str, Any], **changes: Any) -> Case:
    return Case(model=model, stages=stages, changes=changes)


def stage(first: int, end: int, *more: tuple[int, int], **changes: Any) -> dict[str, Any]:
    return {"chunks": ((first, end), *more), **changes}


EVERY_CASE: dict[str, Case] = {
    "unequal stages and a tied table": case(
        "gpt", stage(0, 2, dp=2, zero=1), stage(2, 4, tp=2, sequence_parallel=True), micro_batch=2
    ),
    "interleaved and recomputation": case(
        "gpt",
        stage(0, 1, (2, 3), recompute="full", recompute_layers=2),
        stage(1, 2, (3, 4), recompute="selective", recompute_layers=1),
        schedule="interleaved",
    ),
    "fully sharded": case("gpt", stage(0, 4, dp=2, tp=2, sequence_parallel=True, zero=3, recompute_layers=3)),
    "shared key-value heads": case("llama", stage(0, 4, tp=4, sequence_parallel=True)),
    "uneven replicas": case(
        "llama", stage(0, 2, dp=2, shares=(3, 1), zero=2), stage(2, 4, dp=2, shares=(1, 3), zero=3), schedule="gpipe"
    ),
    "sharded within replicas": case("llama", stage(0, 4, dp=4, zero=1, shard=2), optimizer="sgd"),
    "experts": case("moe", stage(0, 2, tp=2), stage(2, 4, tp=2, sequence_parallel=True)),
    "encoder and decoder": case("nmt", stage(0, 3, dp=2, zero=2), stage(3, 5, tp=2)),
    "images": case("images", stage(0, 2, tp=2), stage(2, 3, tp=2), optimizer="sgd"),
    "16 bits": case("gpt", stage(0, 2, dp=2, zero=1), stage(2, 4), dtype="bf16"),
}
_WIDEST = ("unequal stages and a tied table", "interleaved and recomputation", "uneven replicas", "experts", "16 bits")
CASES = {name: EVERY_CASE[name] for name in some((*_WIDEST, *sorted(EVERY_CASE.keys() - {*_WIDEST})), len(_WIDEST))}


def program_for(wanted: Case) -> Program:
    """The program of a case."""
    settings = {
        "dtype": "fp32",
        "optimizer": "adamw",
        "grad_dtype": "fp32",
        "schedule": "1f1b",
        "micro_batch": MICRO_BATCH,
        **wanted.changes,
    }
    micro_batch, schedule = settings["micro_batch"], settings.pop("schedule")
    stages: list[StageProgram] = []
    for number, changes in enumerate(wanted.stages):
        first = sum(len(before.ranks) for before in stages)
        stages.append(_stage(number, first, micro_batch, **changes))
    model = MODELS[wanted.model]
    return Program(
        model=model,
        seq_len=model.seq_len,
        attention="math",
        overlaps_gradients=False,
        shape=shape_of(schedule, len(stages), len(stages[0].chunks), GLOBAL_BATCH // micro_batch),
        global_batch=GLOBAL_BATCH,
        stages=tuple(stages),
        **settings,
    )


def _stage(number: int, first: int, micro_batch: int, **changes: Any) -> StageProgram:
    dp, tp, zero = (changes.pop(key, default) for key, default in (("dp", 1), ("tp", 1), ("zero", 0)))
    shard = changes.pop("shard", dp if zero else 1)
    recomputed = changes.pop("recompute_layers", 0)
    return StageProgram(
        number=number,
        ranks=tuple(range(first, first + dp * tp)),
        shares=changes.pop("shares", (micro_batch // dp,) * dp),
        zero=zero,
        shard=shard,
        replicate=dp // shard,
        recompute_layers=recomputed,
        degrees=Degrees(dp=dp, tp=tp, sequence_parallel=changes.pop("sequence_parallel", False)),
        **{
            "recompute": "full" if recomputed else "none",
            **changes,
        },
    )


def train_cases(names: list[str], timeout_s: float = 900.0) -> dict[str, Any]:
    """The losses of each iteration of these cases, or what went wrong."""
    environment = jax_environment(QUICK_TO_COMPILE)
    spec = WorkerSpec(command=python_worker(__name__), request={"names": names}, environment=environment)
    reports: list[dict[str, Any]] = []
    run_workers(
        [spec] * MOST_RANKS,
        what="plans with JAX",
        limits=Limits(total_s=timeout_s),
        on_line=lambda _, line: reports.append(line),
    )
    losses: dict[str, Any] = {}
    for name in names:
        mine = [report for report in reports if report["name"] == name]
        problems = [report["problem"] for report in mine if "problem" in report]
        losses[name] = (
            problems[0] if problems else [sum(parts) for parts in zip(*(r["losses"] for r in mine), strict=True)]
        )
    return losses


def main() -> None:
    """Train what the request names; a line for each case."""
    from estimator.communication.world_jax import joined_world, local_coordinator

    request = read_request()
    rank = request["rank"]
    coordinator = local_coordinator(Path(request["store"]), rank, 100.0)
    with (
        Path(request["results"]).open("a", encoding="utf-8") as lines,
        joined_world(rank, request["world_size"], coordinator, timeout_s=600.0) as world,
    ):
        for name in request["names"]:
            program = program_for(EVERY_CASE[name])
            report: dict[str, Any] = {"name": name}
            if rank < program.ranks:
                try:
                    report["losses"] = train(program, world)
                except Exception as error:
                    report["problem"] = f"{type(error).__name__}: {error}"
                print(json.dumps(report), file=lines, flush=True)
            world.barrier(name.replace(" ", "_"))


def train(program: Program, world: Any) -> list[float]:
    """This rank's part of the losses of each iteration."""
    from planner.one_job.running.data import random_data
    from planner.one_job.running.jax_worker import make_trainer

    data = random_data(program.model, seq_len=program.seq_len, seed=SEED)
    trainer = make_trainer(program, world, data, learning_rate=LEARNING_RATE, seed=SEED)
    trainer.rehearse()
    losses = []
    for step in range(STEPS):
        trainer.prepare(step)
        trainer.iterate()
        losses.append(trainer.stage.take_loss() or 0.0)
    return losses


if __name__ == "__main__":
    main()
