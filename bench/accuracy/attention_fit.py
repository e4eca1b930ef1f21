"""Fits the attention model's forward parameters of an architecture on measured prefill attention.

    python -m bench.accuracy.attention_fit --data DIR ARCHITECTURE

Rows of the kernels that training runs too (FlashAttention 3 on Hopper, FlashInfer's of TensorRT-LLM on Blackwell), of
1,024 tokens and more, from the fit half of shapes. Causal ones were timed with a kernel that writes keys and values to
a cache, which training does not have: what it takes (a constant and one pass over them) is fitted beside and left out.
One set of parameters stands for all devices of an architecture, but for each one's `attention_share`.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
from scipy.optimize import least_squares

from bench.accuracy.kernel_rows import DEVICES, is_held, read_table
from estimator.pricing.attention_time import attention_seconds
from estimator.pricing.operator_time import memory_seconds
from profiles.efficiencies import AttentionEfficiency, OperatorEfficiencies, load_operator_efficiencies
from profiles.hardware import load_device
from profiles.vocabulary import Device

KERNELS = {
    "hopper": ("flash3", ("fa3", "vllm_flash_attn_fa3", "flash_attention_v3", "vllm_vit_flash_attn_fa3")),
    "blackwell": ("trtllm", ("trtllm_mha", "vllm_flashinfer_trtllmprefill")),
}
"""The kernel whose parameters are fitted, by architecture, and whose rows they are fitted on."""
CACHE_S = {"hopper": 0.4e-6, "blackwell": 4.2e-6}
"""What writing a cache takes beside its traffic, as last fitted."""
LEAST_TOKENS = 1024
LONG_S = 3e-4
"""From which on a call is as long as those of training."""
HEAD_SIZES = (64, 72, 80, 128, 192, 256)
SCALE = 0.05
FIELDS = ("forward_overhead", "forward_tail", "forward_alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow:
    """One measured call: `shape` as Operator's, and whether a cache was written."""

    device: str
    shape: tuple[int, ...]
    seconds: float
    cache: bool

    @property
    def held(self) -> bool:
        """Whether the shape is of the half that nothing is fitted to."""
        return is_held(*self.shape)


def read_attention(folder: Path, architecture: str) -> list[AttentionRow]:
    """Return the rows in bf16 of an architecture's kernels."""
    _, names = KERNELS[architecture]
    rows = []
    for row in read_table(folder / "attention.csv.gz"):
        device = DEVICES[row["gpu"]]
        if load_operator_efficiencies(device).architecture != architecture or row["kernel"] not in names:
            continue
        sizes = tuple(int(row[name]) for name in ("batch", "heads", "kv_heads", "seq_len", "head_dim", "v_head_dim"))
        batch, heads, kv_heads, tokens, dim, v_dim = sizes
        if row["dtype"] != "bf16" or row["op"] != "attention_fwd" or tokens < LEAST_TOKENS or dim not in HEAD_SIZES:
            continue
        causal = int(row["causal"])
        shape = (batch, heads, kv_heads, tokens, tokens, dim, v_dim, causal)
        rows.append(AttentionRow(device=device, shape=shape, seconds=float(row["seconds"]), cache=bool(causal)))
    return rows


def timed_seconds(
    row: AttentionRow, efficiencies: OperatorEfficiencies, kernel: str, cache_s: float, device: Device
) -> float:
    """Return the modelled time of a row as it was timed: with the cache written where it was."""
    seconds = attention_seconds(row.shape, device=device, dtype="bf16", efficiencies=efficiencies, kernel=kernel)
    if not row.cache:
        return seconds
    batch, _, kv_heads, _, tokens, dim, v_dim, _ = row.shape
    moved = 4 * batch * kv_heads * tokens * (dim + v_dim)
    return seconds + cache_s + memory_seconds(moved, device=device, efficiencies=efficiencies)


