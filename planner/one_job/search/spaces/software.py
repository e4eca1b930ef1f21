"""A space in parts of one software each: what hooks its modules under ZeRO 3 has other modules there."""

from __future__ import annotations

from dataclasses import replace

from estimator.pricing.recipe import Software, ZeroStage
from planner.one_job.search.spaces.request import DeviceSpace


def split_by_software(whole: DeviceSpace) -> tuple[DeviceSpace, ...]:
    """Return `whole` in parts of one software each, which share out its stages of ZeRO among them."""
    stages = whole.space.constraints.zero
    plain = tuple(zero for zero in stages if zero not in whole.hooked)
    if plain == stages:
        return (whole,)
    parts = [(whole.evaluator.recipe.software, plain)] if plain else []
    parts += [(software, (zero,)) for zero, software in whole.hooked.items() if zero in stages]
    return tuple(_part_of(whole, software, zero) for software, zero in parts)


def _part_of(whole: DeviceSpace, software: Software, stages: tuple[ZeroStage, ...]) -> DeviceSpace:
    """The plans of some stages of ZeRO, under the software that they have."""
    constraints = replace(whole.space.constraints, zero=stages)
    recipe = replace(whole.evaluator.recipe, software=software)
    return replace(
        whole,
        space=replace(whole.space, constraints=constraints),
        evaluator=replace(whole.evaluator, recipe=recipe),
        hooked={},
    )
