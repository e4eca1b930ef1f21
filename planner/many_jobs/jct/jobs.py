"""The columns of a trace that completion times are predicted from, as arrays, in order of submission."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.records import dataclass

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KILLED = ("kill", "cancel", "stopped", "preempt")
"""How a status begins that says that a user or the scheduler ended the job before it was done."""


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Jobs in order of submission; those of one time in the order of the file. All arrays have one length.

    `duration_s` is NaN where it is not known (never finished). `queue_s` is 0 where the trace does not say. `numbers`
    has what the trace holds of `nodes`, `cpus`, `mem_gb`, and `product_s`, iterations times iteration time; `words` the
    codes of what it holds of `vc`, `user`, `name`; a column that is empty or the same everywhere is absent. `killed`
    marks jobs that somebody ended early: how long they would have run is not known. `order` says where each job stood
    in the file.
    """

    ids: tuple[str, ...]
    submit_s: Floats
    duration_s: Floats
    queue_s: Floats
    gpus: Floats
    numbers: Mapping[str, Floats]
    words: Mapping[str, Ints]
    killed: NDArray[np.bool_]
    order: Ints

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def start_s(self) -> Floats:
        """When each job began to run."""
        return self.submit_s + self.queue_s

    @property
    def finish_s(self) -> Floats:
        """When each job ended: submit + queue + duration; infinite where it is not known."""
        return np.where(np.isnan(self.duration_s), np.inf, self.start_s + self.duration_s)

    @property
    def seen_finish_s(self) -> Floats:
        """When others can know that each job ended: not in the instant of its own submission."""
        return np.asarray(np.maximum(self.finish_s, np.nextafter(self.submit_s, np.inf)))


def make_jobs(
    *,
    ids: Sequence[str],
    submit_s: Floats,
    duration_s: Floats,
    gpus: Floats,
    queue_s: Floats | None = None,
    numbers: Mapping[str, Floats] | None = None,
    words: Mapping[str, Sequence[str]] | None = None,
    status: Sequence[str] | None = None,
) -> Jobs:
    """Return jobs in order of submission, from columns in any order; columns that say nothing are left out."""
    order = np.argsort(submit_s, kind="stable")
    codes = {name: np.unique(np.asarray(column), return_inverse=True)[1] for name, column in (words or {}).items()}
    kept = {name: column[order] for name, column in (numbers or {}).items()}
    return Jobs(
        ids=tuple(ids[index] for index in order.tolist()),
        submit_s=submit_s[order],
        duration_s=duration_s[order],
        queue_s=(np.zeros(len(order)) if queue_s is None else queue_s)[order],
        gpus=gpus[order],
        numbers={name: column for name, column in kept.items() if not np.all(np.isnan(column))},
        words={name: column[order].astype(np.int64) for name, column in codes.items() if np.any(column != column[0])},
        killed=np.zeros(len(order), bool) if status is None else _killed(status)[order],
        order=order,
    )


def _killed(status: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([word.strip().lower().startswith(KILLED) for word in status], dtype=bool)
