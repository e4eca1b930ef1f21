"""What recursive halving and doubling costs on a group: its phases walked over the group's levels, one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import cast

from estimator.communication.phases import PhasedOp, collective_phases
from estimator.communication.rank_order import partners_together
from estimator.communication.tables import bus_factor
from profiles.vocabulary import CollectiveOp

Step = tuple[int, float, float]
"""Of a level, from inside out: ranks in one of its parts, seconds of a step, bytes/s out of a part."""


def walk_phases(op: CollectiveOp, ranks: int, steps: Sequence[Step], above_s_per_byte: float) -> tuple[float, float]:
    """Return the seconds that do not grow with bytes, and those for a byte. A phase ends when the busiest part is
    through, out or in; it passes the outermost level that it has flows over.

    Ranks fill the parts one behind the other, those that exchange most next to each other. Uplinks above the nodes
    carry what a ring's would: with that order as many bytes leave a part of the tree, in fewer steps.
    """
    place = {rank: at for at, rank in enumerate(partners_together(ranks))}
    latency_s = seconds_per_byte = 0.0
    for phase in collective_phases("halving-doubling", cast("PhasedOp", op), ranks):
        sent: defaultdict[tuple[int, str, int], float] = defaultdict(float)
        for sender, receiver, share in phase.flows:
            a, b = place[sender], place[receiver]
            level = max(at for at, (inside, _, _) in enumerate(steps) if a // inside != b // inside)
            inside = steps[level][0]
            sent[level, "out", a // inside] += share
            sent[level, "in", b // inside] += share
        latency_s += phase.repeats * max(steps[level][1] for level, _, _ in sent)
        seconds_per_byte += phase.repeats * max(size / steps[level][2] for (level, _, _), size in sent.items())
    return latency_s, max(seconds_per_byte, bus_factor(op, ranks) * above_s_per_byte)
