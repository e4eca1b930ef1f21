"""The command line: exit status, messages, where output goes, and that the Python interface is its twin."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from estimator.host.cpu import cpu_name
from models_zoo.catalogue import load_model
from models_zoo.model import without_dropout
from planner import api
from planner.cli import main as cli
from planner.cli import models
from planner.shared.plan_file import load_plan
from profiles.errors import InputError, MachineError, NothingFits
from profiles.measurements import DeviceRates, Measurement, MeasurementKey, canonical
from profiles.store import ProfileStore
from profiles.vocabulary import Shard
from tests.documents import document_of


def _raise(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (
            InputError(where="c.yaml", key="sites[0].name", found="3", expected="a name"),
            2,
            "c.yaml: sites[0].name: found 3",
        ),
        (NothingFits("1 stage lacks 3 GiB"), 3, "1 stage lacks 3 GiB"),
        (MachineError("worker 1 died\nwith signal 9"), 4, "worker 1 died with signal 9"),
        (OSError(28, "No space left on device", "store"), 4, "store: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
@pytest.mark.parametrize("output", [[], ["--json"]])
def test_each_failure_leaves_with_its_status_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    message: str,
    output: list[str],
) -> None:
    monkeypatch.setattr(api, "models_list", _raise(error))
    assert cli.main(["models", "list", *output]) == status
    captured = capsys.readouterr()
    if output:
        failure = json.loads(captured.out)["failure"]
        assert (failure["status"], failure["command"]) == (status, "models list")
        assert captured.err == f"cellplan: error: {failure['message']}\n"
    else:
        assert captured.out == ""
    assert captured.err.startswith(f"cellplan: error: {message}")
    assert captured.err.count("\n") == 1


def test_an_unexpected_exception_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "models_list", _raise(ZeroDivisionError("our own bug")))
    with pytest.raises(ZeroDivisionError, match="our own bug"):
        cli.main(["models", "list"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["modles"], "invalid choice: 'modles' (choose from"),
        (["models", "list", "--jso"], "unrecognized arguments: --jso"),
        (["estimate", "gpt-tiny"], "the following arguments are required: --cluster"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--devices", "0"], "--devices: found '0', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--stages", "1,,2"], "--stages: found '', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--global-batch", "1e3"], "found '1e3', expected a whole number"),
        (["estimate", "gpt-tiny", "--cluster", "c", "--dtype", "int4"], "--dtype: invalid choice: 'int4'"),
        (["profile", "gpt-tiny", "--budget", "-3"], "--budget"),
        (["profile", "gpt-tiny", "--budget", "nan"], "--budget: found 'nan', expected seconds above 0"),
        (["profile", "gpt-tiny", "--stage", "3:3"], "--stage: found '3:3', expected FIRST:END"),
        (["models", "show", "gpt9"], "found 'gpt9', expected a zoo name such as"),
        (
            ["hardware", "show", "a100-80bg"],
            "an unknown device 'a100-80bg', expected a device of the catalogue such as",
        ),
    ],
)
def test_wrong_words_are_answered_in_one_line(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("cellplan: error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_help_lists_the_commands_and_version_is_the_distribution_s(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert set(re.findall(r"^    (\w+)\b", shown, re.MULTILINE)) >= set(cli.COMMANDS)
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"cellplan {metadata.version('cellplan')}\n"


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"{sys.executable} -m planner.cli.main models list | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "Models\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_the_machine_s_failure() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "planner.cli.main", "models", "list"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 4
    assert done.stderr == "cellplan: error: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize(
    ("streams", "status"),
    [("2>&-", 2), ("2>/dev/full", 2), ("<&- >&- 2>&-", 2), (">/dev/full 2>/dev/full", 2)],
)
def test_what_cannot_be_said_leaves_with_its_status(streams: str, status: int) -> None:
    command = f"{sys.executable} -m planner.cli.main models show nosuch --json {streams}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert "Traceback" not in done.stderr


def test_a_closed_stream_is_no_other_file_s(tmp_path: Path) -> None:
    """What is opened next would have its number, and what is printed would end there."""
    words = f"estimate gpt-tiny --cluster a100-80gb:1x2 --tp 1 -o {tmp_path / 'plan.json'}"
    command = f"{sys.executable} -m planner.cli.main {words} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0
    assert load_plan(tmp_path / "plan.json").schema == "cellplan.plan/1"


def test_json_stands_alone_on_stdout_and_tables_fit_a_hundred_columns(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["models", "list"],
        ["models", "show", "gpt3-175b"],
        ["hardware", "list"],
        ["hardware", "show", "t4"],
    ):
        assert cli.main([*words, "--json"]) == 0
        json.loads(capsys.readouterr().out)
        assert cli.main(words) == 0
        assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


def test_alike_layers_share_a_row() -> None:
    layer = {"kind": "A", "parameters": 1, "forward_flops": 2, "backward_flops": 3, "saved_bytes": 4, "cut_bytes": 5}
    degrees = {"1": [], "2": "3 heads cannot be split in 2"}
    assert models._alike({**layer, "tp": degrees}) == ("A", "1", "2 FLOP", "3 FLOP", "4 B", "5 B", "1")


def _measured_store(path: Path) -> Path:
    """A store with made-up measurements of every shard of gpt-tiny that two workers with 8 samples an iteration use."""
    shard = Shard(seq_len=128, dtype="fp32")
    model = without_dropout(load_model("gpt-tiny"))  # as `run` trains it here
    ways = [replace(shard, tp=tp, micro_batch_per_rank=samples) for tp in (1, 2) for samples in (1, 2)]
    with ProfileStore(path) as store:
        store.put_rates(
            DeviceRates(
                device="cpu",
                hardware=cpu_name(),
                software="torch 2",
                threads=1,
                memory_bytes=2**33,
                memory_bandwidth_bytes_per_s=1e10,
                flops_per_s=(("fp32", 1e11),),
                flash_attention=True,
            )
        )
        for layer in dict.fromkeys(model.layers):
            for way in ways:
                time_s = way.micro_batch_per_rank / way.tp / 1000
                store.put(
                    MeasurementKey(
                        layers=(canonical(layer),),
                        shard=way,
                        optimizer="adamw",
                        threads=1,
                        device="cpu",
                        hardware=cpu_name(),
                        software="torch 2",
                    ),
                    Measurement(
                        forward_s=(time_s, 1.1 * time_s),
                        backward_s=(2 * time_s, 2 * time_s),
                        saved_bytes=1000,
                        peak_memory_bytes=2000,
                        parameters=1,
                    ),
                )
    return path


LOCAL = ("gpt-tiny", "--cluster", "local:1x2", "--dtype", "fp32", "--global-batch", "8")


def computing_s(cell: dict[str, Any]) -> float:
    """Of an iteration's seconds those of operators."""
    parts = ("gemm_s", "attention_s", "convolution_s", "memory_bound_s", "recompute_s", "launch_s")
    return float(sum(cell["breakdown"][part] for part in parts))


