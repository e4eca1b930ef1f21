"""Plans that torch runs compute what one process computes, on 1 to 4 workers; what goes wrong says so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from estimator.frontends.load import load_file_model
from planner.one_job.running.lines import Lines
from planner.one_job.running.program import program_of
from planner.one_job.running.record import Orders, RunRecord
from planner.shared.plan import Plan
from planner.shared.plan_file import plan_to_json
from tests.oracles.training_oracle import train_alone
from tests.planner.one_job.running.run_plan_examples import GPT, LLAMA, MIXTRAL, HandStage, hand_plan, write_config
from tests.running_driver import run_grid
from tests.seeds import all_seeds, some

STEPS = 5
RATES = {"adamw": 1e-2, "sgd": 0.5}
TOLERANCE = 2e-5
"""Relative, of a loss in float32: sums over ranks are made in another order."""

Case = tuple[str, Plan, int]
"""A model's key, the plan, and how many samples the oracle takes at once."""


IMAGE_RATE, IMAGE_STEPS = 5e-3, 2
"""Fresh residual networks with batch norm over few values multiply the last bits of what goes in: two threads in place
of one change the third loss by 7%. The second one still depends on every gradient."""


def _stage(first: int, end: int, **options: Any) -> HandStage:
    return HandStage(chunks=((first, end),), **options)


def _gpt_plans(gpt: str) -> Iterator[tuple[str, Plan]]:
    whole = (0, 6)
    yield "one", hand_plan(gpt, _stage(*whole))
    yield "dp2", hand_plan(gpt, _stage(*whole, dp=2))
    yield "dp2-sgd", hand_plan(gpt, _stage(*whole, dp=2), optimizer="sgd")
    yield "tp2", hand_plan(gpt, _stage(*whole, tp=2))
    yield "tp2-sequence", hand_plan(gpt, _stage(*whole, tp=2, sequence_parallel=True))
    yield "pp2", hand_plan(gpt, _stage(0, 3), _stage(3, 6))
    yield "pp2-gpipe", hand_plan(gpt, _stage(0, 3), _stage(3, 6), schedule="gpipe")
    interleaved = (HandStage(chunks=((0, 2), (3, 4))), HandStage(chunks=((2, 3), (4, 6))))
    yield "interleaved", hand_plan(gpt, *interleaved, schedule="interleaved")
    yield "zero1", hand_plan(gpt, _stage(*whole, dp=2, zero=1))
    yield "zero2", hand_plan(gpt, _stage(*whole, dp=2, zero=2))
    yield "zero3", hand_plan(gpt, _stage(*whole, dp=2, zero=3))
    yield "recomputed", hand_plan(gpt, _stage(*whole, dp=2, recompute="full"))
    yield "selective", hand_plan(gpt, _stage(*whole, tp=2, recompute="selective"))
    yield "zero3-recomputed", hand_plan(gpt, _stage(*whole, dp=2, zero=3, recompute="full"))
    yield "dp2-then-tp2", hand_plan(gpt, _stage(0, 2, dp=2), _stage(2, 6, tp=2), optimizer="sgd")
    yield "tp2-then-dp2", hand_plan(gpt, _stage(0, 4, tp=2, sequence_parallel=True), _stage(4, 6, dp=2))
    yield "1-then-3-uneven", hand_plan(gpt, _stage(0, 3), _stage(3, 6, dp=3, shares=(2, 1, 1)), micro_batch=4)
    yield "dp3-then-1", hand_plan(gpt, _stage(0, 2, dp=3), _stage(2, 6), global_batch=12, micro_batch=3)
    yield "tp4", hand_plan(gpt, _stage(*whole, tp=4))
    yield "dp2-tp2-zero1", hand_plan(gpt, _stage(*whole, dp=2, tp=2, zero=1))
    yield "dp2-tp2-zero2", hand_plan(gpt, _stage(*whole, dp=2, tp=2, zero=2, sequence_parallel=True))
    yield "dp2-tp2-zero3", hand_plan(gpt, _stage(*whole, dp=2, tp=2, zero=3, sequence_parallel=True))
    yield "hsdp", hand_plan(gpt, _stage(*whole, dp=4, zero=3, shard=2), micro_batch=4)
    yield "zero1-replicated", hand_plan(gpt, _stage(*whole, dp=4, zero=1, shard=2), micro_batch=4)
    yield "zero3-then-zero1", hand_plan(gpt, _stage(0, 3, dp=2, zero=3), _stage(3, 6, dp=2, zero=1))
    yield "pp4-gpipe", hand_plan(gpt, *(_stage(i + (i > 0), i + 2 + (i == 3)) for i in range(4)), schedule="gpipe")
    crossed = (HandStage(chunks=((0, 1), (3, 4)), dp=2), HandStage(chunks=((1, 3), (4, 6)), tp=2))
    yield "interleaved-uneven", hand_plan(gpt, *crossed, schedule="interleaved")


