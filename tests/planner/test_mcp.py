"""`cellplan mcp`: the tools as the official client sees them; without the package, what to install."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from bench.killed.processes import processes_with
from planner import api
from planner.cli.main import main
from planner.shared.options.mcp import McpOptions
from tests.processes import wait_until

CASE: dict[str, Any] = {"model": "gpt-tiny", "cluster": "h100:1x2", "global_batch": 8}


def test_without_the_package_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("mcp", "mcp.server", "mcp.server.mcpserver"):
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["mcp"]) == 2
    assert "pip install 'cellplan[mcp]'" in capsys.readouterr().err


def ask(*calls: tuple[str, dict[str, Any]], call_limit: float = 300.0) -> list[Any]:
    """Return what the client gets: the tools, then the answer to each call; of `plan` None, the first answer's."""
    mcp = pytest.importorskip("mcp", reason="mcp is not installed", exc_type=ImportError)
    anyio = pytest.importorskip("anyio", reason="mcp is not installed")
    from planner.cli.mcp_server import make_server

    async def talk() -> list[Any]:
        async with mcp.Client(make_server(McpOptions(call_limit=call_limit))) as client:
            answers = [await client.list_tools()]
            for name, values in calls:
                filled = {
                    key: answers[1].structured_content if value is None else value for key, value in values.items()
                }
                answers.append(await client.call_tool(name, filled))
            return answers

    answers: list[Any] = anyio.run(talk)
    return answers


def test_tools_are_the_functions() -> None:
    listed, planned, exported, estimated, explained = ask(
        ("plan", CASE),
        ("export", {"plan": None, "to": "megatron"}),
        ("estimate", {**CASE, "dp": 2}),
        ("explain", CASE),
    )
    tools = {tool.name: tool.input_schema for tool in listed.tools}
    assert list(tools) == ["estimate", "plan", "explain", "export"]
    assert tools["plan"]["required"] == ["model", "cluster"]
    assert not {"store", "output", "timeline", "launcher", "code", "free"} & set(tools["estimate"]["properties"])
    assert planned.structured_content == json.loads(api.plan(**CASE).to_json())
    assert exported.structured_content["files"][0]["name"] == "megatron.sh"
    assert estimated.structured_content == json.loads(json.dumps(api.estimate(**CASE, dp=2)))
    assert explained.structured_content["explanation"]["summary"]


def test_what_fails_is_the_error_of_the_call() -> None:
    _, wrong, code, nothing, plan = ask(
        ("estimate", {**CASE, "cluster": "none:1x1"}),
        ("plan", {**CASE, "model": "tests.traced_modules:mlp"}),
        ("plan", {"model": "llama3-405b", "cluster": "h100:1x1"}),
        ("export", {"plan": {}, "to": "megatron"}),
    )
    assert [answer.is_error for answer in (wrong, code, nothing, plan)] == [True] * 4
    assert "none" in wrong.content[0].text
    assert "a tool runs no code" in code.content[0].text
    assert "no plan fits" in nothing.content[0].text
    assert "plan: schema: found nothing" in plan.content[0].text


def test_what_no_tool_takes_is_refused() -> None:
    _, unknown, truth, file = ask(
        ("estimate", {**CASE, "global_batches": 8}),
        ("estimate", {**CASE, "tp": True}),
        ("plan", {**CASE, "output": "plan.json"}),
    )
    assert [answer.is_error for answer in (unknown, truth, file)] == [True] * 3
    assert "unknown argument 'global_batches', expected global_batch, or another of" in unknown.content[0].text
    assert "tp: found true" in truth.content[0].text
    assert "unknown argument 'output'" in file.content[0].text


ENDLESS: dict[str, Any] = {
    "model": "deepseek-v3",
    "cluster": "h100:64x8+a100-80gb:64x8+a40:64x8+v100:64x8",
    "global_batch": 15360,
    "lenient": True,
}
"""A search of minutes."""


def test_a_long_call_can_be_given_up_and_others_go_on_beside_it(token: str) -> None:
    mcp = pytest.importorskip("mcp", reason="mcp is not installed", exc_type=ImportError)
    anyio = pytest.importorskip("anyio", reason="mcp is not installed")
    from planner.cli.mcp_server import make_server

    def working() -> int:
        return sum("planner.api.tools" in command for command in processes_with(token).values())

    async def talk() -> None:
        async with mcp.Client(make_server(McpOptions())) as client:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "plan", ENDLESS)
                assert not (await client.call_tool("estimate", CASE)).is_error
                before = working()
                tasks.cancel_scope.cancel()
            await anyio.to_thread.run_sync(lambda: wait_until(lambda: working() < before, "the search goes on"))
            assert not (await client.call_tool("estimate", CASE)).is_error

    anyio.run(talk)


def test_a_call_that_takes_too_long_is_ended_and_says_so() -> None:
    _, late = ask(("plan", ENDLESS), call_limit=2.0)
    assert late.is_error
    assert "not done after 2 s, and ended; cellplan mcp --call-limit SECONDS" in late.content[0].text
