"""Plans trained with JAX: the losses of the model on one device, whatever the plan; and what the run reports."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from estimator.frontends.load import load_file_model
from estimator.schedules.orders import order_of
from models_zoo.model import Model
from models_zoo.parameters import layer_parameters, whole_array
from models_zoo.torch_layers.build import build_model
from models_zoo.torch_layers.parallel import Neutral
from planner.api import estimate
from planner.one_job.running.data import random_data
from planner.one_job.running.jax_chunk import SCORE_DIMS
from planner.one_job.running.jax_stage import JaxStage
from planner.one_job.running.jax_weights import OPTIMIZERS
from planner.one_job.running.launch import run_here
from planner.one_job.running.program import Program, program_of
from planner.one_job.running.record import Orders
from planner.shared.plan_file import load_plan, plan_to_json
from profiles.errors import InputError
from profiles.vocabulary import Shard
from tests.planner.one_job.running.jax_plan_runs import (
    CASES,
    LEARNING_RATE,
    MODELS,
    QUICK_TO_COMPILE,
    SEED,
    STEPS,
    Case,
    program_for,
    stage,
    train_cases,
)

TOLERANCE = {"fp32": 1e-5, "bf16": 3e-3}
"""Relative."""


def losses_on_one_device(program: Program, steps: int, learning_rate: float) -> list[float]:
    """The same training with torch, in one process and without any plan."""
    model, size = program.model, program.micro_batch
    shard = Shard(micro_batch_per_rank=size, seq_len=program.seq_len, dtype=program.dtype, attention="math")
    module = build_model(model, shard, Neutral()).train()
    _load_first_weights(module, model)
    parameters = list(module.parameters())
    masters = [p.detach().float().clone() for p in parameters]
    if program.optimizer == "adamw":
        optimizer: torch.optim.Optimizer = torch.optim.AdamW(masters, lr=learning_rate)
    else:
        optimizer = torch.optim.SGD(masters, lr=learning_rate, momentum=0.9)
    data, losses = random_data(model, seq_len=program.seq_len, seed=SEED), []
    for step in range(steps):
        losses.append(0.0)
        for first in range(step * program.global_batch, (step + 1) * program.global_batch, size):
            batch = data.samples(first, first + size)
            extra = () if batch.decoder_inputs is None else (torch.from_numpy(batch.decoder_inputs),)
            loss = module(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), *extra)
            (loss * size / program.global_batch).backward()
            losses[-1] += loss.item() * size / program.global_batch
        for parameter, master in zip(parameters, masters, strict=True):
            assert parameter.grad is not None
            master.grad, parameter.grad = parameter.grad.float(), None
        optimizer.step()
        for parameter, master in zip(parameters, masters, strict=True):
            parameter.data.copy_(master)
    return losses


def _load_first_weights(module: Any, model: Model) -> None:
    """A tied table is the first layer's, which is loaded last."""
    for number, layer in reversed(list(enumerate(model.layers))):
        known = {parameter.name: parameter for parameter in layer_parameters(layer)}
        for name, tensor in module.layers[number].named_parameters():
            tensor.data.copy_(torch.from_numpy(whole_array(known[name], seed=SEED, layer=number)))


@pytest.fixture(scope="module")
def losses() -> dict[str, Any]:
    return train_cases(list(CASES))


@pytest.mark.parametrize("name", CASES)
def test_a_plan_trains_as_one_device_does(name: str, losses: dict[str, Any]) -> None:
    program = program_for(CASES[name])
    expected = losses_on_one_device(program, STEPS, LEARNING_RATE)
    assert not isinstance(losses[name], str), losses[name]
    np.testing.assert_allclose(losses[name], expected, rtol=TOLERANCE[program.dtype])


@pytest.mark.parametrize("name", [name for name in CASES if program_for(CASES[name]).dtype == "fp32"])
def test_the_tolerance_is_tight(name: str) -> None:
    """A tenth more of the learning rate would be noticed."""
    program = program_for(CASES[name])
    right, wrong = (losses_on_one_device(program, STEPS, rate) for rate in (LEARNING_RATE, 1.1 * LEARNING_RATE))
    assert not np.allclose(wrong, right, rtol=TOLERANCE["fp32"])


def kept_for_backward(kind: Any, layers: int) -> list[tuple[int, ...]]:
    """Shapes of what forward keeps of a stage of all layers, on one device."""
    wanted = Case(model="gpt", stages=(stage(0, 4, recompute=kind, recompute_layers=layers),), changes={})
    program = program_for(wanted)
    stage_alone = JaxStage(program, 0, jax.devices(), learning_rate=0.0, seed=SEED)
    data = random_data(program.model, seq_len=program.seq_len, seed=SEED)
    stage_alone.prepare([data.samples(0, program.micro_batch)])
    batch, weights = stage_alone.batch_of(0, 0), stage_alone.gradients.weights_of(0)
    _, kept = jax.eval_shape(stage_alone.programs[0].forward, weights, (), batch)
    return [value.shape[1:] for value in jax.tree.leaves(kept)]


