"""Iterations read off synthetic counters, against what made them.

    python -m bench.network counters [--series 200] [--jitter 0.01]

A recording is 30 s or 12 iterations of a job whose compute and bytes vary by the jitter, sampled 20 to 100 times an
iteration by a sampler that is late by up to a tenth of a step, with others' packets among its own: random, from seed 0
on. Beside it what Crux takes (section 5): the highest bin of the Fourier transform, as it stands.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from bench.network.recordings import Recorded, record_series
from estimator.traffic.counters import measure_iteration

ASKED = {"iteration": 0.01, "bytes": 0.03, "start of sending, of the iteration": 0.05}


def main(argv: Sequence[str]) -> None:
    """Print the errors' mean and worst case."""
    parser = argparse.ArgumentParser(prog="bench.network counters")
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--jitter", type=float, default=0.01)
    options = parser.parse_args(argv)
    rows = [_errors(record_series(seed, jitter=options.jitter)) for seed in range(options.series)]
    print(f"{options.series} recordings, jitter {options.jitter:.1%}; error   mean     worst   asked")
    for name in rows[0]:
        errors = [row[name] for row in rows]
        asked = f"{ASKED[name]:.0%}" if name in ASKED else "-"
        print(f"{name:45} {np.mean(errors):8.3%} {max(errors):8.3%} {asked:>6}")


def _errors(series: Recorded) -> dict[str, float]:
    found = measure_iteration(series.times_s, series.totals, series.active)
    late = ((found.begins_s or 0.0) - series.begins_s) / series.iteration_s
    sent = np.diff(series.totals)
    spectrum = np.abs(np.fft.rfft(sent - sent.mean()))
    bin_s = (series.times_s[-1] - series.times_s[0]) / int(np.argmax(spectrum))
    return {
        "iteration": abs(found.iteration_s / series.iteration_s - 1),
        "bytes": abs(found.sent_bytes / series.sent_bytes - 1),
        "start of sending, of the iteration": abs((late + 0.5) % 1 - 0.5),
        "iteration by the spectrum, interpolated": abs(found.by_spectrum_s / series.iteration_s - 1),
        "iteration by its highest bin (Crux)": abs(bin_s / series.iteration_s - 1),
    }
