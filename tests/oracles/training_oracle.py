"""Training without any plan: one module, one process, a few samples at a time."""

from __future__ import annotations

import torch

from models_zoo.model import Model
from models_zoo.parameters import layer_parameters, whole_array
from models_zoo.torch_layers.build import build_model
from models_zoo.torch_layers.parallel import Neutral
from planner.one_job.running.data import random_data
from planner.one_job.running.program import tied_tables
from profiles.vocabulary import Shard


def train_alone(
    model: Model, *, seq_len: int, steps: int, global_batch: int, at_once: int, learning_rate: float, optimizer: str
) -> list[float]:
    """The mean loss of each step. `at_once` samples go through together: capacities and batch norm are theirs."""
    shard = Shard(seq_len=seq_len, dtype="fp32", micro_batch_per_rank=at_once)
    chain = build_model(model, shard, Neutral()).train()
    tied = tied_tables(model)
    with torch.no_grad():
        for number, (layer, module) in enumerate(zip(model.layers, chain.layers, strict=True)):
            known = {parameter.name: parameter for parameter in layer_parameters(layer)}
            for name, tensor in module.named_parameters():
                if number == 0 or name != tied.get(number):
                    tensor.copy_(torch.from_numpy(whole_array(known[name], seed=0, layer=number)))
    kinds = {"adamw": lambda p: torch.optim.AdamW(p, lr=learning_rate)}
    kinds["sgd"] = lambda p: torch.optim.SGD(p, lr=learning_rate, momentum=0.9)
    updates = kinds[optimizer](chain.parameters())
    data = random_data(model, seq_len=seq_len, seed=0)
    losses = []
    for step in range(steps):
        total = 0.0
        for first in range(step * global_batch, (step + 1) * global_batch, at_once):
            batch = data.samples(first, first + at_once)
            decoded = () if batch.decoder_inputs is None else (torch.from_numpy(batch.decoder_inputs),)
            loss = chain(torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets), *decoded)
            (loss * at_once / global_batch).backward()
            total += float(loss.detach()) * at_once / global_batch
        updates.step()
        updates.zero_grad()
        losses.append(total)
    return losses
