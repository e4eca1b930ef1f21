"""Which jobs resemble each other, and the names of what is counted among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from planner.many_jobs.jct.jobs import Ints, Jobs

GROUPS: tuple[tuple[str, ...], ...] = (
    ("vc", "gpus"),
    ("vc",),
    ("user", "gpus"),
    ("user",),
    ("user", "name"),
    ("name",),
    ("gpus", "cpus", "mem_gb"),
    ("gpus",),
    (),
)
"""Columns that the jobs of a group have in common. A group counts where the trace has all its columns but `cpus` and
`mem_gb`, of which it needs one; devices alone, and the empty group, all jobs, where it has neither `vc` nor `user`."""

RECENT, LAST, LONG = 8, 31, 200
"""Finished jobs that are looked back to: few, as many as the past-31 median takes, and many."""
SUBMITTED = 24
"""Submitted jobs that are looked back to, finished or not."""
AGED: tuple[tuple[str, float, float], ...] = (
    ("p600", 600.0, 600.0),
    ("p3600", 3600.0, 3600.0),
    ("p13800", 13800.0, 13800.0),
)
"""(name, least age, bound): of those submitted at least that long ago, the share that had not finished the bound after
their submission. That is known by then, whether or not they have finished now."""
AGED_WINDOWS = (32, 128, 1024)
COUNTED_S = (60.0, 3600.0, 86400.0)
"""Jobs submitted within the last so many seconds are counted."""
DECAYED, DECAYS_S = 128, (600.0, 3600.0, 21600.0, 86400.0)
"""The last so many submitted are weighted by exp(-seconds submitted before the newest of them / each of these)."""
LONGEST_DECAYS = 80.0
"""No weight is less than exp of minus this: what is older counts alike."""
SHORT_S, LONG_S = (600.0, 3600.0), 14400.0

STATS: tuple[str, ...] = (
    f"median_{RECENT}",
    f"mean_{RECENT}",
    *(f"q{percent}_{LAST}" for percent in (25, 50, 75)),
    f"mean_{LAST}",
    f"first_{LAST}",
    f"second_{LAST}",
    f"cap_{LAST}",
    "last_log",
    "last_but_one_log",
    f"mean_{LONG}",
    "since_finish_s",
    f"since_finish_{LAST}_s",
    "recent_running",
    *(f"recent_within_{bound:g}" for bound in SHORT_S),
    f"recent_beyond_{LONG_S:g}",
    *(f"{name}_{window}" for name, _, _ in AGED for window in AGED_WINDOWS),
    "running",
    "running_age_s",
    "gap_s",
    "gap_before_s",
    "previous_age_s",
    "previous_before_age_s",
    "previous_done",
    *(f"count_{within:g}" for within in COUNTED_S),
    *(f"{stat}_{decay:g}" for decay in DECAYS_S for stat in ("decayed_mean", "decayed_within_600", "decayed_rate")),
)
"""What is known of a group when a job is submitted; `features` says what each is."""
COUNTED_NUMBERS = ("gpus", "nodes", "cpus", "mem_gb", "product_s")


def groups_of(columns: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """The groups that a trace with these columns (`gpus` always among them) has."""
    held = {*columns, "gpus"}
    groups: list[tuple[str, ...]] = []
    for group in GROUPS:
        if group in ((), ("gpus",)):
            if not held & {"vc", "user"}:
                groups.append(group)
        elif "cpus" in group:
            if held & {"cpus", "mem_gb"}:
                groups.append(group)
        elif held >= set(group):
            groups.append(group)
    return tuple(groups)


def columns_of(jobs: Jobs) -> tuple[str, ...]:
    """The columns of a trace that predictions can rest on."""
    return ("gpus", *jobs.numbers, *jobs.words)


def feature_names(columns: Sequence[str]) -> tuple[str, ...]:
    """The features of a job in a trace with these columns, in order."""
    numbers = tuple(name for name in COUNTED_NUMBERS if name in columns)
    names = ("-".join(group) or "all" for group in groups_of(columns))
    return (*numbers, *(f"{name}.{stat}" for name in names for stat in STATS))


def group_codes(jobs: Jobs, group: Sequence[str]) -> Ints:
    """A number for each job, equal for jobs of one group."""
    group_of = np.zeros(len(jobs), np.int64)
    for name in group:
        column: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
        if name == "gpus":
            column = jobs.gpus
        elif name in jobs.words:
            column = jobs.words[name]
        elif name in jobs.numbers:
            column = jobs.numbers[name]
        else:
            continue
        codes = np.unique(column, return_inverse=True)[1]
        group_of = np.unique(group_of * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)[1]
    return group_of.astype(np.int64)
