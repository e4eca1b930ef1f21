"""Layer shards of the zoo through our own profiler, exported as a profile file while they come in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch

from bench.gpu.record import Deadline, Run, describe_error
from bench.gpu.steps_torch import steps
from bench.gpu.timing_torch import free_memory
from estimator.profiling.plan import plan_profile
from estimator.profiling.run import ProfileReport, profile_layers
from estimator.profiling.setting import Repeats, Setting
from models_zoo.catalogue import load_model
from models_zoo.layers import TransformerBlock
from models_zoo.model import ImageInput, Model
from profiles.store import ProfileStore, export_profiles
from profiles.vocabulary import DType

FILE = "layers.profiles.json"
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


def measure_layers(run: Run, deadline: Deadline) -> None:
    """Profiles `wanted_shards` in order until `deadline`; the log says what was left to the model and what failed."""
    device = torch.device(run.device)
    repeats = Repeats(least=6, least_s=0.03, most=40, limit_s=1.5)
    if run.tiny:
        repeats = Repeats(warm_up=1, least=2, least_s=0.0, most=2)
    setting = Setting(device=run.device, repeats=repeats)
    with ProfileStore(run.store) as store:
        export_profiles(store, run.out / FILE)
        for wanted in wanted_shards(tiny=run.tiny):
            if deadline.left_s <= 0:
                run.log.write(f"no time for layers of {wanted.label}")
                continue
            try:
                report = profile_shards(store, wanted, setting, budget_s=deadline.left_s)
                describe_report(run, wanted, report)
            except Exception as error:  # the next model may do better
                run.log.write(f"failed: layers of {wanted.label}: {describe_error(error)}")
            free_memory(device)
            export_profiles(store, run.out / FILE)


def wanted_shards(*, tiny: bool) -> Iterator[Wanted]:
    """What the whole steps need for a measured estimate, then the zoo: all models at one micro-batch, then the next."""
    for step in dict.fromkeys(replace(step, compiled=False, fused=True) for step in steps(tiny=tiny)):
        yield Wanted(model=step.model, degrees=(1,), micro_batch=step.micro_batch, dtype=step.dtype)
    if tiny:
        yield Wanted(model=load_model("gpt-tiny"), degrees=(1, 2), micro_batch=1)
        return
    for micro_batch, name in product((1, 2, 4), MODELS):
        model = load_model(name)
        image = isinstance(model.input, ImageInput)
        yield Wanted(
            model=blocks_alone(model) if name in BLOCK_ONLY else model,
            degrees=(1, 2, 4, 8),
            micro_batch=micro_batch * IMAGES if image else micro_batch,
            dtype="fp16" if image else "bf16",
        )


def blocks_alone(model: Model) -> Model:
    """The model without its embedding and its head."""
    pairs = zip(model.layers, model.layer_names, strict=True)
    layers, names = zip(*((layer, name) for layer, name in pairs if isinstance(layer, TransformerBlock)), strict=True)
    return replace(model, layers=layers, layer_names=names)


def profile_shards(store: ProfileStore, wanted: Wanted, setting: Setting, *, budget_s: float) -> ProfileReport:
    """Measures what the store does not have yet, the most important first."""
    tasks = plan_profile(
        wanted.model, degrees=wanted.degrees, micro_batches_per_rank=[wanted.micro_batch], dtype=wanted.dtype
    )
    return profile_layers(store, tasks, setting, budget_s=budget_s)


def describe_report(run: Run, wanted: Wanted, report: ProfileReport) -> None:
    left = names_of([task.label for task in report.left_to_model])
    run.log.write(
        f"layers of {wanted.label}: {report.measured} measured, {report.reused} known, {report.elapsed_s:.1f} s"
        + (f"; no time for {left}" if left else "")
    )
    for task, reason in report.infeasible:
        run.log.write(f"  cannot be had: {task.label}: {reason.reason}")


def names_of(labels: Sequence[str]) -> str:
    """The first few of many."""
    return ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
