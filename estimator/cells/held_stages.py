"""What ranks hold of the stages of a model's Cells, which no device has a say in: one for all types of device.

Stages that hold the same layers in the same way are worked out once, in whichever Cell they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from estimator.bulk.layers import Composition, Variant, read_layers
from estimator.cells.layer_runs import LayerRuns, list_runs
from estimator.layers.graph import LayerGraph, build_graph
from estimator.layers.split import Split, Work
from estimator.layers.work import layer_work, refuse_layer
from estimator.pricing.memory import StandingBytes, features_of, holdings_of, reserve_bytes, standing_bytes
from estimator.pricing.memory_moment import Moment, moment_of
from estimator.pricing.recipe import Recipe, Setup, StageSetup
from estimator.pricing.stage_key import layer_kinds
from estimator.pricing.stage_work import ChunkWork, shared_in_chunk, split_of
from estimator.schedules.closed_form import flying_micro_batches
from models_zoo.layers import Embedding, Head, Layer
from models_zoo.model import Model
from profiles.cluster import Cluster, DeviceSlot
from profiles.records import dataclass, replace
from profiles.vocabulary import Infeasible, RecomputeKind, Shard

MOST_RUNS = 64
"""Of so many ways to hold layers all runs are kept, 2 MB each of 130 layers; then all are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """Where a stage stands: layers [first, end), its devices in rank order, those of all other stages, its `index`
    among the pipeline's `stages`; and the samples of a micro-batch."""

    first: int
    end: int
    slots: tuple[DeviceSlot, ...]
    others: tuple[DeviceSlot, ...]
    index: int
    stages: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """What a rank holds inside the allocator: whatever the schedule does, and at its fullest moment."""

    standing: StandingBytes
    moment: Moment
    standing_bytes: int
    """All of `standing` but the copies of the optimizer's step."""


