"""What ranks of a Cell's stages hold, against the memory of the same stages of an explicit plan."""

from __future__ import annotations

import random

from estimator.cells.held_stages import HeldStages, StagePlace
from estimator.pricing.memory import features_of, outside_bytes, rank_memory
from estimator.pricing.recipe import Setup, StageSetup, ZeroStage
from estimator.pricing.stage_work import stage_chunks
from estimator.schedules.closed_form import flying_micro_batches
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible, RecomputeKind
from tests.cell_examples import MODELS, make_job
from tests.seeds import seeds

CLUSTER = load_cluster("a100-80gb:2x4")
ZEROS: tuple[ZeroStage, ...] = (0, 1, 2, 3)
KINDS: tuple[RecomputeKind, ...] = ("none", "selective", "full")


def test_bytes_are_those_of_an_explicit_plan() -> None:
    """Two stages of two models, drawn: asked in any order of one object, which knows more each time, the bytes that a
    device must have are `rank_memory`'s, and what cannot be held is what has no work (four heads over three ranks)."""
    rng = random.Random(5)
    known = [HeldStages(model, CLUSTER, make_job(model).recipe) for model in MODELS]
    outcomes: set[bool] = set()
    for _ in seeds(400):
        held = rng.choice(known)
        cut = rng.randint(1, len(held.model.layers) - 1)
        dp, tp = rng.choice([(4, 1), (1, 4), (2, 2), (1, 3)])
        kind = rng.choice(KINDS)
        some = rng.choice([None, 1]) if kind == "full" else None
        zero = rng.choice(ZEROS)
        micro_batch = rng.choice([4, 8])
        groups = CLUSTER.slots[: dp * tp], CLUSTER.slots[4 : 4 + dp * tp]
        ranges = (0, cut), (cut, len(held.model.layers))
        plain, again = (
            tuple(
                StageSetup(chunks=(layers,), slots=slots, dp=dp, tp=tp, zero=zero, recompute=of, recompute_layers=count)
                for layers, slots in zip(ranges, groups, strict=True)
            )
            for of, count in (("none", None), (kind, some))
        )
        setup = Setup(model=held.model, cluster=CLUSTER, recipe=held.recipe, stages=again, micro_batch=micro_batch)
        index = rng.randrange(2)
        place = StagePlace(
            first=ranges[index][0],
            end=ranges[index][1],
            slots=groups[index],
            others=groups[1 - index],
            index=index,
            stages=2,
            micro_batch=micro_batch,
        )
        here = held.bytes_of(plain[index], place, kind, some)
        chunks = stage_chunks(setup, index)
        outcomes.add(isinstance(here, Infeasible))
        if isinstance(here, Infeasible) or isinstance(chunks, Infeasible):
            assert type(here) is type(chunks)
            continue
        flying = flying_micro_batches(held.recipe.schedule, 2, 1, setup.micro_batches)[index].tolist()
        device = CLUSTER.group_of(groups[0][0]).device
        outside = outside_bytes(setup, again[index], features_of(held.recipe))
        expected = rank_memory(setup, index, chunks, flying).needed_bytes
        assert held.needed_bytes(here, outside, device.memory_bytes) == expected
    assert outcomes == {False, True}
