"""A file is data, and code that the user names runs apart: hostile plans and hostile modules, by the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.frontends.load import load_user_model
from estimator.host import user_process
from models_zoo.user_code import UserCode, UserFactory
from planner import api
from planner.many_jobs.policies.catalogue import make_policy
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.simulate import SimulateOptions
from planner.shared.plan_file import load_plan, save_plan
from profiles.errors import InputError, MachineError
from tests.imports import PRODUCT, ROOT

HOSTILE = "tests.hostile_modules"
CLUSTER = "a100-80gb:1x2"
TRACE = ROOT / "planner" / "many_jobs" / "traces" / "small.csv"


def command(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`cellplan` as its script starts it: the current folder is not on Python's path."""
    run = "import sys; from planner.cli.main import main; sys.exit(main())"
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-P", "-c", run, *words],
        env={**os.environ, "PYTHONPATH": path},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def check_one_error(run: subprocess.CompletedProcess[str], status: int, *said: str) -> None:
    """One message and no traceback, nothing on stdout, the status of DESIGN's list."""
    assert (run.returncode, run.stdout) == (status, ""), run.stderr
    assert run.stderr.count("cellplan: error:") == 1
    assert "Traceback" not in run.stderr
    message = run.stderr[run.stderr.index("cellplan: error:") :]
    assert [part for part in said if part not in message] == []


@pytest.mark.parametrize(
    ("factory", "found"),
    [
        ("ends_quietly", "code whose process ended itself with status 0"),
        ("ends_with_seven", "code whose process ended itself with status 7"),
        ("exits", "SystemExit: enough"),
        ("raises_past_everything", "StopEverything: no more"),
        ("interrupts", "KeyboardInterrupt"),
        ("aborts", "code whose process died of SIGABRT"),
        ("reads_nowhere", "code whose process died of SIGSEGV"),
        ("patches_builtins", "code whose process ended itself"),
        ("patches_json", "NoneType"),
        ("closes_files", "code that closed what it was to answer by"),
        ("asks", "EOFError"),
        ("leaves_a_child", "code whose process ended itself with status 0"),
    ],
)
def test_what_a_factory_does_to_its_process_is_one_error(factory: str, found: str) -> None:
    run = command("estimate", f"{HOSTILE}:{factory}", "--cluster", CLUSTER)
    check_one_error(run, 2, f"{HOSTILE}:{factory}", found, "expected (torch module, example_inputs)")


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("os:abort", ("models", "show")),
        ("builtins:exit", ("profile",)),
        ("builtins:eval", ("plan", "--cluster", CLUSTER)),
        ("subprocess:getoutput", ("place", "--cluster", CLUSTER, "--devices", "1")),
    ],
)
def test_every_command_that_takes_a_factory_runs_it_apart(reference: str, words: tuple[str, ...]) -> None:
    check_one_error(command(*words, reference), 2, f"error: {reference}: found")


def test_a_factory_that_never_returns_is_ended() -> None:
    run = command("estimate", f"{HOSTILE}:never_returns", "--cluster", CLUSTER, "--user-code-limit", "3")
    check_one_error(run, 4, f"{HOSTILE}:never_returns: not done after 3 s", "--user-code-limit SECONDS")


def test_a_factory_that_takes_too_much_memory_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_process, "free_host_memory_bytes", lambda: 2**29)
    with pytest.raises(MachineError, match=r"eats_memory: ended when it had taken 0\.\d GiB of memory"):
        load_user_model(UserFactory(reference=f"{HOSTILE}:eats_memory"))


def test_a_module_whose_import_ends_the_process_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    run = command("estimate", "ends:build", "--cluster", CLUSTER, folder=tmp_path)
    check_one_error(run, 2, "ends:build: found code whose process ended itself with status 0")


def test_what_a_factory_prints_is_no_output_of_ours() -> None:
    run = command("estimate", f"{HOSTILE}:prints", "--cluster", CLUSTER, "--json")
    assert run.returncode == 0
    assert json.loads(run.stdout)["model"] == f"{HOSTILE}:prints"
    assert "printed" in run.stderr
    assert "written" in run.stderr


@pytest.fixture(scope="module")
def plan_of_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of a factory's model, as a colleague sends it."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    api.estimate(f"{HOSTILE}:good", cluster=CLUSTER, dp=2, global_batch=8, output=path)
    return path


@pytest.fixture
def hostile_plan(plan_of_code: Path, tmp_path: Path) -> Callable[[str], Path]:
    """The same plan with another model's reference."""

    def write(reference: str) -> Path:
        plan = load_plan(plan_of_code)
        save_plan(replace(plan, model=replace(plan.model, reference=reference)), tmp_path / "plan.json")
        return tmp_path / "plan.json"

    return write


READERS = [
    ("os:abort", ("estimate", "--plan", "PLAN")),
    ("beside:build", ("export", "PLAN", "--to", "deepspeed")),
    ("beside:build", ("run", "PLAN")),
    ("builtins:eval", ("plan", "gpt-tiny", "--cluster", CLUSTER, "--compare", "PLAN")),
]


