"""Whole training steps with torch."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from bench.gpu.timing_torch import synchronize
from bench.gpu.workloads import TrainingStep
from estimator.profiling.measure_torch import LEARNING_RATE, Training, time_steps
from models_zoo.torch_layers.build import build_model, example_inputs
from models_zoo.torch_layers.parallel import Neutral

WARM_UP = 3
TIMED = 5
LOOP_S = 1.5


def make_training(step: TrainingStep, device: torch.device) -> Training:
    model, shard = step.model, step.shard
    with torch.device(device):
        module = build_model(model, shard, Neutral())
    inputs: tuple[Tensor, Tensor] = (
        example_inputs(model.layers[0], shard, device)[0],
        example_inputs(model.layers[-1], shard, device)[1],
    )
    training = Training(torch.compile(module) if step.mode == "compiled" else module, inputs, shard, "adamw")
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
