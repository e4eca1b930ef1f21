"""Pages of the documentation that are written by the program: each command's options, each function of the API, the
keys of cluster and plan files by their schemas, and all policies by their catalogues."""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cellplan
from planner import api
from planner.cli.main import COMMANDS, make_parser
from planner.contention.policies.catalogue import NETWORK_POLICIES
from planner.many_jobs.placers.catalogue import PLACERS
from planner.many_jobs.policies.catalogue import POLICIES
from planner.shared.made_by_name import class_of_ours
from planner.shared.plan_file import plan_to_json
from profiles.cluster_schema import ClusterModel

HERE = Path(__file__).parent
SCHEMAS = HERE.parent / "planner" / "shared" / "schemas"


def write(folder: Path) -> None:
    """Write a page for each command, those of functions, files and policies, and one with what leads to them."""
    folder.mkdir(exist_ok=True)
    os.environ["COLUMNS"] = "88"  # which argparse wraps by
    names = []
    for name, summary in COMMANDS.items():
        _write(folder / f"{name}.md", "\n".join(_command_page(name, summary)))
        names.append(name)
    pages = {
        "functions": _functions_page(),
        "results": _results_page(),
        "cluster-file": _cluster_page(),
        "plan-file": _plan_page(),
        "policies": _policies_page(),
    }
    for name, lines in pages.items():
        _write(folder / f"{name}.md", "\n".join(lines))
    toctree = "\n".join([*names, *pages])
    _write(folder / "index.md", f"# Reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{toctree}\n```\n")


def _write(path: Path, text: str) -> None:
    """Leave a page that is the same as it was, so that it is not built anew."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def parsers_of(name: str) -> list[tuple[str, argparse.ArgumentParser]]:
    """Return the parsers of a command, and of those below it, by what is typed."""
    found: list[tuple[str, argparse.ArgumentParser]] = []

    def walk(words: str, parser: argparse.ArgumentParser) -> None:
        below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
        if not below:
            found.append((words, parser))
        for action in below:
            for word, sub in action.choices.items():
                walk(f"{words} {word}", sub)

    root = make_parser(name, alone=True)
    (commands,) = (action for action in root._actions if isinstance(action, argparse._SubParsersAction))
    walk(name, commands.choices[name])
    return found


def _command_page(name: str, summary: str) -> Iterator[str]:
    yield f"# {name}\n"
    yield f"{summary[0].upper()}{summary[1:]}.\n"
    parsers = parsers_of(name)
    for words, parser in parsers:
        if len(parsers) > 1:
            yield f"## {words}\n"
            if parser.description:
                yield f"{parser.description}\n"
        yield f"```text\n{parser.format_usage().removeprefix('usage: ').rstrip()}\n```\n"
        for group in parser._action_groups:
            actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
            if actions:
                yield f"{'###' if len(parsers) > 1 else '##'} {(group.title or 'options').capitalize()}\n"
                yield from (_option(action, parser) for action in actions)


def _option(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    invocation = formatter._format_action_invocation(action)
    said = formatter._expand_help(action) if action.help else ""
    return f"`{invocation}`\n: {said.replace('<', chr(92) + '<').replace('*', chr(92) + '*') or '-'}\n"


def _functions_page() -> Iterator[str]:
    yield "# Functions\n"
    yield "What `planner.api` offers; `import cellplan` gives it for dicts, records and live modules.\n"
    for name in api.__all__:
        function = getattr(api, name)
        yield f"## {name}\n"
        options = getattr(function, "options", None)
        taken = f"({options.__name__} or its fields as keywords)" if options else str(inspect.signature(function))
        yield f"```text\n{name}{taken}\n```\n"
        yield f"{inspect.cleandoc(function.__doc__ or '')}\n"


def _results_page() -> Iterator[str]:
    """The package for notebooks: its functions and what they return, by their docstrings."""
    from cellplan import results

    yield "# import cellplan\n"
    yield f"{inspect.cleandoc(cellplan.__doc__ or '')}\n"
    for name in ("plan", "estimate", "place", "simulate", "validate", "load_plan"):
        function = getattr(cellplan, name)
        yield f"## {name}\n"
        yield f"{inspect.cleandoc(function.__doc__ or '')}\n"
    yield "## Results\n"
    for name, kind in sorted(vars(results).items()):
        if inspect.isclass(kind) and name.endswith("Result") and kind.__module__ == results.__name__:
            yield f"### {name}\n"
            yield f"{inspect.cleandoc(kind.__doc__ or '')}\n"
    yield "## What every result has\n"
    for name, member in inspect.getmembers(cellplan.Result):
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            said = inspect.getdoc(member) or ""
            taken = "" if isinstance(member, property) else _without_self(member)
            yield f"`{name}{taken}`\n: {_on_one_line(said)}\n"


def _without_self(function: Any) -> str:
    signature = inspect.signature(function)
    return str(signature.replace(parameters=list(signature.parameters.values())[1:]))


def _on_one_line(text: str) -> str:
    """A docstring's first paragraph, where Markdown reads nothing into it."""
    first = " ".join(text.strip().split("\n\n")[0].split())
    return first.replace("<", "\\<").replace("*", "\\*").replace("|", "\\|")


# Files