def _cases(folder: Path) -> dict[str, Case]:
    gpt, llama = write_config(folder, "gpt", GPT), write_config(folder, "llama", LLAMA)
    moe = write_config(folder, "mixtral", MIXTRAL)
    found: dict[str, Case] = {name: (gpt, plan, 1) for name, plan in _gpt_plans(gpt)}
    found["llama-tp4"] = (llama, hand_plan(llama, _stage(0, 6, tp=4, sequence_parallel=True)), 2)
    found["llama-dp2-then-tp2"] = (llama, hand_plan(llama, _stage(0, 2, dp=2), _stage(2, 6, tp=2)), 2)
    found["moe-ep2"] = (moe, hand_plan(moe, _stage(0, 6, tp=2, experts=True)), 2)
    found["moe-dp2-pp2"] = (moe, hand_plan(moe, _stage(0, 3, dp=2), _stage(3, 6, dp=2)), 1)
    # The encoder's output crosses both cuts beside the decoder's activations, or is the only thing that does.
    nmt = "nmt-tiny"
    found["nmt-pp2"] = (nmt, hand_plan(nmt, _stage(0, 5), _stage(5, 7)), 2)
    found["nmt-pp2-at-the-decoder"] = (nmt, hand_plan(nmt, _stage(0, 3, tp=2), _stage(3, 7, dp=2)), 2)
    # Linear attention, and a head that predicts further tokens with the first stage's table.
    nemotron, qwen = "nemotron-h-tiny", "qwen3-next-tiny"
    found["nemotron-tp2"] = (nemotron, hand_plan(nemotron, _stage(0, 6, tp=2, sequence_parallel=True)), 2)
    found["nemotron-dp2-then-tp2"] = (nemotron, hand_plan(nemotron, _stage(0, 3, dp=2), _stage(3, 6, tp=2)), 2)
    found["qwen-next-dp2-zero1"] = (qwen, hand_plan(qwen, _stage(0, 6, dp=2, zero=1)), 1)
    found["qwen-next-ep2"] = (qwen, hand_plan(qwen, _stage(0, 6, tp=2, experts=True)), 2)
    resnet = "wide-resnet-tiny"
    images = partial(hand_plan, resnet, seq_len=None, global_batch=8, optimizer="sgd")
    found["resnet-dp2"] = (resnet, images(_stage(0, 18, dp=2), micro_batch=8), 4)
    found["resnet-tp2-then-1"] = (resnet, images(_stage(0, 9, tp=2), _stage(9, 18), micro_batch=4), 4)
    return found


NAMES = some(
    (
        *("one", "dp2-sgd", "tp2", "pp2", "pp4-gpipe", "dp2-then-tp2", "1-then-3-uneven", "interleaved-uneven"),
        *("dp2-tp2-zero2", "dp2-tp2-zero3", "hsdp", "zero3-then-zero1", "zero1-replicated", "zero3-recomputed"),
        *("selective", "llama-dp2-then-tp2", "moe-ep2", "nmt-pp2-at-the-decoder", "nemotron-dp2-then-tp2"),
        *("qwen-next-ep2", "resnet-tp2-then-1"),
        # Each of these does what one of the others does beside something else.
        *("dp2", "tp2-sequence", "pp2-gpipe", "interleaved", "zero1", "zero2", "zero3", "recomputed", "tp2-then-dp2"),
        *("dp3-then-1", "tp4", "dp2-tp2-zero1", "llama-tp4", "moe-dp2-pp2", "nmt-pp2", "nemotron-tp2"),
        *("qwen-next-dp2-zero1", "resnet-dp2"),
    ),
    21,
)


@dataclass
class Runs:
    """All plans' runs, in four processes that stay."""

    cases: dict[str, Case]
    records: dict[str, RunRecord]
    alone: dict[Any, list[float]]

    def expected(self, name: str) -> list[float]:
        reference, plan, at_once = self.cases[name]
        key = (reference, plan.batch.global_batch, at_once, plan.optimizer)
        if key not in self.alone:
            program = program_of(plan, load_file_model(reference), where=name)
            self.alone[key] = train_alone(
                program.model,
                seq_len=program.seq_len,
                steps=STEPS,
                global_batch=plan.batch.global_batch,
                at_once=at_once,
                learning_rate=rate_of(plan),
                optimizer=plan.optimizer,
            )
        return self.alone[key]


