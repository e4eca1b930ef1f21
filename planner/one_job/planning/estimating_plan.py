"""What `planner.api.estimate` does for one explicit plan: its estimate, as a value for JSON.

What nobody says of the plan is chosen as `plan` chooses it, under the degrees that are said.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from models_zoo.layers import TracedLayer
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.estimate import Estimated, describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.recording import record_estimate
from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.explicit.unsaid import Evaluate, Taken, widened_by_habits
from planner.one_job.explicit.whole import train_setup
from planner.one_job.search.best import Best, find_best
from planner.one_job.search.spaces.assumptions import freedom_assumed
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.search.spaces.stated import SCHEDULES
from planner.shared.inputs import open_existing
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.search import SpaceOptions
from planner.shared.options.training import TrainingOptions
from planner.shared.plan_file import save_plan
from profiles.errors import NothingFits
from profiles.store import ProfileStore

CHOSEN = ("micro_batch", "micro_batches", "recompute", "zero", "schedule", "vpp", "offload")
"""Options of what a plan chooses where nobody does."""


def estimate_plan(options: EstimateOptions) -> dict[str, Any]:
    """Return the estimate of one explicit plan; write the plan and its timeline where the options say, if it fits.
    Raise NothingFits, with the same value in it, if it does not."""
    if options.timeline is not None:
        from planner.one_job.timeline.save import timeline_form

        timeline_form(options.timeline)
    with open_existing(options.store) as opened:
        request = read_any_request(options, store=opened)
        evaluate = partial(evaluate_with_store, store=opened, profiles=options.profiles)
        estimated = estimate_as_planned(options, request, evaluate, store=opened)
        if estimated is None:
            estimated = estimate_explicit(request, whole=options, evaluate=evaluate)
        result = describe_estimated(estimated)
        if estimated.shortfall is not None:
            message = f"{request.reference} on {estimated.plan.cluster}: the plan does not fit; {estimated.shortfall}"
            raise NothingFits(message, result=result)
        if options.output is not None:
            save_plan(estimated.plan, options.output)
        if options.timeline is not None:
            from planner.one_job.timeline.events import make_timeline
            from planner.one_job.timeline.save import save_timeline

            drawn = make_timeline(
                estimated.plan, where="plan", store=opened, profiles=options.profiles, code=options.user_code
            )
            save_timeline(drawn, options.timeline)
    return result


def estimate_as_planned(
    options: EstimateOptions, request: ExplicitRequest, evaluate: Evaluate, *, store: ProfileStore | None
) -> Estimated | None:
    """Return the plan that `plan` finds where what `options` say is fixed, which `request` has read; None where it is
    none of the space that `plan` searches, or where nothing there fits."""
    space = space_options(options, request)
    if space is None:
        return None
    try:
        searched = read_search(space, store=store, model=request.setups[0].model)
        best = find_best(searched)
    except NothingFits:
        return None
    taken = Taken(setup=best.winner.setup, evaluation=best.winner.evaluation, sentences=())
    taken = widened_by_habits(taken, request.often, evaluate)
    assumed = (*_assumed(options, request, searched, space, best), *taken.sentences)
    estimate = record_estimate(taken.setup, taken.evaluation, count_setup_flops(taken.setup))
    return Estimated(
        plan=replace(best.plan, estimate=estimate, assumptions=tuple(dict.fromkeys(assumed))),
        evaluation=taken.evaluation,
        training=train_setup(taken.setup, taken.evaluation, options),
        shortfall=None,
    )


def space_options(options: EstimateOptions, request: ExplicitRequest) -> SpaceOptions | None:
    """Return the options of a search for the plan that `options` leave open; None where no search has such plans: a
    file's, a traced module's, those with state on the host as somebody says, or shared and copied so."""
    first = request.setups[0]
    traced = any(isinstance(layer, TracedLayer) for layer in first.model.layers)
    if options.plan is not None or traced or options.hsdp is not None or options.offload:
        return None
    if options.schedule not in (None, *SCHEDULES):
        return None
    stage = first.stages[0]
    group = first.cluster.group_of(stage.slots[0])
    beyond = stage.tp > min(group.island_size or group.devices, group.devices)
    return SpaceOptions(
        request.reference,
        cluster=first.cluster.text,
        devices=first.devices,
        schedule=None if options.schedule is None else (options.schedule,),
        no_offload=options.offload == (),
        pp=len(first.stages),
        etp=options.etp,
        vpp=options.vpp,
        micro_batches=None if isinstance(options.micro_batches, str) else options.micro_batches,
        allow=("tp-across-islands",) if beyond else (),
        **{name: getattr(stage, name) for name in ("tp", "dp", "cp", "ep")},
        **{name: getattr(options, name) for name in ("micro_batch", "recompute", "zero", "sequence_parallel")},
        **{name: getattr(options, name) for name in entries(TrainingOptions)}
        | {"global_batch": first.recipe.global_batch},
    )


def _assumed(
    options: EstimateOptions, request: ExplicitRequest, searched: SearchRequest, space: SpaceOptions, best: Best
) -> list[str]:
    """What nobody said: what follows from the degrees, what the training takes for granted, what was chosen."""
    listed, changed = entries(EstimateOptions), options.changed()
    freedom = freedom_assumed(len(searched.cluster.free_slots), space, has_host=True)
    open_flags = ", ".join(listed[name].flag for name in CHOSEN if name not in changed)
    proof = "no plan with these degrees is faster" if best.proved else "not proved the fastest"
    chosen = [f"chosen as `plan` chooses, {proof}: {open_flags}"] if open_flags else []
    training = [sentence for sentence in searched.assumptions if sentence not in freedom]
    return [*off_defaults_sentence(options), *request.derived, *chosen, *training]
