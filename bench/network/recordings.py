"""Synthetic counters of training jobs whose truth is known: jitter, noise, any overlap."""

from __future__ import annotations

import numpy as np

from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """Counters as a sampler would have read them, and what made them: the mean length of the iterations that were
    recorded, the bytes of each, and after how much of its compute one begins to send."""

    times_s: tuple[float, ...]
    totals: tuple[float, ...]
    active: tuple[float, ...]
    iteration_s: float
    sent_bytes: float
    begins_s: float
    compute_s: float


def record_series(seed: int, *, jitter: float = 0.01) -> Recorded:
    """One burst an iteration, which begins somewhere in its compute and outlasts it; compute varies by `jitter`, bytes
    by as much, the sampler is late now and then, and others' packets are counted too."""
    rng = np.random.default_rng(seed)
    compute_s = rng.uniform(0.25, 2.0)
    begins_s = compute_s * rng.uniform(0.3, 1.0)
    exposed_s = compute_s * rng.uniform(0.12, 0.6)
    sending_s = compute_s - begins_s + exposed_s
    length_s = compute_s + exposed_s
    recorded_s = max(30.0, 12 * length_s)
    step_s = length_s / rng.uniform(20, 100)
    rate = 10 ** rng.uniform(8, 10.5)
    edges, sums, busy_edges, busy = [0.0], [0.0], [0.0], [0.0]
    now_s, starts = 0.0, []
    while now_s < recorded_s + length_s:
        factor = 1 + jitter * rng.standard_normal()
        part_s, size = compute_s * factor, rate * sending_s * (1 + jitter * rng.standard_normal())
        first, end = now_s + begins_s * factor, now_s + begins_s * factor + sending_s
        starts.append(now_s)
        edges += [first, end]
        sums += [sums[-1], sums[-1] + size]
        busy_edges += [now_s, now_s + part_s]
        busy += [busy[-1], busy[-1] + part_s]
        now_s = max(end, now_s + part_s)
    times = np.arange(0.0, recorded_s, step_s)
    times = np.sort(times + step_s * 0.1 * rng.random(len(times)))
    totals = np.interp(times, edges, sums)
    totals += np.concatenate([[0.0], np.cumsum(0.01 * rate * np.diff(times) * rng.random(len(times) - 1) * 2 * 0.5)])
    on = np.interp(times, busy_edges, busy)
    active = np.concatenate([[0.0], np.diff(on) / np.diff(times)])
    active = np.clip(active + 0.02 * rng.standard_normal(len(active)), 0, 1)
    whole = [start for start in starts if start <= times[-1]]
    return Recorded(
        times_s=tuple(times.tolist()),
        totals=tuple(totals.tolist()),
        active=tuple(active.tolist()),
        iteration_s=(whole[-1] - whole[0]) / (len(whole) - 1),
        sent_bytes=rate * sending_s,
        begins_s=begins_s,
        compute_s=compute_s,
    )
