"""The tables that `cellplan validate` prints: rows, groups, baselines, memory, order, and what was skipped and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from planner.cli.output import format_bytes, format_figure, format_seconds, print_notes, print_table, print_text, spans

GROUP_WORDS = {
    "source": "source",
    "device": "device",
    "generation": "generation",
    "parallel": "parallel kind",
    "model_size": "model size",
}
"""What rows are grouped by, and how that is called."""

MOST_ROWS = 40
SHOWN_WORST = 20
SHOWN_IDS = 8


def print_validation(result: dict[str, Any], *, rows: str, group: str | None) -> None:
    """Everything for a person: `rows` is all, none, worst:N or auto; `group` the one grouping, None for all of them."""
    _print_rows(result["rows"], rows)
    everything = result["groups"]["all"]
    for by in GROUP_WORDS if group is None else (group,):
        named = [*result["groups"][by].items(), ("all", everything)]
        _print_errors(GROUP_WORDS[by], named)
        _print_comparison(GROUP_WORDS[by], named)
        _print_memory(GROUP_WORDS[by], named)
    _print_baselines(result["baselines"])
    _print_noise(everything)
    _print_skipped(result["skipped"], whole=rows == "all")
    print_notes("noticed:", result.get("notes", []))
    print_text(
        f"{everything['rows']} rows: {everything['predicted']} predicted, {everything['timed']} of them with a measured"
        f" time; {everything['skipped']} skipped."
    )


def _print_rows(rows: Sequence[dict[str, Any]], choice: str) -> None:
    """Predicted rows with the assumptions that they took, numbered below the table."""
    predicted = [row for row in rows if row["skipped"] is None]
    worst = sorted(predicted, key=lambda row: -_badness(row))
    if choice == "auto":
        choice = "all" if len(rows) <= MOST_ROWS else f"worst:{SHOWN_WORST}"
    number = {"all": len(predicted), "none": 0}.get(choice)
    shown = predicted if number else worst[: int(choice.partition(":")[2] or 0)]
    if not shown:
        return
    notes = {text: place for place, text in enumerate(dict.fromkeys(t for row in shown for t in row["assumptions"]), 1)}
    title = "Rows" if len(shown) == len(predicted) else f"The {len(shown)} worst of {len(predicted)} rows"
    columns = ("id", "measured", "estimated", "error", "memory", "error", "inputs", "assumed")
    print_table(f"{title} (assumptions below)", columns, [_row_cells(row, notes) for row in shown])
    print_notes("assumed:", [f"{place}: {text}" for text, place in notes.items()])
    print()


def _badness(row: dict[str, Any]) -> float:
    return max((abs(row[key]) for key in ("error", "memory_error") if row[key] is not None), default=-1.0)


def _row_cells(row: dict[str, Any], notes: dict[str, int]) -> tuple[str, ...]:
    inputs = list(dict.fromkeys(kind for kind in (row["compute"], row["communication"]) if kind is not None))
    memory = "ran out" if row["measured_oom"] else format_bytes(row["measured_peak_memory_bytes"])
    return (
        row["id"],
        format_seconds(row["measured_iteration_time_s"]),
        format_seconds(row["estimated_iteration_time_s"]),
        _signed(row["error"]),
        memory,
        _memory_call(row),
        inputs[0] if len(inputs) == 1 else "mixed" if inputs else "-",
        " ".join(spans(sorted(notes[text] for text in row["assumptions"]), least=3)),
    )


def _memory_call(row: dict[str, Any]) -> str:
    """The memory's error, or how the out-of-memory call turned out where that is what there is to say."""
    if row["measured_oom"]:
        return "told" if row["estimated_oom"] else "missed"
    if row["estimated_oom"] and row["measured_iteration_time_s"] is not None:
        return "false alarm"
    return _signed(row["memory_error"])


def _print_errors(word: str, named: Sequence[tuple[str, dict[str, Any]]]) -> None:
    columns = (word, "rows", "skipped", "timed", "mean", "median", "90th", "bias", "worst", "in")
    rows = [
        (name, *(group[key] for key in ("rows", "skipped", "timed")), *_error_cells(group["iteration_time"]))
        for name, group in named
    ]
    print_table(f"Error of the iteration time by {word}", columns, rows)


def _error_cells(errors: dict[str, Any] | None) -> tuple[str, ...]:
    if errors is None:
        return ("-",) * 6
    return (
        *(f"{errors[key]:.1%}" for key in ("mean_absolute", "median_absolute", "p90_absolute")),
        _signed(errors["bias"]),
        _signed(errors["worst"]),
        errors["worst_id"],
    )


