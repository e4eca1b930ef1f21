"""What `planner.api.estimate` does for one explicit plan: its estimate, as a value for JSON.

What nobody says of the plan is chosen as `plan` chooses it, under the degrees that are said.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from estimator.frontends.load import load_any_model
from models_zoo.layers import TracedLayer
from models_zoo.model import Model
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.explicit.estimate import Estimated, describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store, pricing_with_store
from planner.one_job.explicit.figures import count_setup_flops
from planner.one_job.explicit.on_fabric import describe_on_fabric
from planner.one_job.explicit.recording import record_estimate
from planner.one_job.explicit.request import ExplicitRequest
from planner.one_job.explicit.unsaid import Evaluate, Taken, widened_by_habits
from planner.one_job.explicit.whole import train_setup
from planner.one_job.planning.preferring import find_preferred
from planner.one_job.pods.uplink_use import network_use
from planner.one_job.search.best import Best, find_best
from planner.one_job.search.spaces.assumptions import freedom_assumed
from planner.one_job.search.spaces.request import SearchRequest, read_search
from planner.one_job.search.spaces.stated import SCHEDULES
from planner.shared.inputs import load_place, open_existing, token_count
from planner.shared.options.choices import off_defaults_sentence
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.options.search import SpaceOptions
from planner.shared.options.training import TrainingOptions
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass
from profiles.store import ProfileStore

UNEVEN = ("--pp", "--global-batch")
"""What a plan of equal shares refuses where a plan may have them all the same: stages on several types of device,
replicas that do not divide the batch."""

CHOSEN = ("micro_batch", "micro_batches", "recompute", "zero", "schedule", "vpp", "offload")
"""Options of what a plan chooses where nobody does."""


def estimate_plan(options: EstimateOptions) -> dict[str, Any]:
    """Return the estimate of one explicit plan; write the plan and its timeline where the options say, if it fits.
    Raise NothingFits, with the same value in it, if it does not."""
    if options.timeline is not None:
        from planner.one_job.timeline.save import timeline_form

        timeline_form(options.timeline)
    with open_existing(options.store) as opened:
        estimated = _estimate(options, opened)
        result = describe_estimated(estimated)
        if options.network is not None:
            setup = read_any_request(options, store=opened).setups[0]
            pricing = pricing_with_store(setup, store=opened, profiles=options.profiles)
            result["network_flow"] = describe_on_fabric(setup, pricing, estimated.evaluation.iteration_time_s)
        if estimated.shortfall is not None:
            reference = estimated.plan.model.reference
            message = f"{reference} on {estimated.plan.cluster}: the plan does not fit; {estimated.shortfall}"
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


def _estimate(options: EstimateOptions, store: ProfileStore | None) -> Estimated:
    """The plan that `plan` finds under the options; else the first of the setups in turn that fits, or the last."""
    evaluate = partial(evaluate_with_store, store=store, profiles=options.profiles)
    try:
        request = read_any_request(options, store=store)
    except InputError as refusal:
        fixed = fixed_unevenly(options, store) if refusal.key in UNEVEN else None
        uneven = None if fixed is None else estimate_as_planned(options, fixed, evaluate, store=store)
        if uneven is None:
            raise
        return uneven
    fixed = fixed_by(options, request)
    planned = None if fixed is None else estimate_as_planned(options, fixed, evaluate, store=store)
    return planned or estimate_explicit(request, whole=options, evaluate=evaluate)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What the options fix of a plan: tp, pp, dp, cp and ep by name, its batch (None: as `plan` has it), and sentences
    about what of that nobody said; `often` as in `ExplicitRequest`. `beyond`: tp is wider than an island."""

    model: Model
    sizes: Mapping[str, int]
    global_batch: int | None
    derived: tuple[str, ...] = ()
    often: tuple[str, ...] = ()
    beyond: bool = False


def fixed_by(options: EstimateOptions, request: ExplicitRequest) -> Fixed | None:
    """Return what `request`, which `options` are, fixes; None where no search has such plans."""
    first = request.setups[0]
    if not _is_searched(options, first.model):
        return None
    stage = first.stages[0]
    group = first.cluster.group_of(stage.slots[0])
    return Fixed(
        model=first.model,
        sizes={"pp": len(first.stages), **{name: getattr(stage, name) for name in ("tp", "dp", "cp", "ep")}},
        global_batch=first.recipe.global_batch,
        derived=request.derived,
        often=request.often,
        beyond=stage.tp > min(group.island_size or group.devices, group.devices),
    )


