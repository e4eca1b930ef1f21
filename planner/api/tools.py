"""What the tools of `cellplan mcp` do, each in a process that answers for it (`planner.api.tool_calls`): a search
without end can be ended, and another call need not wait for it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from estimator.host.answering import serve
from planner import api
from planner.shared.options.code import CodeOptions
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.running import ExportOptions
from planner.shared.options.search import PlanOptions
from profiles.errors import InputError

Document = dict[str, Any]


def estimate(options: Document, store: Path | None) -> Document:
    """Return what `cellplan estimate` says."""
    return api.estimate(_record(EstimateOptions, options, store))


def plan(options: Document, store: Path | None) -> Document:
    """Return what `cellplan plan` says."""
    return _parsed(api.plan(_record(PlanOptions, options, store)).to_json())


def explain(options: Document, store: Path | None) -> Document:
    """Return what `cellplan plan --explain` says."""
    return plan(options | {"explain": True}, store)


def export(options: Document, _store: Path | None) -> Document:
    """Return what `cellplan export` says of the plan that is one of `options`."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(options["plan"]), encoding="utf-8")
        try:
            return api.export(ExportOptions(**options | {"plan": file}))
        except InputError as error:
            where = "plan" if error.where == str(file) else error.where
            raise InputError(where=where, key=error.key, found=error.found, expected=error.expected) from None


TOOLS: dict[str, Callable[[Document, Path | None], Document]] = {
    tool.__name__: tool for tool in (estimate, plan, explain, export)
}


def _record(kind: Callable[..., CodeOptions], values: Document, store: Path | None) -> Any:
    """The record of options, of values of JSON. Raise InputError where it names code."""
    tuples = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    options = kind(**tuples, store=store if store is not None and store.exists() else None)
    named = options.user_code.named
    if named:
        expected = "a zoo name or a path to a config.json: a tool runs no code"
        raise InputError(where="mcp", key="model", found=repr(named[0]), expected=expected)
    return options


def _parsed(text: str) -> Document:
    document: Document = json.loads(text)
    return document


def _answer(call: Document) -> Document:
    """The answer to a call, in values of JSON."""
    store = None if call["store"] is None else Path(call["store"])
    return _parsed(json.dumps(TOOLS[call["tool"]](call["options"], store), allow_nan=False))


def main() -> None:
    """Answer calls until nobody asks any more."""
    serve(_answer)


if __name__ == "__main__":
    main()
