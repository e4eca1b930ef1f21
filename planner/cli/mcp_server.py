"""The server of `cellplan mcp`: a tool for each function, with the function's own options and documents.

A tool runs no code of anybody's, writes no file, and takes no path but those of a config and a cluster file, which are
data. Parameters come from the records of options, so that a tool takes what its command does.
"""

from __future__ import annotations

import inspect
import json
import tempfile
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import Field

from planner import api
from planner.shared.options.code import CodeOptions
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import Entry, Options, entries
from planner.shared.options.running import ExportOptions
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

_PLAN = Annotated[Document, Field(description="a plan, as the tool plan returns it")]
_FORMAT = Annotated[str, Field(description="the training tool or cluster manager")]
_SCRIPT = Annotated[str | None, Field(description="the training script that the launcher is to start")]
_NEAREST = Annotated[bool, Field(description="where the tool cannot run the plan, the nearest that it can")]


def make_server(store: Path | None) -> MCPServer[Any]:
    """Return the server, whose tools read measured profiles from `store`. Raise ImportError without the package."""
    server = _strict_server("cellplan", version=VERSION, instructions=INSTRUCTIONS, log_level="WARNING")

    def estimate(**options: Any) -> Document:
        return api.estimate(_record(EstimateOptions, options, store))

    def plan(**options: Any) -> Document:
        return _parsed(api.plan(_record(PlanOptions, options, store)).to_json())

    def explain(**options: Any) -> Document:
        return _parsed(api.plan(_record(PlanOptions, options | {"explain": True}, store)).to_json())

    said = "How fast a model trains on a cluster: its Cells, or with a degree (tp, pp, dp, ...) that one plan."
    server.add_tool(_tool(estimate, EstimateOptions), name="estimate", description=said)
    said = "The best parallel plan of a model on a cluster, proved to be the best of the space left open."
    server.add_tool(_tool(plan, PlanOptions), name="plan", description=said)
    said = "The best plan, and why: what binds, what other plans lose, what changes would bring. Takes some time."
    server.add_tool(_tool(explain, PlanOptions), name="explain", description=said)
    formats = "; ".join(f"{form['format']}: {form['summary']}" for form in api.export_formats())
    server.add_tool(_answering(_export), name="export", description=f"A plan as the files of a tool. {formats}")
    return server


def _strict_server(name: str, **settings: Any) -> MCPServer[Any]:
    """A server that refuses arguments that its tools do not take, and true where a number belongs: its package would
    pass over the first and take the second for 1."""
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError

    class Server(MCPServer[Any]):  # type: ignore[misc, unused-ignore]
        async def call_tool(self, name: str, arguments: Document, context: Any = None) -> Any:
            tool = next((tool for tool in await self.list_tools() if tool.name == name), None)
            wrong = None if tool is None else _wrong_argument(tool.input_schema["properties"], arguments)
            if wrong is not None:
                raise ToolError(f"{name}: {wrong}")
            return await super().call_tool(name, arguments, context)

    return Server(name, **settings)


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


def _export(plan: _PLAN, to: _FORMAT, script: _SCRIPT = None, nearest: _NEAREST = False) -> Document:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        try:
            return api.export(ExportOptions(plan=file, to=to, script=script, nearest=nearest))
        except InputError as error:
            where = "plan" if error.where == str(file) else error.where
            raise InputError(where=where, key=error.key, found=error.found, expected=error.expected) from None


def _record(kind: Callable[..., CodeOptions], values: Document, store: Path | None) -> Any:
    """The record of options. Raise InputError where it names code."""
    options = kind(**values, store=store if store is not None and store.exists() else None)
    named = options.user_code.named
    if named:
        expected = "a zoo name or a path to a config.json: a tool runs no code"
        raise InputError(where="mcp", key="model", found=repr(named[0]), expected=expected)
    return options


def _parsed(text: str) -> Document:
    document: Document = json.loads(text)
    return document


def _tool(function: Callable[..., Document], kind: type[Options]) -> Callable[..., Document]:
    """`function` with the options of `kind` as its parameters, but for files and what runs something."""
    taken = [entry for name, entry in entries(kind).items() if name not in LEFT_OUT and not _is_file(entry)]
    parameters = [_parameter(entry) for entry in taken]
    answering = _answering(function)
    answering.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        sorted(parameters, key=lambda part: part.default is not part.empty), return_annotation=Document
    )
    return answering


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


_ONE_AT_A_TIME = Lock()
"""Calls come in threads; the caches of the searches are for one."""


def _answering(function: Callable[..., Document]) -> Callable[..., Document]:
    """`function`, whose expected failures the client reads as the error of the call."""

    def answer(**values: Any) -> Document:
        from mcp.server.mcpserver.exceptions import ToolError

        with _ONE_AT_A_TIME:
            try:
                return _plain(function(**values))
            except (InputError, NothingFits, MachineError) as error:
                raise ToolError(str(error)) from error

    answer.__name__ = function.__name__.strip("_")
    answer.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return answer


def _plain(document: Document) -> Document:
    """What the client would read of it: lists for tuples."""
    return _parsed(json.dumps(document, allow_nan=False))
