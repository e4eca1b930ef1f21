"""`cellplan run` from end to end: what it prints and writes, what it teaches the store, and how it refuses."""

from __future__ import annotations

import contextlib
import io
import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from estimator.frontends.load import load_file_model
from estimator.host.cpu import cpu_name
from estimator.profiling import contention
from estimator.profiling.lookup import to_layer_time
from planner import api
from planner.cli import main as cli
from planner.cli import run as run_command
from planner.one_job.running import launch
from planner.one_job.running import run as running
from planner.one_job.running.program import program_of
from planner.shared.plan import Plan
from planner.shared.plan_file import load_plan, plan_to_json, save_plan
from profiles.errors import NothingFits
from profiles.measurements import ProfileSet
from profiles.store import ProfileStore
from tests.documents import checked, document_of
from tests.oracles.training_oracle import train_alone
from tests.planner.one_job.running.run_plan_examples import GPT, HandStage, hand_plan, write_config
from tests.planner.one_job.running.running_examples import estimate_of, put_own_rates

TP2 = HandStage(chunks=((0, 6),), tp=2)


@dataclass(frozen=True)
class Learned:
    """Two runs of a plan with two tensor-parallel ranks, and what the store held after each; the second profiles."""

    plan: Path
    store: Path
    first: dict[str, Any]
    second: dict[str, Any]
    after_first: ProfileSet
    after_second: ProfileSet
    traces: tuple[Path, ...]


