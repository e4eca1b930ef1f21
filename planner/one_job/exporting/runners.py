"""Which fine-tuning tools run a plan that was searched for without naming one."""

from __future__ import annotations

from models_zoo.user_code import UserCode
from planner.one_job.tools.base.export_records import ExportContext
from planner.one_job.tools.base.writing import Task, refusal_of
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.plan import Plan
from planner.shared.words import RUN_BY, RUN_BY_NONE

FINE_TUNERS = ("llama-factory", "axolotl", "peft", "torchtune")


def say_runners(plan: Plan, code: UserCode) -> str:
    """Return a sentence: which of the tools run the plan, or how to have one that they run. `code` is what of the
    user's own the plan's model may run."""
    context = ExportContext(code=code)
    able = [name for name in FINE_TUNERS if refusal_of(Task(plan=plan, tool=TOOLS[name], context=context)) is None]
    if able:
        return f"{RUN_BY} {', '.join(able)} (cellplan export --to {able[0]})"
    return f"{RUN_BY_NONE} ({', '.join(FINE_TUNERS)}): --tool {FINE_TUNERS[0]} plans for one"
