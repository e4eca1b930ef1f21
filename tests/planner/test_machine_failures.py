"""Full disks, homes that cannot be written or are none, stores of other versions: one message, the exit status that
says whose fault it is, and nothing lost."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from planner.cli.main import main
from planner.many_jobs.scheduling.cell_book import EstimatedCells
from profiles.errors import MachineError
from profiles.store import ProfileStore
from tests.processes import all_running

ROOT = Path(__file__).parents[2]
TRACE = str(ROOT / "planner" / "many_jobs" / "traces" / "small.csv")
SIMULATE = ["simulate", TRACE, "--cluster", "a40:4x2", "--head", "5"]
FIT = ["comm", "fit", "--link", "nvswitch4"]
NCCL = """
#  Rank  0 Group  0 Pid 1 on node device  0 [0x00] NVIDIA H100
#  Rank  1 Group  0 Pid 2 on node device  1 [0x00] NVIDIA H100
#       size         count      type   redop     time   algbw   busbw
        1024           256     float     sum    10.00    0.10    0.10
     1048576        262144     float     sum    50.00   20.97   20.97
"""


def said(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit status, and what stands on standard error, at most one line."""
    status = main(list(words))
    error = capsys.readouterr().err
    assert error.count("\n") == (status != 0), error
    return status, error


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without HOME whom the system does not know either."""

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("CELLPLAN_STORE", "XDG_DATA_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)


@pytest.fixture
def no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home in which no folder can be made, not by root either."""
    (tmp_path / "home").touch()
    monkeypatch.delenv("CELLPLAN_STORE")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.usefixtures("homeless")
def test_without_a_home_what_only_reads_goes_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert said(["estimate", "gpt-tiny", "--cluster", "a100-80gb:1x1"], capsys) == (0, "")
    assert said(SIMULATE, capsys) == (0, "")
    status, message = said(["profile", "gpt-tiny", "--budget", "1"], capsys)
    assert status == 4
    assert message.endswith("this user has no home folder; name a file by --store or $CELLPLAN_STORE\n")
    assert said([*FIT, str(nccl_file(tmp_path)), "--op", "all_reduce", "--store", str(tmp_path / "s")], capsys)[0] == 0


def nccl_file(folder: Path) -> Path:
    (folder / "nccl.txt").write_text(NCCL, encoding="utf-8")
    return folder / "nccl.txt"


