"""An iteration read off counters: how long it is, how many bytes it sends, where in its compute it begins to send.

The autocorrelation of bytes by time (and of the GPUs' activity) peaks where the series meets itself again. All
multiples of an iteration do; the shortest that meets itself as well as any is taken, and refined over as many
iterations as there are: as jitter lets each begin a little early or late, each is laid on the mean of all, again and
again, until they sit. The Fourier transform, which Crux takes alone (section 5), says the frequency to one bin, 1 / the
recording; between bins its peak is interpolated, and it is told beside, as it may be a harmonic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Floats = NDArray[np.float64]

BINS = 256
"""Parts of an iteration in which its mean is kept."""

FEWEST_SAMPLES = 8
"""Of an iteration, so that its beginning and end are told apart."""

AS_ALIKE = 0.06
"""Lags whose autocorrelation is less than this below the best may be the iteration."""

ALMOST_ALIKE = 0.25
"""Shorter lags that come this near are named, as the iteration may be made of parts that are almost equal."""

QUIET = 0.05
"""What passes at all times at less than this share of the peak is not the job's."""

NOT_BY_CHANCE = 0.015
"""A longer lag that is so much more alike than the chosen one is named: two iterations may be one of two parts."""

MOST_PARTS = 4.5
"""An iteration of more parts that are almost equal is not looked for."""

ROUNDS, SHIFTS = 3, np.linspace(-0.12, 0.12, 49)
"""So often iterations are laid on the mean of all, each so far from where the one before says, in iterations."""


class TooShort(ValueError):  # noqa: N818  a recording is, nobody erred
    """Nothing comes back within half of a recording."""


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """What counters say of an iteration. `begins_s`: after so much of its compute it begins to send (None: the GPUs'
    activity is not known, or never rests, so that nothing says where compute begins); `compute_s` likewise.
    `quiet_bytes_per_s`: what passes all the time, too little to be the job's, and is not in `sent_bytes`.
    `sending_s`: so long it sends in all. `by_spectrum_s`: what the Fourier transform's highest peak alone says, which
    is the iteration over `harmonic`, a whole number where both agree. `perhaps_s`: other lengths that these counters
    cannot tell from it."""

    iteration_s: float
    iterations: float
    sent_bytes: float
    quiet_bytes_per_s: float
    sending_s: float
    compute_s: float | None
    begins_s: float | None
    by_spectrum_s: float
    harmonic: float
    perhaps_s: tuple[float, ...]


def measure_iteration(times_s: Sequence[float], totals: Sequence[float], active: Sequence[float] | None) -> Iteration:
    """Return the iteration of a job from the bytes that it had sent by each of these times, rising, and the share of
    its GPUs that were active since the time before (None: nobody counted).

    Raises:
        TooShort: nothing comes back within half of the recording.
    """
    step_s, sent, busy = _on_a_grid(np.asarray(times_s, float), np.asarray(totals, float), active)
    if not sent.std() > 1e-9 * sent.mean():
        raise TooShort("no byte is counted, or as many at all times")
    alike = _autocorrelation(sent, busy)
    lag, perhaps = _iteration_lag(alike)
    starts, profile, active_profile = _laid_on_each_other(sent, busy, lag)
    length = float(starts[-1] - starts[0]) / (len(starts) - 1)
    iteration_s, sums = length * step_s, np.concatenate([[0.0], np.cumsum(sent)])
    # Of whole iterations: what is sent is not the same at the recording's ends.
    by_then = np.interp([starts[0], starts[-1]], np.arange(len(sums)), sums)
    spectrum_s = _spectrum_s(sent, step_s)
    low, high = np.quantile(profile, [0.02, 0.98])
    quiet = float(low) if low < QUIET * high else 0.0
    sends, begins, _ = _longest_on(profile)
    computes, computes_from, always = _longest_on(active_profile) if busy is not None else (0.0, 0.0, True)
    known = busy is not None and not always
    return Iteration(
        iteration_s=iteration_s,
        iterations=len(sent) / length,
        sent_bytes=float(by_then[1] - by_then[0]) / (len(starts) - 1) - quiet * length,
        quiet_bytes_per_s=quiet / step_s,
        sending_s=sends * iteration_s,
        compute_s=computes * iteration_s if known else None,
        begins_s=((begins - computes_from) % 1.0) * iteration_s if known else None,
        by_spectrum_s=spectrum_s,
        harmonic=iteration_s / spectrum_s,
        perhaps_s=tuple(other * step_s for other in perhaps),
    )


def _on_a_grid(times_s: Floats, totals: Floats, active: Sequence[float] | None) -> tuple[float, Floats, Floats | None]:
    """Bytes, and activity, of equal steps: what was sent between two readings is spread evenly over their time."""
    step_s = float(np.median(np.diff(times_s)))
    grid = np.arange(times_s[0], times_s[-1] + step_s / 2, step_s)
    sent = np.diff(np.interp(grid, times_s, totals))
    if active is None:
        return step_s, sent, None
    spans_s = np.diff(times_s)
    whole = np.concatenate([[0.0], np.cumsum(np.asarray(active, float)[1:] * spans_s)])
    return step_s, sent, np.diff(np.interp(grid, times_s, whole)) / step_s


def _autocorrelation(sent: Floats, busy: Floats | None) -> Floats:
    """By lag up to half of the series how alike it is to itself, 1 at lag 0; the mean of both series that vary."""
    rows = [_alike(row) for row in (sent, busy) if row is not None and row.std() > 1e-9 * max(1.0, abs(row.mean()))]
    if not rows:
        raise TooShort("nothing changes")
    return cast("Floats", np.mean(rows, axis=0))


