"""What starts a plan, to be copied: the settings of the first training tool that runs it, and a batch script."""

from __future__ import annotations

from collections.abc import Iterator

from models_zoo.user_code import UserCode
from planner.one_job.exporting.formats import load_exporter
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.options.common import Tool
from planner.shared.plan import Plan
from profiles.errors import InputError

TOOLS_IN_ORDER: tuple[Tool, ...] = ("megatron", "torchtitan", "deepspeed", "llama-factory", "torchtune")
MOST_LETTERS = 8000
"""Of a file: what is longer (a table of very many ranks) is only named."""


def launch_commands(plan: Plan, *, tool: Tool | None, code: UserCode) -> tuple[tuple[str, str], ...]:
    """Return titles and texts: of `tool`, or else of the first that runs the plan, and of Slurm."""
    tools = (tool,) if tool is not None else TOOLS_IN_ORDER
    context = ExportContext(code=code)
    commands: list[tuple[str, str]] = []
    for name in tools:
        commands += _texts(plan, name, context)
        if commands:
            break
    return (*commands, *_texts(plan, "slurm", context))


def _texts(plan: Plan, name: str, context: ExportContext) -> Iterator[tuple[str, str]]:
    try:
        export = load_exporter(name)(plan, context)
    except (CannotExpress, InputError):
        return
    title = "Slurm" if name == "slurm" else TOOLS[name].summary.partition(":")[0]
    for file in export.files:
        if len(file.text) <= MOST_LETTERS:
            yield f"{title}: {file.name} (cellplan export --to {name})", file.text.rstrip("\n")
