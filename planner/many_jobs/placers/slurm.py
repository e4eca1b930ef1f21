"""Slurm's select/cons_tres as it comes, of a job that asks for devices alone (`--gpus N`)."""

from __future__ import annotations

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit
from planner.many_jobs.placers.records import FreeNodes, Request


class Slurm:
    """Runs of nodes with anything free that follow each other in the node table (`_eval_nodes`): the smallest run that
    holds the job, of equal ones the first; in it, and of all runs where none does, the nodes in order, but as few as
    hold the job. Slurm counts weights, features and cores too, which nodes of a pool have alike."""

    name = "slurm"

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free = nodes.free
        runs: list[list[int]] = [[]]
        for node, count in enumerate(free):
            if count:
                runs[-1].append(node)
            elif runs[-1]:
                runs.append([])
        sums = {place: sum(free[node] for node in run) for place, run in enumerate(runs)}
        holding = [place for place, total in sums.items() if total >= request.devices]
        if holding:
            run = runs[min(holding, key=lambda place: (sums[place], place))]
        else:
            run = [node for run in runs for node in run]
        return tuple(sorted(best_fit(free, run, request.devices) or ()))
