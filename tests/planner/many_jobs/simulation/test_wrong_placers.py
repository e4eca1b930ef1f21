"""What is wrong with a rule of placement is said before a trace is read; one of the user's that errs stops the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.cli.main import main

TRACE = "job_id,submit_time_s,duration_s,gpus\na,0,600,2\nb,10,600,2\nc,20,600,2\n"
LINE = ("--cluster", "a100-80gb:2x4", "--no-model", "keep-durations", "--policy", "fcfs")
RULES = """
from planner.many_jobs.placers.records import Later


class Twice:
    name = "twice"

    def place(self, nodes, request):
        return ((0, 1), (0, request.devices - 1))


class Held:
    name = "held"

    def place(self, nodes, request):
        return ((0, request.devices),)
"""


def _said(line: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = main(line)
    return status, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("rule", [["--placer", "titan"], ["--placers", "titan,best-fit"]])
def test_titans_share_wants_prices(rule: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Before the trace is read, which there is not."""
    share = "share=0.1" if rule[0] == "--placer" else "titan.share=0.1"
    line = ["simulate", "no-trace.csv", *LINE, *rule, "--placer-option", share]
    status, said = _said(line, capsys)
    assert status == 2
    assert "--placer-option: found titan with share=0.1, expected --placement-cost estimate beside it" in said


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (["--placer", "tytan"], "--placer: found tytan, expected one of arnold, best-fit"),
        (["--placer", "titan", "--placer-option", "share=much"], "--placer-option"),
        (["--placer", "titan", "--placer-option", "reading=pairs"], "reading=pairs without a share"),
        (["--placer", "random", "--placer-option", "seed=one"], "--placer-option"),
        (["--placer", "ours", "--placer-option", "wait=3"], "true or false"),
    ],
)
def test_what_is_no_rule_and_no_option_is_refused(
    rule: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = _said(["simulate", "no-trace.csv", *LINE, *rule], capsys)
    assert status == 2
    assert expected in said
    assert "Traceback" not in said


@pytest.mark.parametrize(("rule", "job"), [("Twice", "a"), ("Held", "c")])
def test_a_rule_that_gives_a_device_twice_or_a_held_one_is_named(
    rule: str, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_rules.py").write_text(RULES, encoding="utf-8")
    (tmp_path / "t.csv").write_text(TRACE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    status, said = _said(["simulate", str(tmp_path / "t.csv"), *LINE, "--placer", f"my_rules:{rule}"], capsys)
    assert status == 2
    assert f"placer {rule.lower()} at " in said
    assert f"job {job}" in said
