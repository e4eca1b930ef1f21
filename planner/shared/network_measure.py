"""What a job sends in an iteration, read off counters, for people and programs: `network measure`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from estimator.traffic.counters import TooShort, measure_iteration
from profiles.counter_file import load_counters
from profiles.errors import InputError

FAR_FROM_WHOLE = 0.02


def describe_measured(path: Path) -> dict[str, Any]:
    """Return what `network measure --json` says of the counters in a file. `traffic` is what a list of jobs takes as
    their traffic. InputError for a file that does not hold counters, and for fewer than two iterations."""
    counters = load_counters(path)
    recorded_s = counters.times_s[-1] - counters.times_s[0]
    try:
        found = measure_iteration(counters.times_s, counters.totals, counters.active)
    except TooShort as short:
        expected = "two iterations or more of a job that sends in each"
        raise InputError(where=str(path), found=f"{recorded_s:.3g} s in which {short}", expected=expected) from None
    compute_s = found.iteration_s - found.sending_s if found.compute_s is None else found.compute_s
    begins_s = compute_s if found.begins_s is None else min(found.begins_s, compute_s)
    return {
        "counters": str(path),
        "recorded_s": recorded_s,
        "iteration_time_s": found.iteration_s,
        "iterations": found.iterations,
        "sent_bytes": found.sent_bytes,
        "quiet_bytes_per_s": found.quiet_bytes_per_s,
        "sending_s": found.sending_s,
        "compute_s": found.compute_s,
        "begins_s": found.begins_s,
        "overlap_s": None if found.begins_s is None else max(0.0, min(compute_s - begins_s, found.sending_s)),
        "by_spectrum_s": found.by_spectrum_s,
        "harmonic": found.harmonic,
        "perhaps_s": list(found.perhaps_s),
        "traffic": {
            "compute_s": compute_s,
            # A ring over many ranks sends twice what it sums.
            "bytes": found.sent_bytes / 2,
            "begins_s": begins_s,
        },
        "provenance": "measured",
        "notes": _notes(found.perhaps_s, found.harmonic, known=found.begins_s is not None),
    }


def _notes(perhaps_s: tuple[float, ...], harmonic: float, *, known: bool) -> list[str]:
    notes = [
        "traffic takes the counters for those of one node of a job that sums gradients: bytes are half of the sent"
    ]
    if perhaps_s:
        others = ", ".join(f"{seconds:.4g} s" for seconds in perhaps_s)
        notes.append(
            f"these counters do not tell the iteration from {others}: parts of an iteration that send almost alike look"
            " like iterations, and iterations that differ a little like parts"
        )
    if abs(harmonic - round(harmonic)) > FAR_FROM_WHOLE * harmonic or harmonic < 0.5:
        notes.append(
            "the strongest wave of the spectrum is no whole part of the iteration: bytes come in bursts of their own"
        )
    if not known:
        notes.append(
            "without GPUs' activity that rests in each iteration nothing says where compute begins: all sending is"
            " taken to wait for it, so compute_s of the traffic is too short by what it hides"
        )
    return notes