def fixed_unevenly(options: EstimateOptions, store: ProfileStore | None) -> Fixed | None:
    """Return what `options` fix of a plan whose replicas take unequal shares, or whose stages are on devices of several
    types; None where these are not all devices, or no search has such plans."""
    if options.model is None or options.cluster is None or options.micro_batch is not None:
        return None
    model = load_any_model(options.model, options.user_code)
    tokens = token_count(model, options.seq_len)
    place = load_place(
        options.cluster, model, store=store, dtype=options.dtype, seq_len=tokens, optimizer=options.optimizer
    )
    sizes = {name: getattr(options, name) or 1 for name in ("tp", "pp", "cp", "ep")}
    beside = sizes["tp"] * sizes["pp"] * sizes["cp"]
    devices = options.devices or len(place.free_slots)
    sizes["dp"] = options.dp or devices // beside
    if beside * sizes["dp"] != devices or not _is_searched(options, model):
        return None
    return Fixed(model=model, sizes=sizes, global_batch=options.global_batch)


def _is_searched(options: EstimateOptions, model: Model) -> bool:
    """Whether a search has such plans: none has a file's, a traced module's, those with state on the host because
    somebody says so, or shared and copied so."""
    if options.plan is not None or any(isinstance(layer, TracedLayer) for layer in model.layers):
        return False
    return options.hsdp is None and not options.offload and options.schedule in (None, *SCHEDULES)


def estimate_as_planned(
    options: EstimateOptions, fixed: Fixed, evaluate: Evaluate, *, store: ProfileStore | None
) -> Estimated | None:
    """Return the plan that `plan` finds where what `options` say is fixed; None where it is none of the space that
    `plan` searches, or where nothing there fits."""
    space = space_options(options, fixed)
    try:
        searched = read_search(space, store=store, model=fixed.model)
        best = find_preferred(searched) if options.memory_margin is None else find_best(searched)
    except NothingFits:
        return None
    taken = Taken(setup=best.winner.setup, evaluation=best.winner.evaluation, sentences=())
    taken = widened_by_habits(taken, fixed.often, evaluate)
    assumed = (*_assumed(options, fixed, searched, space, best), *taken.sentences)
    estimate = record_estimate(taken.setup, taken.evaluation, count_setup_flops(taken.setup))
    network = network_use(taken.setup, taken.evaluation.iteration_time_s)
    return Estimated(
        plan=replace(best.plan, estimate=estimate, assumptions=tuple(dict.fromkeys(assumed)), network=network),
        evaluation=taken.evaluation,
        training=train_setup(taken.setup, taken.evaluation, options),
        shortfall=None,
    )


def space_options(options: EstimateOptions, fixed: Fixed) -> SpaceOptions:
    """Return the options of a search for the plan that `options` leave open."""
    same = ("micro_batch", "recompute", "zero", "sequence_parallel", "etp", "vpp", *entries(TrainingOptions))
    stated: dict[str, Any] = {name: getattr(options, name) for name in same}
    return SpaceOptions(
        options.model or "",
        cluster=options.cluster or "",
        devices=math.prod(fixed.sizes[name] for name in ("tp", "pp", "dp", "cp")),
        schedule=None if options.schedule is None else (options.schedule,),
        no_offload=options.offload == (),
        micro_batches=None if isinstance(options.micro_batches, str) else options.micro_batches,
        allow=("tp-across-islands",) if fixed.beyond else (),
        **{**stated, **fixed.sizes, "global_batch": fixed.global_batch},
    )


def _assumed(
    options: EstimateOptions, fixed: Fixed, searched: SearchRequest, space: SpaceOptions, best: Best
) -> list[str]:
    """What nobody said: what follows from the degrees, what the training takes for granted, what was chosen."""
    listed, changed = entries(EstimateOptions), options.changed()
    freedom = freedom_assumed(len(searched.cluster.free_slots), space, has_host=True)
    open_flags = ", ".join(listed[name].flag for name in CHOSEN if name not in changed)
    proof = "no plan with these degrees is faster" if best.proved else "not proved the fastest"
    chosen = [f"chosen as `plan` chooses, {proof}: {open_flags}"] if open_flags else []
    training = [sentence for sentence in searched.assumptions if sentence not in freedom]
    return [*off_defaults_sentence(options), *fixed.derived, *chosen, *training]
