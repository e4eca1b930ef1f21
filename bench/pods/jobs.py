"""The jobs of Arnold's measured experiments (sections 4 and 7.2, appendix E), on free nodes in pods.

The paper publishes neither shapes nor batches nor degrees, and of a cluster neither its sizes nor how busy it was. What
stands here is ours: shapes of the published number of parameters, degrees that fill whole nodes, batches of a few
million tokens. Nothing is fitted. A fabric is not oversubscribed; what is left of rates over more pods is the shipped
table `arnold-h800` (the two ends of figure 4), for L20 as well, of which no rates are published.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from random import Random
from typing import Any

from estimator.frontends.live import name_config
from estimator.pricing.evaluate import evaluate
from estimator.pricing.outcome import Evaluation
from estimator.pricing.pricing import Pricing
from estimator.pricing.recipe import Setup
from planner.one_job.explicit.dispatch import read_any_request
from planner.one_job.site_pods.site_job import Seating, SiteJob, site_job
from planner.shared.options.estimate import EstimateOptions
from profiles.cluster_file import name_cluster
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

SPREAD = "arnold-h800"
PRICING = Pricing()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A model's config, its degrees and other options of `estimate`, and all that in words."""

    name: str
    device: str
    devices: int
    config: Mapping[str, Any]
    options: Mapping[str, Any]
    said: str

    def on(self, cluster: str) -> SiteJob:
        """Return the job on the nodes of a site that `pods_of_nodes` named, as its plan that fits."""
        asked = EstimateOptions(name_config(self.config), cluster=cluster, devices=self.devices, **self.options)
        request = read_any_request(asked, store=None)
        fitting = (setup for setup in request.setups if _fits(setup))
        setup = next(fitting, request.setups[-1])
        job = site_job(setup, setup.stages[0].slots[0].site)
        assert isinstance(job, SiteJob), job
        return job


def _fits(setup: Setup) -> bool:
    evaluation = evaluate(setup, PRICING)
    return isinstance(evaluation, Evaluation) and evaluation.out_of_memory is None


def price(setup: Setup) -> Evaluation | Infeasible:
    """Return the estimator's price; what setups have in common is computed once."""
    return evaluate(setup, PRICING)


def seconds(job: SiteJob, seating: Seating) -> float:
    """Return the estimated seconds of an iteration of a job on these nodes."""
    evaluation = price(job.seated(seating))
    assert isinstance(evaluation, Evaluation), evaluation
    return evaluation.iteration_time_s


