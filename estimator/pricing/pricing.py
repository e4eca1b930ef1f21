"""What prices rest on beside the setup that is priced, and the one owner of what has been computed from it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import ParamSpec, TypeVar

from estimator.communication.collectives import CollectiveTime, time_collective
from estimator.communication.groups import Group
from estimator.pricing.layer_times import Lookup, nothing_measured
from profiles.efficiencies import OperatorEfficiencies, load_operator_efficiencies
from profiles.training_parameters import TrainingParameters, load_training_parameters
from profiles.vocabulary import CollectiveOp, LinkTable

MOST_KEPT = 4_000_000
"""So many results are kept; then all are forgotten, and computed again when asked for."""

_NOTHING = object()

EfficienciesOf = Callable[[str], OperatorEfficiencies]
"""The efficiencies of a device by its name."""
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Pricing:
    """Parameters of training, efficiencies, measured layer times and link tables, and a cache of what follows.

    Records that prices are made of hold nothing that changes: what they compute more than once they ask of `remember`.
    A record bound to a Pricing is priced by that one alone; `but` gives another one, which has computed nothing yet.
    """

    __slots__ = ("_results", "efficiencies_of", "link_tables", "lookup", "parameters", "placed_tables")

    def __init__(
        self,
        *,
        parameters: TrainingParameters | None = None,
        efficiencies_of: EfficienciesOf = load_operator_efficiencies,
        lookup: Lookup = nothing_measured,
        link_tables: Sequence[LinkTable] = (),
        placed_tables: Sequence[LinkTable] = (),
    ) -> None:
        """Hold the parameters (None: those that come with the program) and what is measured: `lookup` finds layer
        times, `link_tables` are of collectives inside one part of a fabric; both win over the models. `placed_tables`
        were measured on the very groups of the one setup that is priced, with all that shares their uplinks, and win
        over these."""
        self.parameters = parameters or load_training_parameters()
        self.efficiencies_of = efficiencies_of
        self.lookup = lookup
        self.link_tables = tuple(link_tables)
        self.placed_tables = tuple(placed_tables)
        self._results: dict[Hashable, object] = {}

    def but(self, *, link_tables: Sequence[LinkTable] | None = None, lookup: Lookup | None = None) -> Pricing:
        """Return one with other tables or layer times, and an empty cache."""
        return Pricing(
            parameters=self.parameters,
            efficiencies_of=self.efficiencies_of,
            lookup=self.lookup if lookup is None else lookup,
            link_tables=self.link_tables if link_tables is None else link_tables,
            placed_tables=self.placed_tables,
        )

    def remember(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Return `function(*args, **kwargs)`, computed once.

        The function, with the object that it is bound to, and all its arguments are the key; so it may depend on
        nothing else that changes. A method's object counts as itself, whatever equals it.
        """
        key: Hashable = (function, args, *kwargs.items()) if kwargs else (function, args)
        kept = self._results.get(key, _NOTHING)
        return kept if kept is not _NOTHING else self._add(key, function(*args, **kwargs))  # type: ignore[return-value]

    def keep(self, key: Hashable, make: Callable[[], Result]) -> Result:
        """Return what `make` gave when it was asked for under `key` first.

        For results that depend on less than all of a function's arguments: `key` begins with the method that asks, and
        says everything that the result depends on.
        """
        kept = self._results.get(key, _NOTHING)
        return kept if kept is not _NOTHING else self._add(key, make())  # type: ignore[return-value]

    def stands_for(self, *content: Hashable) -> object:
        """Return what stands for `content` in keys: the same for equal content, whoever asks, and quick to compare."""
        return self.keep((Pricing.stands_for, *content), object)

    def _add(self, key: Hashable, made: Result) -> Result:
        if len(self._results) >= MOST_KEPT:
            self._results.clear()
        self._results[key] = made
        return made

    def collective_time(
        self, op: CollectiveOp, size_bytes: float, group: Group, reached: Group, concurrent: int
    ) -> CollectiveTime:
        """Return the time of a collective on `group` by a table; else on `reached`, the same group with what training
        reaches of its links (messages between two: on `group`). `concurrent` groups are busy at once."""
        return self.remember(self._collective_time, op, size_bytes, group, reached, concurrent)

    def _collective_time(
        self, op: CollectiveOp, size_bytes: float, group: Group, reached: Group, concurrent: int
    ) -> CollectiveTime:
        for tables, as_placed in ((self.placed_tables, True), (self.link_tables, False)):
            timed = time_collective(
                op, size_bytes, group, tables=tables, concurrent_groups=concurrent, as_placed=as_placed
            )
            if timed.table_ids:
                return timed
        if op == "send_recv":
            return timed
        return time_collective(op, size_bytes, reached, concurrent_groups=concurrent)
