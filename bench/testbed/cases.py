"""The plans that the testbed runs on each cluster, as setups; and which links have to be known to estimate them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from estimator.frontends.load import load_file_model
from estimator.layers.graph import build_graph
from estimator.layers.shards import shard_layer
from estimator.pricing.rank_groups import group_ranks
from estimator.pricing.recipe import Recipe, ScheduleName, Setup, StageSetup
from models_zoo.model import Model
from planner.one_job.running.program import Program
from planner.one_job.running.regions import pieces_to_receive
from profiles.cluster import Cluster
from profiles.vocabulary import CollectiveOp, Infeasible, Shard

MODEL = Path(__file__).with_name("model") / "config.json"
CLUSTERS = Path(__file__).with_name("clusters")
SEQ_LEN, MICRO_BATCHES = 128, 8
EIGHT = "spiderflow-eight-sites"
SCALES = {EIGHT: 0.0625}
DEFAULT_SCALE = 0.25
"""Of the links' rates, so that two cores carry all workers' traffic: sixteen of them reach half the rate of a ring at a
quarter of the file's rates, and all of it at a sixteenth (`bench.testbed.rings`)."""

AROUND = (0.7, 1.0, 1.4)
"""Sizes at which a link is probed, as parts of what the plan sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers, replicas and shards of one stage."""

    layers: int
    dp: int = 1
    tp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan on one cluster (a file of `clusters/`), on its first devices."""

    name: str
    cluster: str
    stages: tuple[Stage, ...]
    micro_batch: int
    schedule: ScheduleName = "1f1b"
    zero: Literal[0, 1] = 0


def _even(layers: int, count: int, **degrees: Any) -> tuple[Stage, ...]:
    sizes = [layers // count + (i < layers % count) for i in range(count)]
    return tuple(Stage(layers=size, **degrees) for size in sizes)


def cases() -> tuple[Case, ...]:
    """Data, pipeline and tensor parallelism, both schedules, even and uneven stages, from 4 to 16 workers."""
    layers = 16
    two, four, eight = "two-sites", "four-sites", EIGHT
    per_site = (2, 2, 2, 2, 2, 4, 1, 1)
    uneven = tuple(Stage(layers=size, dp=dp) for size, dp in zip((2, 2, 2, 2, 2, 4, 1, 1), per_site, strict=True))
    return (
        Case(name="dp4", cluster=two, stages=(Stage(layers=layers, dp=4),), micro_batch=8),
        Case(name="dp4 zero1", cluster=two, stages=(Stage(layers=layers, dp=4),), micro_batch=8, zero=1),
        Case(name="pp4", cluster=two, stages=_even(layers, 4), micro_batch=4),
        Case(name="pp4 gpipe", cluster=two, stages=_even(layers, 4), micro_batch=4, schedule="gpipe"),
        Case(name="pp2 dp2", cluster=two, stages=_even(layers, 2, dp=2), micro_batch=4),
        Case(name="pp2 tp2", cluster=two, stages=_even(layers, 2, tp=2), micro_batch=4),
        Case(
            name="dp2 then 1 then 1",
            cluster=two,
            stages=(Stage(layers=9, dp=2), Stage(layers=4), Stage(layers=3)),
            micro_batch=4,
        ),
        Case(name="dp8", cluster=four, stages=(Stage(layers=layers, dp=8),), micro_batch=16),
        Case(name="pp4 dp2", cluster=four, stages=_even(layers, 4, dp=2), micro_batch=4),
        Case(name="pp4 dp2 gpipe", cluster=four, stages=_even(layers, 4, dp=2), micro_batch=4, schedule="gpipe"),
        Case(name="dp8 zero1", cluster=four, stages=(Stage(layers=layers, dp=8),), micro_batch=16, zero=1),
        Case(name="pp8", cluster=four, stages=_even(layers, 8), micro_batch=4),
        Case(
            name="dp4 then dp2 dp2",
            cluster=four,
            stages=(Stage(layers=8, dp=4), Stage(layers=4, dp=2), Stage(layers=4, dp=2)),
            micro_batch=8,
        ),
        Case(name="pp8 by site", cluster=eight, stages=uneven, micro_batch=4),
        Case(name="pp4 dp4", cluster=eight, stages=_even(layers, 4, dp=4), micro_batch=8),
        Case(name="pp2 dp8", cluster=eight, stages=_even(layers, 2, dp=8), micro_batch=16),
        Case(name="dp16", cluster=eight, stages=(Stage(layers=layers, dp=16),), micro_batch=32),
        Case(name="pp16", cluster=eight, stages=_even(layers, 16), micro_batch=4),
    )


def make_setup(case: Case, model: Model, cluster: Cluster) -> Setup:
    """The case's plan. Messages between stages run beside compute: sleeping needs no core that they could take."""
    stages, layer, slot = [], 0, 0
    for stage in case.stages:
        ranks = stage.dp * stage.tp
        stages.append(
            StageSetup(
                chunks=((layer, layer + stage.layers),),
                slots=cluster.free_slots[slot : slot + ranks],
                dp=stage.dp,
                tp=stage.tp,
                zero=case.zero,
            )
        )
        layer, slot = layer + stage.layers, slot + ranks
    recipe = Recipe(
        global_batch=case.micro_batch * MICRO_BATCHES,
        seq_len=SEQ_LEN,
        dtype="fp32",
        schedule=case.schedule,
        overlap=frozenset({"p2p"}),
    )
    return Setup(model=model, cluster=cluster, recipe=recipe, stages=tuple(stages), micro_batch=case.micro_batch)


