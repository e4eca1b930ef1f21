"""What exporters share: a plan in launchers' numbers, its chunks and nodes, and the small languages they write."""

from __future__ import annotations

import ast
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.exports.plans import PLANS, make_plan
from bench.exports.shell_arguments import expand_pattern
from models_zoo.catalogue import load_model
from planner.one_job.exporting.formats import FORMATS, load_exporter
from planner.one_job.tools.base.decoder import decoder_of
from planner.one_job.tools.base.export_records import CannotExpress, ExportContext
from planner.one_job.tools.base.nodes import nodes_of
from planner.one_job.tools.base.python_text import Code, call, comment, literal
from planner.one_job.tools.base.shape import chunks_of, shape_of
from planner.one_job.tools.base.writing import launcher_lines
from planner.one_job.tools.megatron.fields import split_fields
from planner.one_job.tools.megatron.write import pattern
from planner.shared.plan import Plan
from planner.shared.plan_checks import load_plan_model
from profiles.errors import InputError


def test_chunks_cover_the_blocks_in_order() -> None:
    for name in PLANS:
        plan = make_plan(name)
        if plan.model.sizes.blocks is None or plan.schedule == "dualpipe":
            continue
        chunks = chunks_of(plan, load_plan_model(plan))
        ends = [0, *(chunk.end for chunk in chunks)]
        assert [chunk.first for chunk in chunks] == ends[:-1], name
        assert ends[-1] == plan.model.sizes.blocks
        assert [chunk.embeds for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
        assert [chunk.heads for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


def test_ranks_in_another_order_than_their_axes_say_are_refused() -> None:
    plan = make_plan("gpt tp2 pp2")
    first, second = plan.stages
    moved = replace(plan, stages=(replace(first, ranks=second.ranks), replace(second, ranks=first.ranks)))
    with pytest.raises(CannotExpress) as caught:
        shape_of(moved, "tool")
    assert caught.value.key == "stages[0].ranks"


def test_an_order_that_a_tool_does_not_count_in_is_refused() -> None:
    plan = pipeline_first(make_plan("gpt tp2 pp2"))
    with pytest.raises(CannotExpress) as caught:
        shape_of(plan, "tool")
    assert caught.value.key == "rank_axis_order"
    assert shape_of(plan, "tool", orders=[("tp", "cp", "pp", "dp")]).order == ("tp", "pp", "dp")
    script = load_exporter("megatron")(plan, ExportContext()).files[0].text
    assert "    --use-tp-pp-dp-mapping\n" in script


def pipeline_first(plan: Plan) -> Plan:
    """The plan with replicas counted slowest: rank = tp + 2 pp + 4 dp."""
    stages = tuple(
        replace(stage, ranks=tuple(rank for d in range(stage.dp) for rank in (4 * d + 2 * n, 4 * d + 2 * n + 1)))
        for n, stage in enumerate(plan.stages)
    )
    return replace(plan, rank_axis_order=("tp", "cp", "pp", "dp"), stages=stages)


def test_replicas_with_uneven_shares_are_refused() -> None:
    plan = make_plan("llama zero 0")
    shares = (5, *([1] * 15))
    (stage,) = plan.stages
    uneven = replace(
        plan,
        batch=replace(plan.batch, global_batch=20, micro_batch=20, micro_batches=1),
        stages=(replace(stage, micro_batch_shares=shares),),
    )
    with pytest.raises(CannotExpress) as caught:
        shape_of(uneven, "tool")
    assert caught.value.key == "stages[0].micro_batch_shares"


def test_nodes_and_launchers() -> None:
    plan = make_plan("llama zero 3")
    assert [len(node.ranks) for node in nodes_of(plan).nodes] == [8, 8]
    notes: list[str] = []
    assert "--nnodes 2" in launcher_lines(plan, notes)
    devices = (*plan.devices[8:], *plan.devices[:8])
    moved = replace(plan, devices=tuple(replace(one, rank=rank) for rank, one in enumerate(devices)))
    assert nodes_of(moved).node_major, "another node first is still node by node"
    mixed = [devices[place] for pair in zip(range(8), range(8, 16), strict=True) for place in pair]
    apart = replace(plan, devices=tuple(replace(one, rank=rank) for rank, one in enumerate(mixed)))
    assert not nodes_of(apart).node_major
    launcher_lines(apart, notes)
    assert any("RANK and LOCAL_RANK" in note for note in notes)


def test_nodes_of_different_sizes_say_how_many_ranks_each_starts() -> None:
    plan = make_plan("one device")
    wide = make_plan("llama zero 3")
    devices = tuple(replace(one, node=0 if one.rank < 12 else 1, index=one.rank % 12) for one in wide.devices)
    notes: list[str] = []
    lines = launcher_lines(replace(wide, devices=devices), notes)
    assert any("RANKS_HERE" in line for line in lines)
    assert any("1 x 12, 1 x 4" in note for note in notes)
    assert launcher_lines(plan, notes)[:2] == ("torchrun", "--standalone")


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_patterns_expand_to_the_flags(flags: list[bool]) -> None:
    assert expand_pattern(pattern(flags)) == [int(flag) for flag in flags]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("llama tp8 pp2", {}),
        ("llama uneven split", {"pipeline_model_parallel_layout": "Et*6|t*7|t*7|t*6|t*6L"}),
        ("llama interleaved", {}),
    ],
)
def test_splits_of_blocks(name: str, expected: dict[str, object]) -> None:
    plan = make_plan(name)
    assert split_fields(chunks_of(plan, load_plan_model(plan)), len(plan.stages)) == expected


def test_first_and_last_stage_alone_need_no_layout() -> None:
    plan = make_plan("llama uneven split")
    chunks = chunks_of(plan, load_plan_model(plan))
    counts = (5, 7, 7, 7, 6)
    starts = [sum(counts[:n]) for n in range(5)]
    own = [replace(c, first=s, end=s + n) for c, s, n in zip(chunks, starts, counts, strict=True)]
    assert split_fields(own, 5) == {
        "num_layers_in_first_pipeline_stage": 5,
        "num_layers_in_last_pipeline_stage": 6,
    }


HYBRIDS = ("mamba2-2.7b", "nemotron-h-8b", "qwen3-next-80b-a3b")


@pytest.mark.parametrize("name", ["bert-large", "resnet-50", "nmt", "vgg-16", *HYBRIDS])
def test_what_is_no_decoder_is_refused(name: str) -> None:
    with pytest.raises(CannotExpress) as caught:
        decoder_of(load_model(name), "tool")
    assert caught.value.key == "model"
    assert name in str(caught.value)


def test_every_format_has_its_exporter() -> None:
    for name in FORMATS:
        assert callable(load_exporter(name))
    with pytest.raises(InputError):
        load_exporter("nothing")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.tuples(x, x)))
def test_literals_are_python(value: object) -> None:
    assert ast.literal_eval(literal(value)) == value


def test_calls_are_python_and_comments_one_line() -> None:
    text = call("f", {"a": Code("g(1)"), "b": "x" * 200})
    assert ast.unparse(ast.parse(text)) == f"f(a=g(1), b='{'x' * 200}')"
    assert comment('a\n"""b\\\ud800') == "a '''b/"
