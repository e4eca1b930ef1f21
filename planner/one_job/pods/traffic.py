"""Which devices of a plan talk to which, and how many bytes an iteration: Arnold's traffic heatmap (figure 1b).

Collectives and their sizes are the estimator's own of that plan: those of layers, those of gradients and weights as
`estimator.pricing.gradient_sync` asks for them, the activation that a stage hands on. A ring in the order of the ranks
stands for a collective of all (each rank sends to its neighbour alone), pairs for an exchange of all with all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from estimator.pricing.gradient_sync import Learning, gather_weights_s, reduce_gradients_s, sum_partial_gradients_s
from estimator.pricing.held import held_parameters
from estimator.pricing.optimizers import GRAD_WIDTH
from estimator.pricing.rank_groups import GroupAxis, group_ranks
from estimator.pricing.recipe import Setup, StageSetup
from estimator.pricing.sharded_layers import gathered_bytes
from estimator.pricing.stage_work import ChunkWork, boundary_bytes, stage_chunks, tied_bytes
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import CollectiveOp, Infeasible

DATA_AXES = ("dp", "shard", "replicate", "expert_dp")
"""The axes whose groups hold the same weights: data parallelism's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisBytes:
    """What a rank of stage `stage` sends an iteration on its groups of `axis`, on average over the group."""

    stage: int
    axis: str
    op: CollectiveOp
    sent_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Bytes an iteration from rank to rank: `sent_bytes[i]` go from `sender[i]` to `receiver[i]`, each pair once."""

    ranks: int
    sender: NDArray[np.int64]
    receiver: NDArray[np.int64]
    sent_bytes: NDArray[np.float64]

    @property
    def silent_share(self) -> float:
        """The share of all pairs of devices, of either direction, that exchange nothing."""
        pairs = self.ranks * (self.ranks - 1) // 2
        low, high = np.minimum(self.sender, self.receiver), np.maximum(self.sender, self.receiver)
        return 1.0 - len(np.unique(low * self.ranks + high)) / pairs if pairs else 1.0

    def as_json(self) -> dict[str, Any]:
        """Return it for a file: ranks, the silent share, and [sender, receiver, bytes] of every pair that talks."""
        pairs = zip(self.sender.tolist(), self.receiver.tolist(), self.sent_bytes.tolist(), strict=True)
        return {"ranks": self.ranks, "silent_share": self.silent_share, "pairs": [list(pair) for pair in pairs]}


def stage_bytes(setup: Setup) -> tuple[AxisBytes, ...]:
    """Return what a rank of every stage sends an iteration on each axis, messages between stages as `pp`. Raise
    InputError where a stage cannot be held so."""
    sent: defaultdict[tuple[int, str, CollectiveOp], float] = defaultdict(float)
    for number, stage in enumerate(setup.stages):
        for axis, op, size in _collectives(setup, number):
            ranks = axis if isinstance(axis, int) else len(next(group_ranks(stage, _axis(axis)), (0,)))
            name = "tp" if isinstance(axis, int) else axis
            sent[number, name, op] += size * sent_share(op, ranks)
        sent[number, "pp", "send_recv"] += _message_bytes(setup, number)
        if number in (0, len(setup.stages) - 1):
            sent[number, "tied", "all_reduce"] += tied_bytes(setup) * sent_share("all_reduce", 2)
    return tuple(
        AxisBytes(stage=stage, axis=axis, op=op, sent_bytes=size) for (stage, axis, op), size in sent.items() if size
    )


def traffic_of(setup: Setup) -> Traffic:
    """Return the bytes between all pairs of the ranks of `setup`, numbered stage by stage."""
    first = [0]
    for stage in setup.stages:
        first.append(first[-1] + len(stage.slots))
    senders, receivers, sizes = [], [], []
    for part in stage_bytes(setup):
        if part.axis in ("pp", "tied"):
            pairs = neighbours(setup, part, first)
        else:
            pairs = _pairs(setup.stages[part.stage], part, first[part.stage])
        for sender, receiver, share in pairs:
            senders.append(sender)
            receivers.append(receiver)
            sizes.append(np.full(len(sender), part.sent_bytes * share))
    if not senders:
        empty = np.zeros(0, np.int64)
        return Traffic(ranks=first[-1], sender=empty, receiver=empty, sent_bytes=np.zeros(0))
    keys = np.concatenate(senders) * first[-1] + np.concatenate(receivers)
    pairs_of, place = np.unique(keys, return_inverse=True)
    summed = np.bincount(place, weights=np.concatenate(sizes))
    return Traffic(
        ranks=first[-1], sender=pairs_of // first[-1], receiver=pairs_of % first[-1], sent_bytes=summed.astype(float)
    )


def sent_share(op: CollectiveOp, ranks: int) -> float:
    """Return the share of a collective's bytes (nccl-tests' size) that a rank sends: rings, and an exchange of all.

    >>> sent_share("all_reduce", 4)
    1.5
    """
    if op == "send_recv":
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _axis(axis: str) -> GroupAxis:
    assert axis in get_args(GroupAxis), axis
    return axis  # type: ignore[return-value]


def _collectives(setup: Setup, number: int) -> Iterator[tuple[str | int, CollectiveOp, float]]:
    """(axis, collective, bytes an iteration) of a rank of stage `number`."""
    stage, times = setup.stages[number], setup.micro_batches
    chunks = stage_chunks(setup, number)
    if isinstance(chunks, Infeasible):
        raise InputError(where="plan", key=f"stages[{number}]", found=chunks.reason, expected="degrees that divide")
    for chunk in chunks:
        for work, count in chunk.works:
            for one in (*work.collectives, *work.again_collectives):
                yield one.axis, one.op, one.bytes * count * (1 if one.phase == "step" else times)
    yield from _sums(setup, stage, chunks)


def _sums(setup: Setup, stage: StageSetup, chunks: Sequence[ChunkWork]) -> list[tuple[str | int, CollectiveOp, float]]:
    """Gradients' sums and weights' gatherings, as the price of the stage asks for them."""
    asked: list[tuple[str | int, CollectiveOp, float]] = []
    recipe, times = setup.recipe, setup.micro_batches

    def note(op: CollectiveOp, size_bytes: float, axis: str | int) -> float:
        asked.append((axis, op, size_bytes * repeated))
        return 0.0

    repeated = times if stage.zero == 2 else 1
    dense, experts = held_parameters(chunks, stage)
    partial = [
        (ranks, parameters * count)
        for chunk in chunks
        for work, count in chunk.works
        for ranks, parameters in work.partial_gradients
    ]
    learning = Learning(dense=dense.learning, experts=experts.learning, partial=tuple(partial))
    width, held = GRAD_WIDTH[recipe.grad_dtype], gathered_bytes(recipe)
    options: dict[str, Any] = {"zero": stage.zero, "gradient_width": width, "micro_batches": times, "on_axis": note}
    reduce_gradients_s(learning, sharded_over=stage.sharded_over, **options)
    sum_partial_gradients_s(learning, **options)
    repeated = 1
    gather_weights_s(learning, zero=stage.zero, width=held, on_axis=note)
    if stage.zero == 3:
        again = 3 if stage.recompute == "full" and recipe.software.weights_in_turn else 2
        repeated = times
        note("all_gather", again * dense.held * held, "shard")
        note("all_gather", again * experts.held * held, "expert_dp")
        note("reduce_scatter", dense.learning * width, "shard")
        note("all_reduce", dense.learning * width / stage.sharded_over, "replicate")
        note("reduce_scatter", experts.learning * width, "expert_dp")
    return asked


def _message_bytes(setup: Setup, number: int) -> float:
    """Bytes an iteration that a rank of the stage sends to its neighbours: activations on, their gradients back; under
    interleaved chunks each as often as there are chunks, round the ends too."""
    stages, stage = setup.stages, setup.stages[number]
    if len(stages) == 1:
        return 0.0
    layers, times = len(setup.model.layers), setup.micro_batches
    split = stage.tp if stage.tp > 1 and not stage.sequence_parallel else 1
    before = stages[number - 1]
    on = sum(end < layers for _, end in stage.chunks)
    back = sum(start > 0 for start, _ in stage.chunks)
    sent = on * boundary_bytes(setup, stage) + back * boundary_bytes(setup, before)
    return sent * times / split


def _pairs(
    stage: StageSetup, part: AxisBytes, first: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    """(senders, receivers, the share of a rank's bytes that goes from each to each) of a stage's groups."""
    groups = np.array(list(group_ranks(stage, _axis(part.axis))), np.int64) + first
    size = groups.shape[1]
    distances = range(1, size) if part.op == "all_to_all" else [1]
    for distance in distances if size > 1 else []:
        yield groups.ravel(), np.roll(groups, -distance, axis=1).ravel(), 1.0 / len(distances)


def neighbours(
    setup: Setup, part: AxisBytes, first: Sequence[int]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], float]]:
    """Yield (senders, receivers, the share of a rank's bytes that goes from each to each) to the partners in the stages
    before and after (of a tied table: at the other end), in proportion where stages differ in ranks; stage i's ranks
    are numbered from `first[i]` on."""
    stages, number, here = setup.stages, part.stage, len(setup.stages[part.stage].slots)
    partners = {number - 1, number + 1}
    if part.axis == "tied":
        partners = {len(stages) - 1 - number}
    elif setup.recipe.schedule == "interleaved":
        partners = {partner % len(stages) for partner in partners}
    among = sorted(partner for partner in partners if 0 <= partner < len(stages) and partner != number)
    for partner in among:
        there = len(stages[partner].slots)
        most = max(here, there)
        steps = np.arange(most, dtype=np.int64)
        yield first[number] + steps * here // most, first[partner] + steps * there // most, here / most / len(among)
