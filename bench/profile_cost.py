"""What profiling a Cell takes: its distinct layers on one device, beside running all of its layers.

A Cell's two plans (data-parallel only and tensor-parallel only, Crius section 5.1) are profiled task by task; then all
layers of the model run one after the other as one rank of each stage would, repeated as often. What the whole job would
hold in devices meanwhile is that time times the ranks of a stage (computed; communication and bubbles left out).
`stage/layers` is forward and backward of all layers as one piece over the sum of the profiled ones.

python -m bench.profile_cost [--layers 12] [--hidden 256] [--devices 8] [--stages 2] [--seed 0]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter

from estimator.profiling.measure_torch import measure_layer, start_torch
from estimator.profiling.plan import ProfileTask, plan_profile
from estimator.profiling.rates_torch import identify_device
from estimator.profiling.setting import Repeats, Setting
from estimator.profiling.stage import compare_stage
from estimator.profiling.stage_torch import measure_stage
from models_zoo.layers import Attention, Embedding, FeedForward, Head, Layer, TransformerBlock
from models_zoo.model import Model, TokenInput
from profiles.measurements import Measurement
from profiles.vocabulary import Infeasible

VOCAB = 8192


def make_model(*, layers: int, hidden: int, seq_len: int) -> Model:
    """A GPT of `layers` equal blocks with heads of 64."""
    heads = hidden // 64
    block = TransformerBlock(
        hidden=hidden,
        attention=Attention(heads=heads, kv_heads=heads, head_dim=64, qkv_bias=True, output_bias=True),
        feed_forward=FeedForward(hidden=4 * hidden, bias=True),
    )
    return Model(
        name="bench",
        family="gpt",
        layers=(
            Embedding(vocab=VOCAB, hidden=hidden, positions=seq_len),
            *[block] * layers,
            Head(hidden=hidden, vocab=VOCAB),
        ),
        layer_names=("embedding", *(f"block.{number}" for number in range(layers)), "head"),
        input=TokenInput(seq_len=seq_len),
    )


def profile_tasks(tasks: tuple[ProfileTask, ...], setting: Setting) -> tuple[dict[Layer, Measurement], float]:
    """The measurement of each task's layer, and the wall seconds that all took."""
    start = perf_counter()
    found = {}
    for task in tasks:
        result = measure_layer(task, setting)
        if isinstance(result, Infeasible):
            raise SystemExit(f"{task.label}: {result.reason}")
        found[task.layer] = result
    return found, perf_counter() - start


def run_all_layers(model: Model, task: ProfileTask, setting: Setting) -> tuple[Measurement, float]:
    """All layers of `model` in a row, held as `task` is and as often repeated: the measurement and wall seconds."""
    start = perf_counter()
    result = measure_stage(model.layers, task.shard, setting, compiled=False)
    if isinstance(result, Infeasible):
        raise SystemExit(f"all layers: {result.reason}")
    return result, perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("layers", 12),
        ("hidden", 256),
        ("seq-len", 128),
        ("devices", 8),
        ("stages", 2),
        ("seed", 0),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--micro-batch", type=int, default=8, help="samples over all replicas of a stage")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    # A fixed number of repeats, so that both sides do the same work per layer.
    repeats = Repeats(least=6, most=6, least_s=0.0, limit_s=1e9)
    setting = Setting(device=args.device, seed=args.seed, repeats=repeats)
    identity, ranks = identify_device(setting), args.devices // args.stages
    model = make_model(layers=args.layers, hidden=args.hidden, seq_len=args.seq_len)
    print(
        f"{identity.hardware}, {identity.software}, threads {identity.threads}; seed {args.seed}; {args.layers} blocks"
    )
    print(f"{args.devices} devices, {args.stages} stages, micro-batch {args.micro_batch}, {repeats.most} repeats")
    print(
        f"{'plan':<10}{'tasks':>7}{'profile s':>11}{'all layers s':>14}{'ratio':>8}{'job device s':>14}{'ratio':>8}"
        f"{'stage/layers':>15}"
    )
    start_torch(setting)
    total = [0.0, 0.0, 0.0]
    for plan, degree, micro_batch in (("dp only", 1, args.micro_batch // ranks), ("tp only", ranks, args.micro_batch)):
        tasks = plan_profile(model, degrees=[degree], micro_batches_per_rank=[micro_batch], dtype="fp32")
        alone, profile_s = profile_tasks(tasks, setting)
        together, all_s = run_all_layers(model, tasks[0], setting)
        row = (profile_s, all_s, all_s * ranks)
        total = [have + more for have, more in zip(total, row, strict=True)]
        print(format_row(plan, len(tasks), row) + f"{compare_stage(model.layers, together, alone).ratio:>15.2f}")
    print(format_row("Cell", 2 * len(set(model.layers)), total))


def format_row(plan: str, tasks: int, seconds: Sequence[float]) -> str:
    """Seconds to profile, to run all layers, and of the job's devices, the latter two also over the first."""
    profile_s, all_s, job_s = seconds
    return (
        f"{plan:<10}{tasks:>7}{profile_s:>11.2f}{all_s:>14.2f}{all_s / profile_s:>8.2f}{job_s:>14.2f}"
        f"{job_s / profile_s:>8.2f}"
    )


if __name__ == "__main__":
    main()