def test_in_a_home_that_cannot_be_written_what_only_reads_goes_on(
    no_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said(["estimate", "gpt-tiny", "--cluster", "a100-80gb:1x1"], capsys) == (0, "")
    assert said(SIMULATE, capsys) == (0, "")
    status, message = said(["profile", "gpt-tiny", "--budget", "1"], capsys)
    assert (status, str(no_folder) in message) == (4, True)
    assert "name a file elsewhere by --store or $CELLPLAN_STORE" in message


def test_cells_that_can_no_more_be_kept_cost_no_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The disk is full by the end of the run. Where it is at its beginning, that is said before the work."""
    saved: list[Path] = []

    def save(_: EstimatedCells, folder: Path) -> None:
        saved.append(folder)
        if len(saved) > 1:
            raise MachineError("disk full")

    monkeypatch.setattr(EstimatedCells, "save", save)
    words = [*SIMULATE, "--cells", str(tmp_path), "--jobs-csv", str(tmp_path / "jobs.csv")]
    assert said(words, capsys)[0] == 0
    assert len(saved) == 2
    assert len((tmp_path / "jobs.csv").read_text(encoding="utf-8").splitlines()) == 6
    assert said(words, capsys) == (4, "cellplan: error: disk full\n")


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "gpt-tiny", "--cluster", "a100-80gb:1x2", "-o", "OUT"],
        [*SIMULATE, "--jobs-csv", "OUT"],
        ["jct", "train", TRACE, "-o", "OUT"],
    ],
)
def test_a_full_disk_leaves_the_old_file(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    output = tmp_path / "out"
    output.write_text("old", encoding="utf-8")
    monkeypatch.setattr(EstimatedCells, "save", lambda *_: None)
    monkeypatch.setattr(os, "fsync", fail)
    status, message = said([str(output) if word == "OUT" else word for word in words], capsys)
    assert (status, message) == (4, f"cellplan: error: {output}: could not be written: No space left on device\n")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert output.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("words", [["comm", "show"], ["estimate", "gpt-tiny", "--cluster", "a100-80gb:1x1"]])
def test_a_store_of_a_newer_version_is_left_as_it_is(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "store.sqlite"
    ProfileStore(store).close()
    with closing(sqlite3.connect(store)) as database:
        database.execute("PRAGMA user_version = 99")
        database.commit()
    before = store.read_bytes()
    status, message = said([*words, "--store", str(store)], capsys)
    assert status == 2
    assert "found version 99, written by another version of cellplan" in message
    assert store.read_bytes() == before


def test_two_at_once_keep_what_both_have_measured(tmp_path: Path) -> None:
    """On a store that neither has found there."""
    store = tmp_path / "store.sqlite"
    nccl_file(tmp_path)
    command = [sys.executable, "-m", "planner.cli.main", "comm", "fit", str(tmp_path / "nccl.txt")]
    commands = [[*command, "--op", "all_reduce", "--link", link, "--store", str(store)] for link in "abcd"]
    with all_running(commands, cwd=ROOT, stdout=subprocess.DEVNULL) as started:
        assert [process.wait() for process in started] == [0] * 4
    with ProfileStore(store) as opened:
        opened.check()
        assert [table.link for table in opened.link_tables()] == list("abcd")


def test_two_at_once_on_one_checkpoint_come_to_what_one_comes_to(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = (f"{number},{number * 600},{900 + number % 7 * 300},1,bert-mini,32" for number in range(300))
    trace = tmp_path / "trace.csv"
    header = "job_id,submit_time_s,duration_s,gpus,model,global_batch"
    trace.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    words = ["simulate", str(trace), "--cluster", "a40:1x2", "--cells", str(tmp_path / "cells")]
    (tmp_path / "cells").mkdir()
    assert said([*words, "--jobs-csv", str(tmp_path / "alone.csv")], capsys) == (0, "")
    words += ["--checkpoint", str(tmp_path / "checkpoint"), "--checkpoint-every", "0", "--resume"]
    command = [sys.executable, "-m", "planner.cli.main", *words, "--jobs-csv", str(tmp_path / "both.csv")]
    with all_running([command] * 2, cwd=ROOT, stdout=subprocess.DEVNULL) as started:
        assert [process.wait() for process in started] == [0, 0]
    assert (tmp_path / "both.csv").read_bytes() == (tmp_path / "alone.csv").read_bytes()
    assert not list(tmp_path.glob(".cellplan-*"))


ON_A_FULL_DISK = """
import os, sys
from planner.cli.main import main
os.chdir(sys.argv[1])
plan = ["plan", "gpt-tiny", "--cluster", "a100-80gb:1x2"]
fit = ["comm", "fit", sys.argv[2], "--op", "all_reduce", "--link", "mine", "--store"]
for words in ([*plan, "-o", "plan.json"], [*fit, "store"], [*plan, "--store", "none", "--json"]):
    print(main(words), sorted(os.listdir()), file=sys.stderr)
"""


def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """A file system of one page, for this process alone."""
    (tmp_path / "disk").mkdir()
    mounted = f"mount -t tmpfs -o size=4k,nr_inodes=9 none {tmp_path / 'disk'} && echo mounted >&2 &&"
    run = f'exec "{sys.executable}" -c "$0" {tmp_path / "disk"} {nccl_file(tmp_path)}'
    command = ["unshare", "--mount", "sh", "-c", f"{mounted} {run}", ON_A_FULL_DISK]
    if shutil.which("unshare") is None:
        pytest.skip("this system has no unshare")
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    if "mounted" not in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")

    _, plan, after_plan, store, after_store, after_none = done.stderr.splitlines()
    assert plan == "cellplan: error: plan.json: could not be written: No space left on device"
    assert after_plan == "4 []"
    assert store.startswith("cellplan: error: store: ")
    assert "full" in store
    assert after_store.startswith("4 ")
    assert after_none.startswith("0 ")
    assert not list((tmp_path / "disk").iterdir())
