"""Gandiva's placement and its migration (OSDI 2018, section 4): near each other first, then wherever there is room."""

from __future__ import annotations

from collections.abc import Sequence

from planner.many_jobs.jobs.records import NodeCounts
from planner.many_jobs.placers.filling import best_fit, fill, largest_first
from planner.many_jobs.placers.move_board import MoveBoard
from planner.many_jobs.placers.moves import Move, MoveRequest, SeatedNodes
from planner.many_jobs.placers.records import FreeNodes, Request


class Gandiva:
    """Of the nodes that already have jobs of the same size, one with room (Gandiva keeps 1-, 2- and 4-GPU jobs apart,
    so that what one leaves another of its size takes): here, nodes whose free devices are a multiple of the job's; else
    an idle node; else as few nodes as may be.

    Migration: from the node with the most free devices of those in use jobs go to others with fewer free devices, again
    and again, until no node in use has `threshold` of its devices free (the paper: 3 of 4) or nobody has where to go.
    Jobs on several nodes stay."""

    name = "gandiva"

    def __init__(self, threshold: float = 0.75) -> None:
        if not 0 < threshold < 1:
            raise ValueError(f"threshold={threshold}; a share between 0 and 1")
        self.threshold = threshold

    def place(self, nodes: FreeNodes, request: Request) -> NodeCounts:
        """As `Placer`."""
        free, wanted, size = nodes.free, request.devices, request.size
        if wanted < size:
            same = [node for node, count in enumerate(free) if 0 < count < size and count % wanted == 0]
            if same:
                return ((min(same, key=lambda node: (free[node], node)), wanted),)
        idle = [node for node, count in enumerate(free) if count == size]
        if len(idle) * size >= wanted:
            return tuple(fill(free, idle, wanted))
        chosen = best_fit(free, largest_first(free, range(len(free))), wanted)
        return chosen or ()

    def moves(self, nodes: SeatedNodes, request: MoveRequest) -> Sequence[Move]:
        """As `MovingPlacer`."""
        board = MoveBoard(nodes, request)
        for node in largest_first(board.free, board.partly_used()):
            if board.free[node] < self.threshold * request.size:
                break
            for job, count in () if node in board.came else board.pieces(node) or ():
                fuller = [other for other in board.partly_used() if count <= board.free[other] < board.free[node]]
                if len(job.seats) == 1 and fuller:
                    target = min(fuller, key=lambda other: (board.free[other], other))
                    board.reseat(job, ((target, count),))
        return board.moves()