def run_json(*words: str | Path) -> dict[str, Any]:
    """The JSON of a run, which must be all of stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main(["run", *map(str, words), "--json"]) == 0
    found: dict[str, Any] = json.loads(out.getvalue(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    checked("run", found)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def gpt(folder: Path) -> str:
    return write_config(folder, "gpt", GPT)


@pytest.fixture(scope="module")
def learned(folder: Path, gpt: str) -> Learned:
    plan, store, trace = folder / "tp2.json", put_own_rates(folder / "store"), folder / "trace.json"
    save_plan(hand_plan(gpt, TP2), plan)
    common = (plan, "--steps", "3", "--store", store, "--learn")
    with pytest.MonkeyPatch.context() as patch:
        # Seconds of real workers, which have tests of their own.
        patch.setattr(contention, "measure_contention", lambda _workers, **_options: 1.25)
        first = run_json(*common, "--trace", trace)
        after_first = _contents(store)
        second = run_json(*common, "--profile", "--warm-up", "0", "--seed", "1")
    return Learned(
        plan=plan,
        store=store,
        first=first,
        second=second,
        after_first=after_first,
        after_second=_contents(store),
        traces=tuple(sorted(folder.glob("trace*.json"))),
    )


def _contents(store: Path) -> ProfileSet:
    with ProfileStore(store) as opened:
        return opened.contents()


# What comes out


def test_json_has_measured_estimated_and_losses(learned: Learned) -> None:
    found = learned.first
    assert {"measured", "estimated", "losses"} <= set(found)
    assert (found["backend"], found["device"], found["plan"]["ranks"]) == ("torch", "cpu", 2)
    assert found["measured"]["iteration_time_s"] > 0
    assert len(found["measured"]["iteration_times_s"]) == 3
    assert len(found["losses"]) == 4, "one of them of a warm-up"
    assert found["ratio"] == pytest.approx(
        found["estimated"]["iteration_time_s"] / found["measured"]["iteration_time_s"]
    )
    assert found["plan"]["estimated_iteration_time_s"] == 1.5
    assert "the plan file says 1.5 s" in found["plan"]["changed_inputs"][0]
    assert "resident memory" in found["measured"]["peak_memory_is"]
    assert found["measured"]["process_peak_bytes"] > found["measured"]["peak_memory_bytes"]
    assert "profiled" not in found
    assert learned.second["profiled"]["slowdown"] == 1.25
    assert len(learned.second["losses"]) == 3
    assert learned.second["losses"] != found["losses"][:3], "another seed"


def test_the_losses_are_those_of_one_process(learned: Learned, gpt: str) -> None:
    program = program_of(hand_plan(gpt, TP2), load_file_model(gpt), where="plan")
    alone = train_alone(
        program.model, seq_len=16, steps=4, global_batch=8, at_once=2, learning_rate=1e-3, optimizer="adamw"
    )
    assert learned.first["losses"] == pytest.approx(alone, rel=2e-5)


def test_traces_are_written_and_named(learned: Learned) -> None:
    names = [path.name for path in learned.traces]
    assert names == ["trace.estimated.json", "trace.json", "trace.measured.json"]
    assert learned.first["traces"] == [str(path) for path in learned.traces]
    assert all(json.loads(path.read_text())["traceEvents"] for path in learned.traces)
    assert "traces" not in learned.second


def test_the_tables_say_what_the_json_does(learned: Learned, capsys: pytest.CaptureFixture[str]) -> None:
    run_command._print(learned.first, Namespace())
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "gpt on 2 ranks, torch on cpu: measured" in shown
    assert "layer times modelled, communication modelled" in " ".join(shown.split())
    assert f"losses: {learned.first['losses'][0]:.6f}, " in shown
    assert "peak memory: measured is the growth of the worker's resident memory" in " ".join(shown.split())
    for words in (
        "inputs:",
        "An iteration of stage 0",
        "tensor-parallel communication",
        "where they part:",
        "noted:",
        "learned:",
    ):
        assert words in shown
    assert all(f"written to {path}" in shown for path in learned.traces)
    blank = {"estimated": None, "estimated_reason": "it cannot be", "losses": [None, 1.0], "where_they_part": []}
    run_command._print({**learned.first, **blank}, Namespace())
    shown = " ".join(capsys.readouterr().out.split())
    assert "not estimated: it cannot be" in shown
    assert "losses: none, 1.000000" in shown


# What the store learns


def test_a_run_leaves_the_times_of_its_layers_among_as_many_workers(learned: Learned) -> None:
    """An embedding, four blocks that are alike, and a head."""
    profiles = learned.after_first.profiles
    assert [profile.key.workers for profile in profiles] == [2, 2, 2]
    assert {profile.key.shard.tp for profile in profiles} == {2}
    assert {profile.key.hardware for profile in profiles} == {cpu_name()}
    # Passes: 3 iterations of 4 micro-batches on 2 ranks; the block stands for 4 layers.
    assert sorted(len(profile.measurement.forward_s) for profile in profiles) == [24, 24, 96]
    assert all(
        len(profile.measurement.forward_s) == len(profile.measurement.backward_s)
        and len(profile.measurement.optimizer_s) == 3 * 2
        for profile in profiles
    )
    assert learned.first["learned"] == {
        "layers": 3,
        "workers": 2,
        "slowdown": None,
        "link_points": sum(len(table.points) for table in learned.after_first.link_tables),
    }
    assert learned.after_first.rates[0].contention == (), "nothing to compare with"


def test_a_run_leaves_points_of_link_tables(learned: Learned) -> None:
    tables = learned.after_first.link_tables
    (sums,) = [table for table in tables if table.op == "all_reduce"]
    assert (sums.link, sums.ranks, sums.nodes, sums.backend, sums.provenance) == ("loopback", 2, 1, "gloo", "measured")
    assert sums.hardware == cpu_name()
    assert "training run" in sums.source
    # Activations of a micro-batch: 2 samples of 16 tokens of 32 numbers.
    assert 2 * 16 * 32 * 4 in dict(sums.points)
    (again,) = [table for table in learned.after_second.link_tables if table.op == "all_reduce"]
    assert [size for size, _ in again.points] == [size for size, _ in sums.points]
    assert again.points != sums.points, "the newer run's stand"
    assert again.source == sums.source


def test_the_next_estimate_rests_on_what_was_measured(learned: Learned) -> None:
    before, after = learned.first["estimated"], learned.second["estimated"]
    assert (before["compute"], before["communication"]) == ("modelled", "modelled")
    assert (after["compute"], after["communication"]) == ("measured", "measured")
    measured_s = learned.first["measured"]["stages"][0]["compute_s"]
    off_before, off_after = (abs(one["stages"][0]["compute_s"] - measured_s) for one in (before, after))
    assert off_after < off_before


def test_an_estimate_is_the_sum_of_the_stored_layers(learned: Learned, tmp_path: Path) -> None:
    """A block four times, at the times of two busy workers as they stand."""
    store = tmp_path / "store"
    with ProfileStore(store) as opened:
        opened.merge(learned.after_first)
    _, estimated = estimate_of(load_plan(learned.plan), store)
    times = {profile.key.layers[0]: to_layer_time(profile) for profile in learned.after_first.profiles}
    expected = 0.0
    for text, time in times.items():
        count = 4 if '"type":"TransformerBlock"' in text else 1
        expected += count * (time.forward_s + time.backward_s)
    assert estimated.stage_compute_s == pytest.approx((expected,), rel=1e-9)
    assert sorted(estimated.profile_ids) == sorted(profile.id for profile in learned.after_first.profiles)


def test_beside_profiles_of_one_worker_a_run_shows_the_contention(learned: Learned) -> None:
    workers = sorted(profile.key.workers for profile in learned.after_second.profiles)
    assert workers == [1, 1, 1, 2, 2, 2]
    (rates,) = learned.after_second.rates
    ((count, slowdown),) = rates.contention
    assert (count, slowdown) == (2, learned.second["learned"]["slowdown"])
    assert slowdown >= 1.0
    alone = {profile.key.layers: profile for profile in learned.after_second.profiles if profile.key.workers == 1}
    for profile in learned.after_second.profiles:
        # Memory is known from profiling alone, as runs do not measure it layer by layer.
        assert profile.measurement.saved_bytes == alone[profile.key.layers].measurement.saved_bytes
    before = {profile.id: profile for profile in learned.after_first.profiles}
    newer = [profile for profile in learned.after_second.profiles if profile.id in before]
    assert len(newer) == 3
    assert all(profile != before[profile.id] for profile in newer), "the newer run's stand"


# A plan for other devices, trained here on a file of tokens


def _for_a100(plan: Plan) -> Plan:
    return replace(
        plan,
        cluster="a100-80gb:1x2",
        devices=tuple(replace(device, device="a100-80gb") for device in plan.devices),
        stages=tuple(replace(stage, device="a100-80gb") for stage in plan.stages),
    )


def test_a_plan_for_gpus_runs_on_the_cpu_and_says_so(
    folder: Path, gpt: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, tokens = folder / "a100.json", folder / "tokens.npy"
    save_plan(_for_a100(hand_plan(gpt, HandStage(chunks=((0, 6),), dp=2))), plan)
    np.save(tokens, np.full(40, 7, dtype=np.uint16))
    store = put_own_rates(folder / "only-rates")
    before = store.read_bytes()
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    words = [plan, "--device", "cpu", "--steps", "2", "--warm-up", "0", "--data", tokens, "--store", store]
    assert cli.main(["run", *map(str, words), "--learning-rate", "0.1"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    told = " ".join(shown.out.split())
    assert "run on this host's CPU in place of a100-80gb, and estimated for it" in told
    assert "2 workers share 1 cores: the estimate takes each to have its own" in told
    assert "estimated" in told
    losses = [float(word) for word in shown.out.split("losses: ")[1].splitlines()[0].split(", ")]
    # One token over and over is soon known.
    assert losses[0] > losses[1] + 0.5
    assert store.read_bytes() == before, "nobody asked to keep anything"


# What is refused, before any worker starts


@pytest.fixture
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "run_workers", lambda *_, **__: pytest.fail("workers were started"))


def _broken_text(folder: Path) -> list[str | Path]:
    plan = folder / "broken.json"
    plan.write_text('{"schema": "cellplan.plan/1", "model": ')
    return [plan]


def _wrong_key(folder: Path) -> list[str | Path]:
    plan = folder / "wrong.json"
    text = json.loads((folder / "tp2.json").read_text())
    text["stages"][0]["tp"] = "two"
    plan.write_text(json.dumps(text))
    return [plan]


def _offloading(folder: Path) -> list[str | Path]:
    plan = folder / "offloading.json"
    text = json.loads((folder / "tp2.json").read_text())
    text["stages"][0]["offload"] = ["activations"]
    plan.write_text(json.dumps(text))
    return [plan]


def _short_file(folder: Path) -> list[str | Path]:
    np.save(folder / "short.npy", np.zeros(3, dtype=np.int64))
    return [folder / "tp2.json", "--data", folder / "short.npy"]


def _images(folder: Path) -> list[str | Path]:
    plan = hand_plan("wide-resnet-tiny", HandStage(chunks=((0, 18),)), seq_len=None, optimizer="sgd")
    (folder / "resnet.json").write_text(plan_to_json(plan))
    return [folder / "resnet.json", "--data", folder / "tokens.npy"]


def _hybrid_in_jax(folder: Path) -> list[str | Path]:
    (folder / "hybrid.json").write_text(plan_to_json(hand_plan("nemotron-h-tiny", HandStage(chunks=((0, 6),)))))
    return [folder / "hybrid.json", "--backend", "jax"]


REFUSED: dict[str, tuple[Callable[[Path], list[str | Path]], str]] = {
    "no such plan": (lambda folder: [folder / "none.json"], "none.json: found an error (No such file or directory)"),
    "no JSON": (_broken_text, "broken.json, line 1, column"),
    "a wrong key": (_wrong_key, "wrong.json: stages[0].tp: found 'two'"),
    "what run cannot do": (_offloading, "offloading.json: stages[0].offload: found activations, expected none"),
    "a short file": (_short_file, "short.npy: found 3 tokens, expected at least 17, one sample"),
    "no data": (
        lambda folder: [folder / "tp2.json", "--data", folder / "none.bin"],
        "none.bin: found an error (No such",
    ),
    "data for images": (_images, "found data for wide-resnet-tiny, which takes images"),
    "a wrong dtype": (
        lambda folder: [folder / "tp2.json", "--data", folder / "x", "--data-dtype", "float32"],
        "run: --data-dtype: found float32",
    ),
    "no folder for traces": (
        lambda folder: [folder / "tp2.json", "--trace", folder / "none" / "trace.json"],
        "trace.json, expected a path in an existing folder",
    ),
    "no GPUs": (
        lambda folder: [folder / "tp2.json", "--device", "cuda"],
        "run: --device: found cuda with 0 GPUs, expected at least 2",
    ),
    "a hybrid in JAX": (_hybrid_in_jax, "run: --backend: found jax, for a model with linear attention, expected torch"),
    "no steps": (lambda folder: [folder / "tp2.json", "--steps", "0"], "argument --steps: found '0'"),
    "no seconds": (lambda folder: [folder / "tp2.json", "--timeout", "inf"], "argument --timeout: found 'inf'"),
}


@pytest.mark.usefixtures("no_workers", "learned")
@pytest.mark.parametrize("name", REFUSED)
def test_wrong_input_leaves_with_status_2_and_names_it(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(running, "_count_gpus", lambda _backend: 0)
    make, message = REFUSED[name]
    assert message in document_of(["run", *map(str, make(folder))], 2, capsys)["failure"]["message"]


@pytest.mark.usefixtures("no_workers")
def test_more_memory_than_the_host_has_leaves_with_status_3(
    learned: Learned, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "free_host_memory_bytes", lambda: 2**29)
    said = document_of(["run", str(learned.plan), "--store", str(learned.store)], 3, capsys)["failure"]["message"]
    assert "run: 2 workers need about" in said
    assert "0.5 GiB are free; it lacks" in said
    with pytest.raises(NothingFits, match="of this host's memory"):
        api.run(learned.plan, store=learned.store)
