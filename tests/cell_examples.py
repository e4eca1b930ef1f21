"""Small models, jobs and machines for the tests of Cells and stages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from estimator.cells.cell import CellEstimate, CellFailure, CellRules, estimate_cell
from estimator.cells.job import Job, cell_recipe
from estimator.cells.stage_pricing import Hardware, StagePricing
from estimator.pricing.layer_times import Lookup, nothing_measured
from models_zoo.families import gshard_moe
from models_zoo.model import Model
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster
from profiles.vocabulary import LinkTable
from tests.zoo_families import gpt, llama, mixtral

OF_RECIPE = ("global_batch", "seq_len", "dtype", "optimizer", "schedule")


def tied_gpt(layers: int = 4, hidden: int = 64) -> Model:
    return gpt("tied-gpt", hidden=hidden, layers=layers, heads=4, vocab=512, seq_len=32)


def untied_llama(layers: int = 6, hidden: int = 96) -> Model:
    return llama(
        "untied-llama", hidden=hidden, layers=layers, heads=12, kv_heads=4, ffn_hidden=192, vocab=480, seq_len=64
    )


def mixture(layers: int = 3) -> Model:
    return mixtral(
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
    return gshard_moe("alternating", hidden=64, layers=4, heads=4, ffn_hidden=128, experts=2, vocab=256, seq_len=32)


MODELS = (tied_gpt(), untied_llama(), mixture(), alternating())


def make_job(model: Model | None = None, **settings: Any) -> Job:
    """A job of `settings`, those of its recipe among them."""
    model = model or tied_gpt()
    recipe = {name: settings.pop(name) for name in OF_RECIPE if name in settings}
    return Job(model=model, recipe=cell_recipe(**{"global_batch": 64, "seq_len": model.seq_len, **recipe}), **settings)


def make_hardware(
    cluster: Cluster | str = "a100-80gb:2x4",
    *,
    link_tables: tuple[LinkTable, ...] = (),
    lookup: Lookup = nothing_measured,
    **device: Any,
) -> Hardware:
    """`cluster` with fields of its first type of device changed."""
    cluster = load_cluster(cluster) if isinstance(cluster, str) else cluster
    plain = cluster.group_of(cluster.slots[0]).device
    changed = replace(plain, **device)
    sites = tuple(
        replace(
            site,
            nodes=tuple(replace(group, device=changed) if group.device == plain else group for group in site.nodes),
        )
        for site in cluster.sites
    )
    cluster = replace(cluster, sites=sites)
    return Hardware(cluster=cluster, device=changed, link_tables=link_tables, lookup=lookup)


def cell_of(
    job: Job,
    stages: int,
    *,
    hardware: Hardware | None = None,
    devices: int | None = None,
    rules: CellRules | None = None,
) -> CellEstimate | CellFailure:
    pricing = StagePricing(job, hardware or make_hardware())
    return estimate_cell(pricing, pricing.hardware.cluster.slots[:devices], stages, rules or CellRules())


def estimated(cell: CellEstimate | CellFailure) -> CellEstimate:
    assert isinstance(cell, CellEstimate), cell.failure.reason
    return cell
