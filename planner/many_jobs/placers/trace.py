"""From the trace: a job sits where it sat when it was logged, as far as that is free now."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request
from profiles.errors import InputError


class FromTrace:
    """The hosts that the trace names for the job, in their order, each with as many devices as it had there; what they
    have not, best-fit on the others: hosts that the pool lacks, devices that are not free (a trace's times are coarser
    than its events, and jobs here end when their iterations do), and all of a job of which the trace says nothing, or
    that gets another number of devices. `strict`: refuse in place of that."""

    name = "trace"

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`. InputError where the pool's nodes have no names, and where it is `strict` and a job cannot sit
        where it sat."""
        job = request.job
        seats = self._seats(nodes, request) if job.hosts and job.devices == request.devices else ()
        lacking = request.devices - sum(count for _, count in seats)
        if not lacking:
            return seats
        if self.strict:
            where = f"placer {self.name} at {request.now_s:g} s, job {job.id}"
            expected = "all where the trace has the job, or strict=false"
            raise InputError(
                where=where, found=f"{lacking} of its {request.devices} devices elsewhere", expected=expected
            )
        left = list(nodes.free)
        for node, count in seats:
            left[node] -= count
        taken = dict(seats)
        for node, count in best_fit(left, range(len(left)), lacking) or ():
            taken[node] = taken.get(node, 0) + count
        return tuple(taken.items())

    def _seats(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """What of the job's own hosts is free."""
        if not request.network.hosts:
            found, expected = "no names of nodes", "names in the cluster file, or --topology: hosts of the trace"
            raise InputError(where=f"placer {self.name}, pool {request.pool}", found=found, expected=expected)
        numbers = {host: number for number, host in enumerate(request.network.hosts)}
        there = ((numbers[host], count) for host, count in request.job.hosts if host in numbers)
        seats = ((node, min(count, nodes.free[node])) for node, count in there)
        return tuple((node, count) for node, count in seats if count)
