"""How seriously two jobs contend: the work that is lost where both have the same level, played.

Crux's section 4.3 says that this should count, and weighs its edges by intensity alone. By name, an edge weighs what
two jobs, beside nobody else, do more in a second if the more important comes first than if they share.
"""

from __future__ import annotations

from dataclasses import replace

from planner.contention.policies.keeping import Paths
from planner.contention.policies.records import View
from planner.contention.policies.rehearsals import Rehearsals
from planner.contention.policies.worth import work_per_s


def loss_of_sharing(view: View, paths: Paths, first: int, second: int) -> float:
    """Return FLOP/s that two jobs lose on these paths where they share one level; 0 where they lose nothing."""
    pair = replace(view, jobs=(view.jobs[first], view.jobs[second]))
    rehearsals, its = Rehearsals(pair), (paths[first], paths[second])
    before, together = (work_per_s(pair.jobs, rehearsals.iterations_per_s(its, levels)) for levels in ((0, 1), (0, 0)))
    return max(before - together, 0.0)
