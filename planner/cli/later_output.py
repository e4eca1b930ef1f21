"""What comes later of a placed job, for people: whether to wait, what to reserve, spares, a node replaced."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from planner.cli.output import WIDTH, format_seconds, print_notes, print_table, print_text

HOUR_S, DAY_S = 3600.0, 86400.0
FEW_NODES = 32
"""Of so many nodes the command that taints them is printed."""


def print_later(result: Mapping[str, Any]) -> None:
    """Print what of the value of `planner.api.place` is of later; nothing where that was not asked."""
    if "waiting" in result:
        _print_waiting(result["waiting"])
    if "spares" in result:
        _print_spares(result["spares"])
    if "replacement" in result:
        _print_replacement(result["replacement"])
    for row in result.get("affinity_rows", ()):
        print_text(
            f"affinity: {row['device']}, r1 {row['r1']:g}, r2 {row['r2']:g}: DP-aligned wins {row['j_dp']:.2%},"
            f" PP-aligned {row['j_pp']:.2%} ({row['source']})",
            indent="  ",
        )


def of_start(result: Mapping[str, Any]) -> str:
    """Return which start the plan that was written is of, where nodes are to be held for a later one."""
    waiting = result.get("waiting")
    if waiting is None or waiting["reservation"] is None or not waiting["best"]:
        return ""
    return f", the plan of the start {_when(waiting['starts'][waiting['best']])}"


def format_wait(seconds: float) -> str:
    """A wait in minutes, hours or days.

    >>> format_wait(0), format_wait(600), format_wait(11520), format_wait(262800)
    ('now', '10 min', '3.2 h', '73 h')
    """
    if seconds == 0:
        return "now"
    if seconds < HOUR_S:
        return f"{seconds / 60:.3g} min"
    if seconds < 100 * HOUR_S:
        return f"{seconds / HOUR_S:.3g} h"
    return f"{seconds / DAY_S:.3g} days"


def _print_waiting(waiting: Mapping[str, Any]) -> None:
    starts, ends = waiting["starts"], waiting["ends"]
    first, best = starts[0], starts[waiting["best"]]
    whole = first["training_s"] is not None
    if len(starts) == 1:
        _print_no_wait(first, ends)
    else:
        _print_starts(starts, ends, best, whole=whole)
    how = "their time limits" if waiting["ends_by"] == "time limit" else "the predictions (likely ends)"
    chance = "; chance: that the training ends sooner than from the first start, by the 90% interval"
    print_text(
        f"jobs end by {how}; what is free and what comes free is taken to be this job's; the same plan at every start"
        f"{chance if whole and len(starts) > 1 else ''}",
        indent="  ",
    )
    print_notes("of the jobs that run:", waiting["notes"])
    if waiting["reservation"] is not None:
        print_reservation(waiting["reservation"])
    print()


def _print_no_wait(first: Mapping[str, Any], ends: Sequence[Mapping[str, Any]]) -> None:
    others = sum(end["wait_s"] > first["wait_s"] for end in ends)
    end = "" if first["end_s"] is None else f": the training ends in {format_wait(first['end_s'])}"
    print_text(
        f"start {_when(first)}{end}; of {others} coming end{'s' * (others != 1)} none makes an iteration faster",
        indent="  ",
    )


def _print_starts(
    starts: Sequence[Mapping[str, Any]], ends: Sequence[Mapping[str, Any]], best: Mapping[str, Any], *, whole: bool
) -> None:
    first, times = starts[0], distinct_seconds([start["iteration_time_s"] for start in starts])
    columns = ["start", "devices free", "iteration", "pods", *(["training ends", "chance"] if whole else [])]
    rows = [_row(start, time, whole=whole) for start, time in zip(starts, times, strict=True)]
    print_table("start now, or wait?" if not first["wait_s"] else "when to start?", [*columns, "pays beyond"], rows)
    for start, time in zip(starts[1:], times[1:], strict=True):
        jobs = start["jobs"]
        pays = f"pays beyond {_length(start['pays_beyond_s'])} of training"
        print_text(
            f"{times[0]} {_when(first)}, {time} in {format_wait(start['wait_s'])}: {pays} ({_several(jobs)}"
            f" end{'s' * (len(jobs) == 1)} then{_on_pods(start['pods'])})",
            indent="  ",
        )
    others = sum(end["wait_s"] > first["wait_s"] for end in ends) - (len(starts) - 1)
    if others > 0:
        faster = f"make{'s' * (others == 1)} no iteration faster than the start before"
        print_text(f"{others} other coming end{'s' * (others > 1)} {faster}", indent="  ")
    print_text(_advice(first, best, whole=whole), indent="  ")


def distinct_seconds(times_s: Sequence[float]) -> list[str]:
    """Return times that differ in three digits, or as many more as it takes.

    >>> distinct_seconds([5.72, 5.47]), distinct_seconds([5.253, 5.247])
    (['5.72 s', '5.47 s'], ['5.253 s', '5.247 s'])
    """
    shown = [format_seconds(time_s) for time_s in times_s]
    unit, size = ("s", 1.0) if min(times_s) >= 1 else ("ms", 1e-3)
    for digits in range(4, 9):
        if len(set(shown)) == len(set(times_s)):
            break
        shown = [f"{time_s / size:.{digits}g} {unit}" for time_s in times_s]
    return shown


def _row(start: Mapping[str, Any], time: str, *, whole: bool) -> tuple[object, ...]:
    pods = " ".join(f"{axis.upper()} {count}" for axis, count in start["spreads"].items() if axis in ("dp", "pp"))
    chance, beyond = start["chance_pays"], start["pays_beyond_s"]
    ends = (format_wait(start["end_s"]), "" if chance is None else f"{chance:.0%}") if whole else ()
    return (
        format_wait(start["wait_s"]),
        start["free_devices"],
        time,
        pods,
        *ends,
        "" if beyond is None else _length(beyond),
    )


def _advice(first: Mapping[str, Any], best: Mapping[str, Any], *, whole: bool) -> str:
    if not whole:
        fastest = f"fastest: {_when(best)}" if best is not first else f"nothing is faster than {_when(first)}"
        return f"{fastest} (--train-tokens says whether waiting pays)"
    if best is first:
        return f"best: start {_when(first)}, the training ends in {format_wait(first['end_s'])}"
    won = first["end_s"] - best["end_s"]
    return (
        f"best: start {_when(best)}, the training ends in {format_wait(best['end_s'])},"
        f" {format_wait(won)} sooner than from the first start (chance {best['chance_pays']:.0%})"
    )


def print_reservation(held: Mapping[str, Any]) -> None:
    """Print which nodes to hold, what stays idle, and the commands that hold them."""
    nodes = held["nodes"]
    now = sum(not node["free_s"] for node in nodes)
    idle = f"{held['idle_device_hours']:,.0f} device-hours stay idle until then"
    print_text(
        f"to hold from now on: {len(nodes)} nodes, {now} of them free now; {idle}, but for jobs that fit in between"
        if held["wait_s"]
        else f"to hold from now on: {len(nodes)} nodes, all free; none stays idle"
    )
    print(fold_command(shlex.split(held["scontrol"])))
    print_text(f"then sbatch --reservation={held['name']}; on Kubernetes, which has no reservations:", indent="  ")
    if len(nodes) <= FEW_NODES:
        print(fold_command(shlex.split(held["kubectl"])))
    else:
        print_text("kubectl taint nodes ... (--json has the command)")


def fold_command(words: Sequence[str]) -> str:
    """Return a command in lines of at most 80 columns that a shell reads as one; words are parted at commas."""
    lines, line = [], words[0]
    for word in words[1:]:
        if len(line) + 1 + len(word) <= WIDTH - 2:
            line = f"{line} {word}"
            continue
        lines.append(f"{line} \\")
        line = f"  {word}"
        while len(line) > WIDTH - 1:
            cut = line.rfind(",", 0, WIDTH - 2) + 1
            if not cut:
                break
            lines.append(f"{line[:cut]}\\")
            line = line[cut:]
    return "\n".join([*lines, line])


def _print_spares(spares: Mapping[str, Any]) -> None:
    nodes = ", ".join(f"{node['host'] or node['node']} ({node['part']})" for node in spares["nodes"])
    print_text(f"spares to keep: {nodes}", indent="  ")
    rows = f"; {spares['rows_free']} of {spares['rows']} rows (PP groups) lose nothing" if spares["rows"] else ""
    print_text(
        f"where a node fails and one of them takes its place, an iteration takes {_more(spares['mean_cost_s'])} in the"
        f" mean, {_more(spares['worst_cost_s'])} at worst{rows}"
        f"{'; no other choice has a smaller mean' if spares['proved'] else ''}",
        indent="  ",
    )
    print()


def _print_replacement(told: Mapping[str, Any]) -> None:
    print_text(
        f"{told['host']} ({told['host_part']}) takes the place of {told['failed']} ({told['part']}), nobody else moves:"
        f" {format_seconds(told['iteration_time_s'])} an iteration, {_more(told['cost_s'])} than"
        f" {format_seconds(told['before_s'])} before",
        indent="  ",
    )
    wins = told["moving_all_wins_s"]
    if wins is not None:
        share = wins / told["iteration_time_s"]
        said = "nothing more" if share < 5e-4 else f"{format_seconds(wins)} an iteration ({share:.1%})"
        print_text(f"moving all ranks to where they suit best would win {said}", indent="  ")
    others = [
        f"{other['host']} ({other['part']}{_alike(other['nodes'])}): {format_seconds(other['iteration_time_s'])}"
        for other in told["stand_ins"]
    ]
    print_notes("free nodes that could:", others)
    print()


def _more(seconds: float) -> str:
    """So much longer or shorter, in words."""
    if abs(seconds) < 1e-9:
        return "no longer"
    return f"{format_seconds(abs(seconds))} {'longer' if seconds > 0 else 'less'}"


def _on_pods(pods: Mapping[str, int]) -> str:
    return f"; nodes: {', '.join(f'{name} {count}' for name, count in pods.items())}" if pods else ""


def _alike(nodes: int) -> str:
    return f", {nodes - 1} more like it" if nodes > 1 else ""


def _when(start: Mapping[str, Any]) -> str:
    return "now" if not start["wait_s"] else f"in {format_wait(start['wait_s'])}"


def _length(seconds: float | None) -> str:
    return "-" if seconds is None else format_wait(seconds)


def _several(jobs: Sequence[str]) -> str:
    """Jobs by name, the first four of them.

    >>> _several(["7"]), _several(["1", "2", "3", "4", "5"])
    ('job 7', 'jobs 1, 2, 3, 4 and 1 more')
    """
    shown = ", ".join(jobs[:4]) + (f" and {len(jobs) - 4} more" if len(jobs) > 4 else "")
    return f"job{'s' * (len(jobs) != 1)} {shown}"
