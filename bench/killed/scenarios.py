"""The commands that are killed, each with what must hold of its files whenever that happens."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from planner.many_jobs.jct.model_file import load_model as load_predictor
from planner.shared.plan_file import load_plan
from profiles.files import read_json

ROOT = Path(__file__).parents[2]
JOBS = 600
TRACE = str(ROOT / "planner" / "many_jobs" / "traces" / "small.csv")
CONFIG = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": 16, "vocab_size": 99}

Words = tuple[str, ...]
Run = Callable[[Words], None]
"""Runs a command to its end; an exception where it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`words`, killed in a folder that `prepare` has filled. `check` raises an exception where a file there is neither
    whole nor absent, and returns what was kept, of which nothing may ever be lost. `same` are files that have the same
    bytes once it has ended, however often it was killed before; `share` of the moments are this command's."""

    name: str
    words: Callable[[Path], Words]
    check: Callable[[Path], frozenset[str]]
    prepare: Callable[[Path, Run], None] = lambda _folder, _run: None
    same: tuple[str, ...] = ()
    share: float


def _store(folder: Path) -> str:
    return str(folder / "store.sqlite")


def _check_store(folder: Path) -> frozenset[str]:
    """The keys of all that the store holds, which SQLite finds whole."""
    if not Path(_store(folder)).exists():
        return frozenset()
    with closing(sqlite3.connect(_store(folder))) as database:
        verdict = database.execute("PRAGMA integrity_check").fetchone()[0]
        assert verdict == "ok", f"the store: {verdict}"
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        assert tables in (set(), set(_KEYS)), f"the store has {tables}"
        return frozenset(
            json.dumps([table, *row])
            for table in tables
            for row in database.execute(f"SELECT {_KEYS[table]} FROM {table}")
        )


_KEYS = {"profiles": "id", "rates": "device, hardware, threads", "link_tables": "link, op, ranks, nodes, backend"}


def _check_files(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        if (folder / name).exists():
            read_json(folder / name)


def _write_trace(folder: Path, _run: Run) -> None:
    """Long enough for several checkpoints."""
    draws = random.Random(0)
    rows = (f"{number},{number * 600},{draws.randint(60, 3600)},{draws.choice((1, 2))}" for number in range(JOBS))
    lines = ["job_id,submit_time_s,duration_s,gpus", *rows]
    (folder / "trace.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "cells").mkdir()


def _check_simulation(folder: Path) -> frozenset[str]:
    _check_files(folder, ("checkpoint.json", "timeline.json", *(path.name for path in folder.glob("cells/*.json"))))
    if (folder / "jobs.csv").exists():
        assert len((folder / "jobs.csv").read_text(encoding="utf-8").splitlines()) == JOBS + 1, (
            "a table of jobs cut short"
        )
    return frozenset({"checkpoint"} if (folder / "checkpoint.json").exists() else ())


def _check_plan(folder: Path) -> frozenset[str]:
    if (folder / "plan.json").exists():
        load_plan(folder / "plan.json")
        return frozenset({"plan"})
    return frozenset()


def _check_predictor(folder: Path) -> frozenset[str]:
    if (folder / "model.txt").exists():
        load_predictor(folder / "model.txt")
        return frozenset({"model"})
    return frozenset()


def _check_run(folder: Path) -> frozenset[str]:
    _check_files(folder, ("trace.json", "trace.measured.json", "trace.estimated.json"))
    return _check_store(folder)


def _config(folder: Path) -> str:
    return str(folder / "config.json")


def _write_config(folder: Path, _run: Run) -> None:
    Path(_config(folder)).write_text(json.dumps(CONFIG), encoding="utf-8")


def _profile_words(folder: Path) -> Words:
    return ("profile", _config(folder), "--store", _store(folder), "--tp", "1,2", "--micro-batch", "1,2,4")


def _make_plan(folder: Path, run: Run) -> None:
    """A plan of two workers, and a store that has what it is estimated from."""
    _write_config(folder, run)
    run(("profile", _config(folder), "--store", _store(folder), "--dtype", "fp32", "--tp", "1,2"))
    words = ("--cluster", "local:1x2", "--global-batch", "2", "--dtype", "fp32", "-o", str(folder / "plan.json"))
    run(("plan", _config(folder), *words, "--store", _store(folder)))


SCENARIOS = (
    Scenario(
        name="simulate --checkpoint",
        words=lambda folder: (
            *("simulate", str(folder / "trace.csv"), "--cluster", "a40:1x2", "--cells", str(folder / "cells")),
            *("--checkpoint", str(folder / "checkpoint.json"), "--checkpoint-every", "0", "--resume"),
            *("--jobs-csv", str(folder / "jobs.csv"), "--timeline", str(folder / "timeline.json")),
        ),
        prepare=_write_trace,
        check=_check_simulation,
        same=("jobs.csv", "timeline.json"),
        share=0.24,
    ),
    Scenario(
        name="plan -o",
        words=lambda folder: ("plan", "gpt2-1.3b", "--cluster", "a100-80gb:1x8", "-o", str(folder / "plan.json")),
        check=_check_plan,
        same=("plan.json",),
        share=0.22,
    ),
    Scenario(
        name="jct train",
        words=lambda folder: ("jct", "train", TRACE, "-o", str(folder / "model.txt")),
        check=_check_predictor,
        same=("model.txt",),
        share=0.18,
    ),
    Scenario(name="profile", words=_profile_words, prepare=_write_config, check=_check_store, share=0.12),
    Scenario(
        name="run --learn --trace",
        words=lambda folder: (
            *("run", str(folder / "plan.json"), "--store", _store(folder), "--steps", "2"),
            *("--learn", "--trace", str(folder / "trace.json")),
        ),
        prepare=_make_plan,
        check=_check_run,
        share=0.12,
    ),
    Scenario(
        name="comm measure",
        words=lambda folder: ("comm", "measure", "--store", _store(folder), "--sizes", "4096,65536", "--repeats", "2"),
        check=_check_store,
        share=0.12,
    ),
)
