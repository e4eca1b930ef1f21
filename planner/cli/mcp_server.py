"""The server of `cellplan mcp`: a tool for each function, with the function's own options and documents.

A tool runs no code of anybody's, writes no file, and takes no path but those of a config and a cluster file, which are
data. Parameters come from the records of options, so that a tool takes what its command does. What a call does is done
in a process apart (`planner.api.tool_calls`): it can be cancelled, and others go on beside it.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import anyio
from pydantic import Field

from planner import api
from planner.api.tool_calls import Calls
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.mcp import McpOptions
from planner.shared.options.record import Entry, Options, entries
from planner.shared.options.search import PlanOptions
from planner.shared.version import VERSION
from profiles.errors import InputError, MachineError, NothingFits

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

Document = dict[str, Any]

LEFT_OUT = ("code", "user_code_limit", "launcher", "profile_budget", "explain")
"""Options that run code or processes, or read scripts; and what is a tool of its own."""
NEEDED = ("model", "cluster")

INSTRUCTIONS = (
    "Estimates how fast a large model trains on a cluster of accelerators, and finds the best parallel plan. Times are"
    " in seconds, memory in bytes. `cluster` is such as h100:2x8 (2 nodes of 8) or the path of a cluster file."
)

BETWEEN_SIGNS_S = 5.0

_EXPORT = [
    inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, Field(description=description)],
    )
    for name, hint, default, description in (
        ("plan", Document, inspect.Parameter.empty, "a plan, as the tool plan returns it"),
        ("to", str, inspect.Parameter.empty, "the training tool or cluster manager"),
        ("script", str | None, None, "the training script that the launcher is to start"),
        ("nearest", bool, False, "where the tool cannot run the plan, the nearest that it can"),
    )
]


def make_server(options: McpOptions) -> MCPServer[Any]:
    """Return the server, whose tools read measured profiles from a store and may take so long as `options` say. Raise
    ImportError without the package."""
    calls = Calls(options.store, limit_s=options.call_limit)
    server = _strict_server(calls, "cellplan", version=VERSION, instructions=INSTRUCTIONS, log_level="WARNING")
    said = "How fast a model trains on a cluster: its Cells, or with a degree (tp, pp, dp, ...) that one plan."
    server.add_tool(_tool(calls, "estimate", EstimateOptions), name="estimate", description=said)
    said = "The best parallel plan of a model on a cluster, proved to be the best of the space left open."
    server.add_tool(_tool(calls, "plan", PlanOptions), name="plan", description=said)
    said = "The best plan, and why: what binds, what other plans lose, what changes would bring. Takes some time."
    server.add_tool(_tool(calls, "explain", PlanOptions), name="explain", description=said)
    formats = "; ".join(f"{form['format']}: {form['summary']}" for form in api.export_formats())
    server.add_tool(
        _answering(calls, "export", _EXPORT), name="export", description=f"A plan as the files of a tool. {formats}"
    )
    return server


def _strict_server(calls: Calls, name: str, **settings: Any) -> MCPServer[Any]:
    """A server that refuses arguments that its tools do not take, and true where a number belongs: its package would
    pass over the first and take the second for 1. It tells a client that asks for it that a call is still under way."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    class Server(MCPServer[Any]):  # type: ignore[misc, unused-ignore]
        async def call_tool(self, name: str, arguments: Document, context: Any = None) -> Any:
            tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
            wrong = None if tool is None else _wrong_argument(tool.input_schema["properties"], arguments)
            if wrong is not None:
                raise ToolError(f"{name}: {wrong}")
            work = super().call_tool(name, arguments, context)
            return await (work if context is None else _told(context, name, work))

    @asynccontextmanager
    async def life(_server: MCPServer[Any]) -> AsyncIterator[None]:
        async with calls.open():
            yield

    return Server(name, lifespan=life, **settings)


async def _told(context: Any, name: str, work: Awaitable[Any]) -> Any:
    """Do `work`, and say every few seconds that it goes on: clients give up on a call that says nothing."""

    async def tell() -> None:
        begin = anyio.current_time()
        while True:
            await anyio.sleep(BETWEEN_SIGNS_S)
            passed_s = anyio.current_time() - begin
            await context.report_progress(passed_s, message=f"{name}: at work for {passed_s:.0f} s")

    failure = answer = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        try:
            answer = await work
        except Exception as error:  # It leaves by itself, not as one of the group's.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return answer


def _wrong_argument(properties: Document, arguments: Document) -> str | None:
    """What is wrong with an argument that pydantic would let pass; None where nothing is."""
    for name, value in arguments.items():
        if name not in properties:
            near = get_close_matches(name, properties, n=1)
            expected = f"{near[0]}, or another of" if near else "one of"
            return f"found an unknown argument {name!r}, expected {expected} {', '.join(properties)}"
        if isinstance(value, bool) and '"boolean"' not in json.dumps(properties[name]):
            return f"{name}: found {json.dumps(value)}, expected what the tool's schema says"
    return None


def _tool(calls: Calls, name: str, kind: type[Options]) -> Callable[..., Awaitable[Document]]:
    """The tool with the options of `kind` as its parameters, but for files and what runs something."""
    taken = [entry for name, entry in entries(kind).items() if name not in LEFT_OUT and not _is_file(entry)]
    return _answering(calls, name, [_parameter(entry) for entry in taken])


def _is_file(entry: Entry) -> bool:
    return Path in entry.members or any(Path in get_args(member) for member in entry.members)


def _parameter(entry: Entry) -> inspect.Parameter:
    """An option as a parameter: its type, what is said of it, its default; a model and a cluster must be named."""
    needed = entry.required or entry.name in NEEDED
    hint = str if entry.name in NEEDED else entry.hint
    return inspect.Parameter(
        entry.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if needed else entry.default,
        annotation=Annotated[hint, Field(description=entry.help)],
    )


def _answering(calls: Calls, name: str, parameters: Sequence[inspect.Parameter]) -> Callable[..., Awaitable[Document]]:
    """What answers calls of a tool; its expected failures the client reads as the error of the call."""

    async def answer(**values: Any) -> Document:
        from mcp.server.mcpserver.exceptions import ToolError

        try:
            return await calls.answer(name, values)
        except (InputError, NothingFits, MachineError) as error:
            raise ToolError(str(error)) from error

    answer.__name__ = name
    answer.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        sorted(parameters, key=lambda part: part.default is not part.empty), return_annotation=Document
    )
    return answer
