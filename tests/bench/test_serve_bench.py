"""Hostile requests to the server of the page: a short form of `python -m bench.serve`, and what the judge sees."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.serve.hostile import MAKERS, Request, Target, make_request
from bench.serve.judge import bait, by_kind, good_request, judge, left_behind, serving
from planner.cli import serve_server
from planner.cli.serve_server import PageServer
from planner.shared.options.serve import ServeOptions

SLOW = "slow"
"""A kind that takes as long as the server gives it; the others take milliseconds."""


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[PageServer, Path]]:
    with bait() as folder, serving(ServeOptions(call_limit=10.0), request_s=0.5) as server:
        yield server, folder


def target_of(server: PageServer) -> Target:
    return Target(port=server.server_address[1], token=server.token)


def test_hostile_requests_bring_nothing_about(served: tuple[PageServer, Path]) -> None:
    server, folder = served
    target, threads = target_of(server), threading.active_count()
    kinds = list(MAKERS)
    numbers = [number for number in range(6 * len(kinds)) if kinds[number % len(kinds)] != SLOW or number < len(kinds)]
    answers = [judge(number, make_request(number, 3, target), target) for number in numbers]
    assert [answer for answer in answers if answer.wrong] == []
    assert {row[0] for row in by_kind(answers)} == set(kinds)
    assert left_behind(folder) == []
    assert good_request(target) < 60
    # One for each process that answers, and nobody for a connection that is over.
    assert threading.active_count() <= threads + 4


def test_what_drips_is_given_up(served: tuple[PageServer, Path]) -> None:
    target = target_of(served[0])
    dripping = Request(kind=SLOW, pieces=tuple(b"G" for _ in range(20)), pause_s=0.1)
    answer = judge(0, dripping, target)
    assert answer.status == 0
    assert answer.wrong == ()


def test_the_judge_sees_what_is_wrong(served: tuple[PageServer, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    target = target_of(served[0])
    page = f"GET /{target.token}/ HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\n\r\n".encode()
    assert judge(0, Request(kind="paths", pieces=(page,)), target).wrong == ("it succeeded",)

    def leaking() -> str:
        return f"Traceback {target.token}"

    monkeypatch.setattr(serve_server, "_app", leaking)
    wrong = judge(0, Request(kind="paths", pieces=(page,), may_succeed=True), target).wrong
    assert wrong == ("the answer holds 'Traceback'", "the answer holds the random word")

    def broken() -> str:
        raise ValueError(target.token)

    monkeypatch.setattr(serve_server, "_app", broken)
    assert judge(0, Request(kind="paths", pieces=(page,)), target).wrong == ("status 500",)
