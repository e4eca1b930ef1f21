"""The ways to run one stage of a Cell, each priced as the same stage of any explicit plan.

A stage's devices are all in data or all in tensor parallelism; how its state is sharded and what is recomputed is
chosen beside that, as a search for plans chooses it. What does not fit is dropped (Crius section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from estimator.cells.assembled_time import assembled_s
from estimator.cells.held_stages import HeldStages, StagePlace
from estimator.cells.job import Job
from estimator.cells.seated_stages import SeatedStages, StageSeconds
from estimator.communication.uplinks import shares_uplinks
from estimator.pricing.evaluate import evaluate
from estimator.pricing.gradient_sync import exposed_sync_s, hiding_of
from estimator.pricing.layer_times import Lookup, nothing_measured
from estimator.pricing.link_times import LinkTimes
from estimator.pricing.memory import features_of, joined_memory, outside_bytes
from estimator.pricing.outcome import Evaluation
from estimator.pricing.parts import hop_s, links_shared_by, shared_sums_s
from estimator.pricing.pricing import Pricing
from estimator.pricing.rank_groups import place_key
from estimator.pricing.recipe import Recipe, Setup, StageSetup, ZeroStage
from estimator.pricing.stage_work import ChunkWork, experts_a_token
from models_zoo.layers import Experts, Layer, TransformerBlock
from profiles.cluster import Cluster
from profiles.dispatchers import load_dispatcher
from profiles.records import dataclass, replace
from profiles.vocabulary import Device, Infeasible, LinkTable, RecomputeKind

Favour = Literal["dp", "tp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What a Cell runs on, and what is measured of it: collectives and layer times."""

    cluster: Cluster
    device: Device
    link_tables: tuple[LinkTable, ...]
    lookup: Lookup


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOption:
    """One stage fixed: `time_s` for a micro-batch, forward, backward and blocking collectives; `tail_s` once an
    iteration, what nothing hides of gradient sums and the optimizer's step; `seconds` are these apart."""

    setup: StageSetup
    time_s: float
    tail_s: float
    seconds: StageSeconds


class _Miss(NamedTuple):
    """A way to run a stage that cannot be had: the bytes that it lacks, infinitely many where bytes cannot mend it."""

    lacking_bytes: float
    stage: StageSetup
    recompute: RecomputeKind
    layers: int | None