def fit_attention(rows: Sequence[AttentionRow], architecture: str) -> tuple[dict[str, OperatorEfficiencies], float]:
    """Return each device's efficiencies with the fitted kernel, and the constant of writing a cache."""
    kernel = KERNELS[architecture][0]
    chosen = [row for row in rows if not row.held]
    devices = {name: load_device(name) for name in sorted({row.device for row in chosen})}
    stands = {name: load_operator_efficiencies(name) for name in devices}
    begin = [0.4, 0.65, 0.8, 100.0, 0.7, 1.2, 5e-6, *(0.9 for _ in devices)]
    low = [0.1, 0.2, 0.2, 1.0, 0.01, 1.0, 1e-7, *(0.3 for _ in devices)]
    high = [0.95, 0.95, 0.95, 800.0, 2.5, 3.0, 2e-5, *(1.0 for _ in devices)]
    start = np.clip(np.log(begin), np.log(low) + 1e-6, np.log(high) - 1e-6)

    def trial(point: np.ndarray) -> tuple[dict[str, OperatorEfficiencies], float]:
        values = np.exp(point).tolist()
        changed = {name: _with(stands[name], kernel, values, values[7 + at]) for at, name in enumerate(devices)}
        return changed, values[6]

    def residuals(point: np.ndarray) -> np.ndarray:
        efficiencies, cache_s = trial(point)
        return np.array(
            [
                math.log(
                    timed_seconds(row, efficiencies[row.device], kernel, cache_s, devices[row.device]) / row.seconds
                )
                for row in chosen
            ]
        )

    solved = least_squares(
        residuals, start, bounds=(np.log(low), np.log(high)), loss="soft_l1", f_scale=SCALE, diff_step=2e-3, max_nfev=25
    )
    return trial(solved.x)


def _with(
    efficiencies: OperatorEfficiencies, kernel: str, values: Sequence[float], attention_share: float
) -> OperatorEfficiencies:
    small, middle, large, *fields = values[:6]

    def changed(rates: AttentionEfficiency) -> AttentionEfficiency:
        overhead, tail, alone = fields
        return replace(
            rates,
            forward_shares=(small, middle, large),
            backward_ratios=(
                min(rates.backward_ratios[0], 1 / small),
                min(rates.backward_ratios[1], 1 / middle),
                min(rates.backward_ratios[2], 1 / large),
            ),
            forward_overhead=overhead,
            forward_tail=tail,
            forward_alone=alone,
        )

    attention = tuple((name, changed(rates) if name == kernel else rates) for name, rates in efficiencies.attention)
    return replace(efficiencies, attention=attention, attention_share=min(1.0, attention_share))


def report(
    rows: Sequence[AttentionRow], efficiencies: dict[str, OperatorEfficiencies], kernel: str, cache_s: float, title: str
) -> str:
    """Return the errors on held shapes by device and head size."""
    errors: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in rows:
        if row.held:
            modelled = timed_seconds(row, efficiencies[row.device], kernel, cache_s, load_device(row.device))
            errors[row.device, row.shape[5]].append(modelled / row.seconds - 1)
            errors[row.device, 0].append(modelled / row.seconds - 1)
    lines = [title]
    for (device, dim), members in sorted(errors.items()):
        mean = fmean(abs(error) for error in members)
        lines.append(f"  {device:8s} head {dim or 'all':>4} {len(members):5d} {mean:7.1%} {fmean(members):+7.1%}")
    return "\n".join(lines)


def write_attention_report(folder: Path) -> str:
    """Return the errors of the model as it stands, by architecture."""
    texts = []
    for architecture, (kernel, _) in KERNELS.items():
        rows = read_attention(folder, architecture)
        stands = {name: load_operator_efficiencies(name) for name in {row.device for row in rows}}
        title = f"attention {kernel}, forward, held shapes (cache {CACHE_S[architecture] * 1e6:.1f} us)"
        texts += [
            report(rows, stands, kernel, CACHE_S[architecture], title),
            report(
                [row for row in rows if row.seconds >= LONG_S],
                stands,
                kernel,
                CACHE_S[architecture],
                f"  of {LONG_S * 1e3:g} ms and more",
            ),
        ]
    return "\n".join(texts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder that holds kernels/")
    parser.add_argument("architecture", choices=sorted(KERNELS))
    options = parser.parse_args(arguments)
    kernel = KERNELS[options.architecture][0]
    rows = read_attention(options.data / "kernels", options.architecture)
    stands = {name: load_operator_efficiencies(name) for name in {row.device for row in rows}}
    print(report(rows, stands, kernel, CACHE_S[options.architecture], "as it stands"))
    fitted, cache_s = fit_attention(rows, options.architecture)
    for name, efficiencies in fitted.items():
        print(name, f"attention_share {efficiencies.attention_share:.3f}", efficiencies.attention_kernel(kernel))
    print(report(rows, fitted, kernel, cache_s, f"fitted (a cache's constant {cache_s * 1e6:.1f} us)"))


if __name__ == "__main__":
    main()