@pytest.mark.parametrize(("reference", "words"), READERS, ids=lambda words: words[0])
def test_a_plan_runs_nothing(
    hostile_plan: Callable[[str], Path], tmp_path: Path, reference: str, words: tuple[str, ...]
) -> None:
    plan = str(hostile_plan(reference))
    (tmp_path / "beside.py").write_text("open('ran', 'w').close()\n")
    run = command(*(plan if word == "PLAN" else word for word in words), folder=tmp_path)
    check_one_error(
        run, 2, f"found '{reference}'", "a zoo name or a path to a config.json: code that a file names is not run"
    )
    assert (f"unless you name it too (--code {reference})" in run.stderr) == (words[0] != "run")
    assert not (tmp_path / "ran").exists()


def test_a_plan_runs_what_the_user_names_too(plan_of_code: Path) -> None:
    reference = f"{HOSTILE}:good"
    run = command("estimate", "--plan", str(plan_of_code), "--code", reference, "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["plan"]["model"]["reference"] == reference
    other = command("estimate", "--plan", str(plan_of_code), "--code", f"{HOSTILE}:aborts")
    check_one_error(other, 2, f"found '{reference}', where you name {HOSTILE}:aborts")


def test_code_is_named_as_code_and_beside_a_plan() -> None:
    with pytest.raises(InputError, match=r"--code: found 'gpt-tiny', expected package\.module:factory"):
        EstimateOptions(plan=Path("plan.json"), code=("gpt-tiny",))
    with pytest.raises(InputError, match="--code: found os:abort, expected --plan beside it"):
        EstimateOptions("gpt-tiny", cluster=CLUSTER, code=("os:abort",))


def test_a_trace_runs_nothing(tmp_path: Path) -> None:
    lines = TRACE.read_text().splitlines()
    columns = lines[0].split(",")
    cells = lines[1].split(",")
    cells[columns.index("model")] = "os:abort"
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([lines[0], ",".join(cells)]) + "\n")
    run = command("simulate", str(trace), "--cluster", "a40:8x2+a10:8x2", "--cells", str(tmp_path / "cells"))
    check_one_error(run, 2, "line 2: model: found 'os:abort'")


def test_files_beside_a_plan_are_not_imported_by_its_workers(tmp_path: Path) -> None:
    api.plan("gpt-tiny", cluster="a100-80gb:1x1", global_batch=2, seq_len=16, output=tmp_path / "plan.json")
    for name in ("json", "torch", "planner", "queue"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit('ran')\n")
    run = command("run", "plan.json", "--steps", "1", "--warm-up", "0", "--device", "cpu", "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / "ran").exists()


POLICY = f"{HOSTILE}:HostilePolicy"


def simulated(tmp_path: Path, how: str, *words: str) -> subprocess.CompletedProcess[str]:
    return command(
        *("simulate", str(TRACE), "--cluster", "a40:8x2+a10:8x2", "--head", "3", "--policy", POLICY),
        *("--option", f"how={how}", "--cells", str(tmp_path / "cells"), *words),
    )


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("end", "found code whose process ended itself with status 0, expected a policy"),
        ("patch", "found code that changes Python's own sum"),
        ("exit", "decide: found SystemExit: 3"),
        ("raise", "decide: found StopEverything: no more"),
    ],
)
def test_what_a_policy_does_is_one_error(tmp_path: Path, how: str, found: str) -> None:
    check_one_error(simulated(tmp_path, how), 2, POLICY, found)


def test_a_policy_that_never_decides_is_ended(tmp_path: Path) -> None:
    run = simulated(tmp_path, "stay", "--user-code-limit", "4")
    check_one_error(run, 4, f"policy {POLICY}: decide: not done after 4 s")


def test_a_policy_is_the_users_own_only_where_they_name_it() -> None:
    with pytest.raises(InputError, match=r"found os:abort, expected package\.module:Class, named on the command line"):
        make_policy("os:abort")
    with pytest.raises(InputError, match=r"expected package\.module:Class"):
        make_policy("os:abort", UserCode(named=(POLICY,)))
    options = SimulateOptions(TRACE, cluster="a40:8x2", policy=POLICY)
    assert options.user_code.factory(POLICY) == UserFactory(reference=POLICY)
    assert options.user_code.factory("os:abort") is None


def test_code_is_reached_by_one_gate() -> None:
    """Who makes a `UserFactory` or a `UserCode`, and who imports by a name that is no literal."""
    made = {
        "UserFactory(": {
            "models_zoo/user_code.py",
            "estimator/frontends/load_worker.py",
            "planner/many_jobs/policies/policy_worker.py",
        },
        "UserCode(": {"models_zoo/user_code.py", "planner/shared/options/code.py"},
        "import_module(": {
            "estimator/frontends/factory.py",
            "planner/cli/main.py",
            "planner/many_jobs/policies/catalogue.py",
            "planner/many_jobs/simulation/sweep.py",
            "planner/one_job/exporting/formats.py",
            "planner/one_job/tools/base/tool.py",
        },
        "__import__(": {"planner/one_job/tools/megatron/expressions.py"},
        "runpy": {"planner/one_job/launchers/ray.py"},
        "pickle": set(),
        "torch.load": set(),
        "joblib": set(),
        "marshal": set(),
        "allow_pickle": set(),
        "exec(": set(),
    }
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
    }
    assert {word: {name for name, text in texts.items() if word in text} for word in made} == made
