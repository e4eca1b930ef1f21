"""Crux's testbed, as far as it is published, and the jobs of its figures 19 to 22 on it (sections 6.1 and 6.2).

Published: the models' names, how many GPUs each job has, hosts and NICs (`figures_19_22.yaml`). Not published: batches,
sizes, whether gradients are summed behind the backward pass, switches and cables, who sits where. Ours:

- GPT of 24 layers of 1,024 (the paper's footnote on another GPT; the zoo's gpt2-350m), BERT-large, ResNet-50, in data
  parallel, as the estimator prices them; every power of two of samples a GPU that fits. Gradients are summed behind the
  backward pass, or after it.
- Switches: all four NICs of a host at one leaf ("connected to one ToR switch via four links"), or NIC i at leaf i of
  the six hosts of a pod ("GPU 0&1 connects to switch 1 via link 1"); as many uplinks as NICs, half or a quarter.
- NICs and cables reach what the estimator's link does (88% of 200 Gb/s), or a quarter of that: what the paper's
  software reached is not said.
- Hosts: a job lies half under one leaf (pod), half under the other. GPT has whole hosts; two jobs of 8 share a pair of
  hosts, four GPUs each. Where PCIe is what is shared, one job has the first GPU of each pair, the others the second, on
  hosts of one leaf.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Literal

from planner import api
from profiles.cluster import Cluster
from profiles.cluster_file import load_cluster, name_cluster
from profiles.errors import NothingFits
from profiles.hardware import load_link
from profiles.records import dataclass
from profiles.yaml_files import read_yaml

CLUSTER = Path(__file__).with_name("figures_19_22.yaml")
MODELS = {"GPT": "gpt2-350m", "BERT": "bert-large", "ResNet": "resnet-50"}
MOST_SAMPLES = 1024
Devices = tuple[tuple[int, int], ...]
"""Host and GPU of each rank."""
Switches = Literal["one leaf a host", "a leaf for each NIC"]

EVEN, ODD = (0, 2, 4, 6), (1, 3, 5, 7)
"""The first GPU of each pair that shares a NIC, and the second."""
NEAR = 0.03
"""Around a figure that the paper has alone: 3% more or less counts as inside."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A job of a case: which of the three models, and its devices."""

    kind: str
    devices: Devices