def _alike(row: Floats) -> Floats:
    centred, count = row - row.mean(), len(row)
    size = 1 << (2 * count - 1).bit_length()
    power = np.abs(np.fft.rfft(centred, size)) ** 2
    sums = np.fft.irfft(power, size)[: count // 2 + 1]
    means = sums / (count - np.arange(len(sums)))
    return cast("Floats", means / means[0])


def _iteration_lag(alike: Floats) -> tuple[float, tuple[float, ...]]:
    """The lag of an iteration, between steps, and others that it cannot be told from."""
    inner = alike[1:-1]
    peaks = 1 + np.flatnonzero((inner >= alike[:-2]) & (inner > alike[2:]))
    peaks = peaks[(peaks >= FEWEST_SAMPLES) & (alike[peaks] > 0.1)]
    # Beyond the first fall below nothing, so that the flank of lag 0 is none.
    below = np.flatnonzero(alike < 0.05)
    peaks = peaks[peaks > (below[0] if len(below) else 0)]
    if not len(peaks):
        raise TooShort("nothing comes back")
    best = alike[peaks].max()
    chosen = int(peaks[alike[peaks] >= best - AS_ALIKE][0])
    tops = {int(peak): float(peak) - 1 + _peak(alike[peak - 1 : peak + 2]) for peak in peaks}
    shorter = [top for peak, top in tops.items() if peak < chosen and alike[peak] >= best - ALMOST_ALIKE]
    longer = [top for peak, top in tops.items() if peak > chosen and alike[peak] > alike[chosen] + NOT_BY_CHANCE]
    return tops[chosen], (*shorter, *(top for top in longer[:1] if top < MOST_PARTS * chosen))


def _laid_on_each_other(sent: Floats, busy: Floats | None, lag: float) -> tuple[Floats, Floats, Floats]:
    """Where each iteration begins, in steps, and the means of all over an iteration, of bytes and of activity."""
    varied = [row for row in (sent, busy) if row is not None and row.std() > 0]
    sums = [np.concatenate([[0.0], np.cumsum(row)]) for row in varied]
    starts: Floats = np.arange(int(len(sent) // lag)) * np.float64(lag)
    length = lag
    if len(starts) < 2:
        raise TooShort("fewer than two iterations")
    for _ in range(ROUNDS):
        means = [_parts(row, starts, length).mean(axis=0) for row in sums]
        moved = [float(starts[0])]
        for _ in starts[1:]:
            nearby = moved[-1] + length + SHIFTS * length
            fits = np.zeros(len(nearby))
            for row, mean, whole in zip(varied, means, sums, strict=True):
                fits += _parts(whole, nearby, length) @ (mean - mean.mean()) / row.std()
            moved.append(float(np.interp(_peak(fits), np.arange(len(nearby)), nearby)))
        starts = np.array(moved, dtype=np.float64)
        length = float(starts[-1] - starts[0]) / (len(starts) - 1)
    whole_ones = starts[starts + length <= len(sent) + 1]
    both = [_parts(row, whole_ones, length).mean(axis=0) for row in sums]
    activity = both[1] if len(both) == 2 else np.ones(BINS)
    return starts, both[0], activity


def _parts(sums: Floats, starts: Floats, length: float) -> Floats:
    """The rates over the bins of iterations that begin at `starts`, (starts, bins), of a series with these sums."""
    edges = starts[:, None] + np.arange(BINS + 1) / BINS * length
    rates: Floats = np.diff(np.interp(edges, np.arange(len(sums)), sums), axis=1) * BINS / length
    return rates


def _peak(values: Floats) -> float:
    """Where the parabola through the highest value and its neighbours is highest."""
    place = int(np.argmax(values))
    if not 0 < place < len(values) - 1:
        return float(place)
    left, middle, right = (float(value) for value in values[place - 1 : place + 2])
    bend = left - 2 * middle + right
    return place + (0.5 * (left - right) / bend if bend else 0.0)


def _longest_on(profile: Floats) -> tuple[float, float, bool]:
    """Of an iteration's mean, around: the share above half of its height, where that begins after the longest time
    below, and whether it is always above."""
    low, high = np.quantile(profile, [0.02, 0.98])
    half = (low + high) / 2
    above = profile > half
    if high - low < 0.2 * max(abs(high), 1e-300) or above.all() or not above.any():
        return 1.0, 0.0, True
    turned = np.flatnonzero(above & ~np.roll(above, 1))
    ends = np.flatnonzero(~above & np.roll(above, 1))
    begin = max(turned, key=lambda place: min((place - ends) % len(profile)))
    before, here = profile[begin - 1], profile[begin]
    # A bin's rate is that of its middle.
    crossing = begin - 0.5 + (half - before) / (here - before) if here > before else float(begin)
    return float(above.mean()), float(crossing / len(profile)) % 1.0, False


def _spectrum_s(sent: Floats, step_s: float) -> float:
    """The length of the strongest wave: the highest peak of the spectrum through a Hann window, between bins by the
    parabola through the logarithms of it and its neighbours."""
    window = np.hanning(len(sent))
    power = np.abs(np.fft.rfft((sent - sent.mean()) * window)) ** 2
    low = min(2, len(power) - 1)
    place = low + _peak(np.log(np.maximum(power[low:], 1e-300)))
    return float(len(sent) * step_s / place)