def pods_of_nodes(device: str, sizes: Sequence[int], *, level: Mapping[str, Any] | None = None) -> str:
    """Return the name of a cluster of free nodes of eight in pods of these sizes; `level` are other keys of the pods'
    level than the spread table (`leaf` among them: the nodes of a leaf, and keys of that level)."""
    extra = dict({"spread": SPREAD} if level is None else level)
    leaf = extra.pop("leaf", None)
    levels = [{"name": "pod", "parts": [{"name": f"p{pod}", "nodes": size} for pod, size in enumerate(sizes)], **extra}]
    if leaf is not None:
        leaves = [min(leaf["nodes"], size - first) for size in sizes for first in range(0, size, leaf["nodes"])]
        counts = [-(-size // leaf["nodes"]) for size in sizes]
        levels[0]["parts"] = [{"name": f"p{pod}", "parts": count} for pod, count in enumerate(counts)]
        others = {key: value for key, value in leaf.items() if key != "nodes"}
        levels.insert(0, {"name": "leaf", "parts": [{"nodes": count} for count in leaves], **others})
    site = {
        "name": "site",
        "nodes": [{"count": sum(sizes), "device": device, "devices": 8}],
        "fabric": {"link": _nic_link(device), "levels": levels},
    }
    return name_cluster({"sites": [site]})


@cache
def _nic_link(device: str) -> str:
    return {"h800": "ib-ndr400", "l20": "roce200"}[device]


def shuffled(job: SiteJob, seed: int) -> Seating:
    """Return the job's cells on nodes drawn from all free ones, in no order."""
    width = job.matrix.nodes_a_cell
    nodes = sorted(job.pod_of_node)
    Random(seed).shuffle(nodes)
    line = [tuple(nodes[first : first + width]) for first in range(0, len(nodes) - width + 1, width)]
    columns, first = [], 0
    for column in job.matrix.columns:
        columns.append(tuple(line[first : first + column.cells]))
        first += column.cells
    return tuple(columns)


def dense(hidden: int, layers: int, *, sequence: int = 4096, vocabulary: int = 50_304) -> dict[str, Any]:
    """Return the config of a Llama of 12 h^2 parameters a layer."""
    heads = -(-hidden // 1024) * 8
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "intermediate_size": hidden * 8 // 3 // 128 * 128,
        "vocab_size": vocabulary,
        "max_position_embeddings": sequence,
        "tie_word_embeddings": False,
    }


def mixture(hidden: int, layers: int, experts: int, inner: int, *, sequence: int = 4096) -> dict[str, Any]:
    """Return the config of a Mixtral of so many experts, two of which a token visits."""
    config = dense(hidden, layers, sequence=sequence)
    return config | {
        "model_type": "mixtral",
        "intermediate_size": inner,
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
    }


_OF_96: dict[str, Any] = {"tp": 8, "pp": 2, "dp": 6, "global_batch": 480, "zero": 1}
_ON_L20: dict[str, Any] = {"pp": 2, "global_batch": 480, "zero": 1, "dtype": "fp8", "grad_dtype": "fp32"}


def dense_24b(layers: int = 52) -> Job:
    """Return section 4's dense model on 96 H800, of so many layers."""
    said = f"h 6,144, {layers} layers, s 4,096, batch 480; TP 8, PP 2, DP 6"
    return Job(name="dense 24B", device="h800", devices=96, config=dense(6144, layers), options=_OF_96, said=said)


def moe_24b(layers: int = 24) -> Job:
    """Return section 4's MoE on 96 H800, of so many layers."""
    return Job(
        name="MoE 24B",
        device="h800",
        devices=96,
        config=mixture(3840, layers, 8, 10_240),
        options=_OF_96 | {"ep": 8},
        said=f"h 3,840, {layers} layers of 8 experts (10,240), two a token, s 4,096, batch 480; TP 8, EP 8, PP 2, DP 6",
    )


L20_JOBS = (
    Job(
        name="dense 7B",
        device="l20",
        devices=96,
        config=dense(4096, 32, sequence=2048),
        options=_ON_L20 | {"tp": 2, "dp": 24},
        said="h 4,096, 32 layers, s 2,048, batch 480; TP 2, PP 2, DP 24; fp8, gradients fp32",
    ),
    Job(
        name="dense 14B",
        device="l20",
        devices=96,
        config=dense(5120, 44, sequence=2048),
        options=_ON_L20 | {"tp": 4, "dp": 12},
        said="h 5,120, 44 layers, s 2,048, batch 480; TP 4, PP 2, DP 12; fp8, gradients fp32",
    ),
)

MEDIUM = Job(
    name="MoE 141B, 208 GPUs",
    device="h800",
    devices=208,
    config=mixture(6144, 56, 8, 16_384, sequence=8192),
    options={"tp": 8, "pp": 2, "dp": 13, "ep": 8, "global_batch": 416, "zero": 1},
    said="h 6,144, 56 layers of 8 experts (16,384), s 8,192, batch 416; TP 8, EP 8, PP 2, DP 13",
)
LARGE = Job(
    name="MoE 430B, 9,600 GPUs",
    device="h800",
    devices=9600,
    config=mixture(8192, 64, 16, 16_384, sequence=8192),
    options={"tp": 8, "pp": 8, "dp": 150, "ep": 8, "vpp": 2, "global_batch": 2400, "zero": 1},
    said="h 8,192, 64 layers of 16 experts (16,384), s 8,192, batch 2,400; TP 8, EP 8, PP 8 in 2 chunks, DP 150",
)
