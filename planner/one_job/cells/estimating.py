"""What `planner.api.estimate` does: the Cells of a model on a cluster, as values for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from estimator.cells.cell import CellEstimate
from estimator.pricing.evaluate import evaluate
from estimator.pricing.pricing import Pricing
from planner.one_job.cells.describe import describe_cells
from planner.one_job.cells.request import (
    Request,
    best_cell,
    can_be_had,
    describe_sources,
    hardware_of,
    read_request,
    search_cells,
    why_nothing_fits,
)
from planner.one_job.explicit.effects import Effect, assumption_effects
from planner.shared.inputs import open_existing
from planner.shared.options.estimate import EstimateOptions
from profiles.errors import NothingFits
from profiles.store import ProfileStore


def estimate_cells(options: EstimateOptions) -> dict[str, Any]:
    """Return all Cells; raise NothingFits, with the same value in it, if none can be had."""
    if options.output is not None:
        expected = "a plan to write, which --tp, --pp, --dp or another degree makes; or `cellplan plan`"
        raise options.wrong("output", found=options.output, expected=expected)
    with open_existing(options.store) as opened:
        request = read_request(options, store=opened)
        cells = search_cells(request, opened)
        possible = can_be_had(cells)
        best = best_cell(cells) if possible else None
        sources = describe_sources(request, best, opened) if best else ()
        effects = _effects(request, best, opened) if best else ()
    recipe = request.job.recipe
    result = {
        "model": request.job.model.name,
        "cluster": request.cluster.text,
        "global_batch": recipe.global_batch,
        "seq_len": recipe.seq_len or None,
        "dtype": recipe.dtype,
        "cells": describe_cells(cells, best=best),
        "assumptions": [*request.assumptions, *sources],
        "assumption_effects": [asdict(effect) for effect in effects],
    }
    if not possible:
        raise NothingFits(why_nothing_fits(request, cells), result=result)
    return result


def _effects(request: Request, best: CellEstimate, store: ProfileStore | None) -> tuple[Effect, ...]:
    """What the assumptions that move the best Cell's figures most are worth."""
    hardware = hardware_of(request, store, best)
    pricing = Pricing(lookup=hardware.lookup, link_tables=hardware.link_tables)
    return assumption_effects(best.setup, best.evaluation, request.assumptions, lambda setup: evaluate(setup, pricing))
