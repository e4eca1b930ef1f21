"""Small models, jobs and machines for the tests of Cells and stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimator.cells.cell import CellEstimate, CellFailure, CellRules, estimate_cell
from estimator.cells.estimate import make_machine
from estimator.cells.job import Job
from estimator.cells.stage_options import Machine
from estimator.layer_times import LayerCosts, Lookup, nothing_measured
from models_zoo import families
from models_zoo.model import Model
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import LinkTable


def tied_gpt(layers: int = 4, hidden: int = 64) -> Model:
    return families.gpt("tied-gpt", hidden=hidden, layers=layers, heads=4, vocab=512, seq_len=32)


def untied_llama(layers: int = 6, hidden: int = 96) -> Model:
    return families.llama(
        "untied-llama", hidden=hidden, layers=layers, heads=12, kv_heads=4, ffn_hidden=192, vocab=480, seq_len=64
    )


def mixture(layers: int = 3) -> Model:
    return families.mixtral(
        "mixture",
        hidden=64,
        layers=layers,
        heads=8,
        kv_heads=2,
        ffn_hidden=96,
        experts=4,
        top_k=2,
        vocab=256,
        seq_len=32,
    )


def alternating() -> Model:
    """Every second block has two experts, so that four-way tensor parallelism suits only the others."""
    return families.gshard_moe(
        "alternating", hidden=64, layers=4, heads=4, ffn_hidden=128, experts=2, vocab=256, seq_len=32
    )


MODELS = (tied_gpt(), untied_llama(), mixture(), alternating())


def make_job(model: Model | None = None, **settings: Any) -> Job:
    model = model or tied_gpt()
    return Job(**{"model": model, "global_batch": 64, "seq_len": model.seq_len, **settings})


def make_test_machine(
    job: Job,
    cluster: Cluster | str = "a100-80gb:2x4",
    *,
    link_tables: tuple[LinkTable, ...] = (),
    lookup: Lookup = nothing_measured,
    **device: Any,
) -> Machine:
    """The machine of `job` on the first device of `cluster`, with fields of its device changed."""
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    machine = make_machine(job, cluster, cluster.slots, link_tables=link_tables, lookup_for=lambda _device: lookup)
    changed = replace(machine.device, **device)
    costs = LayerCosts(device=changed, optimizer_name=job.optimizer_name, lookup=lookup)
    return replace(machine, device=changed, costs=costs)


def cell_of(
    job: Job,
    stages: int,
    *,
    machine: Machine | None = None,
    devices: int | None = None,
    rules: CellRules | None = None,
) -> CellEstimate | CellFailure:
    machine = machine or make_test_machine(job)
    return estimate_cell(job, machine, machine.cluster.slots[:devices], stages, rules or CellRules())


def estimated(cell: CellEstimate | CellFailure) -> CellEstimate:
    assert isinstance(cell, CellEstimate), cell.failure.reason
    return cell
