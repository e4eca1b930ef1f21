"""Cells bought at prices: every decision weighs all jobs and all their Cells at once.

The prices of a device of each pool are the dual of the linear relaxation (one Cell a job, devices of each pool); they
start from those of the last decision. Every job buys the Cell with the greatest surplus (value less price) as far as
devices last; what is left goes to the best single changes; then the search of Crius at `depth` polishes the result.
The value of a Cell counts the standstill of a change, so that a job changes only when that pays within `horizon_s`.

Beside Crius it may use more counts (`levels` halvings and doublings of what was asked for), weighs who should wait at
all, and knows how far it is from the optimum: `gap_mean`.
"""

from __future__ import annotations

import numpy as np

from planner.many_jobs.jobs.records import Decision, View
from planner.many_jobs.scheduling.cells.admission import Admission
from planner.many_jobs.scheduling.cells.board import LONG_RUN, NOTHING, Board, BoardMaker, weights_of
from planner.many_jobs.scheduling.cells.fill import buy, improve
from planner.many_jobs.scheduling.cells.prices import dual_value, lower_prices
from planner.many_jobs.scheduling.cells.search import BEAM, Search, take
from planner.many_jobs.scheduling.cells.tables import CellTables
from profiles.errors import InputError


class Marginal:
    """Options: `objective` (jct, throughput, throughput-now, fairness, deadlines; see
    `planner.many_jobs.scheduling.cells.board.LONG_RUN`), `levels` (halvings and doublings of what a job asked for),
    `horizon_s` (a change must pay within it), `depth` and `beam` of the search at the end (0: none)."""

    name, objective, reach = "marginal", "jct", 2

    def __init__(
        self,
        *,
        objective: str | None = None,
        levels: int | None = None,
        horizon_s: float = 3600.0,
        depth: int = 2,
        beam: int = BEAM,
    ) -> None:
        levels = self.reach if levels is None else levels
        if levels < 0 or depth < 0 or beam < 1:
            asked = f"{levels}, {depth}, {beam}"
            raise InputError(
                where="policy marginal", key="levels, depth, beam", found=asked, expected="0, 0, 1 or more"
            )
        weights = weights_of(self.objective if objective is None else objective, LONG_RUN)
        self.maker = BoardMaker(CellTables(tuple(range(-levels, levels + 1))), weights, horizon_s)
        self.depth, self.beam = depth, beam
        self.decisions, self._gaps = 0, 0.0
        self._prices: dict[str, float] = {}

    def decide(self, view: View) -> Decision:
        """Prices, purchases, changes."""
        self.maker.begin(view)
        board = self.maker.make(view, view.waiting, prices=self._relative(view))
        pools = self.maker.tables.pools
        sizes = _sizes(board)
        start = np.array([self._prices.get(pool, 0.0) for pool in pools])
        prices = lower_prices(board.value, board.devices, board.pool_of, sizes, start)
        self._prices = dict(zip(pools, prices.tolist(), strict=True))
        kept, before = list(board.now), board.total()
        buy(board, prices)
        improve(board, prices, most=len(board.ids))
        self._polish(board)
        if board.total() < before:
            for row, column in enumerate(kept):
                board.now[row] = column
        bound = dual_value(board.value, board.devices, board.pool_of, sizes, prices)
        self.decisions += 1
        self._gaps += 1 - board.total() / bound if bound > 0 else 0.0
        return Decision(grants=board.changes(pools))

    def _relative(self, view: View) -> list[float] | None:
        """The last prices as shares of the highest, none of them 0; None where there are none."""
        highest = max((self._prices.get(pool, 0.0) for pool in view.pools), default=0.0)
        if not highest > 0:
            return None
        return [self._prices.get(pool, 0.0) / highest + 1e-3 for pool in view.pools]

    @property
    def gap_mean(self) -> float:
        """What decisions lacked of their bound in the mean, as a share of it."""
        return self._gaps / self.decisions if self.decisions else 0.0

    def state(self) -> object:
        """The last prices, and the gaps so far."""
        return {"prices": self._prices, "decisions": self.decisions, "gaps": self._gaps}

    def restore(self, state: object) -> None:
        """Take over what `state` gave."""
        assert isinstance(state, dict)
        self._prices = dict(state["prices"])
        self.decisions, self._gaps = int(state["decisions"]), float(state["gaps"])

    def _polish(self, board: Board) -> None:
        search = Search(board, depth=self.depth, beam=self.beam)
        for _ in range(4):
            choice = search.best(None)
            if choice is None:
                return
            take(board, choice)


class MarginalThroughput(Marginal):
    """For the throughput over the whole run."""

    name, objective, reach = "marginal-throughput", "throughput", 3


class MarginalNow(Marginal):
    """For the throughput of the moment, hence for what is done up to a time before the jobs' end."""

    name, objective = "marginal-now", "throughput-now"


class MarginalDDL(Admission):
    """For deadlines: as many as can be met, see `planner.many_jobs.scheduling.cells.admission`; an admitted job may
    give its place to a much cheaper one. What is left over goes where it does most work."""

    name = "marginal-ddl"

    def __init__(
        self,
        *,
        objective: str = "deadlines",
        levels: int = 5,
        horizon_s: float = 3600.0,
        replacing: bool = True,
        round_s: float = 300.0,
    ) -> None:
        maker = BoardMaker(CellTables(tuple(range(-levels, levels + 1))), weights_of(objective, LONG_RUN), horizon_s)
        super().__init__(maker, replacing=replacing, round_s=round_s)


def _sizes(board: Board) -> list[int]:
    """Devices of each pool that jobs on the board may share: those free and those that they hold."""
    sizes = list(board.free)
    for row, column in enumerate(board.now):
        if column != NOTHING:
            sizes[int(board.pool_of[column])] += int(board.devices[row, column])
    return sizes
