"""A file is data, and code that the user names runs apart: hostile plans and hostile modules, by the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from bench.killed.processes import is_running
from estimator.frontends.load import load_user_model
from estimator.host import user_process
from models_zoo.user_code import UserFactory
from planner import api
from planner.cli.main import main
from planner.many_jobs.policies.catalogue import make_policy
from planner.many_jobs.simulation.run import simulate_trace
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.simulate import SimulateOptions
from planner.shared.plan_file import load_plan, save_plan
from profiles.errors import InputError, MachineError
from tests.hostile_modules import RUNAWAY
from tests.imports import PRODUCT, ROOT

HOSTILE = "tests.hostile_modules"
CLUSTER = "a100-80gb:1x2"
TRACE = ROOT / "planner" / "many_jobs" / "traces" / "small.csv"


class Run(NamedTuple):
    """What a command came to."""

    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Run]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """`cellplan` in this very process, which code of the user's therefore must not harm."""

    def run(*words: str, folder: Path = ROOT) -> Run:
        monkeypatch.chdir(folder)
        status = main(words)
        printed = capsys.readouterr()
        return Run(status, printed.out, printed.err)

    return run


def check_one_error(run: Run, status: int, *said: str) -> None:
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
        ("closes_all_files", "code whose process ended itself with status 0"),
        ("ends_its_parent", "code whose process died of SIGTERM"),
        ("recurses", "RecursionError"),
        ("recurses_past_the_limit", "code whose process died of SIGSEGV"),
        ("leaves_a_child", "code whose process ended itself with status 0"),
    ],
)
def test_what_a_factory_does_to_its_process_is_one_error(command: Command, factory: str, found: str) -> None:
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
def test_every_command_that_takes_a_factory_runs_it_apart(
    command: Command, reference: str, words: tuple[str, ...]
) -> None:
    check_one_error(command(*words, reference), 2, f"error: {reference}: found")


