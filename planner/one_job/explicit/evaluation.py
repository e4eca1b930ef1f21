"""An explicit plan evaluated with what the store has measured."""

from __future__ import annotations

from estimator.pricing.evaluate import evaluate
from estimator.pricing.layer_times import Lookup, nothing_measured
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from estimator.profiling.lookup import find_origins, lookup_in_store, usable_link_tables
from estimator.profiling.setting import Framework
from profiles.cluster import most_on_one_node
from profiles.store import ProfileStore
from profiles.vocabulary import Infeasible


def evaluate_with_store(
    setup: Setup, *, store: ProfileStore | None = None, profiles: Framework | None = None
) -> Evaluation | Infeasible:
    """Return `estimator.pricing.evaluate.evaluate` of `setup` with layer times (of `profiles` alone, where that is a
    framework) and link tables of `store` for the plan's device."""
    pricing = pricing_with_store(setup, store=store, profiles=profiles)
    return evaluate(setup) if pricing is None else evaluate(setup, pricing)


def pricing_with_store(
    setup: Setup, *, store: ProfileStore | None = None, profiles: Framework | None = None
) -> Pricing | None:
    """Return what `evaluate_with_store` prices `setup` by; None without a store."""
    if store is None:
        return None
    device = setup.stages[0].slots[0].device
    return Pricing(
        lookup=_lookup(setup, store, device, profiles), link_tables=usable_link_tables(store, device, profiles)
    )


def _lookup(setup: Setup, store: ProfileStore, device: str, profiles: Framework | None) -> Lookup:
    """Profiles of one origin, where every stage runs on the device that they are of."""
    if any(stage.slots[0].device != device for stage in setup.stages):
        return nothing_measured
    recipe = setup.recipe
    origins = find_origins(
        store,
        setup.model.layers,
        device=device,
        optimizer=recipe.optimizer,
        dtype=recipe.dtype,
        seq_len=recipe.seq_len,
        framework=profiles,
    )
    if not origins:
        return nothing_measured
    workers = most_on_one_node([slot for stage in setup.stages for slot in stage.slots])
    return lookup_in_store(store, device=device, optimizer=recipe.optimizer, origin=origins[0], workers=workers)
