"""Which assumptions move the answer most: the chosen plan estimated again with each at a plausible other value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from estimator.pricing.headroom import memory_fit
from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import GradDType, Recipe, Setup
from estimator.pricing.software import GENERIC, load_framework
from profiles.cluster import Cluster, NodeGroup, map_groups
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

Evaluate = Callable[[Setup], Evaluation | Infeasible]

MOST_TOLD = 4
LEAST_TOLD = 0.005
"""Of the time, or of a device's memory: what moves neither by as much is not told."""

OTHER_SOFTWARE = ("megatron-core", "torchtitan", "deepspeed")
"""What stands in for software that nobody named, where the generic one was taken."""
FULLER_RANK = 1.2
"""The fullest expert rank's tokens over the mean, in place of an even share."""
SLOWER_LINK = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What changes where one assumption does not hold: `assumed` in words, the `flag` that says otherwise (None: the
    cluster file does), the `alternative`; `time_ratio` is of the time a sample takes (a token, where its length
    differs), `memory_change_bytes` of the peak, and `fits` whether the plan does then."""

    assumed: str
    flag: str | None
    alternative: str
    time_ratio: float
    memory_change_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Other:
    """A setup in which one assumption is another."""

    assumed: str
    flag: str | None
    alternative: str
    setup: Setup


def assumption_effects(
    setup: Setup, evaluation: Evaluation, assumptions: Sequence[str], evaluate: Evaluate
) -> tuple[Effect, ...]:
    """Return what moves the answer most of what `assumptions` say was assumed, the most first, at most `MOST_TOLD`.

    Each is an estimate of the same plan, a dozen at most; nothing is searched.
    """
    effects: dict[str, Effect] = {}
    for other in _others(setup, " ".join(assumptions)):
        changed = evaluate(other.setup)
        # Beside measured layers, modelled ones would tell the model's error.
        if isinstance(changed, Infeasible) or changed.compute_provenance != evaluation.compute_provenance:
            continue
        effect = _effect(other, setup, evaluation, changed)
        earlier = effects.get(other.assumed)
        if earlier is None or _weight(effect, evaluation) > _weight(earlier, evaluation):
            effects[other.assumed] = effect
    told = [effect for effect in effects.values() if _weight(effect, evaluation) >= LEAST_TOLD]
    return tuple(sorted(told, key=lambda effect: -_weight(effect, evaluation))[:MOST_TOLD])


def _weight(effect: Effect, evaluation: Evaluation) -> float:
    device_bytes = memory_fit(evaluation).device_bytes
    return max(abs(effect.time_ratio - 1), abs(effect.memory_change_bytes) / device_bytes)


def _effect(other: _Other, setup: Setup, before: Evaluation, after: Evaluation) -> Effect:
    work = [each.recipe.global_batch * max(1, each.recipe.seq_len) for each in (setup, other.setup)]
    return Effect(
        assumed=other.assumed,
        flag=other.flag,
        alternative=other.alternative,
        time_ratio=after.iteration_time_s / work[1] / (before.iteration_time_s / work[0]),
        memory_change_bytes=after.peak_memory_bytes - before.peak_memory_bytes,
        fits=after.out_of_memory is None,
    )


def _others(setup: Setup, said: str) -> Iterator[_Other]:
    """The setups with one thing other that `said`, the sentences of what was assumed, names the option of."""
    recipe = setup.recipe
    for assumed, flag, alternative, changed in _other_recipes(setup, recipe):
        if flag in said:
            yield _Other(assumed=assumed, flag=flag, alternative=alternative, setup=replace(setup, recipe=changed))
    if "--micro-batch)" in said and setup.micro_batches % 2 == 0 and setup.stages[0].shares is None:
        samples = setup.samples_per_rank(setup.stages[0])
        yield _Other(
            assumed=f"micro-batch of {samples} a rank",
            flag="--micro-batch",
            alternative=str(2 * samples),
            setup=replace(setup, micro_batch=2 * setup.micro_batch),
        )
    if ":" in setup.cluster.text or "not given" in said:
        yield from _other_links(setup)


def _other_recipes(setup: Setup, recipe: Recipe) -> Iterator[tuple[str, str, str, Recipe]]:
    """(what is assumed, the option, the alternative, the recipe with it)."""
    if recipe.software.name.startswith(GENERIC):
        zero = setup.stages[0].zero
        for name in OTHER_SOFTWARE:
            framework = load_framework(name)
            software, overlap = framework.software_under(zero), framework.overlap_under(zero)
            changed = replace(recipe, software=software, overlap=overlap)
            yield f"{recipe.software.name} training software", "--software", name, changed
    if recipe.overlap:
        beside = " and ".join(sorted(recipe.overlap))
        yield f"{beside} communication beside compute", "--overlap", "none", replace(recipe, overlap=frozenset())
    else:
        yield "no communication beside compute", "--overlap", "dp", replace(recipe, overlap=frozenset({"dp"}))
    for batch in (recipe.global_batch // 2, 2 * recipe.global_batch):
        rounds = len(setup.stages) if len(setup.stages[0].chunks) > 1 else 1
        if 0 < batch <= LIMITS.samples.most and batch % (setup.micro_batch * rounds) == 0:
            changed = replace(recipe, global_batch=batch)
            yield f"global batch {recipe.global_batch} samples", "--global-batch", str(batch), changed
    if recipe.seq_len > 1:
        yield (
            f"{recipe.seq_len:,} tokens a sample",
            "--seq-len",
            f"{recipe.seq_len // 2:,}",
            replace(recipe, seq_len=recipe.seq_len // 2),
        )
    if recipe.dtype not in ("fp32", "tf32"):
        other: GradDType = "bf16" if recipe.grad_dtype == "fp32" else "fp32"
        yield f"gradients in {recipe.grad_dtype}", "--grad-dtype", other, replace(recipe, grad_dtype=other)
    if recipe.moe_imbalance == 1:
        yield (
            "an even share for each expert",
            "--moe-imbalance",
            str(FULLER_RANK),
            replace(recipe, moe_imbalance=FULLER_RANK),
        )


def _other_links(setup: Setup) -> Iterator[_Other]:
    """Half the rate between nodes, and inside them, where the catalogue said what it is."""
    slots = [slot for stage in setup.stages for slot in stage.slots]
    group = setup.cluster.group_of(slots[0])
    if len({(slot.site, slot.node) for slot in slots}) > 1:
        yield _Other(
            assumed=f"{group.nics} x {group.nic_link.name} a node",
            flag=None,
            alternative="half of that",
            setup=replace(setup, cluster=_slower(setup.cluster, _slower_nics)),
        )
    elif len(slots) > 1:
        yield _Other(
            assumed=f"{group.island_link.name} inside a node",
            flag=None,
            alternative="half its rate",
            setup=replace(setup, cluster=_slower(setup.cluster, _slower_island)),
        )


def _slower(cluster: Cluster, change: Callable[[NodeGroup], NodeGroup]) -> Cluster:
    return map_groups(cluster, change)


def _slower_nics(group: NodeGroup) -> NodeGroup:
    link = group.nic_link
    return replace(group, nic_link=replace(link, bandwidth_bytes_per_s=SLOWER_LINK * link.bandwidth_bytes_per_s))


def _slower_island(group: NodeGroup) -> NodeGroup:
    link = group.island_link
    return replace(group, island_link=replace(link, bandwidth_bytes_per_s=SLOWER_LINK * link.bandwidth_bytes_per_s))