def load_bench_model() -> Model:
    """A small Llama whose layers the profile holds."""
    return load_file_model(str(MODEL))


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A collective that is timed on all `groups` (of ranks) at once; its time stands for each of them."""

    op: CollectiveOp
    bytes: int
    groups: tuple[tuple[int, ...], ...]


def probes_of(setup: Setup, program: Program) -> Iterator[Probe]:
    """What has to be known of the links to estimate `setup`, at the sizes that it sends."""
    for stage, run in zip(setup.stages, program.stages, strict=True):
        if stage.dp > 1:
            size = 4 * stage_parameters(setup, stage)
            groups = tuple(tuple(run.ranks[i] for i in ranks) for ranks in group_ranks(stage, "dp"))
            ops: tuple[CollectiveOp, ...] = ("reduce_scatter", "all_gather") if stage.zero else ("all_reduce",)
            for op in ops:
                yield from (Probe(op=op, bytes=round(size * part), groups=groups) for part in AROUND)
        if stage.tp > 1:
            groups = tuple(tuple(run.ranks[i] for i in ranks) for ranks in group_ranks(stage, "tp"))
            for op, size in sorted(_tensor_parallel(program, run.number)):
                yield from (Probe(op=op, bytes=round(size * part), groups=groups) for part in AROUND)
    for sender, receiver in zip(program.stages, program.stages[1:], strict=False):
        (shape, *_) = program.boundary_shapes(receiver.chunks[0][0])
        pairs: dict[tuple[int, int], int] = {}
        for rank in receiver.ranks:
            for piece in pieces_to_receive(sender, receiver, rank, shape[0]):
                samples, places = piece.samples[1] - piece.samples[0], piece.places[1] - piece.places[0]
                pairs[piece.peer, rank] = 4 * samples * places * shape[1]
        for round_ in _disjoint(list(pairs)):
            size = max(pairs[pair] for pair in round_)
            yield from (Probe(op="send_recv", bytes=round(size * part), groups=tuple(round_)) for part in AROUND)


def stage_parameters(setup: Setup, stage: StageSetup) -> int:
    """Parameters on one rank of a stage."""
    shard = Shard(tp=stage.tp, seq_len=SEQ_LEN, dtype="fp32")
    graph = build_graph(setup.model, shard=shard, degrees=())
    return sum(graph.nodes[i].parameters for first, end in stage.chunks for i in range(first, end))


def _tensor_parallel(program: Program, number: int) -> set[tuple[CollectiveOp, int]]:
    stage = program.stages[number]
    found = set()
    for index in stage.layer_indices():
        local = shard_layer(program.model.layers[index], program.shard(stage, 0))
        assert not isinstance(local, Infeasible)
        found |= {(one.op, one.bytes) for one in local.collectives if one.phase != "step"}
    return found


def _disjoint(pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """The pairs in rounds, no rank twice in one."""
    rounds: list[list[tuple[int, int]]] = []
    for pair in pairs:
        free = next((one for one in rounds if not {rank for other in one for rank in other} & set(pair)), None)
        if free is None:
            rounds.append([pair])
        else:
            free.append(pair)
    return rounds