def _print_comparison(word: str, named: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """Ours beside the baselines on the same rows, the order of plans, and the interval with its width."""
    baselines, order = ("MFU", "+ bubble", "own MFU"), ("tau", "its tau", "regret", "sets")
    columns = (word, "ours", *baselines, *order, "in 90%", "held out", "width")
    rows = [(name, *_comparison_cells(group)) for name, group in named if group["iteration_time"] is not None]
    if rows:
        print_table(f"Against constant MFU, and the order of plans, by {word}", columns, rows)


def _comparison_cells(group: dict[str, Any]) -> tuple[str, ...]:
    plain, bubble = (group["baselines"].get(name) for name in ("constant_mfu", "constant_mfu_with_bubble"))
    ours = plain["ours_on_these_rows"] if plain else group["iteration_time"]
    ranking = group["ranking"]
    return (
        f"{ours['mean_absolute']:.1%}",
        *(_figure(baseline, ".1%", "iteration_time", "mean_absolute") for baseline in (plain, bubble)),
        _figure(bubble, ".1%", "own_constant", "mean_absolute"),
        _figure(ranking, ".2f", "kendall_tau"),
        _figure(bubble, ".2f", "ranking", "kendall_tau"),
        _figure(ranking, ".1%", "regret_mean"),
        _figure(ranking, "", "sets"),
        _share(group["coverage_90"]),
        _share(group["coverage_90"], "held_out_share"),
        _figure(group["coverage_90"], ".0%", "mean_width"),
    )


def _figure(record: dict[str, Any] | None, form: str, *path: str) -> str:
    """What lies at `path` in the record; "-" where anything on the way is None."""
    value: Any = record
    for key in path:
        value = value[key] if value else None
    return format_figure(value, form)


def _print_memory(word: str, named: Sequence[tuple[str, dict[str, Any]]]) -> None:
    columns = (word, "rows", "mean", "median", "90th", "bias", "worst", "in", "in 90%")
    rows = [
        (
            name,
            group["peak_memory"]["rows"],
            *_error_cells(group["peak_memory"]),
            _share(group["memory_coverage_90"]),
        )
        for name, group in named
        if group["peak_memory"]
    ]
    if rows:
        print_table(f"Error of the peak memory by {word}", columns, rows)
    calls = [
        (name, *(group["out_of_memory"][key] for key in ("ran_out", "told", "ran", "false_alarms")))
        for name, group in named
        if group["out_of_memory"]["ran_out"] or group["out_of_memory"]["false_alarms"]
    ]
    if calls:
        headings = (word, "ran out of memory", "told", "ran", "called out of memory all the same")
        print_table(f"Out of memory by {word}", headings, calls)


def _print_baselines(baselines: dict[str, Any]) -> None:
    notes = []
    for baseline in baselines.values():
        name = "constant MFU with the bubble" if baseline["with_bubble"] else "constant MFU"
        rows = "all there are" if baseline["fitted_on_all"] else "the half kept for fits"
        notes.append(f"{name}: {baseline['mfu']:.1%}, the best for {baseline['fitted_rows']} rows, {rows}")
    if notes:
        notes.append("own MFU: the one with the bubble, fitted on the group that it is shown for, all of its rows")
    print_notes("baselines:", notes)


def _print_noise(group: dict[str, Any]) -> None:
    if noise := group["noise"]:
        print_text(
            f"noise: {noise['sets']} runs were done more than once ({noise['rows']} rows); their times lie"
            f" {noise['spread_mean']:.1%} apart in the mean, at worst {noise['spread_worst']:.1%}"
            f" ({', '.join(_shortened(noise['spread_worst_ids'], whole=False))}): no estimate of these rows can be"
            f" better than {noise['floor']:.1%}"
        )


def _print_skipped(skipped: Sequence[dict[str, Any]], *, whole: bool) -> None:
    print_notes(
        "not predicted:",
        [f"{item['rows']}: {item['reason']} ({', '.join(_shortened(item['ids'], whole=whole))})" for item in skipped],
    )


def _shortened(ids: Sequence[str], *, whole: bool) -> Iterator[str]:
    """The ids, or the first of them and how many more there are (`--rows all` and `--json` have them all)."""
    shown = ids if whole or len(ids) <= SHOWN_IDS else ids[: SHOWN_IDS - 1]
    yield from shown
    if len(shown) < len(ids):
        yield f"{len(ids) - len(shown)} more"


def _signed(error: float | None) -> str:
    return format_figure(error, "+7.1%")


def _share(coverage: dict[str, Any] | None, key: str = "share") -> str:
    return _figure(coverage, ".0%", key)
