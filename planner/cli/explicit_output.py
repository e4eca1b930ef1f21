"""An explicit plan's estimate for people: the plan, where the time goes, and what each stage holds."""

from __future__ import annotations

from typing import Any

from planner.cli.headline import print_assumptions
from planner.cli.network_output import print_flows, print_network
from planner.cli.output import format_seconds, print_notes, print_table, spans
from planner.cli.plan_output import print_figures
from planner.cli.training_output import print_training
from planner.shared.plan_file import plan_of_values
from planner.shared.words import TIME_NAMES

SMALLEST_SHARE = 0.0005
"""Of an iteration: what takes less is 0.0% of it."""

MEMORY_COLUMNS = ("weights", "grads", "optim.", "activ.", "temp.", "buffers", "reserve")
MEMORY_KEYS = ("weight", "gradient", "optimizer", "activation", "temporary", "communication", "reserve")


def print_explicit(result: dict[str, Any], *, guesses: bool) -> None:
    """The plan and its figures; time, network and memory as tables; the whole training, what was assumed, guessed."""
    estimate = result["estimate"]
    plan = plan_of_values(result["plan"])
    print_figures(plan)
    print_table("Where the time goes", ("part", "seconds", "share"), time_rows(estimate))
    if plan.network is not None:
        print_network(plan.network)
    if result.get("network_flow") is not None:
        print_flows(result["network_flow"])
    _print_memory(estimate)
    if estimate["training"] is not None:
        print_training(estimate["training"])
    print_assumptions(estimate["assumptions"], every=guesses, effects=estimate.get("assumption_effects", ()))
    if guesses:
        print_guesses(estimate["guesses"])


def time_rows(estimate: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The parts of an iteration with their shares, those too small to show together, and their sum."""
    total = estimate["iteration_time_s"]
    shown = {TIME_NAMES[name]: s for name, s in estimate["breakdown"].items() if s >= SMALLEST_SHARE * total}
    rest = total - sum(shown.values())
    shown |= {"the rest": rest} if rest > SMALLEST_SHARE * total else {}
    shown["in all"] = total
    return [(name, format_seconds(seconds), f"{seconds / total:.1%}") for name, seconds in shown.items()]


def _print_memory(estimate: dict[str, Any]) -> None:
    """A row for each stage; of those alike, the first with how many."""
    most = max(rank[name] for rank in estimate["memory"] for name in ("needed_bytes", "device_memory_bytes"))
    unit, size = ("GiB", 2**30) if most >= 2**30 else ("MiB", 2**20)
    digits = 1 if max(rank["needed_bytes"] for rank in estimate["memory"]) >= 10 * size else 2
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in estimate["memory"]:
        names = [*(f"{part}_bytes" for part in MEMORY_KEYS), "needed_bytes", "device_memory_bytes"]
        alike.setdefault(tuple(f"{rank[name] / size:.{digits}f}" for name in names), []).append(rank["stage"])
    columns = ("stage", *MEMORY_COLUMNS, "in all", "device")
    print_table(
        f"Memory of a rank in {unit}", columns, [(", ".join(spans(stages)), *cells) for cells, stages in alike.items()]
    )


def print_guesses(guesses: list[dict[str, Any]]) -> None:
    """What was taken without a measurement near it, the heaviest first."""
    if not guesses:
        print("guessed: nothing that the estimate could name")
        return
    ordered = sorted(guesses, key=lambda guess: -guess["seconds"])
    print_notes(
        "guessed:", [f"{guess['what']}: {guess['share']:.1%} of the time; {guess['remedy']}" for guess in ordered]
    )
