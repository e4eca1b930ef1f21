"""Which layers are profiled and which whole steps trained: the same models for every framework."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal

from bench.gpu.case import Framework
from models_zoo.catalogue import load_model
from models_zoo.hugging_face import config_model
from models_zoo.layers import Embedding, TransformerBlock
from models_zoo.model import ImageInput, Model
from profiles.vocabulary import DType, Shard

IMAGES = 16
"""An image stands for this many samples of text: convolution micro-batches are multiples of it."""
BLOCK_ONLY = ("gpt3-175b", "mixtral-8x7b")
MODELS = (
    "llama3-8b",
    "gpt3-175b",
    "llama2-7b",
    "mixtral-8x7b",
    "bert-large",
    "moe-2.4b",
    "wide-resnet-0.5b",
    "resnet-50",
    "llama3-70b",
)

Mode = Literal["eager", "compiled", "scanned"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One micro-batch through a whole model and one AdamW step over fp32 masters.

    `fused`: by torch's fused kernel, or as torch's profiler runs it (foreach). `mode`: kernel by kernel, compiled
    whole, or compiled with one program for all equal blocks (JAX, `lax.scan`).
    """

    model: Model
    micro_batch: int
    dtype: DType = "bf16"
    fused: bool = True
    mode: Mode = "eager"
    least_s: float = 10.0
    """It is not begun with less time left: what must be compiled needs more."""

    @property
    def label(self) -> str:
        words = (self.model.name, f"mb={self.micro_batch}", self.dtype)
        return " ".join((*words, "fused" if self.fused else "foreach", self.mode))

    @property
    def shard(self) -> Shard:
        return Shard(micro_batch_per_rank=self.micro_batch, seq_len=self.model.seq_len, dtype=self.dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Shards of one model to profile."""

    model: Model
    degrees: tuple[int, ...]
    micro_batch: int
    dtype: DType = "bf16"

    @property
    def label(self) -> str:
        return f"{self.model.name} tp={','.join(map(str, self.degrees))} mb={self.micro_batch} {self.dtype}"


def steps(framework: Framework, *, tiny: bool) -> tuple[TrainingStep, ...]:
    """The steps in the order of importance."""
    if tiny:
        if framework == "jax":
            # In fp32, which XLA compiles for a CPU in half the time.
            return (TrainingStep(model=cut(tiny_model(), 2), micro_batch=1, dtype="fp32", mode="scanned"),)
        small = cut(tiny_model(), 1)
        return (TrainingStep(model=small, micro_batch=1), TrainingStep(model=small, micro_batch=1, fused=False))
    return tuple(_torch_steps() if framework == "torch" else _jax_steps())


def _torch_steps() -> Iterator[TrainingStep]:
    """What must be compiled comes last."""
    small, large, bert = load_model("gpt2-350m"), load_model("gpt2-1.3b"), load_model("bert-large")
    llama, resnet = cut(load_model("llama3-8b"), 4), load_model("resnet-50")
    yield TrainingStep(model=small, micro_batch=4, fused=False)
    yield TrainingStep(model=large, micro_batch=4, fused=False)
    yield TrainingStep(model=llama, micro_batch=1, fused=False)
    yield TrainingStep(model=bert, micro_batch=16, fused=False)
    yield TrainingStep(model=resnet, micro_batch=64, dtype="fp16", fused=False)
    yield TrainingStep(model=small, micro_batch=4)
    yield TrainingStep(model=large, micro_batch=4)
    yield TrainingStep(model=small, micro_batch=16)
    yield TrainingStep(model=large, micro_batch=8)
    yield TrainingStep(model=llama, micro_batch=2)
    yield TrainingStep(model=bert, micro_batch=64)
    yield TrainingStep(model=resnet, micro_batch=128, dtype="fp16")
    yield TrainingStep(model=small, micro_batch=4, mode="compiled", least_s=75.0)
    yield TrainingStep(model=llama, micro_batch=1, mode="compiled", least_s=75.0)


def _jax_steps() -> Iterator[TrainingStep]:
    small, large, bert = load_model("gpt2-350m"), load_model("gpt2-1.3b"), load_model("bert-large")
    llama, resnet = cut(load_model("llama3-8b"), 4), load_model("resnet-50")
    scanned = partial(TrainingStep, mode="scanned", least_s=20.0)
    compiled = partial(TrainingStep, mode="compiled", least_s=20.0)
    yield scanned(model=small, micro_batch=4)
    yield compiled(model=llama, micro_batch=1)
    yield scanned(model=large, micro_batch=4)
    yield scanned(model=bert, micro_batch=16)
    yield compiled(model=resnet, micro_batch=64, dtype="fp16")
    yield compiled(model=small, micro_batch=4)
    yield scanned(model=large, micro_batch=8)
    yield compiled(model=llama, micro_batch=2)


def wanted_shards(framework: Framework, *, tiny: bool) -> Iterator[Wanted]:
    """What the whole steps need for a measured estimate, then the zoo: all models at one micro-batch, then the next.

    JAX, which may not get that far, takes the zoo's first model right behind the first step's.
    """
    needed = dict.fromkeys(
        Wanted(model=step.model, degrees=(1,), micro_batch=step.micro_batch, dtype=step.dtype)
        for step in steps(framework, tiny=tiny)
    )
    blocks = Wanted(model=blocks_alone(tiny_model()), degrees=(1, 2), micro_batch=1, dtype=next(iter(needed)).dtype)
    zoo = [blocks] if tiny else list(_zoo())
    if framework == "torch":
        yield from (*needed, *zoo)
        return
    first, *others = needed
    yield from (first, zoo[0], *others, *zoo[1:])


def _zoo() -> Iterator[Wanted]:
    for micro_batch, name in product((1, 2, 4), MODELS):
        model = load_model(name)
        image = isinstance(model.input, ImageInput)
        yield Wanted(
            model=blocks_alone(model) if name in BLOCK_ONLY else model,
            degrees=(1, 2, 4, 8),
            micro_batch=micro_batch * IMAGES if image else micro_batch,
            dtype="fp16" if image else "bf16",
        )


def tiny_model() -> Model:
    """A GPT that a CPU trains at once. Without dropout, whose random numbers take XLA long to compile."""
    sizes = {"n_embd": 64, "n_layer": 4, "n_head": 2, "vocab_size": 512, "n_positions": 32}
    model = config_model({"model_type": "gpt2", **sizes}, where="tiny", name="gpt-least")
    return replace(
        model,
        layers=tuple(
            replace(layer, dropout=False) if isinstance(layer, Embedding | TransformerBlock) else layer
            for layer in model.layers
        ),
    )


def cut(model: Model, blocks: int) -> Model:
    """The model with its first layer, `blocks` of those behind it, and its last."""
    keep = (*range(1 + blocks), len(model.layers) - 1)
    return replace(
        model,
        name=f"{model.name}-{blocks}-blocks",
        layers=tuple(model.layers[i] for i in keep),
        layer_names=tuple(model.layer_names[i] for i in keep),
        published_parameters=None,
    )


def blocks_alone(model: Model) -> Model:
    """The model without its embedding and its head."""
    pairs = zip(model.layers, model.layer_names, strict=True)
    layers, names = zip(*((layer, name) for layer, name in pairs if isinstance(layer, TransformerBlock)), strict=True)
    return replace(model, layers=layers, layer_names=names)
