"""How a software divides a model over its pipeline where nobody says: as its training tool does."""

from __future__ import annotations

from dataclasses import asdict

from estimator.pricing.build import PipelineDegrees
from estimator.pricing.recipe import Recipe
from models_zoo.model import Model
from planner.one_job.tools.base.export_records import CannotExpress
from planner.one_job.tools.base.pipeline import EVEN
from planner.one_job.tools.base.shape import Shape, job_of_recipe


def habitual_blocks(model: Model, recipe: Recipe, degrees: PipelineDegrees) -> tuple[int, ...] | None:
    """Return the blocks of each chunk of layers as the tool of the recipe's software divides them by itself; None where
    it has no way of its own, or none for this model."""
    if degrees.pp == 1:
        return None
    from planner.one_job.tools.catalogue import TOOLS  # with all readers and writers of settings

    name = recipe.software.name.partition("@")[0]
    division = next((tool.division for tool in TOOLS.values() if tool.software == name), None)
    if division is None or division is EVEN:
        return None
    try:
        return division.blocks(Shape(job=job_of_recipe(model, recipe), **asdict(degrees)))
    except CannotExpress:
        return None
