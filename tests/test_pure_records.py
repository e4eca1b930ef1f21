"""Frozen records hold nothing that changes, and what is remembered of one question never answers another."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from estimator.bulk.evaluator import BulkEvaluator
from estimator.bulk.records import BatchedDegrees, Family, Priced, StateRule
from estimator.pricing.build import stage_chunks, uniform_setup
from estimator.pricing.evaluate import evaluate
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Recipe, Setup
from models_zoo.model import Model
from planner.one_job.search.best import find_best
from planner.one_job.search.spaces.constraints import Constraints
from planner.one_job.search.spaces.request import request_on
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import Infeasible
from tests.zoo_families import gpt, llama

ROOT = Path(__file__).parent.parent
PRODUCT = ("estimator", "planner", "profiles", "models_zoo", "cellplan")
CHANGING = {"dict", "list", "set", "defaultdict", "Counter", "deque", "OrderedDict", "bytearray"}
HANDED_OUT = {
    "estimator/frontends/jax_program.py": "what a JAX program is traced to, variables being objects of JAX",
    "estimator/frontends/torch_module.py": "a user's keyword arguments",
    "models_zoo/hugging_face/keys.py": "a reader that tells which keys it was asked for",
    "models_zoo/jax_layers/build.py": "trees as JAX takes them",
    "planner/one_job/running/jax_leaves.py": "trees as JAX takes them",
}
"""Files whose frozen records carry what a framework made or takes, as it is, or note what they were asked."""
OBJECTS_OF_FRAMEWORKS = (
    "estimator/frontends/",
    "estimator/profiling/training_jax.py",
    "planner/one_job/running/",
    "models_zoo/torch_layers/",
)
"""Tensors and parameters compare by value or not at all: there identity is what is asked for."""


def product_files() -> Iterator[tuple[str, ast.Module]]:
    for root in PRODUCT:
        for path in sorted((ROOT / root).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def is_frozen(decorator: ast.expr) -> bool:
    keywords = decorator.keywords if isinstance(decorator, ast.Call) else []
    return any(key.arg == "frozen" and isinstance(key.value, ast.Constant) and key.value.value for key in keywords)


def changing_fields(record: ast.ClassDef) -> list[str]:
    names = []
    for field in record.body:
        if not isinstance(field, ast.AnnAssign):
            continue
        kind = ast.unparse(field.annotation).strip("'\"").split("[")[0].split(".")[-1].split("|")[0].strip()
        factory = ast.unparse(field.value) if field.value else ""
        # A mapping that starts empty is one that nobody has a hold of (`Schema` is a mapping).
        makes = any(f"default_factory={name}" in factory for name in CHANGING - {"dict"})
        if kind in CHANGING or makes or ("default_factory=dict" in factory and kind not in ("Mapping", "Schema")):
            names.append(f"{record.name}.{ast.unparse(field.target)}")
    return names


def test_frozen_records_have_no_fields_that_change() -> None:
    broken = [
        f"{path}: {name}"
        for path, tree in product_files()
        if path not in HANDED_OUT
        for record in ast.walk(tree)
        if isinstance(record, ast.ClassDef) and any(map(is_frozen, record.decorator_list))
        for name in changing_fields(record)
    ]
    assert not broken


def test_nothing_is_kept_by_where_it_lies_in_memory() -> None:
    broken = [
        f"{path}:{call.lineno}"
        for path, tree in product_files()
        if not path.startswith(OBJECTS_OF_FRAMEWORKS)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "id"
    ]
    assert not broken


# What is remembered

SMALL = gpt("small", hidden=256, layers=4, heads=4, vocab=4096, seq_len=256)
WIDE = llama("wide", hidden=512, layers=4, heads=8, kv_heads=2, ffn_hidden=1024, vocab=4096, seq_len=512)
CLUSTERS = ("a100-80gb:2x4", "h100:2x2")


def recipe_of(model: Model, global_batch: int) -> Recipe:
    return Recipe(global_batch=global_batch, seq_len=model.seq_len, schedule="1f1b")


def evaluator_of(model: Model, cluster: Cluster, recipe: Recipe, pricing: Pricing) -> BulkEvaluator:
    return BulkEvaluator(
        model=model, cluster=cluster, recipe=recipe, pricing=pricing, overlap_under=lambda _zero: recipe.overlap
    )


def prices(evaluator: BulkEvaluator, first: int, degrees: BatchedDegrees) -> Priced:
    """Of two cuts on the devices from `first` on."""
    slots = evaluator.cluster.slots[first:]
    pipeline = evaluator.pipeline(degrees, evaluator.placement(1, slots))
    cut = stage_chunks(evaluator.model, pp=degrees.pp)
    assert not isinstance(pipeline, Infeasible)
    assert not isinstance(cut, Infeasible)
    states = tuple(StateRule(zero=zero) for zero in (0, 1, 3))
    rules = (("none", None), ("full", 1))
    return pipeline.price(Family(schedule="1f1b", cuts=(cut,), recompute=rules, states=states))  # type: ignore[arg-type]


def test_evaluators_of_different_jobs_and_clusters_share_a_pricing() -> None:
    shared = Pricing()
    jobs = [
        (model, cluster, recipe_of(model, global_batch))
        for model, cluster, global_batch in itertools.product((SMALL, WIDE), map(load_cluster, CLUSTERS), (8, 16))
    ]
    evaluators = [evaluator_of(*job, shared) for job in jobs]
    shapes = (BatchedDegrees(tp=1, pp=2, dp=1), BatchedDegrees(tp=2, pp=1, dp=1), BatchedDegrees(tp=1, pp=1, dp=2))
    for degrees, first, (number, evaluator) in itertools.product(shapes, (0, 2), enumerate(evaluators)):
        together, alone = (
            prices(evaluator, first, degrees),
            prices(evaluator_of(*jobs[number], Pricing()), first, degrees),
        )
        assert (together.total_s == alone.total_s).all()
        assert (together.lacking_bytes == alone.lacking_bytes).all()


def test_an_evaluator_asked_again_answers_for_the_devices_it_is_asked_about() -> None:
    """Devices of the second node are those of the second node, whatever was asked before."""
    cluster = load_cluster("a100-80gb:2x4")
    evaluator = evaluator_of(SMALL, cluster, recipe_of(SMALL, 8), Pricing())
    for tp, slots in itertools.product((1, 2), (cluster.slots[:4], cluster.slots[4:], cluster.slots[2:6])):
        placement = evaluator.placement(tp, slots)
        assert set(placement.slots) <= set(slots)
        pipeline = evaluator.pipeline(BatchedDegrees(tp=tp, pp=1, dp=1), placement)
        assert not isinstance(pipeline, Infeasible)
        assert set(pipeline.kinds[0].stage.slots) <= set(slots)


def test_an_evaluator_changed_by_replace_remembers_nothing_of_the_other() -> None:
    slow, fast = map(load_cluster, ("a100-80gb:2x4", "h100:2x4"))
    before = evaluator_of(WIDE, slow, recipe_of(WIDE, 8), Pricing())
    degrees = BatchedDegrees(tp=2, pp=2, dp=1)
    prices(before, 0, degrees)
    for changed in (replace(before, cluster=fast), replace(before, model=SMALL, recipe=recipe_of(SMALL, 8))):
        fresh = replace(changed, pricing=Pricing())
        assert (prices(changed, 0, degrees).total_s == prices(fresh, 0, degrees).total_s).all()


def test_single_plans_share_a_pricing() -> None:
    shared = Pricing()
    setups = [
        setup
        for model, name, tp, pp in itertools.product((SMALL, WIDE), CLUSTERS, (1, 2), (1, 2))
        if isinstance(setup := uniform_setup(model, load_cluster(name), recipe_of(model, 8), tp=tp, pp=pp, dp=1), Setup)
    ]
    assert len(setups) == 16
    for setup in (*setups, *reversed(setups)):
        assert evaluate(setup, shared) == evaluate(setup)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_searches_made_in_turn_find_what_each_finds_alone(order: tuple[int, int]) -> None:
    """On one type of device and on two, with the same request asked again after another."""
    requests = [
        request_on(model, load_cluster(name), recipe_of(model, 8), constraints=Constraints())
        for model, name in ((SMALL, "a40:1x2+a10:1x2"), (WIDE, "a100-80gb:1x4"))
    ]
    winners = {number: find_best(requests[number]).winner for number in order}
    for number in order:
        again = find_best(requests[number]).winner
        model, cluster = requests[number].model, requests[number].cluster
        fresh = request_on(model, cluster, recipe_of(model, 8), constraints=Constraints())
        alone = find_best(fresh).winner
        assert winners[number].setup == again.setup == alone.setup
        assert winners[number].evaluation == again.evaluation == alone.evaluation
