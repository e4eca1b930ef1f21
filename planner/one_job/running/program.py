"""What a plan asks of the workers that run it: stages, who holds which samples, and in which order.

Everything a runner needs that no framework has a part in; torch, JAX and the emulated testbed start from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray

from estimator.schedules.orders import Shape, schedule_problem, shape_of
from models_zoo.layers import (
    Bottleneck,
    Classifier,
    ConvUnit,
    Embedding,
    Experts,
    Head,
    Layer,
    TracedLayer,
    TransformerBlock,
)
from models_zoo.model import Model, TokenInput, undropped
from models_zoo.parameters import Parameter, whole_array
from planner.shared.plan import Plan, PlanStage
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.vocabulary import AttentionKernel, Degrees, DType, RecomputeKind, Shard

SCHEDULES = ("gpipe", "1f1b", "interleaved")
OPTIMIZERS = ("adamw", "sgd")
T = TypeVar("T")
Way = Literal["forward", "backward"]
Role = Literal["plain", "start", "decoder_start", "cross", "loss"]
"""What a layer takes beside the activations. Plain: nothing; start and decoder_start: inputs, in place of them."""
DTYPES: tuple[DType, ...] = ("fp32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProgram:
    """One stage as its ranks run it. `ranks` count tp fastest. `shares` are samples of a micro-batch by replica;
    `recompute_layers` is how many of the stage's first layers that can be recomputed are."""

    number: int
    chunks: tuple[tuple[int, int], ...]
    ranks: tuple[int, ...]
    degrees: Degrees
    shares: tuple[int, ...]
    zero: Literal[0, 1, 2, 3]
    shard: int
    replicate: int
    recompute: RecomputeKind
    recompute_layers: int

    @property
    def splits_tokens(self) -> bool:
        """Whether a rank holds a slice of the tokens outside of its parallel regions."""
        return self.degrees.sequence_parallel and self.degrees.tp > 1

    def place(self, rank: int) -> tuple[int, int]:
        """Replica and tensor-parallel index of a rank of this stage."""
        return divmod(self.ranks.index(rank), self.degrees.tp)

    def rank_at(self, replica: int, tp_rank: int) -> int:
        """The rank of that replica and tensor-parallel index."""
        return self.ranks[replica * self.degrees.tp + tp_rank]

    def samples(self, replica: int) -> tuple[int, int]:
        """[first, end) of the micro-batch's samples that a replica computes."""
        ends = list(accumulate(self.shares))
        return ends[replica] - self.shares[replica], ends[replica]

    def layer_indices(self) -> Iterator[int]:
        """The layers it holds, chunk by chunk."""
        for first, end in self.chunks:
            yield from range(first, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A plan to be run. `shape` gives every stage's order (`estimator.schedules.orders`)."""

    model: Model
    dtype: DType
    seq_len: int
    attention: AttentionKernel
    optimizer: str
    grad_dtype: DType
    overlaps_gradients: bool
    shape: Shape
    global_batch: int
    micro_batch: int
    stages: tuple[StageProgram, ...]

    @property
    def ranks(self) -> int:
        """Workers in all."""
        return sum(len(stage.ranks) for stage in self.stages)

    def stage_of(self, rank: int) -> StageProgram:
        """The stage that a rank belongs to."""
        return next(stage for stage in self.stages if rank in stage.ranks)

    def shard(self, stage: StageProgram, replica: int) -> Shard:
        """How a rank of `replica` holds a layer of `stage`."""
        return Shard(
            tp=stage.degrees.tp,
            sequence_parallel=stage.splits_tokens,
            micro_batch_per_rank=stage.shares[replica],
            seq_len=self.seq_len,
            dtype=self.dtype,
            attention=self.attention,
        )

    def boundary_shapes(self, layer: int) -> tuple[tuple[int, ...], ...]:
        """Of the tensors that enter `layer` from the layer before: their dimensions after the batch, whole.

        Tokens: (seq_len, hidden), twice where an encoder's output travels along. Images: (channels, height, width).
        """
        entered = self.model.layers[layer]
        shape = _input_shape(entered, self.seq_len)
        return (shape, shape) if self._has_memory(layer) else (shape,)

    def width_after(self, layer: int) -> int:
        """Return how many tensors pass on from `layer`: as many as enter the next one, and after the last the loss."""
        return len(self.boundary_shapes(layer + 1)) if layer + 1 < len(self.model.layers) else 1

    def _has_memory(self, layer: int) -> bool:
        """Whether the encoder's output crosses the cut before `layer` beside the decoder's activations."""
        start = self.model.input.decoder_start if isinstance(self.model.input, TokenInput) else None
        if start is None or layer <= start:
            return False
        return any(
            isinstance(later, TransformerBlock) and later.cross_attention is not None
            for later in self.model.layers[layer:]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One way over a boundary: what goes from `sender` to `receiver` into (or, backward, out of) the layer `layer`, for
    micro-batch `k`. `chunk` is the sender's."""

    way: Way
    sender: int
    receiver: int
    chunk: int
    layer: int
    k: int


def program_of(plan: Plan, model: Model, *, where: str) -> Program:
    """The program of `plan` for `model`, without dropout: its masks would differ from plan to plan.

    InputError naming `where` and the key for what cannot be run: context parallelism, experts shared by other ranks
    than the tensor-parallel ones, offloading, adapters, frozen layers, other schedules, optimizers and dtypes.
    """
    _refuse_what_cannot_run(plan, model, where)
    stages = tuple(_stage(plan, number, stage) for number, stage in enumerate(plan.stages))
    chunks, recipe = len(plan.stages[0].chunks), plan.recipe
    problem = schedule_problem(plan.schedule, len(stages), chunks, plan.batch.micro_batches)
    if problem is not None:
        raise InputError(where=where, key="schedule", found=plan.schedule, expected=problem)
    return Program(
        model=replace(model, layers=tuple(_as_run(layer, plan) for layer in model.layers)),
        dtype=plan.model.dtype,
        seq_len=plan.model.seq_len or 0,
        attention=plan.stages[0].attention,
        optimizer=plan.optimizer,
        grad_dtype="fp32" if recipe is not None and recipe.grad_dtype == "fp32" else plan.model.dtype,
        overlaps_gradients=recipe is not None and "dp" in recipe.overlap,
        shape=shape_of(plan.schedule, len(stages), chunks, plan.batch.micro_batches),
        global_batch=plan.batch.global_batch,
        micro_batch=plan.batch.micro_batch,
        stages=stages,
    )


def role_of(program: Program, number: int) -> Role:
    """What the layer of that number takes beside the activations."""
    layer, where = program.model.layers[number], program.model.input
    if number == 0:
        return "start"
    if isinstance(where, TokenInput) and number == where.decoder_start:
        return "decoder_start"
    if isinstance(layer, Head | Classifier):
        return "loss"
    return "cross" if isinstance(layer, TransformerBlock) and layer.cross_attention is not None else "plain"


def apply_role(
    role: Role, apply: Callable[..., T], state: tuple[T, ...], batch: Mapping[str, T], width: int
) -> tuple[T, ...]:
    """Return what a layer, called by `apply`, makes of `state`, what passes through, and `batch`: the activations, and
    an encoder's output beside them from the decoder's first layer to the last that uses it; `width` values in all."""
    match role:
        case "start":
            made: tuple[T, ...] = (apply(batch["inputs"]),)
        case "decoder_start":
            made = (apply(batch["decoder_inputs"]), state[0])
        case "cross":
            made = (apply(state[0], state[1]), state[1])
        case "loss":
            made = (apply(state[0], batch["targets"]),)
        case _:
            made = (apply(state[0]), *state[1:])
    return made[:width]


def first_values(parameter: Parameter, *, seed: int, layer: int, is_table: bool) -> NDArray[Any]:
    """Return the whole of a layer's weight before the first step: a tied table's as the first embedding has it."""
    if is_table:
        return whole_array(replace(parameter, name="tokens.weight", start="uniform"), seed=seed, layer=0)
    return whole_array(parameter, seed=seed, layer=layer)


def recomputed_layers(program: Program, stage: StageProgram) -> set[int]:
    """The layers that run again in backward: the stage's first ones, but no layer that makes the loss."""
    if stage.recompute == "none":
        return set()
    held = list(stage.layer_indices())[: stage.recompute_layers]
    return {number for number in held if not isinstance(program.model.layers[number], Head | Classifier)}


def tied_tables(model: Model) -> dict[int, str]:
    """The layers that share the model's token table, and what each calls it; none where one layer alone has it."""
    table_names: dict[int, str] = {}
    for number, layer in enumerate(model.layers):
        if isinstance(layer, Embedding):
            table_names[number] = "tokens.weight"
        elif isinstance(layer, Head) and layer.holds_table:
            table_names[number] = "vocabulary.weight" if layer.tied else "tokens.weight"
    return table_names if len(table_names) > 1 else {}


def _stage(plan: Plan, number: int, stage: PlanStage) -> StageProgram:
    axes = [axis for axis in plan.rank_axis_order if axis in ("tp", "dp")]
    ranks = stage.ranks
    if axes == ["dp", "tp"]:
        ranks = tuple(ranks[tp * stage.dp + dp] for dp in range(stage.dp) for tp in range(stage.tp))
    even = (plan.batch.micro_batch // stage.dp,) * stage.dp
    return StageProgram(
        number=number,
        chunks=stage.chunks,
        ranks=ranks,
        degrees=stage.degrees,
        shares=stage.micro_batch_shares or even,
        zero=stage.sharding.zero if stage.dp > 1 else 0,
        shard=stage.sharding.shard,
        replicate=stage.sharding.replicate,
        recompute=stage.recompute.kind,
        recompute_layers=stage.recompute.layers,
    )


def _as_run(layer: Layer, plan: Plan) -> Layer:
    """Without dropout, and with the capacity that the plan states."""
    factor = plan.recipe.moe_capacity_factor if plan.recipe else None
    layer = undropped(layer)
    if factor is None:
        return layer
    if isinstance(layer, Head) and layer.prediction:
        blocks = tuple(_with_capacity(block, factor) for block in layer.prediction.blocks)
        return replace(layer, prediction=replace(layer.prediction, blocks=blocks))
    return _with_capacity(layer, factor) if isinstance(layer, TransformerBlock) else layer


def _with_capacity(block: TransformerBlock, factor: float) -> TransformerBlock:
    if not isinstance(block.feed_forward, Experts):
        return block
    return replace(block, feed_forward=replace(block.feed_forward, capacity_factor=factor))


def _input_shape(layer: Layer, seq_len: int) -> tuple[int, ...]:
    match layer:
        case Embedding() | TransformerBlock() | Head():
            return seq_len, layer.hidden
        case ConvUnit() | Bottleneck():
            return layer.c_in, layer.height, layer.width
        case Classifier():
            channels = layer.features[0] if layer.average_pool else layer.features[0] // (layer.height * layer.width)
            return channels, layer.height, layer.width
    raise ValueError(f"found a {type(layer).__name__}, expected a layer of the zoo")


def _refuse_what_cannot_run(plan: Plan, model: Model, where: str) -> None:
    def check(holds: bool, key: str, stated: object, expected: str) -> None:
        if not holds:
            raise InputError(where=where, key=key, found=stated, expected=expected)

    check(plan.schedule in SCHEDULES, "schedule", plan.schedule, f"one that run knows: {', '.join(SCHEDULES)}")
    check(plan.optimizer in OPTIMIZERS, "optimizer", plan.optimizer, f"one that run knows: {', '.join(OPTIMIZERS)}")
    check(plan.model.dtype in DTYPES, "model.dtype", plan.model.dtype, f"one that run knows: {', '.join(DTYPES)}")
    traced = any(isinstance(layer, TracedLayer) for layer in model.layers)
    check(not traced, "model.reference", plan.model.reference, "a zoo model or a config.json, whose shards run builds")
    for number, stage in enumerate(plan.stages):
        key = f"stages[{number}]"
        check(stage.cp == 1, f"{key}.cp", stage.cp, "1: run has no context parallelism")
        check(not stage.offload, f"{key}.offload", ", ".join(stage.offload), "none: run offloads nothing")
        kernel = plan.stages[0].attention
        check(stage.attention == kernel, f"{key}.attention", stage.attention, f"{kernel}, as in the first stage")
        held = (model.layers[i] for first, end in stage.chunks for i in range(first, end))
        if any(isinstance(layer, TransformerBlock) and isinstance(layer.feed_forward, Experts) for layer in held):
            degrees = f"ep={stage.ep}, etp={stage.etp}"
            check(
                (stage.ep, stage.etp) == (stage.tp, 1), key, degrees, f"ep=tp={stage.tp} and etp=1: run has no others"
            )
    recipe = plan.recipe
    if recipe is not None:
        check(recipe.lora_rank == 0, "recipe.lora_rank", recipe.lora_rank, "0: run trains all weights")
        frozen = recipe.frozen_layers
        check(frozen is None, "recipe.frozen_layers", frozen, "null: run trains all weights")
