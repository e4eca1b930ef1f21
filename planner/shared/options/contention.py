"""The options of `contention`."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from planner.shared.options.record import Option
from planner.shared.options.topology import TopologyOptions
from planner.shared.options.values import PART
from profiles.limits import LIMITS
from profiles.records import dataclass

Model = Literal["collective", "flow"]

MOST_JITTER = 0.4


@dataclass(frozen=True, kw_only=True)
class ContentionOptions(TopologyOptions):
    """Jobs that run beside each other on a cluster."""

    command: ClassVar[str] = "contention"

    jobs: Annotated[Path, Option("the jobs: what each sends in an iteration, and its hosts (YAML)", "JOBS")] = field(
        kw_only=False
    )
    cluster: Annotated[str, Option("such as h100:16x8, or a cluster file", "C")]
    running: Annotated[
        Path | None,
        Option(
            "who sits where, of jobs that name no hosts: squeue --json, scontrol show job -d, kubectl get pods -o json,"
            " or a table of job, hosts and end"
        ),
    ] = None
    seeds: Annotated[int, Option("so many hashes of the switches, one run by each (default: 1)")] = 1
    jitter: Annotated[float, Option("the share by which compute times vary (default: 0.01)", "SHARE", PART)] = 0.01
    model: Annotated[
        Model,
        Option("what moves as one: a step of a collective, or every connection by itself (default: collective)"),
    ] = "collective"
    timeline: Annotated[
        Path | None, Option("who computes and sends when, for Perfetto (.json, .json.gz)", writes="file")
    ] = None
    plot: Annotated[
        Path | None, Option("links over time by the GPU intensity of who sends (.svg, .png)", writes="file")
    ] = None

    def check(self) -> None:
        """Raise InputError for more runs than are taken, or compute that varies by more than half of it: twice the
        jitter is played as well."""
        LIMITS.seeds.check(self.seeds, where=self.command, key="--seeds")
        if self.jitter > MOST_JITTER:
            raise self.wrong("jitter", found=f"{self.jitter:g}", expected=f"a share from 0 to {MOST_JITTER}")
