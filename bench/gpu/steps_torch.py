"""Whole training steps of whole models on one device, each with our estimates of it beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.gpu.record import Deadline, ResultFile, Run
from bench.gpu.timing_torch import free_memory, synchronize
from estimator.cell import CellEstimate
from estimator.estimate import estimate_cells
from estimator.job import Job
from estimator.layer_times import nothing_measured
from estimator.profiling.lookup import lookup_in_store
from estimator.profiling.measure_torch import LEARNING_RATE, Training, time_steps
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.setting import Setting
from models_zoo.catalogue import load_model
from models_zoo.model import Model
from models_zoo.torch_layers.build import build_model, example_inputs
from models_zoo.torch_layers.parallel import Alone
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.measurements import device_from_rates
from profiles.store import ProfileStore
from profiles.vocabulary import Device, DType, Shard

SCHEMA = "cellplan.steps/1"
WARM_UP = 3
TIMED = 5
LOOP_S = 1.5
LEAST_S = 10.0
"""A step is not begun with less time left."""
COMPILE_S = 75.0
"""A compiled one needs this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One micro-batch through a whole model and one AdamW step over fp32 masters, by torch's fused kernel or as the
    profiler runs it (foreach)."""

    model: Model
    micro_batch: int
    dtype: DType = "bf16"
    fused: bool = True
    compiled: bool = False

    @property
    def label(self) -> str:
        words = (self.model.name, f"mb={self.micro_batch}", self.dtype)
        return " ".join((*words, "fused" if self.fused else "foreach", "compiled" if self.compiled else "eager"))

    @property
    def shard(self) -> Shard:
        return Shard(micro_batch_per_rank=self.micro_batch, seq_len=self.model.seq_len, dtype=self.dtype)


def steps(*, tiny: bool) -> Iterator[TrainingStep]:
    """The steps in the order of importance; what must be compiled comes last."""
    if tiny:
        small = cut(load_model("gpt-tiny"), 1)
        yield TrainingStep(model=small, micro_batch=1)
        yield TrainingStep(model=small, micro_batch=1, fused=False)
        return
    gpt, large, bert = load_model("gpt2-350m"), load_model("gpt2-1.3b"), load_model("bert-large")
    llama, resnet = cut(load_model("llama3-8b"), 4), load_model("resnet-50")
    yield TrainingStep(model=gpt, micro_batch=4, fused=False)
    yield TrainingStep(model=large, micro_batch=4, fused=False)
    yield TrainingStep(model=llama, micro_batch=1, fused=False)
    yield TrainingStep(model=bert, micro_batch=16, fused=False)
    yield TrainingStep(model=resnet, micro_batch=64, dtype="fp16", fused=False)
    yield TrainingStep(model=gpt, micro_batch=4)
    yield TrainingStep(model=large, micro_batch=4)
    yield TrainingStep(model=gpt, micro_batch=16)
    yield TrainingStep(model=large, micro_batch=8)
    yield TrainingStep(model=llama, micro_batch=2)
    yield TrainingStep(model=bert, micro_batch=64)
    yield TrainingStep(model=resnet, micro_batch=128, dtype="fp16")
    yield TrainingStep(model=gpt, micro_batch=4, compiled=True)
    yield TrainingStep(model=llama, micro_batch=1, compiled=True)


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


def measure_steps(run: Run, deadline: Deadline) -> None:
    """`steps.json` until `deadline`."""
    device, planned = torch.device(run.device), list(steps(tiny=run.tiny))
    labels = [step.label for step in planned]
    file = ResultFile(run.out / "steps.json", schema=SCHEMA, provenance=run.provenance, planned=labels)
    for step in planned:
        if deadline.left_s < (0 if run.tiny else COMPILE_S if step.compiled else LEAST_S):
            break
        try:
            row = describe_step(step) | measure_step(step, device)
            row["estimates"] = estimates_of(step, run)
            file.add(row)
            run.log.write(f"step {step.label}: {1e3 * row['iteration_s']:.2f} ms, {describe_ratios(row)}")
        except Exception as error:  # out of memory, say: the next step may fit
            run.log.write(f"failed: step {step.label}: {file.fail(error)['error']}")
        free_memory(device)
        file.save()


def describe_step(step: TrainingStep) -> dict[str, Any]:
    return {
        "model": step.model.name,
        "layers": len(step.model.layers),
        "seq_len": step.model.seq_len,
        "micro_batch": step.micro_batch,
        "dtype": step.dtype,
        "optimizer": "adamw fused" if step.fused else "adamw foreach",
        "mode": "compiled" if step.compiled else "eager",
    }


def make_training(step: TrainingStep, device: torch.device) -> Training:
    model, shard = step.model, step.shard
    with torch.device(device):
        module = build_model(model, shard, Alone())
    inputs: tuple[Tensor, Tensor] = (
        example_inputs(model.layers[0], shard, device)[0],
        example_inputs(model.layers[-1], shard, device)[1],
    )
    training = Training(torch.compile(module) if step.compiled else module, inputs, shard, "adamw")
    if step.fused and training.optimizer is not None:
        weights = training.optimizer.param_groups[0]["params"]
        training.optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE, fused=True)
    return training


def measure_step(step: TrainingStep, device: torch.device) -> dict[str, Any]:
    """`iteration_s` is of iterations one behind the other, on the wall clock; the parts are of single ones, between
    events, `zero_s` of zeroing gradients. Memory is the allocator's peak, without what was there before."""
    on_gpu = device.type == "cuda"
    before = torch.cuda.memory_allocated(device) if on_gpu else 0
    start = perf_counter()
    training = make_training(step, device)
    parts = (training.prepare, training.forward, training.backward, training.step)
    for _ in range(WARM_UP):
        time_steps(parts, device)
    warm_up_s = perf_counter() - start
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    samples = [time_steps(parts, device) for _ in range(TIMED)]
    count = max(TIMED, int(LOOP_S / sum(samples[-1]))) if on_gpu else TIMED
    start = perf_counter()
    for _ in range(count):
        for part in parts:
            part()
    synchronize(device)
    iteration_s = (perf_counter() - start) / count
    names = ("zero_s", "forward_s", "backward_s", "optimizer_s")
    return {
        "parameters": sum(parameter.numel() for parameter in training.parameters),
        "iteration_s": iteration_s,
        "iterations": count,
        **{name: median(part) for name, part in zip(names, zip(*samples, strict=True), strict=True)},
        "warm_up_s": warm_up_s,
        "resident_bytes": training.resident_bytes(),
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) - before if on_gpu else None,
        "reserved_bytes": torch.cuda.memory_reserved(device) if on_gpu else None,
    }