@pytest.mark.parametrize("factory", ["never_returns", "holds_the_interpreter"])
def test_a_factory_that_never_returns_is_ended(command: Command, factory: str) -> None:
    run = command("estimate", f"{HOSTILE}:{factory}", "--cluster", CLUSTER, "--user-code-limit", "3")
    check_one_error(run, 4, f"{HOSTILE}:{factory}: not done after 3 s", "--user-code-limit SECONDS")


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        ("eats_memory", r"eats_memory: ended when it had taken 0\.\d GiB of memory, of which 0\.2 GiB"),
        ("eats_memory_in_parts", r"ended when it had taken 0\.\d GiB of memory over \d processes"),
        ("starts_many", r"starts_many: ended when it had started \d+ processes, of which 12 may run here"),
        ("kills_its_parent", r"kills_its_parent: its process was killed"),
    ],
)
def test_a_factory_that_takes_too_much_is_ended(
    factory: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(user_process, "free_host_memory_bytes", lambda: 2**29 - 2**26)
    monkeypatch.setattr(user_process, "MOST_PROCESSES", 12)
    monkeypatch.setenv(RUNAWAY, str(tmp_path / "pid"))
    with pytest.raises(MachineError, match=said):
        load_user_model(UserFactory(reference=f"{HOSTILE}:{factory}"))


def test_a_flood_of_prints_is_cut_off(command: Command) -> None:
    run = command("estimate", f"{HOSTILE}:floods", "--cluster", CLUSTER)
    check_one_error(run, 2, "code whose process ended itself with status 0")
    assert f"{HOSTILE}:floods: what it prints beyond 1 MiB is left out" in run.stderr
    assert len(run.stderr) < 2**20 + 2**10


def gone(pid_file: Path) -> bool:
    """Whether the process that a test's code wrote into the file has ended."""
    return not is_running(int(pid_file.read_text()))


@pytest.mark.parametrize("how", ["run away", "run away and stay", "kill"])
def test_what_a_policy_has_started_ends_with_it(
    simulated: Command, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is nobody's child, in a session of its own, and has nothing in its environment."""
    monkeypatch.setenv(RUNAWAY, str(tmp_path / "pid"))
    assert simulated(how, "--user-code-limit", "2").returncode == {"run away": 0}.get(how, 4)
    assert gone(tmp_path / "pid")


def test_a_module_whose_import_ends_the_process_is_one_error(command: Command, tmp_path: Path) -> None:
    (tmp_path / "ends.py").write_text("import os\nos._exit(0)\n")
    run = command("estimate", "ends:build", "--cluster", CLUSTER, folder=tmp_path)
    check_one_error(run, 2, "ends:build: found code whose process ended itself with status 0")


def test_what_a_factory_prints_is_no_output_of_ours_and_what_it_starts_does_not_stay(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(RUNAWAY, str(tmp_path / "pid"))
    run = command("estimate", f"{HOSTILE}:prints", "--cluster", CLUSTER, "--json")
    assert run.returncode == 0
    assert gone(tmp_path / "pid")
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
    command: Command, hostile_plan: Callable[[str], Path], tmp_path: Path, reference: str, words: tuple[str, ...]
) -> None:
    plan = str(hostile_plan(reference))
    (tmp_path / "beside.py").write_text("open('ran', 'w').close()\n")
    run = command(*(plan if word == "PLAN" else word for word in words), folder=tmp_path)
    check_one_error(
        run, 2, f"found '{reference}'", "a zoo name or a path to a config.json: code that a file names is not run"
    )
    assert (f"unless you name it too (--code {reference})" in run.stderr) == (words[0] != "run")
    assert not (tmp_path / "ran").exists()


def test_a_plan_runs_what_the_user_names_too(command: Command, plan_of_code: Path) -> None:
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


def test_a_trace_runs_nothing(command: Command, tmp_path: Path) -> None:
    lines = TRACE.read_text().splitlines()
    columns = lines[0].split(",")
    cells = lines[1].split(",")
    cells[columns.index("model")] = "os:abort"
    trace = tmp_path / "trace.csv"
    trace.write_text("\n".join([lines[0], ",".join(cells)]) + "\n")
    run = command("simulate", str(trace), "--cluster", "a40:8x2+a10:8x2", "--cells", str(tmp_path / "cells"))
    check_one_error(run, 2, "line 2: model: found 'os:abort'")


def test_files_beside_a_plan_are_not_imported_by_its_workers(command: Command, tmp_path: Path) -> None:
    api.plan("gpt-tiny", cluster="a100-80gb:1x1", global_batch=2, seq_len=16, output=tmp_path / "plan.json")
    for name in ("json", "torch", "planner", "queue"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\nraise SystemExit('ran')\n")
    run = command("run", "plan.json", "--steps", "1", "--warm-up", "0", "--device", "cpu", "--json", folder=tmp_path)
    assert run.returncode == 0, run.stderr
    assert not (tmp_path / "ran").exists()


POLICY = f"{HOSTILE}:HostilePolicy"


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where all these simulations keep Cells."""
    return tmp_path_factory.mktemp("cells")


@pytest.fixture
def simulated(command: Command, cells: Path) -> Command:
    """A simulation with the hostile policy."""

    def run(how: str, *words: str) -> Run:
        return command(
            *("simulate", str(TRACE), "--cluster", "a40:8x2+a10:8x2", "--head", "3", "--policy", POLICY),
            *("--option", f"how={how}", "--cells", str(cells), *words),
        )

    return run


POLICY_ENDS = {
    "end": "making it: found code whose process ended itself with status 0, expected a policy",
    "patch": "making it: found code that changes Python's own sum",
    "exit": "decide: found SystemExit: 3",
    "end later": "decide: found code whose process ended itself with status 0, expected a policy that decides",
    "abort": "decide: found code whose process died of SIGABRT",
    "raise": "decide: found StopEverything: no more",
    "interrupt": "decide: found KeyboardInterrupt",
    "patch later": "decide: found code that changes Python's own len",
    "close": "decide: found code that closed what it was to answer by",
    "read": "at 0 s: found EOFError",
}


@pytest.mark.parametrize("how", POLICY_ENDS)
def test_what_a_policy_does_is_one_error(simulated: Command, how: str) -> None:
    check_one_error(simulated(how), 2, POLICY if how != "read" else "policy hostile", POLICY_ENDS[how])


@pytest.mark.parametrize("how", ["stay", "hold"])
def test_a_policy_that_never_decides_is_ended(simulated: Command, how: str) -> None:
    run = simulated(how, "--user-code-limit", "1")
    check_one_error(run, 4, f"policy {POLICY}: decide: not done after 1 s", "--user-code-limit SECONDS")


def test_a_policy_that_takes_too_much_memory_is_ended(simulated: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    # A fork of this process has what others of its tests took, of which its counting of references copies some.
    monkeypatch.setattr(user_process, "free_host_memory_bytes", lambda: 2**32)
    check_one_error(simulated("eat"), 4, "decide: ended when it had taken 2.", "GiB of memory")


@pytest.mark.parametrize("how", ["print", "fork", ""])
def test_what_does_no_harm_changes_no_result(simulated: Command, command: Command, cells: Path, how: str) -> None:
    """A fork of the policy's own is told apart from the process that answers."""
    run = simulated(how, "--json")
    assert run.returncode == 0, run.stderr
    assert ("printed" in run.stderr) == (how == "print")
    words = ("simulate", str(TRACE), "--cluster", "a40:8x2+a10:8x2", "--head", "3", "--cells", str(cells), "--json")
    same = [json.loads(text) | {"policy": "", "timing": None} for text in (run.stdout, command(*words).stdout)]
    assert same[0] == same[1]


def test_a_users_policy_has_the_files_of_any_other(command: Command, cells: Path, tmp_path: Path) -> None:
    shown = ("--jobs-csv", "--series-csv", "--timeline")
    texts = []
    for name, policy in (("theirs", POLICY), ("ours", "fcfs")):
        (tmp_path / name).mkdir()
        files = [word for flag in shown for word in (flag, str(tmp_path / name / f"{flag[2:]}.json"))]
        words = ("simulate", str(TRACE), "--cluster", "a40:8x2+a10:8x2", "--cells", str(cells), "--head", "3")
        assert command(*words, "--policy", policy, *files).returncode == 0
        texts.append([(tmp_path / name / f"{flag[2:]}.json").read_text().replace("hostile", "fcfs") for flag in shown])
    assert texts[0] == texts[1]


def test_a_users_policy_stops_with_a_checkpoint(cells: Path, tmp_path: Path) -> None:
    trace, checkpoint = tmp_path / "trace.csv", tmp_path / "checkpoint.json"
    rows = (f"{number},{number * 600},{900 + number % 7 * 300},1,bert-mini,32" for number in range(1000))
    header = "job_id,submit_time_s,duration_s,gpus,model,global_batch"
    trace.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    told: list[int] = []
    options = SimulateOptions(
        trace,
        cluster="a40:1x2",
        policy=POLICY,
        cells_file=cells,
        checkpoint=checkpoint,
        resume=True,
        progress=lambda done, *_: told.append(done),
        stop=lambda: True,
    )
    with pytest.raises(KeyboardInterrupt):
        simulate_trace(options)
    assert checkpoint.exists()
    assert 0 < told[0] < 1000
    resumed = simulate_trace(replace(options, stop=None)).result
    whole = simulate_trace(replace(options, stop=None, checkpoint=None, resume=False)).result
    assert resumed.summary == whole.summary
    assert resumed.table.end_s == whole.table.end_s


def test_a_policy_is_the_users_own_only_where_they_name_it() -> None:
    with pytest.raises(InputError, match=r"found os:abort, expected package\.module:Class, named on the command line"):
        make_policy("os:abort")
    options = SimulateOptions(TRACE, cluster="a40:8x2", policy=POLICY)
    assert options.user_code.factory(POLICY) == UserFactory(reference=POLICY)
    assert options.user_code.factory("os:abort") is None


def test_code_is_reached_by_one_gate() -> None:
    """Who makes a `UserFactory` or a `UserCode`, and who imports by a name that is no literal."""
    made = {
        "UserFactory(": {
            "models_zoo/user_code.py",
            "estimator/frontends/load_worker.py",
            # Names for objects that a Python user handed over: nothing is imported by them.
            "estimator/frontends/jax_function.py",
            "estimator/frontends/live.py",
            "estimator/frontends/torch_module.py",
        },
        "UserCode(": {"models_zoo/user_code.py", "planner/shared/options/code.py"},
        "import_module(": {
            "cellplan/__init__.py",
            "estimator/frontends/factory.py",
            "planner/cli/arrays.py",
            "planner/cli/main.py",
            "planner/many_jobs/simulation/sweep.py",
            "planner/one_job/exporting/formats.py",
            "planner/one_job/tools/base/tool.py",
            "planner/shared/made_by_name.py",
        },
        "__import__(": {"planner/one_job/tools/megatron/expressions.py"},
        "runpy": {"planner/one_job/launchers/ray.py"},
        "pickle": set(),
        "torch.load": set(),
        "joblib": set(),
        "marshal": set(),
        "allow_pickle": set(),
        "exec(": {"profiles/record_methods.py"},  # methods of records, from their fields' names, as the library has it
    }
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for package in PRODUCT
        for path in (ROOT / package).rglob("*.py")
    }
    assert {word: {name for name, text in texts.items() if word in text} for word in made} == made
