"""The best plan for the job of a launcher's present setting, of those that the launcher can run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from estimator.profiling.setting import Framework
from planner.one_job.explicit.recording import record_plan
from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.explicit.unsaid import Evaluate
from planner.one_job.importing.comparison import FindBest
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import SearchRequest, request_on
from planner.shared.inputs import open_existing
from planner.shared.options.common import Tool
from planner.shared.plan import Plan
from profiles.errors import NothingFits
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible


def best_of_setting(tool: Tool, *, store: Path | None, profiles: Framework | None) -> FindBest:
    """What finds the best plan beside a setting of `tool`, with what the store at `store` has measured."""

    def find(request: ExplicitRequest, evaluate: Evaluate) -> Plan | None:
        with open_existing(store) as opened:
            search = search_of(request, tool=tool, store=opened, profiles=profiles)
            return _best_plan(search, evaluate)

    return find


def search_of(
    request: ExplicitRequest, *, tool: Tool, store: ProfileStore | None, profiles: Framework | None
) -> SearchRequest:
    """The search over all plans that `tool` can run for the model, batch, precision, optimizer and software of a setup,
    on its devices."""
    setup = request.setups[0]
    recipe = replace(setup.recipe, schedule="1f1b")
    used = {slot for stage in setup.stages for slot in stage.slots}
    search = request_on(
        setup.model,
        setup.cluster,
        recipe,
        constraints=Constraints(tool=tool),
        slots=tuple(slot for slot in setup.cluster.slots if slot in used),
        reference=request.reference,
        profiles=profiles,
        modelled=True,
        store=store,
    )
    return replace(search, assumptions=(f"plans that {tool} can run, trained as the present setting is",))


def _best_plan(search: SearchRequest, evaluate: Evaluate) -> Plan | None:
    try:
        best = find_best(search)
    except NothingFits:
        return None
    setup = best.winner.setup
    evaluation = evaluate(setup)
    if isinstance(evaluation, Infeasible):
        raise RuntimeError(f"a plan that was found is not possible: {evaluation.reason}")
    plan = record_plan(setup, evaluation, reference=search.reference, assumptions=search.assumptions)
    searched = best.plan.provenance
    covered = replace(
        plan.provenance, search_space_size=searched.search_space_size, optimality_proved=searched.optimality_proved
    )
    return replace(plan, provenance=covered)