class StagePricing:
    """Prices the stages of a job's Cells on one type of device, alike stages once. The only state is that cache."""

    def __init__(self, job: Job, hardware: Hardware, held: HeldStages | None = None) -> None:
        """Price stages of `job` on `hardware`; `held`: what is known of what ranks hold, under the recipe there."""
        self.job = job
        self.hardware = hardware
        self.recipe: Recipe = job.recipe_on(hardware.device)
        self.held = held or HeldStages(job.model, hardware.cluster, self.recipe)
        self._pricing = Pricing(lookup=hardware.lookup, link_tables=hardware.link_tables)
        self._links = LinkTimes(
            pricing=self._pricing,
            cluster=hardware.cluster,
            experts_a_token=experts_a_token(job.model, self.recipe.software),
            dispatcher=load_dispatcher(self.recipe.software.dispatch),
        )
        self._seated = SeatedStages(job.model, hardware.cluster, self.recipe, self._pricing)
        self._hops_s: dict[Hashable, float] = {}
        self._suits: dict[int, bool] = {}
        self._outside: dict[Hashable, int] = {}
        self._has_blocks = any(isinstance(layer, TransformerBlock) for layer in job.model.layers)

    def options(self, place: StagePlace, *, dp: int, tp: int) -> tuple[StageOption, ...] | Infeasible:
        """Return the stage as `dp` replicas of `tp` shards in each way that fits and is not beaten by another in both
        times; Infeasible with the nearest miss where none fits, or a degree divides nothing.

        Where some way's layers are all profiled, measurements decide: the others are left out.
        """
        if place.micro_batch % dp:
            reason = f"dp={dp} does not divide the micro-batch of {place.micro_batch} samples"
            return Infeasible(reason=reason, lacking="divisibility")
        priced = self._price_ways(place, self.ways(place, dp=dp, tp=tp))
        fitting = [option for option in priced if isinstance(option, StageOption)]
        if not fitting:
            return self._told(place, _nearest(priced))
        choices = [option for option in fitting if option.seconds.measured] or fitting
        shared = [option for option in choices if option.setup.sequence_parallel]
        whole = [option for option in choices if not option.setup.sequence_parallel]
        return undominated(shared) + undominated(whole)

    def ways(self, place: StagePlace, *, dp: int, tp: int) -> tuple[StageSetup, ...]:
        """Return how `dp` replicas of `tp` shards may hold the stage, with nothing recomputed.

        Experts are split over tensor-parallel ranks whole, or where their number does not allow it matrix by matrix.
        """
        ep, etp = self._expert_degrees(self.job.model.layers[place.first : place.end], tp)
        zeros: tuple[ZeroStage, ...] = self.job.zero if dp > 1 else (min(self.job.zero),)
        return tuple(
            StageSetup(
                chunks=((place.first, place.end),),
                slots=place.slots,
                tp=tp,
                dp=dp,
                ep=ep,
                etp=etp,
                sequence_parallel=share,
                zero=zero,
            )
            for share in self._shares(tp)
            for zero in zeros
        )

    def transfer_s(self, before: StageSetup, after: StageSetup, micro_batch: int) -> float:
        """Return the seconds of a micro-batch's activation from stage to stage, and of its gradient back."""
        place = place_key(self.hardware.cluster, (*before.slots, *after.slots))
        degrees = [(stage.tp, stage.dp, stage.sequence_parallel) for stage in (before, after)]
        key = (place, *degrees, self.held.kinds[before.chunks[0][1] - 1], micro_batch)
        if key not in self._hops_s:
            self._hops_s[key] = hop_s(self._setup((before, after), micro_batch), before, after, self._links)
        return 2 * self._hops_s[key]

    def iteration_s(self, options: Sequence[StageOption], micro_batch: int) -> float:
        """Return the seconds of an iteration of these stages, one after another: those of their evaluation, to
        rounding."""
        cluster, stages = self.hardware.cluster, [option.setup for option in options]
        if shares_uplinks(cluster) or any(group.device.contention for site in cluster.sites for group in site.nodes):
            # There stages are not what they are alone.
            return self.evaluate(stages, micro_batch)[1].iteration_time_s
        setup = self._setup(stages, micro_batch)
        hops_s = [self.transfer_s(here, there, micro_batch) / 2 for here, there in pairwise(stages)]
        return assembled_s(
            setup,
            [option.seconds for option in options],
            hops_s=hops_s,
            shared=links_shared_by(setup, (*hops_s, 0.0), self._pricing),
            besides_s=shared_sums_s(setup, self._links) + self._pricing.parameters.of("iteration_s"),
        )

    def evaluate(self, stages: Sequence[StageSetup], micro_batch: int) -> tuple[Setup, Evaluation]:
        """Return the setup of these stages with its price; AssertionError where one of them cannot be had."""
        setup = self._setup(stages, micro_batch)
        evaluation = evaluate(setup, self._pricing)
        assert isinstance(evaluation, Evaluation), f"stages that were priced: {evaluation}"
        return setup, evaluation

    def works(self, place: StagePlace, stage: StageSetup) -> tuple[ChunkWork, ...] | Infeasible:
        """Return what a rank of `stage` computes; Infeasible where a layer cannot be held so."""
        work = self.held.work(stage, place.micro_batch // stage.dp, stage.recompute, stage.recompute_layers)
        return work if isinstance(work, Infeasible) else (work,)

    def suits_half(self, tp: int) -> bool:
        """Return whether at least half of the model's layers can be held as `tp` shards, on any devices."""
        if tp not in self._suits:
            (ep, etp), share = self._expert_degrees(self.job.model.layers, tp), self._shares(tp)[0]
            self._suits[tp] = self.held.suits_half(tp=tp, ep=ep, etp=etp, sequence_parallel=share)
        return self._suits[tp]

    def _price_ways(self, place: StagePlace, ways: Sequence[StageSetup]) -> list[StageOption | _Miss]:
        """Each of `ways`, by sharding, least first, in the fastest way that fits. ZeRO 2 and 3 send more than 1 and
        compute no less, so they are for what does not fit, or has to be recomputed, without them."""
        priced: list[StageOption | _Miss] = []
        enough: set[bool] = set()
        for stage in sorted(ways, key=lambda stage: stage.zero):
            if stage.zero > 1 and stage.sequence_parallel in enough:
                continue
            option = self._least_recomputation(place, stage)
            priced.append(option)
            if isinstance(option, StageOption) and option.setup.recompute == "none" and stage.zero == 1:
                enough.add(stage.sequence_parallel)
        return priced

    def _least_recomputation(self, place: StagePlace, plain: StageSetup) -> StageOption | _Miss:
        """The fastest that fits: nothing recomputed, else selectively, or in full as few layers as need be."""
        wanted = self.job.recompute
        if wanted != "auto":
            kind, layers = wanted
            whole = layers is None or layers >= plain.layers
            return self._option(place, plain, kind, None if whole else layers)
        option = self._option(place, plain, "none", None)
        if isinstance(option, StageOption) or not 0 < option.lacking_bytes < math.inf:
            return option
        tried = [
            self._option(place, plain, "selective", None),
            self._option(place, plain, "full", self._fewest_layers(place, plain)),
        ]
        fitting = [other for other in tried if isinstance(other, StageOption)]
        return min(fitting, key=lambda other: other.time_s) if fitting else _nearest([option, *tried])

    def _fewest_layers(self, place: StagePlace, plain: StageSetup) -> int | None:
        """The fewest layers whose full recomputation makes it fit; None for all of them, also where that does not."""
        if self._lacking(place, plain, "full", None) > 0:
            return None
        low, high = 0, plain.layers
        while high - low > 1:
            middle = (low + high) // 2
            if self._lacking(place, plain, "full", middle) > 0:
                low = middle
            else:
                high = middle
        return None if high == plain.layers else high

    def _lacking(self, place: StagePlace, plain: StageSetup, recompute: RecomputeKind, layers: int | None) -> float:
        """Bytes that the stage needs beyond what the device has; infinitely many where it cannot be held so."""
        held = self.held.bytes_of(plain, place, recompute, layers)
        if isinstance(held, Infeasible):
            return math.inf
        has_bytes = self.hardware.device.memory_bytes
        # Room for what is loose is that of the stage's own devices, whatever the Cell's are said to have.
        return self.held.needed_bytes(held, self._outside_bytes(place, plain), self._own_bytes(place)) - has_bytes

    def _own_bytes(self, place: StagePlace) -> int:
        return self.hardware.cluster.group_of(place.slots[0]).device.memory_bytes

    def _outside_bytes(self, place: StagePlace, stage: StageSetup) -> int:
        slot = place.slots[0]
        key = (stage.tp, stage.dp, stage.ep, slot.site, slot.group, bool(place.others))
        if key not in self._outside:
            self._outside[key] = outside_bytes(self.probe(place, stage), stage, features_of(self.recipe))
        return self._outside[key]

    def _option(
        self, place: StagePlace, plain: StageSetup, recompute: RecomputeKind, layers: int | None
    ) -> StageOption | _Miss:
        """The stage priced with so many `layers` recomputed; a miss where it cannot be held so, or does not fit."""
        lacking = self._lacking(place, plain, recompute, layers)
        if lacking > 0 or self.hardware.device.peak(self.recipe.dtype) is None:
            return _Miss(lacking if lacking > 0 else math.inf, plain, recompute, layers)
        if recompute != "none":
            plain = replace(plain, recompute=recompute, recompute_layers=layers)
        return self._timed(place, plain)

    def _told(self, place: StagePlace, miss: _Miss) -> Infeasible:
        """What is wrong with a way that cannot be had."""
        stage, features = miss.stage, features_of(self.recipe)
        held = self.held.bytes_of(stage, place, miss.recompute, miss.layers)
        if isinstance(held, Infeasible):
            return held
        memory = joined_memory(
            0, held.standing, held.moment, self._outside_bytes(place, stage), self._own_bytes(place), features
        )
        device = self.hardware.device
        if memory.needed_bytes > device.memory_bytes:
            gib = 2**30
            return Infeasible(
                reason=f"dp={stage.dp} tp={stage.tp} zero={stage.zero} recompute={miss.recompute}: needs"
                f" {memory.peak_bytes / gib:.4g} GiB and {memory.reserve_bytes / gib:.4g} GiB reserve, the device has"
                f" {device.memory_bytes / gib:.4g} GiB",
                lacking="memory",
                lacking_bytes=memory.needed_bytes - device.memory_bytes,
            )
        have = ", ".join(name for name, _ in device.peak_flops_per_s)
        return Infeasible(reason=f"{device.name} has no {self.recipe.dtype} rate (it has {have})", lacking="support")

    def _timed(self, place: StagePlace, stage: StageSetup) -> StageOption:
        """The stage, of which everything can be had, with its seconds."""
        seconds = self._seated.seconds(stage, place.micro_batch // stage.dp)
        once = seconds.once
        hiding = hiding_of(
            self.recipe,
            [stage.zero],
            self.recipe.global_batch // place.micro_batch,
            overlapped="dp" in self.recipe.overlap,
        )
        both_ways = seconds.forward_s, seconds.backward_s
        exposed_s = exposed_sync_s(hiding, once.overlap_cost, once.reduce_s, once.partial_s, once.gather_s, *both_ways)
        return StageOption(
            setup=stage,
            time_s=sum(both_ways),
            tail_s=float(sum(exposed_s)) + once.optimizer_s + once.offload_s,
            seconds=seconds,
        )

    def _shares(self, tp: int) -> tuple[bool, ...]:
        """Whether `tp` ranks may share the tokens between their products, or may as well hold all of them."""
        if self.job.sequence_parallel and tp > 1:
            return (True,)
        tokens = self.recipe.seq_len
        shared = tp > 1 and tokens > 0 and tokens % tp == 0 and self._has_blocks
        # A profile is of shared tokens or of whole ones: what is measured decides.
        return (True, False) if shared and self.hardware.lookup is not nothing_measured else (shared,)

    @staticmethod
    def _expert_degrees(layers: Sequence[Layer], tp: int) -> tuple[int, int]:
        counts = {
            layer.feed_forward.count
            for layer in layers
            if isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts)
        }
        if not counts:
            return 1, 1
        return (tp, 1) if all(count % tp == 0 for count in counts) else (1, tp)

    def probe(self, place: StagePlace, stage: StageSetup) -> Setup:
        """Return a setup in which the stage can be asked for: all other devices stand as one stage behind it."""
        if not place.others:
            return self._setup((stage,), place.micro_batch)
        rest = StageSetup(chunks=((0, 1),), slots=place.others, tp=len(place.others))
        return self._setup((stage, rest), place.micro_batch)

    def _setup(self, stages: Sequence[StageSetup], micro_batch: int) -> Setup:
        return Setup(
            model=self.job.model,
            cluster=self.hardware.cluster,
            recipe=self.recipe,
            stages=tuple(stages),
            micro_batch=micro_batch,
        )


def lacking_bytes(miss: Infeasible) -> float:
    """Return how far away it is, in bytes; infinitely far where bytes cannot mend it."""
    return math.inf if miss.lacking_bytes is None else miss.lacking_bytes


def _nearest(priced: Iterable[StageOption | _Miss]) -> _Miss:
    """The first of those misses that lack least."""
    return min((miss for miss in priced if isinstance(miss, _Miss)), key=lambda miss: miss.lacking_bytes)


def undominated(options: Iterable[StageOption]) -> tuple[StageOption, ...]:
    """Return those of `options`, which hold activations alike, that no other one beats or equals in both times."""
    kept: list[StageOption] = []
    for option in sorted(options, key=lambda option: (option.time_s, option.tail_s)):
        if not kept or option.tail_s < kept[-1].tail_s:
            kept.append(option)
    return tuple(kept)