class HeldStages:
    """Works and memory of stages of one chunk, of one model under one recipe. The only state is caches."""

    def __init__(self, model: Model, cluster: Cluster, recipe: Recipe) -> None:
        """Hold `model` under `recipe`, on any devices of `cluster`."""
        self.model = model
        self.recipe = recipe
        self.kinds = layer_kinds(model, recipe)
        shard = Shard(seq_len=recipe.seq_len, dtype=recipe.dtype, attention=recipe.attention)
        self.graph: LayerGraph = build_graph(model, shard=shard, degrees=())
        self._cluster = cluster
        self._layers = read_layers(model, recipe)
        self._features = features_of(recipe)
        self._run_numbers: dict[tuple[int, ...], int] = {}
        self._numbered: dict[tuple[int, int], int] = {}
        self._compositions: dict[Hashable, Composition] = {}
        self._flying: dict[tuple[int, int], list[list[float]]] = {}
        self._works: dict[Hashable, ChunkWork | Infeasible] = {}
        self._variants: dict[Hashable, tuple[Layer, Split, Work | Infeasible]] = {}
        self._standing: dict[Hashable, tuple[StandingBytes, int]] = {}
        self._moments: dict[Hashable, Moment] = {}
        self._layer_works: dict[Hashable, tuple[Work | None, ...]] = {}
        self._runs: dict[Hashable, LayerRuns] = {}

    def composition(self, stage: StageSetup, recompute: RecomputeKind, layers: int | None) -> Composition:
        """Return how many layers of each variant `stage` has where `layers` of its own are recomputed (None: all)."""
        first, end = stage.chunks[0]
        recomputed = 0 if recompute == "none" else end - first if layers is None else layers
        key = (self._run(first, end), recomputed)
        if key not in self._compositions:
            self._compositions[key] = self._layers.composition(first, end, recomputed)
        return self._compositions[key]

    def work(
        self, stage: StageSetup, samples: int, recompute: RecomputeKind, layers: int | None
    ) -> ChunkWork | Infeasible:
        """Return what a rank of `stage` computes with so many samples of a micro-batch, where `layers` of its own are
        recomputed; Infeasible where a layer cannot be held so."""
        first, end = stage.chunks[0]
        degrees = (stage.tp, stage.cp, stage.ep, stage.etp, stage.sequence_parallel, samples)
        key = (degrees, self._run(first, end), recompute, layers)
        if key not in self._works:
            self._works[key] = self._chunk(stage, samples, recompute, self.composition(stage, recompute, layers))
        return self._works[key]

    def bytes_of(
        self, stage: StageSetup, place: StagePlace, recompute: RecomputeKind, layers: int | None
    ) -> HeldBytes | Infeasible:
        """Return what a rank of `stage` holds at `place`, where `layers` of its own are recomputed; Infeasible as
        `work` says."""
        # Sharding changes what stands, recomputation what lives for a moment: each is computed once.
        held = (self._run(*stage.chunks[0]), stage.tp, stage.dp, stage.ep, stage.etp, stage.sequence_parallel)
        flying = self._in_flight(place)
        standing = self._standing.get((held, stage.zero))
        moment_key = (held, recompute, layers, place.micro_batch, *flying)
        moment = self._moments.get(moment_key)
        if standing is None or moment is None:
            work = self.work(stage, place.micro_batch // stage.dp, recompute, layers)
            if isinstance(work, Infeasible):
                return work
            if standing is None:
                standing = self._standing[held, stage.zero] = self._stand(stage, work)
            if moment is None:
                # Of how it is recomputed its works tell.
                moment = self._moments[moment_key] = moment_of((work,), flying, stage, self.recipe, self._features)
        return HeldBytes(standing=standing[0], moment=moment, standing_bytes=standing[1])

    def needed_bytes(self, held: HeldBytes, outside: int, device_bytes: int) -> int:
        """Return what a device of so many bytes must have for `held`, with so many outside the allocator: as
        `joined_memory` has it, and nothing else of that."""
        standing, moment = held.standing, held.moment
        temporary = moment.temporary_bytes + self._features.workspace_bytes
        reserve = reserve_bytes(
            moment.activation_bytes,
            temporary,
            standing.handed_out,
            standing.step,
            outside,
            device_bytes,
            self._features,
        )
        return held.standing_bytes + moment.activation_bytes + temporary + int(reserve)

    def layer_runs(self, stage: StageSetup, samples: int) -> LayerRuns:
        """Return what all runs of layers hold and keep, held as `stage` holds its own."""
        key = (stage.tp, stage.ep, stage.etp, stage.sequence_parallel, stage.recompute, samples)
        if key not in self._runs:
            if len(self._runs) >= MOST_RUNS:
                self._runs.clear()
            works = self.layer_works(stage, samples)
            self._runs[key] = list_runs(works, self.kinds, self.model, self.recipe, stage.tp)
        return self._runs[key]

    def layer_works(self, stage: StageSetup, samples: int) -> tuple[Work | None, ...]:
        """Return the work of every layer of the model, held as `stage` holds its own and recomputed where it recomputes
        anything; None where a layer cannot be held so."""
        key = (stage.tp, stage.ep, stage.etp, stage.sequence_parallel, stage.recompute, samples)
        if key not in self._layer_works:
            setup = self._alone(stage, samples)
            works: dict[int, Work | None] = {}
            for index, kind in enumerate(self.kinds):
                if kind not in works:
                    layer = self.model.layers[index]
                    recomputed = stage.recompute != "none" and not isinstance(layer, Embedding | Head)
                    work = layer_work(layer, split_of(setup, stage, index, recomputed=recomputed))
                    works[kind] = None if isinstance(work, Infeasible) else work
            self._layer_works[key] = tuple(works[kind] for kind in self.kinds)
        return self._layer_works[key]

    def suits_half(self, *, tp: int, ep: int, etp: int, sequence_parallel: bool) -> bool:
        """Return whether at least half of the model's layers can be held so, as `tp` shards."""
        stage = StageSetup(
            chunks=((0, len(self.kinds)),),
            slots=self._cluster.slots[:tp],
            tp=tp,
            ep=ep,
            etp=etp,
            sequence_parallel=sequence_parallel,
        )
        setup, numbers = self._alone(stage, 1), Counter(self.kinds)
        firsts = {kind: self.kinds.index(kind) for kind in numbers}
        refused = sum(
            numbers[kind]
            for kind, index in firsts.items()
            if refuse_layer(self.model.layers[index], split_of(setup, stage, index, recomputed=False))
        )
        return 2 * refused <= len(self.kinds)

    def _run(self, first: int, end: int) -> int:
        """A number for layers [first, end), the same for the same kinds of layers in the same order."""
        number = self._numbered.get((first, end))
        if number is None:
            kinds = self.kinds[first:end]
            number = self._numbered[first, end] = self._run_numbers.setdefault(kinds, len(self._run_numbers))
        return number

    def _in_flight(self, place: StagePlace) -> list[float]:
        batches = self.recipe.global_batch // place.micro_batch
        key = (place.stages, batches)
        if key not in self._flying:
            self._flying[key] = flying_micro_batches(self.recipe.schedule, place.stages, 1, batches).tolist()
        return self._flying[key][place.index]

    def _stand(self, stage: StageSetup, work: ChunkWork) -> tuple[StandingBytes, int]:
        standing = standing_bytes(self.recipe, stage, holdings_of((work,), stage), self._features)
        parts = (standing.weights, standing.gradients, standing.optimizer, standing.communication)
        return standing, sum(int(part) for part in parts)

    def _alone(self, stage: StageSetup, samples: int) -> Setup:
        """The job with one stage alone."""
        return Setup(
            model=self.model,
            cluster=self._cluster,
            recipe=self.recipe,
            stages=(stage,),
            micro_batch=samples * stage.dp,
        )

    def _chunk(
        self, stage: StageSetup, samples: int, recompute: RecomputeKind, composition: Composition
    ) -> ChunkWork | Infeasible:
        works, layers = [], []
        for variant, count in composition:
            layer, split, work = self._variant(stage, samples, variant, recompute)
            if isinstance(work, Infeasible):
                return Infeasible(reason=f"stage 0: {work.reason}", lacking=work.lacking)
            works.append((work, count))
            layers.append((layer, split))
        shared = shared_in_chunk(self._alone(stage, samples), stage, *stage.chunks[0])
        return ChunkWork(works=tuple(works), layers=tuple(layers), shared_parameters=shared)

    def _variant(
        self, stage: StageSetup, samples: int, variant: Variant, recompute: RecomputeKind
    ) -> tuple[Layer, Split, Work | Infeasible]:
        """A layer, how a rank holds it, and its work, before anybody asks how long it takes."""
        number, again = variant
        kind = recompute if again else "none"
        key = (stage.tp, stage.cp, stage.ep, stage.etp, stage.sequence_parallel, samples, number, kind)
        if key not in self._variants:
            index = self._layers.kinds[number].index
            layer = self.model.layers[index]
            held = split_of(self._alone(stage, samples), replace(stage, recompute=kind), index, recomputed=again)
            self._variants[key] = layer, held, layer_work(layer, held)
        return self._variants[key]
