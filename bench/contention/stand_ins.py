"""What the jobs of lingjun's trace train in figures 23 and 24: the trace does not say.

Crux names eleven models (section 6.3: five open ones, "five variants" of them and two in-house ones, which are twelve).
Ours are models of the zoo in pure data parallelism on A100s as the estimator prices them, fp32 gradients in one ring
over a job's devices; a job's model is drawn by its size with the weights below, then 2, 4, 8 or 16 samples a GPU, and
whether it begins to send when a third of its compute (the forward pass) is over or at its end, each half of the time.
NMT, Multi-Interests and the click-through-rate model have no like in the zoo: transformers of their size, and experts,
which have many parameters for few FLOP, stand in for them.
"""

from __future__ import annotations

from random import Random
from zlib import crc32

from bench.contention.cases import SAMPLES, priced
from bench.network.sitting import Stay
from estimator.network.fabric import Fabric
from estimator.network.traffic import Exchange, Span, Traffic
from planner.contention.policies.records import Contender
from planner.contention.viewing import contender_of

SIZES = (8, 63)
"""GPUs of a small job, and of a medium one, at most."""
SHARES: dict[str, tuple[str, tuple[int, int, int]]] = {
    "wide-resnet-0.5b": ("ResNet", (3, 2, 0)),
    "wide-resnet-1b": ("ResNet, a variant", (2, 2, 1)),
    "bert-large": ("BERT", (3, 3, 1)),
    "bert-1.3b": ("BERT, a variant", (1, 2, 2)),
    "gpt2-1.3b": ("GPT", (1, 2, 4)),
    "megatron-1.7b": ("GPT, a variant", (0, 1, 4)),
    "bert-base": ("NMT", (2, 1, 0)),
    "gpt2-350m": ("NMT, a variant", (2, 2, 1)),
    "moe-0.69b": ("Multi-Interests", (2, 2, 1)),
    "moe-1.3b": ("click-through rate, in-house", (1, 2, 2)),
    "bert-2.6b": ("transformer NLP, in-house", (1, 1, 4)),
}
"""Of each stand-in what it stands for, and its weight among small, medium and large jobs."""
FORWARD = 1 / 3


def contender(stay: Stay, fabric: Fabric, seed: int) -> tuple[Contender, float]:
    """Return a job of the trace as policies see it, hashed by the seed, and the seconds in which it computes. Alone it
    takes what it takes where its own connections do not meet."""
    draw = Random(f"figure 23, {seed}, {stay.job}")
    size = sum(stay.gpus > most for most in SIZES)
    (model,) = draw.choices(list(SHARES), [weights[size] for _, weights in SHARES.values()])
    compute_s, flops, gradient_bytes = priced(model, draw.choice(SAMPLES))
    begins_s = compute_s * draw.choice((FORWARD, 1.0))
    wire_s = 2 * (stay.gpus - 1) / stay.gpus * gradient_bytes / (_nic_bytes_per_s(fabric) * _fewest_nics(stay, fabric))
    reduce = Exchange(
        axis="dp",
        op="all_reduce",
        size_bytes=gradient_bytes,
        groups=(tuple(range(stay.gpus)),),
        alone_s=wire_s,
    )
    span = Span(compute_s=compute_s, exchanges=(reduce,), begins_s=begins_s)
    traffic = Traffic(devices=stay.gpus, spans=(span,), flops=flops * stay.gpus)
    hashed = crc32(f"{seed} {stay.job}".encode())
    alone_s = max(compute_s, begins_s + wire_s)
    seen = contender_of(stay.job, traffic, stay.seats, fabric, flops=traffic.flops, alone_s=alone_s, seed=hashed)
    return seen.contender, compute_s


def _nic_bytes_per_s(fabric: Fabric) -> float:
    return float(fabric.links.bytes_per_s[fabric.links.ports].max())


def _fewest_nics(stay: Stay, fabric: Fabric) -> int:
    """How many NICs the job has in the node where it has fewest: what its ring leaves every node by."""
    nics: dict[int, set[int]] = {}
    for seat in stay.seats:
        nics.setdefault(seat.node, set()).add(int(fabric.nic_of_device[fabric.device(seat)]))
    return min(map(len, nics.values()))
