"""Small cases for figure 16: five jobs on a two-layer Clos, drawn from a seed.

Crux publishes the sizes (at most 20 hosts of 8 GPUs, 2 to 4 leaves, 2 spines, 5 jobs, 3 levels) and neither models,
links, placement nor overlap. Ours: zoo models in data parallel on A100s as the estimator prices them, 2, 4, 8 or 16
samples a GPU; 2 to 6 hosts a job, 800 Gb/s a host and as much from each leaf to each spine; hosts drawn, again until at
least four jobs share links if all take the first spine; half of the jobs begin to send when a third of their compute
(the forward pass) is over, the others at its end. Gradients are fp32, in a ring through the hosts, leaf after leaf, so
that a ring goes up and down each of its leaves once, all of it over one spine: that is the job's path.
"""

from __future__ import annotations

from functools import cache
from random import Random

from estimator.network.steps import Mover, Step, Transfer
from planner import api
from planner.contention.policies.loads import contending_jobs, link_seconds
from planner.contention.policies.records import Contender, Path, View

MODELS = (
    "bert-base",
    "bert-large",
    "bert-1.3b",
    "bert-2.6b",
    "gpt2-350m",
    "gpt2-1.3b",
    "wide-resnet-1b",
    "wide-resnet-2b",
)
SAMPLES = (2, 4, 8, 16)
SPINES, JOBS, LEVELS, HOSTS, GPUS = 2, 5, 3, 20, 8
HOST_BYTES_PER_S = 4 * 200e9 / 8
GRADIENT_BYTES = 4


@cache
def priced(model: str, samples: int) -> tuple[float, float, float]:
    """Return seconds of compute of an iteration, FLOP of a GPU in it, and bytes of the gradients."""
    answer = api.estimate(model, cluster="a100-80gb:2x8", dp=16, global_batch=16 * samples)
    estimate, sizes = answer["estimate"], answer["plan"]["model"]["sizes"]
    breakdown = estimate["breakdown"]
    compute_s = estimate["iteration_time_s"] - breakdown["dp_s"]
    flops = estimate["tflops_per_device"] * 1e12 * estimate["iteration_time_s"]
    return compute_s, flops, sizes["parameters"] * GRADIENT_BYTES


def priced_all() -> None:
    """Price all models in all sizes, once for all cases."""
    for model in MODELS:
        for samples in SAMPLES:
            priced(model, samples)


def draw_case(seed: int) -> View:
    """Return the jobs of a case with their fabric; each job's path now is drawn too, as a hash would."""
    rng = Random(f"figure 16, {seed}")
    while True:
        leaves = rng.randint(2, 4)
        sizes = [rng.randint(2, 6) for _ in range(JOBS)]
        if sum(sizes) > HOSTS:
            continue
        hosts = rng.sample(range(HOSTS), sum(sizes))
        jobs = []
        for number, size in enumerate(sizes):
            its = [hosts.pop() * leaves // HOSTS for _ in range(size)]
            jobs.append(_job(f"job{number}", size, sorted(set(its)), leaves, rng))
        view = View(jobs=tuple(jobs), bytes_per_s=(HOST_BYTES_PER_S,) * (2 * leaves * SPINES), levels=LEVELS)
        if len(contending_jobs(link_seconds(view, [(0,)] * JOBS))) >= JOBS - 1:
            return view


def _job(name: str, hosts: int, on_leaves: list[int], leaves: int, rng: Random) -> Contender:
    compute_s, flops, gradient_bytes = priced(rng.choice(MODELS), rng.choice(SAMPLES))
    begins_s = compute_s * rng.choice((1 / 3, 1.0))
    wire_s = 2 * (hosts - 1) / hosts * gradient_bytes / HOST_BYTES_PER_S
    mover = Mover(way=((0, HOST_BYTES_PER_S),), seconds=wire_s)
    step = Step(compute_s=compute_s, begins_s=begins_s, transfers=(Transfer(movers=(mover,)),))
    return Contender(
        id=name,
        devices=hosts * GPUS,
        flops=flops * hosts * GPUS,
        alone_s=max(compute_s, begins_s + wire_s),
        steps=(step,),
        paths=(tuple(_over(spine, on_leaves, leaves) for spine in range(SPINES)),),
        now=(rng.randrange(SPINES),),
    )


def _over(spine: int, on_leaves: list[int], leaves: int) -> Path:
    """The links of a ring through these leaves: up to a spine and down from it; none inside one leaf."""
    if len(on_leaves) == 1:
        return ()
    ups = [(leaf * SPINES + spine, 1.0) for leaf in on_leaves]
    return (*ups, *(((leaves + leaf) * SPINES + spine, 1.0) for leaf in on_leaves))