def test_an_estimate_from_measured_layers_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = _measured_store(tmp_path / "store")
    assert cli.main(["estimate", *LOCAL, "--store", str(store), "--stages", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (cell,) = result["cells"]
    needed = {"device", "devices", "stages", "iteration_time_s", "tokens_per_s_per_device", "peak_memory_bytes"}
    assert needed | {"fits", "assembly", "breakdown"} <= set(cell)
    assert (cell["device"], cell["devices"], cell["stages"], cell["fits"]) == ("cpu", 2, 1, True)
    assert cell["provenance"]["compute"] == "measured"
    assert not any("profiled" in sentence for sentence in result["assumptions"])
    # 6 layers at 3 ms a sample, 8 samples over 2 workers: either way 72 ms of compute.
    assert computing_s(cell) == pytest.approx(0.072)
    assert sum(cell["breakdown"].values()) == pytest.approx(cell["iteration_time_s"])


def test_layers_measured_on_another_cpu_or_with_other_threads_do_not_mix(tmp_path: Path) -> None:
    path = _measured_store(tmp_path / "store")
    with ProfileStore(path) as store:
        for profile in store.profiles():
            slow = replace(profile.measurement, forward_s=(9.0,), backward_s=(9.0,))
            store.put(replace(profile.key, threads=2), slow)
            store.put(replace(profile.key, hardware="another CPU", software="torch 9"), slow)
        store.put_rates(replace(store.contents().rates[0], hardware="another CPU", software="torch 9"))
    result = api.estimate("gpt-tiny", cluster="local:1x2", dtype="fp32", global_batch=8, store=path, stages=(1,))
    (cell,) = result["cells"]
    assert cell["provenance"]["compute"] == "measured"
    assert cell["mfu"] is None
    assert computing_s(cell) == pytest.approx(0.072)
    (said,) = (sentence for sentence in result["assumptions"] if "layer times of cpu measured on" in sentence)
    assert said.endswith("(torch 2, 1 thread); 1 more in the store not used")


def test_unmeasured_shards_come_with_the_command_that_measures_them(tmp_path: Path) -> None:
    path = _measured_store(tmp_path / "store")
    result = api.estimate("gpt-tiny", cluster="local:1x2", dtype="fp32", global_batch=256, micro_batch=64, store=path)
    (said,) = (sentence for sentence in result["assumptions"] if "profiled on cpu" in sentence)
    assert said.startswith("none of the shards that the best Cell needs (tp ")
    command = said.partition("`cellplan profile ")[2].partition("`")[0]
    arguments = cli.make_parser("profile").parse_args(["profile", *shlex.split(command)])
    assert (arguments.model, arguments.cluster, arguments.device) == ("gpt-tiny", "local:1x2", "cpu")
    assert (arguments.dtype, arguments.global_batch) == ("fp32", 256)


def test_a_device_that_the_cluster_lacks_is_not_profiled_for_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(_measured_store(tmp_path / "store"))
    assert cli.main(["profile", "gpt-tiny", "--cluster", "a100-80gb:1x2", "--device", "cpu", "--store", store]) == 2
    assert "--device: found cpu, expected a device of one of its types" in capsys.readouterr().err


def test_without_a_store_an_estimate_is_modelled_and_makes_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    assert (
        cli.main(["estimate", "gpt2-350m", "--cluster", "a100-80gb:1x2", "--store", str(store), "--assumptions"]) == 0
    )
    shown = capsys.readouterr().out
    assert "layer times modelled" in shown
    assert "none of the shards that the best Cell needs" in " ".join(shown.split())
    assert "`cellplan profile gpt2-350m --cluster a100-80gb:1x2 --device cuda:0" in " ".join(shown.split())
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert not store.exists()


def test_a_plan_is_the_same_in_the_file_on_stdout_and_from_python(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, path = _measured_store(tmp_path / "store"), tmp_path / "plan.json"
    assert cli.main(["plan", *LOCAL, "--store", str(store), "--json", "-o", str(path)]) == 0
    assert capsys.readouterr().out == path.read_text(encoding="utf-8")
    plan = api.plan("gpt-tiny", cluster="local:1x2", dtype="fp32", global_batch=8, store=store).plan
    assert load_plan(path) == plan
    assert plan.provenance.compute == "measured"
    assert plan.provenance.profile_ids
    assert plan.provenance.optimality_proved
    assert cli.main(["plan", *LOCAL, "--store", str(store)]) == 0
    assert max(len(line) for line in capsys.readouterr().out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["gpt-tiny", "--cluster", "local:1x2"], 2, "run `cellplan profile MODEL --device cpu` first"),
        (["gpt-tiny", "--cluster", "a100-80gb:0x8"], 2, "at least 1 node"),
        (["gpt-tiny", "--cluster", "a100-80gb:1x8", "--stages", "9"], 2, "--stages: found 9, expected from 1 to 6"),
        (["gpt-tiny", "--cluster", "a100-80gb:1x8", "--devices", "9"], 2, "--devices: found 9, expected from 1 to"),
        (["gpt-tiny", "--cluster", "a100-80gb:1x2", "--micro-batches", "7"], 2, "does not divide the global batch"),
        (["gpt-tiny", "--cluster", "a100-80gb:1x2", "--micro-batches", "x"], 2, "found 'x', expected a whole number"),
        (["gpt-tiny", "--cluster", "a100-80gb:1x2", "--seq-len", "99999"], 2, "128 learned positions"),
        (["resnet-50", "--cluster", "a100-80gb:1x2", "--seq-len", "8"], 2, "the model has no tokens"),
        (["no/such/config.json", "--cluster", "a100-80gb:1x2"], 2, "no/such/config.json"),
        (["gpt-tiny", "--cluster", "no/such/cluster.yaml"], 2, "no/such/cluster.yaml"),
    ],
)
def test_what_cannot_be_estimated_is_answered_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], status: int, message: str
) -> None:
    document = document_of(["estimate", *words, "--store", str(tmp_path / "none")], status, capsys)
    assert message in document["failure"]["message"]


