"""A launcher's present settings for people: what they are, their estimate, and how far the best plan is from them."""

from __future__ import annotations

from typing import Any

from planner.cli.explicit_output import print_explicit
from planner.cli.output import format_seconds, print_items, print_text


def print_imported(result: dict[str, Any], *, guesses: bool) -> None:
    """The explicit plan under the name of its setting, then the comparison with the best where there is one."""
    launcher = result["launcher"]
    named = "" if launcher["setting"] == launcher["format"] else f" of {launcher['setting']}"
    print_text(f"the {launcher['format']} setting{named}:")
    print_explicit(result, guesses=guesses)
    print_comparison(result["comparison"])


def print_comparison(comparison: dict[str, Any] | None) -> None:
    """Both times and what the best does otherwise; nothing without a best plan."""
    if comparison is None:
        return
    present, best = comparison["iteration_time_s"], comparison["best_iteration_time_s"]
    if not comparison.get("fits", True):
        heading = (
            f"compared with the best: the present setting does not fit, {format_seconds(best)} with the best plan:"
        )
    elif best < present:
        heading = (
            f"compared with the best: {format_seconds(present)} now, {format_seconds(best)} with the best plan"
            f" ({comparison['speedup']:.2f} times as fast):"
        )
    else:
        heading = f"compared with the best: {format_seconds(present)} now, and no plan found is faster"
    print_text(heading)
    print_items(comparison["differences"])
    for note in comparison.get("notes", ()):
        print_text(f"  ({note})", indent="    ")
