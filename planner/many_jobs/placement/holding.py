"""The nodes to hold from now on for a start, as Slurm's reservation and as Kubernetes' taints, and what stays idle.

Words are those of scontrol(1) and of Slurm's page "Advanced Resource Reservation Guide". A reservation that begins
later keeps jobs off its nodes whose time limits go beyond that: it holds them from now on, and lets shorter ones
run; a taint has no beginning and keeps all others off at once.
"""

from __future__ import annotations

import re
from math import ceil

from estimator.pricing.upkeep import HOUR_S
from planner.many_jobs.placement.waiting import Start, Waiting
from planner.one_job.pods.host_order import host_key
from profiles.cluster import host_of
from profiles.host_lists import host_list
from profiles.records import dataclass

TAINT = "cellplan.io/held-for"
MINUTE_S, DAY_MINUTES = 60, 1440


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldNode:
    """A node that is held: when its last job ends, in seconds from now, and the devices that are idle from then on."""

    host: str
    free_s: float
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Nodes held for a job of this `name` that starts after `wait_s` and runs `run_s` (None: nobody said);
    `beyond_limits`: jobs on them may run longer than till then by their time limits."""

    name: str
    wait_s: float
    run_s: float | None
    nodes: tuple[HeldNode, ...]
    beyond_limits: bool

    @property
    def idle_device_hours(self) -> float:
        """Device-hours from a node's last job's end to the start."""
        return sum(max(0.0, self.wait_s - node.free_s) * node.devices for node in self.nodes) / HOUR_S

    @property
    def hosts(self) -> tuple[str, ...]:
        """Their names, in Slurm's order."""
        return tuple(node.host for node in self.nodes)

    def scontrol(self) -> tuple[str, ...]:
        """Return the words of the command that reserves them in Slurm."""
        start = f"now+{ceil(self.wait_s / MINUTE_S)}minutes" if self.wait_s else "now"
        flags = ["Flags=IGNORE_JOBS"] if self.beyond_limits else []
        return (
            "scontrol",
            "create",
            "reservation",
            f"ReservationName={self.name}",
            f"StartTime={start}",
            f"Duration={_duration(self.run_s)}",
            "Users=$USER",
            *flags,
            f"Nodes={host_list(self.hosts)}",
        )

    def kubectl(self) -> tuple[str, ...]:
        """Return the words of the command that taints them in Kubernetes."""
        return ("kubectl", "taint", "nodes", *self.hosts, f"{TAINT}={self.name}:NoSchedule")


def held_for(waiting: Waiting, start: Start, name: str) -> Held:
    """Return the nodes of `start` as they are to be held from now on for a job of this name. The time that it may run
    is the high end of the training's 90% interval."""
    occupancy, cluster = waiting.occupancy, start.setup.cluster
    devices: dict[str, int] = {}
    for stage in start.setup.stages:
        for slot in stage.slots:
            host = host_of(cluster, slot) or ""
            devices[host] = devices.get(host, 0) + 1
    run_s = None if start.training is None else start.training.interval_of(start.training.seconds)[1]
    jobs = {job.job: job for host in devices for job in occupancy.jobs_on.get(host, ())}
    starts_s = occupancy.now_s + start.wait_s + MINUTE_S
    return Held(
        name=re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-") or "job",
        wait_s=start.wait_s,
        run_s=run_s,
        nodes=tuple(
            HeldNode(host=host, free_s=min(occupancy.comes_free_s(host) or 0.0, start.wait_s), devices=devices[host])
            for host in sorted(devices, key=host_key)
        ),
        beyond_limits=any(job.limit_s is None or job.limit_s > starts_s for job in jobs.values()),
    )


def _duration(seconds: float | None) -> str:
    """A duration as Slurm reads it: days-hours:minutes:seconds, rounded up to minutes."""
    if seconds is None:
        return "UNLIMITED"
    minutes = ceil(seconds / MINUTE_S)
    return f"{minutes // DAY_MINUTES}-{minutes % DAY_MINUTES // 60:02}:{minutes % 60:02}:00"