def test_cells_that_do_not_fit_are_still_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "gpt3-175b", "--cluster", "a100-80gb:1x8", "--store", str(tmp_path / "none")]
    document = document_of(words, 3, capsys)
    assert "the nearest miss, 8 x a100-80gb, stages 1: " in document["failure"]["message"]
    cells = document["cells"]
    assert [cell["fits"] for cell in cells] == [False] * len(cells)
    assert min(cell["lacking_bytes"] for cell in cells if cell["lacking_bytes"]) > 0
    assert cli.main(words) == 3
    assert "not possible:" in capsys.readouterr().out


def test_a_plan_goes_into_a_folder_that_exists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "plan.json"
    assert cli.main(["plan", "gpt-tiny", "--cluster", "a100-80gb:1x2", "-o", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "plan: --output: found" in captured.err
    assert "expected a path in an existing folder" in captured.err


def test_the_store_goes_out_and_in_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, file = str(_measured_store(tmp_path / "store")), str(tmp_path / "file.json")
    assert cli.main(["profiles", "export", file, "--store", store, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"profiles": 12, "rates": 1, "link_tables": 0}
    other = str(tmp_path / "other")
    assert cli.main(["profiles", "import", file, "--store", other, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"added": 13, "kept": 0, "replaced": 0}
    assert cli.main(["profiles", "show", "--store", other, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 12
    assert cli.main(["profiles", "export", file, "--store", str(tmp_path / "none")]) == 2


def test_nccl_tests_output_becomes_link_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = """
# nThread 1 nGpus 2 minBytes 1024 maxBytes 4096 step: 4(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#  Rank  0 Group  0 Pid 1 on node1 device  0 [0x07] NVIDIA A100-SXM4-80GB
#  Rank  1 Group  0 Pid 1 on node1 device  1 [0x0a] NVIDIA A100-SXM4-80GB
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    10.00    0.10    0.10      0    10.00    0.10    0.10      0
        4096          1024     float     sum      -1    16.00    0.26    0.26      0    16.00    0.26    0.26      0
"""
    file, store = tmp_path / "out.txt", str(tmp_path / "store")
    file.write_text(text, encoding="utf-8")
    words = ["--link", "nvswitch3", "--store", store]
    assert cli.main(["comm", "fit", str(file), "--op", "all_reduce", *words, "--json"]) == 0
    (table,) = json.loads(capsys.readouterr().out)
    assert (table["op"], table["ranks"], table["nodes"]) == ("all_reduce", 2, 1)
    assert table["alpha_s"] == pytest.approx(8e-6)
    assert table["beta_s_per_byte"] == pytest.approx(6e-6 / 3072)
    assert cli.main(["comm", "show", "--size", "2048", *words, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert shown["seconds"]["alpha-beta"] == pytest.approx(12e-6)
    assert shown["seconds"]["interpolate"] == pytest.approx((10e-6 * 16e-6) ** 0.5)
    assert cli.main(["comm", "show", *words]) == 0
    assert "nvswitch3" in capsys.readouterr().out


def test_a_profile_run_measures_once_and_compares_the_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "profile",
        "gpt-tiny",
        "--dtype",
        "fp32",
        "--seq-len",
        "8",
        "--stage",
        "1:2",
        "--store",
        str(tmp_path / "s"),
    ]
    assert cli.main([*words, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (layer,), (stage,) = result["layers"], result["stages"]
    assert (layer["name"], layer["measured"], result["measured"], result["reused"]) == ("block.0", True, 1, 0)
    assert stage["layers_forward_s"] == layer["forward_s"]
    assert stage["ratio"] > 0
    assert cli.main(words) == 0
    shown = capsys.readouterr().out
    assert "0 measured, 1 already in the store" in shown
    assert max(len(line) for line in shown.splitlines()) <= 80


def _documented_commands() -> Iterator[list[str]]:
    root = Path(__file__).resolve().parents[2]
    for name in ("README.md", "Makefile"):
        text = (root / name).read_text(encoding="utf-8").replace("\\\n", " ").replace("&&", "\n")
        for line in text.splitlines():
            words = line.strip().removeprefix("$ ").removeprefix("$(BIN)/")
            if words.startswith("cellplan "):
                yield shlex.split(words, comments=True)[1:]


def test_the_commands_of_readme_and_makefile_are_ones_that_exist() -> None:
    commands = list(_documented_commands())
    assert len(commands) > 10
    for words in commands:
        cli.make_parser(words[0]).parse_args(words)
