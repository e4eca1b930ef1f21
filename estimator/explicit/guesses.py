"""What an estimate took without a measurement near it, how much of its time rests on that, and how to measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator.explicit.link_times import LinkTimes
from estimator.explicit.outcome import Guess, TimeBreakdown
from estimator.explicit.rank_groups import GroupAxis, axis_groups
from estimator.explicit.recipe import Setup, StageSetup
from estimator.explicit.split import Split
from models_zoo.layers import Layer
from profiles.efficiencies import OperatorEfficiencies

AXES: tuple[tuple[str, str, tuple[GroupAxis, ...]], ...] = (
    ("tp_s", "tensor-parallel", ("tp",)),
    ("cp_s", "context-parallel", ("cp",)),
    ("ep_s", "expert-parallel", ("ep",)),
    ("dp_s", "data-parallel", ("shard", "replicate", "dp")),
)


def list_guesses(
    setup: Setup,
    breakdown: TimeBreakdown,
    unprofiled: Sequence[tuple[Layer, Split, float]],
    efficiencies: OperatorEfficiencies,
    links: LinkTimes,
) -> tuple[Guess, ...]:
    """The guesses of an estimate, largest first: layers of the limiting stage without a profile (with the seconds that
    each takes of the iteration), axes whose collectives have no measured table, launching, and the host's part."""
    stage = setup.stages[0]
    found = [
        *_layers(unprofiled, efficiencies),
        *_axes(setup, stage, breakdown, links),
        *_settings(setup, stage, breakdown, links),
    ]
    return tuple(sorted((guess for guess in found if guess.seconds > 0), key=lambda guess: -guess.seconds))


def _layers(unprofiled: Sequence[tuple[Layer, Split, float]], efficiencies: OperatorEfficiencies) -> Iterator[Guess]:
    carried = f"carried over from {efficiencies.carried_over}; " if efficiencies.carried_over else ""
    for layer, split, seconds in unprofiled:
        words = f"cellplan profile MODEL --device cuda:0 --tp {split.tp} --micro-batch {split.samples}"
        words += f" --seq-len {split.seq_len} --dtype {split.dtype}"
        yield Guess(
            what=(
                f"{type(layer).__name__} with tp {split.tp}, {split.samples} samples of {split.seq_len} tokens on"
                f" {efficiencies.device}: no profile; the operator model stands in ({carried}{efficiencies.basis})"
            ),
            seconds=seconds,
            remedy=f"{words} on a machine with {efficiencies.device}",
        )


def _axes(setup: Setup, stage: StageSetup, breakdown: TimeBreakdown, links: LinkTimes) -> Iterator[Guess]:
    for part, name, axes in AXES:
        seconds = getattr(breakdown, part)
        groups = [axis_groups(setup.cluster, stage, axis).group for axis in axes] if seconds else []
        group = next((group for group in groups if group.ranks > 1), None)
        if group is None or links.measured(group):
            continue
        link = group.levels[-1].link
        ranks = f"{group.ranks} ranks on {group.nodes} node{'s' if group.nodes > 1 else ''}"
        yield Guess(
            what=f"{name} collectives of {ranks} over {link}: no link table; the links' records stand in",
            seconds=seconds,
            remedy=f"cellplan comm measure --backend nccl --link {link} --ranks {group.ranks}",
        )


def _settings(setup: Setup, stage: StageSetup, breakdown: TimeBreakdown, links: LinkTimes) -> Iterator[Guess]:
    if breakdown.pp_s and len(setup.stages) > 1:
        link = links.message_link(stage, setup.stages[1])
        yield Guess(
            what=f"messages between stages over {link}: no link table; the link's record stands in",
            seconds=breakdown.pp_s,
            remedy=f"cellplan comm measure --backend nccl --link {link} --ops send_recv --ranks 2",
        )
    if breakdown.launch_s:
        yield Guess(
            what="the host's launching of kernels: seconds a kernel as fitted on published launch-bound runs",
            seconds=breakdown.launch_s,
            remedy="cellplan profile MODEL --device cuda:0 (a profile holds the host's launches)",
        )
    if breakdown.offload_s:
        yield Guess(
            what="state in host memory: the host link's record and an assumed host memory bandwidth",
            seconds=breakdown.offload_s,
            remedy="a training step with and without offloading",
        )
