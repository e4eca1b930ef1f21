"""What an estimate took without a measurement near it, how much of its time rests on that, and how to measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from estimator.layers.split import Split
from estimator.pricing.link_times import LinkAccount, LinkTimes
from estimator.pricing.outcome import Guess, TimeBreakdown
from estimator.pricing.rank_groups import GroupAxis, axis_groups
from estimator.pricing.recipe import Setup, StageSetup
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
    limiting: int,
    breakdown: TimeBreakdown,
    unprofiled: Sequence[tuple[Layer, Split, float]],
    efficiencies: OperatorEfficiencies,
    links: LinkTimes,
    account: LinkAccount,
) -> tuple[Guess, ...]:
    """The guesses of an estimate, largest first: layers of stage `limiting` without a profile (with the seconds that
    each takes of the iteration), axes whose collectives have no measured table, launching, and the host's part."""
    stage = setup.stages[limiting]
    found = [
        *_layers(unprofiled, efficiencies),
        *_axes(setup, stage, breakdown, account),
        *_settings(setup, limiting, breakdown, links, account),
    ]
    seconds: dict[tuple[str, str], float] = {}
    for guess in found:
        seconds[guess.what, guess.remedy] = seconds.get((guess.what, guess.remedy), 0.0) + guess.seconds
    merged = (Guess(what=what, remedy=remedy, seconds=one) for (what, remedy), one in seconds.items() if one > 0)
    return tuple(sorted(merged, key=lambda guess: -guess.seconds))


def _layers(unprofiled: Sequence[tuple[Layer, Split, float]], efficiencies: OperatorEfficiencies) -> Iterator[Guess]:
    local = efficiencies.device == "cpu"
    where = "" if local else f" on a machine with {efficiencies.device}"
    for layer, split, seconds in unprofiled:
        words = f"cellplan profile MODEL --device {'cpu' if local else 'cuda:0'} --tp {split.tp}"
        words += f" --micro-batch {split.samples} --seq-len {split.seq_len} --dtype {split.dtype}"
        yield Guess(
            what=(
                f"{type(layer).__name__} with tp {split.tp}, {split.samples} samples of {split.seq_len} tokens on"
                f" {efficiencies.device}: no profile; {efficiencies.stand_in()} stands in"
            ),
            seconds=seconds,
            remedy=f"{words}{where}",
        )


def _axes(setup: Setup, stage: StageSetup, breakdown: TimeBreakdown, account: LinkAccount) -> Iterator[Guess]:
    for part, name, axes in AXES:
        seconds = getattr(breakdown, part)
        groups = [axis_groups(setup.cluster, stage, axis).group for axis in axes] if seconds else []
        group = next((group for group in groups if group.ranks > 1 and not account.measured(group)), None)
        if group is None:
            continue
        link = group.levels[-1].link
        ranks = f"{group.ranks} ranks on {group.nodes} node{'s' if group.nodes > 1 else ''}"
        yield Guess(
            what=f"{name} collectives of {ranks} over {link}: no link table; the links' records stand in",
            seconds=seconds,
            remedy=f"cellplan comm measure --backend {_backend(link)} --link {link} --ranks {group.ranks}",
        )


def _backend(link: str) -> str:
    return "gloo" if link == "loopback" else "nccl"


def _settings(
    setup: Setup, limiting: int, breakdown: TimeBreakdown, links: LinkTimes, account: LinkAccount
) -> Iterator[Guess]:
    beside = setup.stages[limiting + 1 if limiting + 1 < len(setup.stages) else limiting - 1]
    if breakdown.pp_s and len(setup.stages) > 1 and not account.messages_measured():
        link = links.message_link(setup.stages[limiting], beside)
        yield Guess(
            what=f"messages between stages over {link}: no link table; the link's record stands in",
            seconds=breakdown.pp_s,
            remedy=f"cellplan comm measure --backend {_backend(link)} --link {link} --ops send_recv --ranks 2",
        )
    if breakdown.launch_s:
        yield Guess(
            what="the host's launching of kernels: seconds a module and a kernel as fitted on launch-bound runs",
            seconds=breakdown.launch_s,
            remedy="cellplan profile MODEL --device cuda:0 (a profile holds the host's launches)",
        )
    if breakdown.offload_s:
        yield Guess(
            what="state in host memory: the host link's record and an assumed host memory bandwidth",
            seconds=breakdown.offload_s,
            remedy="a training step with and without offloading",
        )
