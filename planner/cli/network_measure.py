"""`cellplan network measure`: what counters say of a job's iteration, for people."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from planner.cli.output import format_bytes, format_count, format_seconds, print_notes, print_table


def print_measured(answer: dict[str, Any], _: Namespace) -> None:
    """Print the iteration, and the traffic to paste into a list of jobs."""
    iteration_s = answer["iteration_time_s"]
    rows = [
        ("iteration", format_seconds(iteration_s), f"{answer['iterations']:.1f} recorded"),
        ("by the spectrum alone", format_seconds(answer["by_spectrum_s"]), f"1/{answer['harmonic']:.3g} of it"),
        ("sends", format_bytes(answer["sent_bytes"]), f"in {format_seconds(answer['sending_s'])}"),
    ]
    if answer["quiet_bytes_per_s"]:
        rows.append(("others, all the time", format_count(answer["quiet_bytes_per_s"], "B/s"), ""))
    if answer["begins_s"] is not None:
        rows.append(("computes", format_seconds(answer["compute_s"]), f"{answer['compute_s'] / iteration_s:.0%} of it"))
        rows.append(("begins to send after", format_seconds(answer["begins_s"]), "of its compute"))
        rows.append(("sends beside compute", format_seconds(answer["overlap_s"]), ""))
    print_table(f"{answer['counters']}: measured", ("", "", ""), rows)
    traffic = answer["traffic"]
    stated = ", ".join(f"{key}: {value:.6g}" for key, value in traffic.items())
    print(f"  as a job's traffic: {{{stated}}}")
    print_notes("Notes:", answer["notes"])
