"""The options of `place` for what comes after now: nodes that come free, nodes that fail."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from planner.shared.options.record import Option, Options
from planner.shared.options.values import NATURAL
from profiles.records import dataclass

LATER = partial(Option, group="what comes free, and what fails (docs/pods.md)")


@dataclass(frozen=True, kw_only=True)
class LaterOptions(Options):
    """The jobs that run now and when they end, what is reserved of their nodes; spare nodes, and a node that failed."""

    running: Annotated[
        Path | None,
        LATER(
            "the jobs that run, `squeue --json`, `kubectl get pods -A -o json` or a CSV of job,hosts,end (and"
            " gpus,movable,lost): start now, or wait for one to end?"
        ),
    ] = None
    jct: Annotated[
        Path | None,
        LATER(
            "when they end, by a model of `cellplan jct train`, or `jct predict --json` of them (default: by limits)"
        ),
    ] = None
    reserve: Annotated[bool, LATER("the nodes to hold from now on, for the start that is best")] = False
    spares: Annotated[int, LATER("keep so many free nodes to take the place of one that fails", "K", NATURAL)] = 0
    replace: Annotated[
        str | None, LATER("with --plan: this host failed; which free node takes its place, all others staying", "HOST")
    ] = None
    measure_affinity: Annotated[
        Path | None,
        LATER("add what narrow DP and PP groups win this job, by the estimator, to this database", writes="file"),
    ] = None

    def check_later(self) -> None:
        """Raise InputError for what says nothing without another option, or not beside it."""
        for name in ("jct", "reserve"):
            if getattr(self, name) and self.running is None:
                raise self.wrong(name, found=getattr(self, name), expected="--running beside it")
        if self.replace is not None:
            if getattr(self, "plan", None) is None:
                raise self.wrong("replace", found="no --plan", expected="--plan FILE, whose node it is")
            for name in ("running", "spares", "measure_affinity"):
                if getattr(self, name):
                    raise self.wrong(name, found="--replace too", expected="one of them")
