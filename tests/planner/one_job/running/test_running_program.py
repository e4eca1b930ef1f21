"""What a plan asks of its workers: who holds what, and which plans cannot be run and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from estimator.frontends.load import load_file_model
from models_zoo.catalogue import load_model
from models_zoo.layers import Embedding, Experts, TracedLayer, TransformerBlock
from models_zoo.model import Model
from models_zoo.user_code import UserFactory
from planner.one_job.running.program import Program, program_of
from planner.shared.plan import Plan, PlanStage
from planner.shared.plan_parts import PlanRecipe, PlanSoftware
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.one_job.running.run_plan_examples import GPT, MIXTRAL, HandStage, hand_plan, write_config

WHOLE = HandStage(chunks=((0, 6),))
NMT, RESNET = load_model("nmt-tiny"), load_model("wide-resnet-tiny")
RECIPE = PlanRecipe(grad_dtype="fp32", software=PlanSoftware(name="generic"))


@pytest.fixture(scope="module")
def gpt(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("gpt"), "gpt", GPT)


@pytest.fixture(scope="module")
def mixtral(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_config(tmp_path_factory.mktemp("mixtral"), "mixtral", MIXTRAL)


def program(plan: Plan, model: Model | None = None) -> Program:
    return program_of(plan, model or load_file_model(plan.model.reference), where="plan.json")


def on_first_stage(plan: Plan, change: Callable[[PlanStage], PlanStage]) -> Plan:
    return replace(plan, stages=(change(plan.stages[0]), *plan.stages[1:]))


# What cannot be run


def _with_context_parallelism(stage: PlanStage) -> PlanStage:
    return replace(stage, dp=1, cp=2)


REFUSED: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "cp": (lambda plan: on_first_stage(plan, _with_context_parallelism), "stages[0].cp: found 2, expected 1"),
    "offload": (
        lambda plan: on_first_stage(plan, lambda stage: replace(stage, offload=("optimizer", "weights"))),
        "stages[0].offload: found optimizer, weights, expected none",
    ),
    "zb-h1": (
        lambda plan: replace(plan, schedule="zb-h1"),
        "schedule: found zb-h1, expected one that run knows: gpipe, 1f1b, interleaved",
    ),
    "optimizer": (
        lambda plan: replace(plan, optimizer="muon"),
        "optimizer: found muon, expected one that run knows: adamw, sgd",
    ),
    "fp8": (
        lambda plan: replace(plan, model=replace(plan.model, dtype="fp8")),
        "model.dtype: found fp8, expected one that run knows: fp32, bf16, fp16",
    ),
    "tf32": (lambda plan: replace(plan, model=replace(plan.model, dtype="tf32")), "model.dtype: found tf32"),
    "lora": (
        lambda plan: replace(plan, recipe=replace(RECIPE, lora_rank=8)),
        "recipe.lora_rank: found 8, expected 0: run trains all weights",
    ),
    "frozen": (
        lambda plan: replace(plan, recipe=replace(RECIPE, frozen_layers=(1, 3))),
        "recipe.frozen_layers: found (1, 3), expected null",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_run_is_refused_by_its_key(gpt: str, name: str) -> None:
    change, message = REFUSED[name]
    plan = hand_plan(gpt, replace(WHOLE, dp=2))
    assert program(plan).ranks == 2, "the plan itself can be run"
    with pytest.raises(InputError) as failure:
        program(change(plan))
    assert str(failure.value).startswith(f"plan.json: {message}")


def test_dualpipe_is_refused(gpt: str) -> None:
    stages = (HandStage(chunks=((0, 3), (3, 6))), HandStage(chunks=((3, 6), (0, 3))))
    plan = hand_plan(gpt, *stages, schedule="dualpipe")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"plan\.json: schedule: found dualpipe, expected one that run knows"):
        program(plan)


def test_stages_of_two_attention_kernels_are_refused(gpt: str) -> None:
    plan = hand_plan(gpt, HandStage(chunks=((0, 3),)), HandStage(chunks=((3, 6),)))
    plan = on_first_stage(plan, lambda stage: replace(stage, attention="math"))
    with pytest.raises(InputError, match=r"stages\[1\]\.attention: found flash, expected math, as in the first stage"):
        program(plan)


def test_interleaved_with_a_broken_group_of_micro_batches_is_refused(gpt: str) -> None:
    stages = (HandStage(chunks=((0, 1), (3, 4))), HandStage(chunks=((1, 3), (4, 6))))
    plan = hand_plan(gpt, *stages, schedule="interleaved", global_batch=6, micro_batch=2)
    with pytest.raises(InputError, match=r"schedule: found interleaved, expected micro-batches must be a multiple"):
        program(plan)


@pytest.mark.parametrize(
    ("stage", "found"),
    [
        (HandStage(chunks=((0, 6),), tp=2), "ep=1, etp=1, expected ep=tp=2 and etp=1"),
        (HandStage(chunks=((0, 6),), dp=2), None),
        (HandStage(chunks=((0, 6),), tp=2, experts=True), None),
    ],
)
def test_experts_are_shared_by_the_tensor_parallel_ranks_alone(
    mixtral: str, stage: HandStage, found: str | None
) -> None:
    plan = hand_plan(mixtral, stage)
    if found is None:
        assert program(plan).ranks == 2
        with pytest.raises(InputError, match=r"stages\[0\]: found ep=1, etp=2"):
            program(on_first_stage(plan, lambda stage: replace(stage, ep=1, etp=2)))
        return
    with pytest.raises(InputError, match=rf"stages\[0\]: found {found}"):
        program(plan)


def test_a_dense_model_says_nothing_of_experts(gpt: str) -> None:
    plan = on_first_stage(hand_plan(gpt, replace(WHOLE, dp=2)), lambda stage: replace(stage, ep=2))
    assert program(plan).ranks == 2


def test_a_traced_module_is_refused(gpt: str) -> None:
    traced = TracedLayer(
        fingerprint="f",
        split_fingerprint="s",
        factory=UserFactory(reference="a.b:make"),
        batch=1,
        places=("x",),
        shards=(),
        refused=(),
    )
    plan = hand_plan(gpt, WHOLE)
    model = load_file_model(gpt)
    model = replace(model, layers=(model.layers[0], traced, *model.layers[2:]))
    with pytest.raises(InputError, match=r"model\.reference: found .*, expected a zoo model or a config\.json"):
        program(plan, model)


# Who holds what


def test_even_and_uneven_shares_give_each_replica_its_samples(gpt: str) -> None:
    stages = HandStage(chunks=((0, 3),), dp=3, shares=(3, 2, 1)), HandStage(chunks=((3, 6),), dp=2, tp=2)
    found = program(hand_plan(gpt, *stages, global_batch=12, micro_batch=6))
    uneven, even = found.stages
    assert (uneven.shares, even.shares) == ((3, 2, 1), (3, 3))
    assert [uneven.samples(replica) for replica in range(3)] == [(0, 3), (3, 5), (5, 6)]
    assert [even.samples(replica) for replica in range(2)] == [(0, 3), (3, 6)]
    expected = Shard(tp=1, micro_batch_per_rank=2, seq_len=16, dtype="fp32")
    assert found.shard(uneven, 1) == expected
    assert found.shard(even, 1) == replace(expected, tp=2, micro_batch_per_rank=3)
    assert (found.ranks, found.stage_of(2), found.stage_of(3)) == (7, uneven, even)


def test_tokens_are_split_only_where_there_are_ranks_to_split_them(gpt: str) -> None:
    alone, together = (HandStage(chunks=((0, 6),), tp=tp, sequence_parallel=True) for tp in (1, 2))
    for stage, splits in ((alone, False), (together, True)):
        found = program(hand_plan(gpt, stage))
        assert found.stages[0].splits_tokens is splits
        assert found.shard(found.stages[0], 0).sequence_parallel is splits


@pytest.mark.parametrize(
    ("order", "places"),
    [
        # Of dp 2 x tp 3 on ranks 0 to 5: rank r is replica and tensor-parallel index ...
        (("tp", "cp", "dp", "pp"), {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2)}),
        (("pp", "tp", "dp", "cp"), {0: (0, 0), 1: (0, 1), 2: (0, 2), 3: (1, 0), 4: (1, 1), 5: (1, 2)}),
        (("dp", "cp", "tp", "pp"), {0: (0, 0), 1: (1, 0), 2: (0, 1), 3: (1, 1), 4: (0, 2), 5: (1, 2)}),
    ],
)
def test_ranks_are_counted_in_the_plans_order(
    gpt: str, order: tuple[str, str, str, str], places: dict[int, tuple[int, int]]
) -> None:
    plan = hand_plan(gpt, replace(WHOLE, dp=2, tp=3))
    (stage,) = program(replace(plan, rank_axis_order=order)).stages  # type: ignore[arg-type]
    assert {rank: stage.place(rank) for rank in range(6)} == places
    assert all(stage.rank_at(*place) == rank for rank, place in places.items())


def test_one_replica_has_nothing_to_shard(gpt: str) -> None:
    assert program(hand_plan(gpt, replace(WHOLE, tp=2, zero=1))).stages[0].zero == 0
    kept = program(hand_plan(gpt, replace(WHOLE, dp=4, zero=3, shard=2), micro_batch=4)).stages[0]
    assert (kept.zero, kept.shard, kept.replicate) == (3, 2, 2)


def test_dropout_is_left_out_and_the_rest_of_the_model_stays(gpt: str) -> None:
    model = load_file_model(gpt)
    assert any(isinstance(layer, TransformerBlock) and layer.dropout for layer in model.layers)
    found = program(hand_plan(gpt, WHOLE)).model
    for ours, theirs in zip(found.layers, model.layers, strict=True):
        if isinstance(theirs, Embedding | TransformerBlock):
            assert ours == replace(theirs, dropout=False)
        else:
            assert ours == theirs


def test_the_plans_capacity_is_the_experts(mixtral: str) -> None:
    plan = hand_plan(mixtral, WHOLE)
    own = program(plan).model.layers[1]
    stated = program(replace(plan, recipe=replace(RECIPE, moe_capacity_factor=2.5))).model.layers[1]
    assert isinstance(own, TransformerBlock)
    assert isinstance(own.feed_forward, Experts)
    assert stated == replace(own, feed_forward=replace(own.feed_forward, capacity_factor=2.5))


@pytest.mark.parametrize(
    ("recipe", "grad_dtype", "overlaps"),
    [
        (None, "bf16", False),
        (RECIPE, "fp32", False),
        (replace(RECIPE, grad_dtype="bf16", overlap=("dp", "tp")), "bf16", True),
    ],
)
def test_gradients_are_as_the_recipe_has_them(
    gpt: str, recipe: PlanRecipe | None, grad_dtype: str, overlaps: bool
) -> None:
    found = program(replace(hand_plan(gpt, WHOLE, dtype="bf16"), recipe=recipe))
    assert (found.dtype, found.grad_dtype, found.overlaps_gradients) == ("bf16", grad_dtype, overlaps)


# What crosses the cuts


def test_tokens_cross_as_sequences_of_activations(gpt: str) -> None:
    found = program(hand_plan(gpt, WHOLE, seq_len=8))
    assert [found.boundary_shapes(layer) for layer in range(1, 6)] == [((8, 32),)] * 5


def test_an_encoders_output_travels_along_until_its_last_use() -> None:
    found = program(hand_plan("nmt-tiny", HandStage(chunks=((0, len(NMT.layers)),))))
    own = (16, 64)
    # Embedding, two encoder blocks, embedding (3), two decoder blocks, head (6): the head uses no encoder's output.
    assert [len(found.boundary_shapes(layer)) for layer in range(1, 7)] == [1, 1, 1, 2, 2, 1]
    assert {shape for layer in range(1, 7) for shape in found.boundary_shapes(layer)} == {own}


def test_images_cross_as_channels_of_pixels() -> None:
    layers = len(RESNET.layers)
    found = program(hand_plan("wide-resnet-tiny", HandStage(chunks=((0, layers),)), seq_len=None))
    assert found.seq_len == 0
    # 64 pixels: the stem and its pool leave a quarter, each later group of 4, 6 and 3 halves them and doubles channels.
    groups = [(8, 16)] + [(32, 16)] * 3 + [(64, 8)] * 4 + [(128, 4)] * 6 + [(256, 2)] * 3
    crossing = [found.boundary_shapes(layer) for layer in range(1, layers)]
    assert crossing == [((channels, pixels, pixels),) for channels, pixels in groups]