def test_what_forward_keeps() -> None:
    """No weight; selective recomputation no scores, full recomputation little more than each layer's input."""
    none, selective, full = (kept_for_backward(kind, n) for kind, n in (("none", 0), ("selective", 3), ("full", 3)))
    matrices = {p.shape for layer in MODELS["gpt"].layers for p in layer_parameters(layer) if len(p.shape) == 2}
    assert not matrices & {*none, *selective, *full}
    assert any(len(shape) == SCORE_DIMS for shape in none)
    assert not any(len(shape) == SCORE_DIMS for shape in [*selective, *full])
    sizes = [sum(map(prod, shapes)) for shapes in (none, selective, full)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[2] < sizes[1] / 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_are_those_of_torch(name: str) -> None:
    rule, memories = OPTIMIZERS[name]
    rng = np.random.default_rng(0)
    weight = rng.standard_normal(50).astype(np.float32)
    theirs = torch.nn.Parameter(torch.from_numpy(weight.copy()))
    optimizer = (
        torch.optim.AdamW([theirs], lr=0.05) if name == "adamw" else torch.optim.SGD([theirs], lr=0.05, momentum=0.9)
    )
    mine, state = jnp.asarray(weight), {memory: jnp.zeros(50) for memory in memories}
    for count in range(1, 6):
        gradient = rng.standard_normal(50).astype(np.float32)
        theirs.grad = torch.from_numpy(gradient)
        optimizer.step()
        mine, state = rule(mine, jnp.asarray(gradient), state, jnp.float32(0.05), jnp.float32(count))
    np.testing.assert_allclose(np.asarray(mine), theirs.detach().numpy(), rtol=2e-6, atol=2e-6)


def plan_for(folder: Path, devices: int, **options: Any) -> tuple[Program, Orders]:
    """An explicit plan of a small Llama, and orders for three iterations of it."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 2,
        "vocab_size": 51,
        "max_position_embeddings": 16,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "rope_theta": 10000.0,
    }
    reference = folder / "config.json"
    reference.write_text(json.dumps(config), encoding="utf-8")
    file = folder / "plan.json"
    settings: dict[str, Any] = {
        "global_batch": 8,
        "micro_batch": 2,
        "seq_len": 16,
        "dtype": "fp32",
        "recompute": "none",
        "schedule": "1f1b",
        **options,
    }
    estimate(str(reference), cluster=f"a100-80gb:1x{devices}", output=file, **settings)
    plan = load_plan(file)
    orders = Orders(
        plan=plan_to_json(plan),
        steps=2,
        warm_ups=1,
        seed=SEED,
        learning_rate=LEARNING_RATE,
        backend="gloo",
        timeout_s=600.0,
        threads=1,
        data=None,
        data_dtype="uint16",
    )
    return program_of(plan, load_file_model(plan.model.reference), where="plan"), orders


def test_a_run_of_a_plan_file_is_the_torch_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses alike; all ranks reported, with the spans of every iteration."""
    monkeypatch.setenv("XLA_FLAGS", QUICK_TO_COMPILE)
    program, orders = plan_for(tmp_path, 2, pp=2, dp=1)
    heard: list[tuple[int, int, str]] = []
    record = run_here(program, orders, pins=False, framework="jax", progress=lambda *what: heard.append(what))
    theirs = run_here(program, orders, pins=False)
    np.testing.assert_allclose(record.losses, theirs.losses, rtol=TOLERANCE["fp32"])
    assert len(record.iterations) == 3
    assert [len(ranks) for ranks in record.iterations] == [2, 2, 2]
    assert min(record.peak_memory_bytes) > 0
    assert record.software.startswith("jax ")
    assert heard[0] == (0, 3, "compiling")
    assert heard[-1] == (3, 3, "training")
    last = [span for span in record.typical[1].spans if span.kind != "collective"]  # which lie inside others
    count = program.shape.micro_batches
    tasks = [(span.kind, span.micro_batch) for span in last if span.kind in ("forward", "backward")]
    assert tasks == [(kind, k) for step in order_of(program.shape, 1) for kind, _, k in step.actions]
    assert sum("from stage" in span.name for span in last) == count
    assert [span.kind for span in last[-4:]] == ["sync", "optimizer", "sync", "wait"]
    assert all(before.end_s <= after.start_s for before, after in pairwise(last))


def test_too_few_gpus_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    program, orders = plan_for(tmp_path, 2, dp=2)
    with pytest.raises(InputError, match="--device: found no GPU") as refused:
        run_here(program, replace(orders, backend="nccl"), pins=False, framework="jax")
    assert (refused.value.where, refused.value.key) == ("run", "--device")