def estimates_of(step: TrainingStep, run: Run) -> dict[str, Any]:
    """Our estimate by the operator model alone, and with what is profiled."""
    name = identify_device(Setting(device=run.device)).device
    with ProfileStore(run.store) as store:
        return {basis: estimate_step(step, name, store, basis == "measured") for basis in ("modelled", "measured")}


def estimate_step(step: TrainingStep, device: str, store: ProfileStore, measured: bool) -> dict[str, Any]:
    """One Cell of one device. Its optimizer time is the profiler's, foreach, where it is measured."""

    def local_device() -> Device | None:
        rates = store.rates("cpu")
        return device_from_rates(rates) if rates else None

    lookup = lookup_in_store(store, device=device, optimizer="adamw") if measured else nothing_measured
    job = Job(
        model=step.model,
        global_batch=step.micro_batch,
        seq_len=step.model.seq_len,
        dtype=step.dtype,
        recompute="none",
        micro_batches=1,
    )
    try:
        cluster = load_cluster("local:1x1" if device == "cpu" else f"{device}:1x1", local_device=local_device)
        ((_, cell),) = estimate_cells(job, cluster, stages=(1,), lookup_for=lambda _: lookup)
    except InputError as error:
        return {"failure": str(error)}
    if not isinstance(cell, CellEstimate):
        return {"failure": cell.failure.reason}
    return {
        "iteration_s": cell.iteration_time_s,
        "breakdown": asdict(cell.breakdown),
        "peak_memory_bytes": cell.peak_memory_bytes,
        "provenance": cell.compute_provenance,
    }


def describe_ratios(row: dict[str, Any]) -> str:
    """Each estimate over what was measured."""
    found = row["estimates"].items()
    ratios = ((basis, estimate.get("iteration_s"), estimate.get("provenance")) for basis, estimate in found)
    return ", ".join(f"{basis} {s / row['iteration_s']:.2f} of it ({what})" for basis, s, what in ratios if s)