def rate_of(plan: Plan) -> float:
    return RATES[plan.optimizer] if plan.model.seq_len else IMAGE_RATE


def orders_of(plan: Plan) -> Orders:
    return Orders(
        plan=plan_to_json(plan),
        steps=STEPS,
        warm_ups=0,
        seed=0,
        learning_rate=rate_of(plan),
        backend="gloo",
        timeout_s=60.0,
        threads=1,
        data=None,
        data_dtype="uint16",
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    every = _cases(tmp_path_factory.mktemp("models"))
    cases = {name: every[name] for name in NAMES}
    orders = {name: orders_of(plan) for name, (_, plan, _) in cases.items()}
    ranks = {name: len(plan.devices) for name, (_, plan, _) in cases.items()}
    lines = {name: Lines(ranks[name], STEPS, None) for name in cases}
    run_grid(orders, ranks, lambda value: lines[value["run"]].take(value["rank"], value))
    return Runs(cases=cases, records={name: own.record(0) for name, own in lines.items()}, alone={})


@pytest.mark.parametrize("name", NAMES)
def test_a_plan_computes_what_one_process_does(runs: Runs, name: str) -> None:
    """Losses of five steps, the last four of which depend on every gradient and step before."""
    losses, expected = runs.records[name].losses, runs.expected(name)
    assert len(losses) == STEPS
    steps = STEPS if runs.cases[name][1].model.seq_len else IMAGE_STEPS
    torch.testing.assert_close(torch.tensor(losses[:steps]), torch.tensor(expected[:steps]), rtol=TOLERANCE, atol=0.0)
    assert max(losses) - min(losses) > 100 * TOLERANCE * losses[0], "losses that do not move show nothing"


def test_the_grid_is_listed_whole(runs: Runs, tmp_path: Path) -> None:
    assert sorted(runs.records) == sorted(NAMES)
    if all_seeds():
        assert sorted(_cases(tmp_path)) == sorted(NAMES)


def test_a_rank_tells_all_of_its_time(runs: Runs) -> None:
    """Tasks in the schedule's number, layers inside them, and collectives with their bytes."""
    record = runs.records["dp2-then-tp2"]
    for number, rank in enumerate(record.typical):
        tasks = [span for span in rank.spans if span.kind in ("forward", "backward")]
        assert len(tasks) == 2 * 4
        layers = [span for span in rank.spans if span.kind == "layer"]
        assert len(layers) == 2 * 4 * (2 if number < 2 else 4)
        inside = [
            one for one in layers if any(task.start_s <= one.start_s <= one.end_s <= task.end_s for task in tasks)
        ]
        assert len(inside) == len(layers)
        axes = {span.axis for span in rank.spans if span.kind == "collective"}
        assert axes == ({"dp", "tied"} if number < 2 else {"tp", "tied"})
        assert all(span.end_s >= span.start_s >= 0 for span in rank.spans)
        assert sum(task.seconds for task in tasks) <= rank.seconds


def test_replicas_stay_alike_over_a_tied_table(runs: Runs) -> None:
    """Two plans that part the table between stages end where the unparted one does, to the last digits shown."""
    for name in ("pp2", "dp2-then-tp2", "pp4-gpipe"):
        reference = "dp2-sgd" if runs.cases[name][1].optimizer == "sgd" else "one"
        torch.testing.assert_close(
            torch.tensor(runs.records[name].losses), torch.tensor(runs.records[reference].losses), rtol=1e-5, atol=0.0
        )


def test_a_wrong_gradient_would_show(runs: Runs) -> None:
    """The oracle itself: half the gradient (a sum over replicas forgotten) gives other losses under SGD."""
    reference, plan, _ = runs.cases["dp2-sgd"]
    program = program_of(plan, load_file_model(reference), where="plan")
    halved = train_alone(
        program.model, seq_len=16, steps=STEPS, global_batch=8, at_once=1, learning_rate=0.25, optimizer="sgd"
    )
    assert max(abs(a - b) / b for a, b in zip(halved, runs.expected("dp2-sgd"), strict=True)) > 10 * TOLERANCE


def test_peaks_of_memory_are_measured(runs: Runs) -> None:
    record = runs.records["tp2"]
    assert all(
        0 <= grown < whole for grown, whole in zip(record.peak_memory_bytes, record.process_peak_bytes, strict=True)
    )
    assert replace(runs.records["tp2"], warm_ups=2).iteration_times_s == runs.records["tp2"].iteration_times_s[2:]
