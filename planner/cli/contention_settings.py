"""What `cellplan contention` prints of settings that it wrote, and of counters held against the plan."""

from __future__ import annotations

from typing import Any

from planner.cli.output import format_count, print_table, print_text

MOST_ROWS = 24


def print_settings(found: dict[str, Any]) -> None:
    """Print where the settings are and what queue pairs would do; how counters compare."""
    if found["settings"] is not None:
        _print_folder(found["settings"])
    if found["verified"] is not None:
        level = "service level" if found["transport"] == "infiniband" else "priority"
        _print_verified(found["verified"], level)


def _print_folder(settings: dict[str, Any]) -> None:
    print()
    print(f"Settings written to {settings['folder']} ({len(settings['files'])} files; README.md says what is what)")
    if settings["queue_pairs"]:
        best = settings["queue_pairs"][0]
        one = next(pair for pair in settings["queue_pairs"] if _count(pair) == 1)
        low, high = best["range"]
        named = " ".join(f"{name}={value}" for name, value in best["environment"].items())
        print_text(
            f"Stock NCCL, which cannot be told ports, had best {named}: {best['work_share']:.1%} of the work of jobs"
            f" that meet nobody ({low:.1%} to {high:.1%} by draw; chance, not choice), {one['work_share']:.1%} with one"
            " queue pair"
        )

    for note in settings["notes"]:
        print_text(note)


def _count(pair: dict[str, Any]) -> int:
    return int(pair["environment"]["NCCL_IB_QPS_PER_CONNECTION"])


def _print_verified(verified: dict[str, Any], level: str) -> None:
    print()
    rows = [
        (
            row["host"] or "all",
            f"{row['priority']}",
            f"{row['planned_share']:.1%}",
            f"{row['counted_share']:.1%}",
            format_count(row["counted_bytes"], "B"),
            row["verdict"],
        )
        for row in verified["priorities"][:MOST_ROWS]
    ]
    more = len(verified["priorities"]) - len(rows)
    title = f"Bytes by {level}: planned (modelled) and counted (measured)"
    print_table(title, ("host", level, "planned", "counted", "bytes", "verdict"), rows)
    if more > 0:
        print(f"{more} more rows: --json has them")
    wrong = [row for row in verified["priorities"] if row["verdict"] != "as planned"]
    if not wrong:
        print(f"The counters agree with the plan, to {verified['tolerance']:.0%} of what a host sends.")
    elif any(row["verdict"] == "missing" for row in wrong):
        print("Levels that were planned do not arrive: the environment is not set, or a NIC does not follow it.")
    else:
        print("The counters do not agree with the plan.")
