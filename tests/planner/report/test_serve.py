"""The server of the page: what it answers, what it refuses, and that nothing of a request is a path or is run."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from planner.cli.main import main
from planner.cli.serve_fields import FieldError, read_fields
from planner.cli.serve_server import MOST_BODY_BYTES, PageServer
from planner.cli.serve_work import BusyError
from tests.planner.report.serving import serving

WAIT_S = 120.0
SMALL = {"model": "gpt2-350m", "cluster": "a100-80gb:1x4", "global_batch": "64"}


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    with serving() as running:
        yield running


def _ask(
    server: PageServer, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes, Mapping[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=WAIT_S)
    try:
        connection.request(method, path, body=body, headers=dict(headers or {}))
        reply = connection.getresponse()
        return reply.status, reply.read(), dict(reply.getheaders())
    finally:
        connection.close()


def _post(server: PageServer, path: str, value: object) -> Any:
    headers = {"Content-Type": "application/json"}
    status, content, _ = _ask(server, "POST", f"/{server.token}/{path}", json.dumps(value).encode(), headers)
    assert status == 200, content
    return json.loads(content)


def _get(server: PageServer, path: str) -> tuple[int, bytes]:
    status, content, _ = _ask(server, "GET", f"/{server.token}/{path}")
    return status, content


def _searched(server: PageServer, values: Mapping[str, str], until: str = "done") -> Any:
    name = _post(server, "search", values)["id"]
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        state = json.loads(_get(server, f"search/{name}")[1])
        if state["state"] == until:
            return state
        time.sleep(0.05)
    raise AssertionError(state)


def test_the_page_runs_its_own_scripts_alone(server: PageServer) -> None:
    status, page, headers = _ask(server, "GET", f"/{server.token}/")
    assert status == 200
    assert b"http" not in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["Referrer-Policy"] == "no-referrer"
    for name in ("vega.min.js", "vega-lite.min.js", "page.js", "app.js"):
        assert f'src="static/{name}"'.encode() in page
        assert _get(server, f"static/{name}")[0] == 200


def test_an_estimate_is_what_the_command_says(
    server: PageServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = _post(server, "estimate", SMALL | {"tp": "2"})
    words = ["estimate", SMALL["model"], "--cluster", SMALL["cluster"], "--global-batch", "64", "--tp", "2", "--json"]
    assert main([*words, "--report", str(tmp_path / "page.html")]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert json.loads(_get(server, f"result/{shown['id']}/answer.json")[1]) == answer
    assert shown["plan"] is True
    assert "gpt2-350m on a100-80gb:1x4" in shown["content"]
    assert b"<!doctype html>" in _get(server, f"result/{shown['id']}/report.html")[1]


def test_without_degrees_it_is_the_cells(server: PageServer) -> None:
    shown = _post(server, "estimate", SMALL)
    assert shown["plan"] is False
    assert "cells" in json.loads(_get(server, f"result/{shown['id']}/answer.json")[1])


def test_a_config_stands_in_the_models_place(server: PageServer) -> None:
    path = Path(__file__).resolve().parents[3] / "models_zoo" / "configs" / "llama-3-8b.json"
    values = {"config": path.read_text(encoding="utf-8"), "cluster": "h100:1x8", "tp": "2", "global_batch": "64"}
    shown = _post(server, "estimate", values)
    assert json.loads(_get(server, f"result/{shown['id']}/answer.json")[1])["plan"]["model"]["sizes"]["hidden"] == 4096


def test_a_search_is_exported_for_a_tool(server: PageServer) -> None:
    state = _searched(server, SMALL)
    (file,) = _post(server, f"result/{state['id']}/export", {"to": "megatron"})["files"]
    assert "--num-layers 24" in file["text"]
    refused = _post(server, f"result/{state['id']}/export", {"to": "nosuch"})["failure"]
    assert "nosuch" in refused["message"]


def test_a_search_is_cancelled_and_the_next_is_answered(server: PageServer) -> None:
    name = _post(server, "search", {"model": "deepseek-v3", "cluster": "h100:32x8"})["id"]
    _post(server, f"search/{name}/cancel", {})
    end = time.monotonic() + WAIT_S
    while (state := json.loads(_get(server, f"search/{name}")[1]))["state"] == "running":
        assert time.monotonic() < end
        time.sleep(0.05)
    assert state["state"] == "cancelled"
    assert _get(server, f"result/{name}/report.html")[0] == 404
    assert _post(server, "estimate", SMALL | {"tp": "2"})["plan"] is True


@pytest.mark.parametrize(
    ("values", "field", "said"),
    [
        ({"tp": "x"}, "tp", "found 'x'"),
        ({"tp": "3"}, "", "3"),
        ({"cluster": "h100:1y8"}, "cluster", "such as h100:2x8"),
        ({"cluster": "/etc/passwd.yaml"}, "cluster", "such as h100:2x8"),
        ({"cluster": "h100:1x8@/etc/passwd"}, "cluster", "such as h100:2x8"),
        ({"model": "/etc/passwd"}, "model", "a name such as"),
        ({"model": "../../etc/passwd"}, "model", "a name such as"),
        ({"model": "os.path:join"}, "model", "a name such as"),
        ({"model": ""}, "model", "expected some text"),
        ({"model": "--help"}, "model", "a name such as"),
        ({"config": "[1]"}, "config", "expected an object"),
        ({"config": "{"}, "config", "no JSON"),
        ({"config": '{"model_type": "nosuch"}'}, "", "nosuch"),
        ({"store": "/etc/passwd"}, "", "found a field 'store'"),
        ({"code": "os:system"}, "", "found a field 'code'"),
        ({"seq_len": "1" * 500}, "seq_len", "500 letters"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(
    server: PageServer, values: Mapping[str, str], field: str, said: str
) -> None:
    failure = _post(server, "estimate", {**SMALL, **values})["failure"]
    assert said in failure["message"]
    assert failure["field"] == field


@pytest.mark.parametrize("value", [None, [], "x", 3, {"tp": 2}, {"tp": None}, {"tp": {}}])
def test_fields_are_texts(value: object) -> None:
    with pytest.raises(FieldError):
        read_fields(value, search=False)


def test_who_does_not_have_the_word_gets_nothing(server: PageServer) -> None:
    word = server.token
    for path in ("/", "", "//", f"/{word[:-1]}/", f"/x{word}/", f"/{word}", "/%2e%2e/", "*", "/%ff/"):
        status, content, _ = _ask(server, "GET", path)
        assert (status, content) == (404, b"not found\n"), path


def test_a_page_of_somebody_else_gets_nothing(server: PageServer) -> None:
    path = f"/{server.token}/"
    assert _ask(server, "GET", path, headers={"Host": "evil.example"})[0] == 403
    assert _ask(server, "GET", path, headers={"Origin": "http://evil.example"})[0] == 403
    assert _ask(server, "GET", path, headers={"Origin": "null"})[0] == 403
    own = f"127.0.0.1:{server.server_address[1]}"
    assert _ask(server, "GET", path, headers={"Origin": f"http://{own}"})[0] == 200


def test_bodies_are_bounded(server: PageServer) -> None:
    path, kind = f"/{server.token}/estimate", {"Content-Type": "application/json"}
    assert _ask(server, "POST", path, b"{}", {"Content-Type": "text/plain"})[0] == 415
    assert _ask(server, "POST", path, None, kind | {"Content-Length": str(MOST_BODY_BYTES + 1)})[0] == 413
    assert _ask(server, "POST", path, None, kind | {"Content-Length": "9" * 30})[0] == 413
    assert _ask(server, "POST", path, None, kind | {"Content-Length": "-1"})[0] == 411
    assert _ask(server, "POST", path, b"[" * 100_000, kind)[0] == 400
    assert _ask(server, "POST", path, b"\xff\xfe", kind)[0] == 400


def test_hostile_requests_are_refused_and_the_server_goes_on(server: PageServer) -> None:
    draw, word = Random(0), server.token
    pieces = [
        "static", "..", "%2e%2e", "search", "result", "estimate", "export", "cancel", "report.html", "answer.json",
        "etc/passwd", "\\", "a" * 300, "%00", "?x=1", "0" * 16, ";", "page.js", "%ff", "//",
    ]  # fmt: skip
    for _ in range(200):
        path = "/".join(draw.choice(pieces) for _ in range(draw.randint(1, 4)))
        method = draw.choice(["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"])
        body = draw.choice([b"", b"{}", b"null", b"[]", b'{"to": 3}', bytes(draw.randbytes(20))])
        headers = {"Content-Type": draw.choice(["application/json", "text/html", "application/json; charset=x"])}
        status, content, _ = _ask(server, method, f"/{word}/{path}", body, headers)
        assert status in (200, 400, 404, 405, 411, 415, 501), (method, path, status)
        assert b"root:" not in content
        if status == 200:
            assert path.partition("?")[0] in ("", "static/page.js", "estimate", "search")
    assert _get(server, "")[0] == 200


@pytest.mark.parametrize("sent", [b"", b"GET", b"\x00" * 100, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n"])
def test_what_is_no_request_ends_no_server(server: PageServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=WAIT_S) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(4096)
    assert _get(server, "")[0] == 200


def test_more_than_can_be_done_is_refused(monkeypatch: pytest.MonkeyPatch, server: PageServer) -> None:
    def busy(_question: object) -> Any:
        raise BusyError

    monkeypatch.setattr(server.work, "begin", busy)
    body = json.dumps(SMALL).encode()
    kind = {"Content-Type": "application/json"}
    assert _ask(server, "POST", f"/{server.token}/search", body, kind)[0] == 429


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "--allow-remote"),
        (["--host", "nosuch"], "an address such as"),
        (["--port", "70000"], "0 to 65535"),
        (["--port", "-1"], "--port"),
        (["--call-limit", "0"], "--call-limit"),
    ],
)
def test_where_it_listens_is_checked(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_port_that_is_taken_is_told(server: PageServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--port", str(server.server_address[1])]) == 4
    assert "in use" in capsys.readouterr().err