@dataclass(frozen=True, kw_only=True)
class Published:
    """What the paper has: the least and the most that utilisation gains, and that a job of each model takes longer."""

    utilization: tuple[float, float]
    longer: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A setting of a figure: jobs on devices. `inside`: they meet on PCIe alone."""

    figure: str
    name: str
    jobs: tuple[Placed, ...]
    published: Published
    inside: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """The models of its jobs, each once, as they come."""
        return tuple(dict.fromkeys(job.kind for job in self.jobs))


def cases() -> Iterator[Case]:
    """Yield the settings of all four figures."""
    published = Published(utilization=(0.083, 0.129), longer=(("GPT", -0.25, -0.11), ("BERT", 0.0, 0.03)))
    gpt = Placed(kind="GPT", devices=_on((0, 1, 6, 7)))
    for count in (1, 2, 3, 4, 6, 8):
        berts = [Placed(kind="BERT", devices=_half(number)) for number in range(count)]
        yield Case(figure="19", name=f"GPT 32, {count} BERT 8", jobs=(gpt, *berts), published=published)
    jobs = (
        Placed(kind="GPT", devices=_on((0, 1, 2, 6, 7, 8))),
        Placed(kind="BERT", devices=_on((3, 9))),
        Placed(kind="BERT", devices=_on((4, 10))),
        Placed(kind="ResNet", devices=_on((5, 11), (0, 1, 2, 3))),
        Placed(kind="ResNet", devices=_on((5, 11), (4, 5, 6, 7))),
    )
    longer = tuple((kind, at - NEAR, at + NEAR) for kind, at in (("GPT", -0.18), ("BERT", -0.15), ("ResNet", 0.02)))
    published = Published(utilization=(0.139 - NEAR, 0.139 + NEAR), longer=longer)
    yield Case(figure="20", name="GPT 48, 2 BERT 16, 2 ResNet 8", jobs=jobs, published=published)
    published = Published(utilization=(0.095, 0.148), longer=(("BERT", -0.33, -0.07), ("ResNet", 0.01, 0.03)))
    bert = Placed(kind="BERT", devices=_on((0, 1, 2, 3), EVEN))
    resnets = [
        Placed(kind="ResNet", devices=_on(hosts, gpus)) for gpus in ((1, 3), (5, 7)) for hosts in ((0, 1), (2, 3))
    ]
    for count in range(1, 5):
        name = f"BERT 16, {count} ResNet 4"
        yield Case(figure="21", name=name, jobs=(bert, *resnets[:count]), published=published, inside=True)
    resnet = Placed(kind="ResNet", devices=_on((0, 1), ODD))
    for hosts in (2, 4, 6):
        bert = Placed(kind="BERT", devices=_on(tuple(range(hosts)), EVEN))
        name = f"ResNet 8, BERT {4 * hosts}"
        yield Case(figure="22", name=name, jobs=(bert, resnet), published=published, inside=True)


def _on(hosts: tuple[int, ...], gpus: tuple[int, ...] = tuple(range(8))) -> Devices:
    return tuple((host, gpu) for host in hosts for gpu in gpus)


def _half(number: int) -> Devices:
    """Of the pairs of hosts that GPT leaves, the next half."""
    pair, half = divmod(number, 2)
    return _on((2 + pair, 8 + pair), (0, 1, 2, 3) if half == 0 else (4, 5, 6, 7))


@cache
def testbed(switches: Switches, oversubscription: int, reach: float) -> Cluster:
    """Return the testbed with these switches, a NIC's rate of uplink for so many NICs, and links of which so much is
    reached."""
    written: dict[str, Any] = read_yaml(CLUSTER)
    site = written["sites"][0]
    link = site["fabric"]["link"]
    site["nodes"][0]["nics"]["link"] = site["fabric"]["link"] = _reaching(link, reach)
    topology = {"kind": "clos2", "leaves": 2, "spines": 24 // 6 // oversubscription, "cables": 6}
    if switches == "a leaf for each NIC":
        topology = {"kind": "rail", "nodes_per_pod": 6, "spines": 6 // oversubscription, "cables": 1}
    site["fabric"]["topology"] = topology
    return load_cluster(name_cluster(written))


def _reaching(name: str, reach: float) -> dict[str, Any]:
    """A link of the catalogue of which training reaches so much of what it does."""
    link = load_link(name, where=str(CLUSTER), key="link")
    return {
        "name": f"{name} at {reach:g}",
        "kind": link.kind,
        "bandwidth_bytes_per_s": link.bandwidth_bytes_per_s,
        "latency_s": link.latency_s,
        "startup_s": link.startup_s,
        "efficiency": reach * link.efficiency,
        "source": link.source,
    }


@cache
def samples_that_fit(kind: str, gpus: int) -> tuple[int, ...]:
    """Return the powers of two of samples a GPU that fit in its memory."""
    fitting = []
    samples = 1
    while samples <= MOST_SAMPLES:
        words = {"dp": gpus, "devices": gpus, **training(samples, behind=True)}
        try:
            fits = api.estimate(MODELS[kind], cluster=str(CLUSTER), **words)["estimate"]["fits"]
        except NothingFits:
            break
        if not fits:
            break
        fitting.append(samples)
        samples *= 2
    return tuple(fitting)


def training(samples: int, *, behind: bool) -> dict[str, Any]:
    """Return the options of `cellplan estimate` of a job; `behind`: gradients are summed behind the backward pass."""
    overlap = ["dp"] if behind else []
    return {"micro_batch": samples, "micro_batches": 1, "zero": 0, "recompute": "none", "overlap": tuple(overlap)}
