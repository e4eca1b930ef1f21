"""A run that is stopped and goes on gives what a run without a stop gives, to the last bit."""

from __future__ import annotations

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest

from planner.many_jobs.jobs.records import Decision, Job, Policy, View
from planner.many_jobs.policies.catalogue import POLICIES, make_policy
from planner.many_jobs.simulation.engine import simulate
from planner.many_jobs.simulation.failures import Failures
from planner.many_jobs.simulation.result import Result
from planner.many_jobs.simulation.settings import CheckpointFile, Settings
from planner.many_jobs.simulation.tables import jobs_csv, series_csv
from profiles.errors import InputError
from tests.planner.many_jobs.simulation.simulation_workloads import draw_workload
from tests.scheduling_examples import FakeCells, two_pools
from tests.simulation_examples import PowerCells, Scripted, draw_jobs, small_pools, speed_over_pools


class Counting:
    """A predictor whose word depends on all that it was shown, in its order."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def submitted(self, job: Job, now_s: float) -> float:
        self.seen.append(f"+{job.id}@{now_s}")
        return float(hash_of(self.seen))

    def finished(self, job: Job, now_s: float) -> None:
        self.seen.append(f"-{job.id}@{now_s}")


def hash_of(words: list[str]) -> int:
    from zlib import crc32

    return crc32(" ".join(words).encode())


class Predicting(Scripted):
    """Its decisions depend on what the predictor says."""

    def decide(self, view: View) -> Decision:
        told = sum(int(view.predicted_duration_s(state.job) or 0) for state in view.waiting.values())
        self.seed = (self.seed * 31 + told) % 2**32
        return super().decide(view)

    def state(self) -> object:
        return {"calls": self.calls, "seed": self.seed}

    def restore(self, state: object) -> None:
        assert isinstance(state, dict)
        self.calls, self.seed = state["calls"], state["seed"]


def text_of(result: Result) -> str:
    return "\n".join((repr(result.summary), jobs_csv(result), series_csv(result), repr(result.slices)))


@pytest.mark.parametrize("round_s", [None, 16.0])
def test_a_resumed_run_is_the_same(tmp_path: Path, round_s: float | None) -> None:
    stops = 0
    for seed in range(15):
        rng = Random(seed)
        jobs = draw_jobs(rng, 12)

        def run(stop_after: int | None, path: Path, jobs: tuple[Job, ...] = jobs, seed: int = seed) -> Result:
            looks = iter(range(10**9))
            settings = Settings(
                round_s=round_s,
                restart_s=3.7,
                checkpoint_interval_s=11.3,
                truth=lambda job, grant, _: speed_over_pools(job, grant),
                failures=Failures(mtbf_s=900.0, repair_s=33.3, seed=seed),
                predictor=Counting(),
                series=True,
                slices=True,
                look_every=1,
                checkpoint=CheckpointFile(path=path, every_s=1e9, resume=True),
                stop=None if stop_after is None else lambda: next(looks) >= stop_after,
            )
            return simulate(jobs, small_pools(), PowerCells(), Predicting(seed), settings=settings)

        whole = run(None, tmp_path / "none.json")
        assert not (tmp_path / "none.json").exists()
        path = tmp_path / f"{seed}.json"
        while True:
            try:
                found = run(rng.randrange(1, 20), path)
            except KeyboardInterrupt:
                stops += 1
                continue
            break
        assert text_of(found) == text_of(whole)
        assert whole.summary.violations == 0
    assert stops > 50


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_every_policy_resumes(tmp_path: Path, name: str) -> None:
    """From the middle of the run, with a new policy that knows nothing but its state."""
    jobs, settings = draw_workload(Random(7), 20), Settings(round_s=300.0, series=True, until_s=40_000.0)
    whole = simulate(jobs, two_pools(), FakeCells(), make_policy(name), settings=settings)
    middle = whole.summary.decisions // 2
    path = tmp_path / "checkpoint.json"
    looks = iter(range(10**9))

    def again(stop: bool, policy: Policy) -> Result:
        file = CheckpointFile(path=path, resume=True)
        stopping = replace(settings, look_every=1, checkpoint=file)
        stopping = replace(stopping, stop=lambda: next(looks) >= middle) if stop else stopping
        return simulate(jobs, two_pools(), FakeCells(), policy, settings=stopping)

    with pytest.raises(KeyboardInterrupt):
        again(True, make_policy(name))
    assert text_of(again(False, make_policy(name))) == text_of(whole)


def _without(whole: str, key: str) -> str:
    """The checkpoint without a key, its hash as if it had been written so."""
    document = json.loads(whole)
    del document["sha256"], document[key]
    text = json.dumps(document)
    return json.dumps({"sha256": sha256(text.encode()).hexdigest(), **document})


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path, jobs = tmp_path / "c.json", draw_jobs(Random(1), 8)

    def run(jobs: tuple[Job, ...], *, restart_s: float = 1.0, stop: bool = False, label: str = "") -> Result:
        settings = Settings(
            restart_s=restart_s,
            look_every=1,
            checkpoint=CheckpointFile(path=path, resume=True, label=label),
            truth=lambda job, grant, _: speed_over_pools(job, grant),
            stop=lambda: stop,
        )
        return simulate(jobs, small_pools(), PowerCells(), Scripted(1), settings=settings)

    with pytest.raises(KeyboardInterrupt):
        run(jobs, stop=True)
    for wrong in ({"jobs": jobs[1:]}, {"restart_s": 2.0}, {"label": "x"}):
        with pytest.raises(InputError, match="fingerprint"):
            run(**{"jobs": jobs} | wrong)
    whole = path.read_text()
    for text, words in (
        ('{"schema": "x"}', "schema"),
        ("[]", "schema"),
        ("{", "JSON"),
        (whole.replace('"next_round"', '"other"'), "a checkpoint that was changed"),
        (whole.replace('"stalled": 0', '"stalled": 1'), "a checkpoint that was changed"),
        (whole.replace('"sha256"', '"sha"'), "a checkpoint that was changed"),
        (_without(whole, "next_round"), "a whole checkpoint"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            run(jobs)
    path.write_text(whole)
    assert run(jobs).summary.violations == 0
