"""The operator model beside published sweeps of single operators: errors by table, and the fit of its parameters.

python -m bench.accuracy.operators --data DIR [--fit [TABLE ...]] [--worst N]

`DIR/gemm.csv` holds one operator a row (matrix products, grouped products, fused attention; columns id, source, gpu,
op, dtype, shape, m, n, k, batch_or_groups, seq_len, heads, kv_heads, head_dim, causal, direction, tflops).
`DIR/kernels` (optional) holds measured kernels: their errors by device, dtype and load follow (kernel_report).
Half of the rows, chosen by a hash of their id, are fitted to; errors are reported on the other half. `--fit` searches
the parameters of `profiles/data/efficiencies.toml` anew and prints them; nothing is written.
"""

from __future__ import annotations

import argparse
import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from typing import Any

from bench.accuracy.attention_fit import write_attention_report
from bench.accuracy.kernel_report import write_carried_report, write_products_report
from bench.accuracy.search import Axis, search_coordinates
from estimator.pricing.attention_time import attention_seconds
from estimator.pricing.operator_time import memory_seconds
from estimator.pricing.product_time import Product, batched_gemm_seconds, gemm_seconds
from profiles.efficiencies import OperatorEfficiencies, load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import Device, DType

Row = Mapping[str, str]
Model = Callable[[OperatorEfficiencies], float]

