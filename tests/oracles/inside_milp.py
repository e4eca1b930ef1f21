"""The choice inside a site (`planner.many_jobs.sites.inside`) as an integer linear program, solved by HiGHS.

Binary z[o]: the option is taken. Binary x[o, s, q]: its stage s has pattern q. y[o, s, q, q']: stage s has q and the
next q'. sync[o] and waits[o] are above what every stage needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.many_jobs.sites.inside import InsideChoice, InsideOption


def best_inside_by_milp(options: Sequence[InsideOption]) -> InsideChoice | None:
    """The choice of the least T; None where no option can be placed. RuntimeError if the solver gives up."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    program = _Program()
    taken = [program.column(option.compute_s, whole=True) for option in options]
    program.row(taken, [1.0] * len(taken), 1.0, 1.0)
    stages = [_add_option(program, option, one) for option, one in zip(options, taken, strict=True)]
    count = len(program.costs)
    matrix = csr_array((program.factors, (program.rows, program.columns)), shape=(len(program.low), count))
    solved: Any = milp(
        c=np.array(program.costs),
        integrality=np.array(program.whole, dtype=float),
        bounds=Bounds(np.zeros(count), np.where(program.whole, 1.0, np.inf)),
        constraints=LinearConstraint(matrix, np.array(program.low), np.array(program.high)),
        options={"mip_rel_gap": 0.0},
    )
    if solved.status == 2:
        return None
    if solved.status != 0:
        raise RuntimeError(f"inside a site: the solver ended with {solved.message}")
    chosen = max(range(len(options)), key=lambda number: solved.x[taken[number]])
    patterns = tuple(int(np.argmax(solved.x[list(row)])) for row in stages[chosen])
    return InsideChoice(option=chosen, stages=patterns, total_s=options[chosen].total_s(patterns))


class _Program:
    """Columns with costs, rows between two values."""

    def __init__(self) -> None:
        self.costs: list[float] = []
        self.whole: list[bool] = []
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.factors: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []

    def column(self, cost: float, *, whole: bool = False) -> int:
        self.costs.append(cost)
        self.whole.append(whole)
        return len(self.costs) - 1

    def row(self, columns: Sequence[int], factors: Sequence[float], low: float, high: float) -> None:
        self.rows += [len(self.low)] * len(columns)
        self.columns += columns
        self.factors += factors
        self.low.append(low)
        self.high.append(high)


def _add_option(program: _Program, option: InsideOption, taken: int) -> list[range]:
    """The option's columns and rows; of each stage the columns of its patterns."""
    count, places = len(option.patterns), []
    for _ in range(option.pp):
        start = len(program.costs)
        for _ in option.patterns:
            program.column(0.0, whole=True)
        places.append(range(start, start + count))
        program.row([*places[-1], taken], [*[1.0] * count, -1.0], 0.0, 0.0)
    for unit, most in enumerate(option.room):
        own = [float(pattern[unit]) for pattern in option.patterns]
        every = [column for row in places for column in row]
        program.row([*every, taken], [*own * option.pp, -float(most)], -np.inf, 0.0)
    sync = program.column(1.0)
    for row in places:
        program.row([sync, *row], [1.0, *(-one for one in option.sync_s)], 0.0, np.inf)
    hops = [_add_hop(program, option, here, there) for here, there in itertools.pairwise(places)]
    if hops:
        seconds = [one for row in option.hop_s for one in row]
        waits = program.column(float(option.micro_batches - 1))
        for before, after in zip([None, *hops], [*hops, None], strict=True):
            both = [*(before or ()), *(after or ())]
            repeated = seconds * (len(both) // len(seconds))
            program.row([waits, *both], [1.0, *(-one for one in repeated)], 0.0, np.inf)
    return places


def _add_hop(program: _Program, option: InsideOption, here: range, there: range) -> list[int]:
    """Which patterns two stages have together."""
    count = len(option.patterns)
    found = [program.column(2 * option.hop_s[a][b]) for a in range(count) for b in range(count)]
    for number in range(count):
        program.row([*found[number * count : (number + 1) * count], here[number]], [*[1.0] * count, -1.0], 0.0, 0.0)
        program.row([*found[number::count], there[number]], [*[1.0] * count, -1.0], 0.0, 0.0)
    return found
