"""What one layer of a rank takes: what the rank computes by itself is priced once wherever its groups sit, and what is
computed again comes on top of the rest."""

from __future__ import annotations

from operator import add

from estimator.bulk.passes import NOTHING, at_an_end, repeat_forward, vector_of
from estimator.layers.split import Split, Work
from estimator.layers.work import counting_split, layer_work
from estimator.pricing.layer_times import Lookup
from estimator.pricing.measured import profiled_shard
from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.memory_moment import backward_bytes, layer_bytes
from estimator.pricing.pass_time import Machine, PassSum
from estimator.pricing.pricing import Pricing
from models_zoo.layers import Layer
from profiles.records import dataclass, replace
from profiles.vocabulary import Collective, DType, Infeasible, LayerTime, Operator, RecomputeKind, held_bytes

Sums = tuple[float, ...]
"""What layers add to a pass, in the order of `estimator.bulk.passes.NAMES`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedLayer:
    """What a rank computes of a layer by itself, as it adds to a pass, and what backward holds beside what is kept.
    `shared_s`: of shared experts forward, and backward."""

    forward: Sums
    backward: Sums
    shared_s: tuple[float, float]
    backward_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedOperator:
    """The same of one operator."""

    forward: Sums
    backward: Sums
    shared_s: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputedAgain:
    """What a rank computes again of a layer by itself, as it adds to a backward pass; of shared experts in it."""

    backward: Sums
    shared_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayer:
    """One variant: its work, its profile and what it adds to a pass; with nothing recomputed, what of that its rank
    computes by itself, and forward what ranks tell each other."""

    work: Work
    layer: Layer
    split: Split
    profile: LayerTime | None
    forward: Sums
    backward: Sums
    extra_bytes: int
    computed: ComputedLayer
    talk: Sums


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerPricer:
    """What a rank's layers are priced by: its machine, profiles and type; `pricing` keeps what was computed. `alone`
    stands for all that decides what a rank computes by itself, beside the layer and its profile (`Pricing.stands_for`):
    where its groups sit is none of it."""

    pricing: Pricing
    machine: Machine
    lookup: Lookup
    features: MemoryFeatures
    dtype: DType
    alone: object

    def price(self, layer: Layer, split: Split) -> PricedLayer | Infeasible:
        """Return one layer held as `split`, nothing recomputed; Infeasible where a degree divides nothing."""
        work = layer_work(layer, split)
        if isinstance(work, Infeasible):
            return work
        shard, machine = profiled_shard(layer, split), self.machine
        profile = None if shard is None else self.lookup(layer, shard)
        computed = self.pricing.keep(
            (LayerPricer.price, self.alone, layer, counting_split(layer, split), profile),
            lambda: self._computed(work, profile),
        )
        forward, backward = PassSum(), PassSum()
        forward.talk_forward(work, machine, computed.shared_s[0], times=1)
        backward.talk_backward(work, machine, (0.0, computed.shared_s[1]), times=1, profiled=profile is not None)
        talk = vector_of(forward)
        return PricedLayer(
            work=work,
            layer=layer,
            split=split,
            profile=profile,
            forward=_added(computed.forward, talk),
            backward=_added(computed.backward, vector_of(backward)),
            extra_bytes=self._layer_bytes(work, computed),
            computed=computed,
            talk=talk,
        )

    def price_again(self, plain: PricedLayer, recompute: RecomputeKind) -> PricedLayer | Infeasible:
        """Return a layer of which something is computed again, which comes on top of its backward pass; Infeasible as
        `price` says."""
        split = replace(plain.split, recompute=recompute)
        work = layer_work(plain.layer, split)
        if isinstance(work, Infeasible):
            return work
        return replace(
            plain,
            work=work,
            split=split,
            backward=_added(plain.backward, self._again(plain, work, split)),
            extra_bytes=self._layer_bytes(work, plain.computed),
        )

    def _again(self, plain: PricedLayer, work: Work, split: Split) -> Sums:
        """What is computed again adds to the backward pass."""
        profile = plain.profile
        whole = work.runs_again and work.again is plain.work.operators and profile is None
        if whole and work.again_collectives == _forward_of(plain.work):
            return repeat_forward(plain.computed.forward, plain.talk)
        again = self.pricing.keep(
            (LayerPricer.price_again, self.alone, plain.layer, counting_split(plain.layer, split), profile),
            lambda: self._computed_again(work, profile),
        )
        talk = PassSum()
        talk.talk_again(work, self.machine, again.shared_s, times=1)
        return _added(again.backward, vector_of(talk))

    def _computed(self, work: Work, profile: LayerTime | None) -> ComputedLayer:
        host = self.machine.host
        if profile is None and not (host and (host.compiled or host.captured)):
            each = [self._operator(op, learns=not work.frozen) for op in work.operators]
            forward, backward = _summed([op.forward for op in each]), _summed([op.backward for op in each])
            if work.is_end:
                forward = at_an_end(forward)
            shared_s = sum(op.shared_s[0] for op in each), sum(op.shared_s[1] for op in each)
        else:
            forward, backward, shared_s = self._compute(work, profile)
        return ComputedLayer(
            forward=forward,
            backward=backward,
            shared_s=shared_s,
            backward_bytes=backward_bytes(work, held_bytes(self.dtype), self.features),
        )

    def _compute(self, work: Work, profile: LayerTime | None) -> tuple[Sums, Sums, tuple[float, float]]:
        forward, backward = PassSum(), PassSum()
        shared_s = forward.compute_forward(work, self.machine, profile, times=1)
        _, back_s = backward.compute_backward(work, self.machine, profile, times=1)
        return vector_of(forward), vector_of(backward), (shared_s, back_s)

    def _operator(self, op: Operator, *, learns: bool) -> ComputedOperator:
        """What one operator adds: a layer's is the sum of its operators', unless the host launches several at once."""

        def compute() -> ComputedOperator:
            forward, backward, machine = PassSum(), PassSum(), self.machine
            ahead_s = forward.operators((op,), machine, backward=False, times=1)
            back_s = backward.operators((op,), machine, backward=True, times=1, learns=learns)
            return ComputedOperator(
                forward=vector_of(forward), backward=vector_of(backward), shared_s=(ahead_s, back_s)
            )

        return self.pricing.keep((LayerPricer._operator, self.alone, op, learns), compute)

    def _computed_again(self, work: Work, profile: LayerTime | None) -> ComputedAgain:
        backward = PassSum()
        profiled_s = None if profile is None else profile.forward_s
        shared_s = backward.again(work, self.machine, times=1, profiled_s=profiled_s)
        return ComputedAgain(backward=vector_of(backward), shared_s=shared_s)

    def _layer_bytes(self, work: Work, computed: ComputedLayer) -> int:
        return layer_bytes(work, held_bytes(self.dtype), self.features, computed.backward_bytes)


def _added(some: Sums, more: Sums) -> Sums:
    return tuple(map(add, some, more))


def _summed(each: list[Sums]) -> Sums:
    return tuple(map(sum, zip(*each, strict=True))) if each else NOTHING


def _forward_of(work: Work) -> tuple[Collective, ...]:
    return tuple(each for each in work.collectives if each.phase == "forward")