DEVICES = {
    "A100-PCIe": "a100-80gb-pcie",
    "A100 PCIe": "a100-80gb-pcie",
    "A100-SXM4-80GB": "a100-80gb",
    "A100 SXM": "a100-80gb",
    "H100-SXM5-80GB": "h100",
    "H100 SXM": "h100",
    "H200 SXM": "h200",
    "GH200 SXM": "gh200",
    "B200": "b200-capped",
    "B200 SXM": "b200",
    "B300 SXM": "b300",
    "GB200 SXM": "gb200",
    "AMD MI300X": "mi300x",
    "AMD MI325X": "mi325x",
    "AMD MI355X": "mi355x",
    "TPU v6e (first README example)": "tpu-v6e",
    "TPU v6e (second README example)": "tpu-v6e",
}
KERNELS = {"attention_FA2": "flash2", "attention_FA3": "flash3", "attention_cuDNN": "cudnn"}
PRODUCTS: dict[str, Product] = {"fwd": "forward", "dgrad": "input_grad", "wgrad(fp32 accumulate)": "weight_grad"}
GROUPED: dict[str, Product] = {"fwd": "forward", "bwd_grad_act": "input_grad", "bwd_grad_w": "weight_grad"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One published row: its table, its measured seconds, and how the model gets there from efficiencies."""

    id: str
    table: str
    device: str
    seconds: float
    model: Model
    size: str

    @property
    def fitted(self) -> bool:
        """Whether the row is in the half that is fitted to."""
        return int(sha256(self.id.encode()).hexdigest(), 16) % 2 == 0

    def error(self, known: OperatorEfficiencies) -> float:
        """Relative error, positive where the model is slow."""
        return self.model(known) / self.seconds - 1


def read_cases(rows: Sequence[Row]) -> list[Case]:
    """All rows that the model has an operator for."""
    cases = []
    for row in rows:
        name = DEVICES.get(row["gpu"])
        if name is None or not row["tflops"]:
            continue
        device, op = load_device(name), row["op"]
        if op == "gemm" and row["source"] == "MooreThreads/SimuMax":
            cases.append(_gemm_case(row, device))
        elif op == "grouped_gemm":
            cases.append(_grouped_case(row, device))
        elif op in KERNELS or op in ("attention_fwd", "attention_bwd"):
            cases.append(_attention_case(row, device))
        elif op == "attention_pytorch_standard":
            cases.append(_standard_case(row, device))
        elif op.startswith("gemm") and row["dtype"] in ("bf16", "fp8"):
            cases.append(_best_case(row, device))
    return cases


def _gemm_case(row: Row, device: Device) -> Case:
    m, n, k = (int(row[name]) for name in "mnk")
    product = PRODUCTS[row["direction"]]
    # A result that is added to an fp32 (bf16) buffer is read and written.
    result = 2 if product != "weight_grad" else 8 if "out_dtype=fp32" in row["shape"] else 4

    def model(known: OperatorEfficiencies) -> float:
        return gemm_seconds(
            m, n, k, device=device, dtype="bf16", efficiencies=known, product=product, result_bytes=result
        )

    return _case(row, f"{row['gpu']} gemm", device, 2 * m * n * k, model, f"{m}x{n}x{k} {product}")


def _grouped_case(row: Row, device: Device) -> Case:
    m, n, k, groups = (int(row[name]) for name in ("m", "n", "k", "batch_or_groups"))
    product = GROUPED[row["direction"]]
    result = 2 if product != "weight_grad" else 8 if "main_grad_dtype=fp32" in row["shape"] else 4
    # The sweep names the forward's sizes in every direction.
    sizes = {"forward": (m, n, k), "input_grad": (m, k, n), "weight_grad": (k, n, m)}[product]

    def model(known: OperatorEfficiencies) -> float:
        # The sweep is of Transformer Engine's products, a kernel for each group on several streams.
        return gemm_seconds(
            *sizes,
            groups=groups,
            device=device,
            dtype="bf16",
            efficiencies=known.in_streams(),
            product=product,
            result_bytes=result,
        )

    return _case(
        row, f"{row['gpu']} grouped gemm", device, 2 * groups * m * n * k, model, f"{groups} x {m}x{n}x{k} {product}"
    )


def _attention_sizes(row: Row) -> tuple[tuple[int, ...], float]:
    """The shape, and FLOPs as the source counts them. FlashAttention's figures are for 16k tokens and 2048 wide."""
    seq = int(row["seq_len"])
    if row["source"] == "MooreThreads/SimuMax":
        given = dict(re.findall(r"(\w+)=(\w+)", row["shape"]))
        batch, heads, kv_heads = 1, int(row["heads"]), int(row["kv_heads"])
        qk_dim, v_dim, causal, counted = int(given["qk_head_dim"]), int(given["v_head_dim"]), 1, 1.0
    else:
        qk_dim = v_dim = int(row["head_dim"])
        heads = kv_heads = 2048 // qk_dim
        batch, causal = 16384 // seq, int(row["causal"])
        counted = 0.5 if causal else 1.0
    factor = {"fwd": 1.0, "bwd": 2.5, "fwd+bwd": 3.5}[row["direction"]]
    flops = counted * factor * 2 * batch * heads * seq * seq * (qk_dim + v_dim)
    return (batch, heads, kv_heads, seq, seq, qk_dim, v_dim, causal), flops


def _attention_case(row: Row, device: Device) -> Case:
    shape, flops = _attention_sizes(row)
    kernel = "cudnn" if device.name == "b200-capped" else KERNELS.get(row["op"])
    passes = [back for back, word in ((False, "fwd"), (True, "bwd")) if word in row["direction"]]

    def model(known: OperatorEfficiencies) -> float:
        return sum(
            attention_seconds(shape, device=device, dtype="bf16", efficiencies=known, backward=back, kernel=kernel)
            for back in passes
        )

    family = row["gpu"].replace(" ", "-").split("-")[0]
    return _case(
        row,
        f"{family} attention {KERNELS.get(row['op'], 'library')}",
        device,
        flops,
        model,
        f"{shape} {row['direction']}",
    )


def _standard_case(row: Row, device: Device) -> Case:
    """Attention from batched products, and separate kernels for softmax and mask."""
    (batch, heads, _, seq, _, dim, _, causal), flops = _attention_sizes(row)
    # Softmax reads and writes the scores, its backward reads two and writes one; a causal mask is added beforehand.
    scores, passes = batch * heads * seq * seq * 2, 7 if causal else 5

    def model(known: OperatorEfficiencies) -> float:
        def product(m: int, n: int, k: int) -> float:
            return batched_gemm_seconds(batch * heads, m, n, k, device=device, dtype="bf16", efficiencies=known)

        # QK^T and the gradient of the probabilities contract over the head size, the other four over the sequence.
        products = 2 * product(seq, seq, dim) + 4 * product(seq, dim, seq)
        return products + memory_seconds(scores * passes, device=device, efficiencies=known, kernels=passes // 2)

    return _case(row, f"{row['gpu']} attention unfused", device, flops, model, f"{seq} {dim} {causal}")


def _best_case(row: Row, device: Device) -> Case:
    """The best rate that a search over shapes found: an upper bound, which the model should not beat."""
    m, n, k = (int(row[name]) for name in "mnk")
    dtype: DType = "fp8" if row["dtype"] == "fp8" else "bf16"

    def model(known: OperatorEfficiencies) -> float:
        return gemm_seconds(m, n, k, device=device, dtype=dtype, efficiencies=known)

    return _case(row, "best of a shape search", device, 2 * m * n * k, model, f"{row['gpu']} {dtype} {m}x{n}x{k}")


def _case(row: Row, table: str, device: Device, flops: float, model: Model, size: str) -> Case:
    seconds = flops / (float(row["tflops"]) * 1e12)
    return Case(id=row["id"], table=table, device=device.name, seconds=seconds, model=model, size=size)


def mean_log_error(cases: Sequence[Case], known: Mapping[str, OperatorEfficiencies]) -> float:
    """What a fit makes small: the mean of |log(model / measured)|."""
    return fmean(abs(log(case.model(known[case.device]) / case.seconds)) for case in cases)


def same_shape_spread(cases: Sequence[Case]) -> tuple[int, float]:
    """How far a table disagrees with itself: products of one size and kind measured twice, mean distance from their
    geometric mean. No model of the shape can do better on those rows."""
    times: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        times[case.size.replace("input_grad", "forward")].append(case.seconds)
    apart = [exp((log(max(each)) - log(min(each))) / 2) - 1 for each in times.values() if len(each) > 1]
    return len(apart), fmean(apart) if apart else 0.0


def _gemm_axis(name: str, low: float, high: float) -> Axis[OperatorEfficiencies]:
    def put(known: OperatorEfficiencies, value: float) -> OperatorEfficiencies:
        changes: dict[str, Any] = {name: value}
        return replace(known, gemm=replace(known.gemm, **changes))

    return Axis(name=name, low=low, high=high, get=lambda known: float(getattr(known.gemm, name)), put=put)


def _tile_axis(area: int, low: float) -> Axis[OperatorEfficiencies]:
    def put(known: OperatorEfficiencies, value: float) -> OperatorEfficiencies:
        tiles = tuple((m, n, value if m * n == area else old) for m, n, old in known.gemm.tiles)
        return replace(known, gemm=replace(known.gemm, tiles=tiles))

    def get(known: OperatorEfficiencies) -> float:
        return next(share for m, n, share in known.gemm.tiles if m * n == area)

    return Axis(name=f"tiles of {area}", low=low, high=1.0, get=get, put=put)


def _attention_axis(
    kernel: str, name: str, low: float, high: float, index: int | None = None
) -> Axis[OperatorEfficiencies]:
    """A field of an attention kernel; of a tuple, one element."""

    def get(known: OperatorEfficiencies) -> float:
        value = getattr(known.attention_kernel(kernel), name)
        return float(value if index is None else value[index])

    def put(known: OperatorEfficiencies, value: float) -> OperatorEfficiencies:
        rates = known.attention_kernel(kernel)
        new: Any = value
        if index is not None:
            new = tuple(value if i == index else old for i, old in enumerate(getattr(rates, name)))
        changes: dict[str, Any] = {name: new}
        changed = tuple((each, replace(old, **changes) if each == kernel else old) for each, old in known.attention)
        return replace(known, attention=changed)

    return Axis(name=name if index is None else f"{name}[{index}]", low=low, high=high, get=get, put=put)


GEMM_AXES = (
    _gemm_axis("peak_share", 0.4, 1.0),
    _gemm_axis("fill", 0.0, 800.0),
    _gemm_axis("wave_loss", 0.0, 1.0),
    _gemm_axis("stall", 0.0, 1.0),
    _gemm_axis("power_loss", 0.0, 0.6),
    _gemm_axis("power_half_s", 2e-5, 2e-3),
    _gemm_axis("weight_grad_loss", 0.0, 0.3),
    _tile_axis(128 * 128, 0.5),
    _tile_axis(128 * 64, 0.3),
    _tile_axis(64 * 64, 0.2),
)
GROUPED_AXES = (
    _gemm_axis("group_floor_s", 0.0, 2e-5),
    _gemm_axis("group_stall", 0.0, 1.0),
)


def _attention_axes(kernel: str, *, backward: bool, alone: bool = False) -> tuple[Axis[OperatorEfficiencies], ...]:
    """What a table of this kernel can tell: without rows that hold backward, nothing of it."""
    axes = []
    for way, name, low, high in (("forward", "shares", 0.1, 0.95), ("backward", "ratios", 0.4, 1.05)):
        if way == "forward" or backward:
            axes += [_attention_axis(kernel, f"{way}_{name}", low, high, i) for i in range(3)]
            axes += [_attention_axis(kernel, f"{way}_overhead", 0, 400), _attention_axis(kernel, f"{way}_tail", 0, 1.5)]
            if alone:
                axes.append(_attention_axis(kernel, f"{way}_alone", 1, 2))
    return tuple(axes)


BATCHED_AXES = (_gemm_axis("batch_stall", 0.0, 1.5), _gemm_axis("batch_bandwidth", 0.3, 1.0))
FITS: dict[str, tuple[Axis[OperatorEfficiencies], ...]] = {
    "A100-PCIe gemm": GEMM_AXES,
    "B200 gemm": GEMM_AXES,
    "A100-PCIe grouped gemm": GROUPED_AXES,
    "B200 grouped gemm": GROUPED_AXES,
    "A100-SXM4-80GB attention unfused": BATCHED_AXES,
    "A100 attention": _attention_axes("flash2", backward=True),
    "H100 attention flash2": _attention_axes("flash2", backward=True),
    "H100 attention flash3": _attention_axes("flash3", backward=False),
    "H100 attention cudnn": _attention_axes("cudnn", backward=False),
    "B200 attention library": _attention_axes("cudnn", backward=True, alone=True),
}
"""Tables that are fitted, by the start of their name, and the parameters that they tell."""


def report(table: str, cases: Sequence[Case], known: Mapping[str, OperatorEfficiencies], worst: int) -> str:
    """One line: rows and errors of the half that was not fitted to, and of the other; then the worst rows."""
    lines = []
    held = [case for case in cases if not case.fitted] or list(cases)
    absolute = sorted(((abs(case.error(known[case.device])), case) for case in held), key=lambda pair: -pair[0])
    errors = [error for error, _ in absolute]
    fitted = [abs(case.error(known[case.device])) for case in cases if case.fitted] or errors
    bias = fmean(case.error(known[case.device]) for case in held)
    lines.append(
        f"{table:28s} {len(cases):5d} {len(held):5d} {fmean(errors):7.1%} {median(errors):7.1%} {max(errors):7.1%}"
        f" {bias:+7.1%} {fmean(fitted):7.1%}"
    )
    for _, case in absolute[:worst]:
        lines.append(f"    {case.id} {case.size}: {case.seconds * 1e6:.0f} us, {case.error(known[case.device]):+.0%}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds gemm.csv")
    parser.add_argument("--fit", nargs="*", metavar="TABLE", help="fit the tables so called (part of a name; all)")
    parser.add_argument("--worst", type=int, default=0, help="how many of the worst rows of each table to list")
    options = parser.parse_args(arguments)
    with (options.data / "gemm.csv").open(encoding="utf-8", newline="") as file:
        cases = read_cases(list(csv.DictReader(file)))
    known = {case.device: load_operator_efficiencies(case.device) for case in cases}
    tables: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        tables[case.table].append(case)
    if options.fit is not None:
        wanted = [name for name in FITS if not options.fit or any(part in name for part in options.fit)]
        for name in wanted:
            known |= fit(name, [case for case in cases if case.table.startswith(name)], known)
    print(
        f"{'table':28s} {'rows':>5s} {'held':>5s} {'mean':>7s} {'median':>7s} {'worst':>7s} {'bias':>7s} {'fitted':>7s}"
    )
    for name, members in sorted(tables.items()):
        print(report(name, members, known, options.worst))
        if name.endswith(" gemm"):
            pairs, spread = same_shape_spread(members)
            print(f"    {pairs} sizes measured more than once, {spread:.1%} from their mean")

    if (options.data / "kernels").is_dir():
        print(f"\n{write_attention_report(options.data / 'kernels')}", flush=True)
        print(f"\n{write_carried_report(options.data / 'kernels')}", flush=True)
        print(f"\n{write_products_report(options.data / 'kernels')}")


def fit(name: str, cases: Sequence[Case], known: Mapping[str, OperatorEfficiencies]) -> dict[str, OperatorEfficiencies]:
    """Fits the tables' parameters on their fitted half and prints them; all devices of the tables change alike."""
    half = [case for case in cases if case.fitted]
    devices = {case.device: known[case.device] for case in half}
    first = known[half[0].device]

    def on_all(trial: OperatorEfficiencies) -> dict[str, OperatorEfficiencies]:
        gemm, attention = trial.gemm, trial.attention
        return {device: replace(own, gemm=gemm, attention=attention) for device, own in devices.items()}

    best, least = search_coordinates(first, FITS[name], lambda trial: mean_log_error(half, on_all(trial)))
    print(f"{name}: {len(half)} rows, mean |log error| {least:.4f}")
    for axis in FITS[name]:
        print(f"    {axis.name} = {axis.get(best):.4g}")
    return on_all(best)


if __name__ == "__main__":
    main()