def _cluster_page() -> Iterator[str]:
    """A cluster file's keys, record by record as they are nested, and an example."""
    schema = ClusterModel.model_json_schema(by_alias=True)
    meanings = tomllib.loads((HERE / "meanings.toml").read_text(encoding="utf-8"))
    records = {"ClusterModel": schema, **schema["$defs"]}
    for record, keys in meanings.items():
        unknown = set(keys) - set(records[record]["properties"])
        if unknown:
            raise ValueError(f"docs/meanings.toml: {record} has no key {', '.join(sorted(unknown))}")
    yield "# Cluster files\n"
    yield "What `--cluster FILE.yaml` reads: `cellplan.cluster/1`. This page is made of the schema that checks such"
    yield "files. Every key that is not marked *needed* may be left out; what is left out of nodes is taken from the"
    yield "vendor's reference node of the device, and every answer says so. [The network above the node](../network.md)"
    yield "has the tree and its switches in words. The short form, `a100-80gb:16x8`, stands for a file with nothing but"
    yield "count and device.\n"
    example = (HERE.parent / "examples" / "cluster.yaml").read_text(encoding="utf-8")
    yield f"```yaml\n{example}```\n"
    yield from _records(records, "ClusterModel", meanings)


def _plan_page() -> Iterator[str]:
    """A plan file's keys, and a whole small plan as the program writes it."""
    schema = json.loads((SCHEMAS / "plan.schema.json").read_text(encoding="utf-8"))
    yield "# Plan files\n"
    yield "What `plan -o`, `estimate -o` and `place -o` write, and `export`, `run`, `estimate --plan`, `place --plan`"
    yield "read: `cellplan.plan/1`. This page is made of `planner/shared/schemas/plan.schema.json`. The same inputs"
    yield "give the same bytes. Names carry units; null is what a model has no notion of.\n"
    yield from _records({"Plan": schema, **schema["$defs"]}, "Plan", {})
    yield "## An example\n"
    yield "`cellplan plan gpt-tiny --cluster a100-80gb:1x2 --global-batch 16 -o plan.json`:\n"
    plan = api.plan("gpt-tiny", cluster="a100-80gb:1x2", global_batch=16)
    yield f"```json\n{plan_to_json(plan).rstrip()}\n```\n"


def _records(records: Mapping[str, Any], first: str, meanings: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """A section for each record of a schema, in the order in which they are met from the first."""
    ahead, done = [first], set()
    while ahead:
        name = ahead.pop(0)
        if name in done:
            continue
        done.add(name)
        record = records[name]
        yield f"## {_record_name(name)}\n"
        if record.get("description"):
            yield f"{' '.join(record['description'].split())}\n"
        said = meanings.get(name, {})
        heading = "| key | what it takes | unsaid |" + (" meaning |" if said else "")
        yield heading + "\n" + re.sub(r"[^|]+", "---", heading)
        for key, value in record.get("properties", {}).items():
            needed = "*needed*" if key in record.get("required", ()) else _default(value)
            yield f"| `{key}` | {_type_of(value)} | {needed} |" + (f" {said.get(key, '')} |" if said else "")
        yield ""
        ahead += _named_in(record)


def _record_name(name: str) -> str:
    """A record of a schema in words; of a cluster file all names end in Model."""
    own = name if name.startswith("Plan") else name.removesuffix("Model")
    return re.sub(r"(?<=[a-z])(?=[A-Z0-9])", " ", own).lower().replace("nics", "NICs")


def _named_in(value: Any) -> list[str]:
    """The records that a part of a schema refers to, in order."""
    if isinstance(value, list):
        return [name for part in value for name in _named_in(part)]
    if not isinstance(value, dict):
        return []
    own = [value["$ref"].rpartition("/")[2]] if "$ref" in value else []
    return own + [
        name for key, part in value.items() if key not in ("$defs", "discriminator") for name in _named_in(part)
    ]


def _default(value: Mapping[str, Any]) -> str:
    default = value.get("default")
    return "" if default in (None, [], {}) else f"`{json.dumps(default)}`"


def _type_of(value: Mapping[str, Any]) -> str:
    """What a key takes, in words, with its limits."""
    if "$ref" in value:
        name = _record_name(value["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return " or ".join(f"`{each}`" for each in value["enum"])
    for several in ("anyOf", "oneOf"):
        if several in value:
            kinds = [_type_of(each) for each in value[several] if each.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    match value.get("type"):
        case "array":
            if "prefixItems" in value:
                return f"[{', '.join(_type_of(each) for each in value['prefixItems'])}]"
            return f"list of {_type_of(value.get('items', {}))}"
        case "object":
            return f"mapping to {_type_of(value.get('additionalProperties') or {})}"
        case "integer" | "number" as kind:
            word = "whole number" if kind == "integer" else "number"
            limits = [
                f"{sign} {value[key]:g}"
                for key, sign in (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"))
                if key in value
            ]
            return f"{word} {', '.join(limits)}".strip()
        case "string":
            return "text"
        case "boolean":
            return "true or false"
    return "anything"


# Policies


def _policies_page() -> Iterator[str]:
    """Every policy of the catalogues with its options and what its class says of itself."""
    yield "# All policies and their options\n"
    yield "Made of the catalogues that the commands use. [Policies](../policies.md) has them side by side in words.\n"
    catalogues = {
        "Scheduling: `simulate --policy NAME --option KEY=VALUE`": POLICIES,
        "Placement: `simulate --placer NAME --placer-option KEY=VALUE`": PLACERS,
        "Network: `contention --policy NAME --policy-option KEY=VALUE`": NETWORK_POLICIES,
    }
    for title, catalogue in catalogues.items():
        yield f"## {title}\n"
        for name in sorted(catalogue):
            kind = class_of_ours(catalogue[name])
            options = [
                f"`{key}={_shown(parameter.default)}`" for key, parameter in inspect.signature(kind).parameters.items()
            ]
            said = _on_one_line(inspect.getdoc(kind) or "")
            yield f"`{name}`\n: {said} {'Options: ' + ', '.join(options) + '.' if options else ''}\n"


def _shown(value: object) -> str:
    return "..." if value is inspect.Parameter.empty else "unsaid" if value is None else str(value)
