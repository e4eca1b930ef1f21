"""Operators with FLOPs as torch runs them."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.case import Case
from bench.gpu.memory_torch import MEMORY_MAKERS
from bench.gpu.timing_torch import Maker, Step, backward_of

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES |= {"fp8": torch.float8_e4m3fn}
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def make_step(case: Case, device: torch.device) -> Step:
    """Builds the tensors of `case` on `device`, and returns the step to time."""
    return MAKERS[case.kind](case, device)


def _make_gemm(case: Case, device: torch.device) -> Step:
    m, n, k = case.shape.values()
    if case.dtype == "fp8":
        return _make_scaled(m, n, k, device)
    random = partial(torch.randn, device=device, dtype=DTYPES[case.dtype])
    match case.direction:
        case "forward":
            return partial(F.linear, random(m, k), random(n, k))
        case "dgrad":
            return partial(torch.mm, random(m, n), random(n, k))
    return partial(torch.mm, random(m, n).t(), random(m, k))


def _make_scaled(m: int, n: int, k: int, device: torch.device) -> Step:
    x, weight = (torch.randn(rows, k, device=device).to(DTYPES["fp8"]) for rows in (m, n))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _make_batched_gemm(case: Case, device: torch.device) -> Step:
    groups, m, n, k = case.shape.values()
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    if case.variant == "bmm":
        return partial(torch.bmm, random(groups, m, k), random(groups, k, n))
    rows, weights = random(groups * m, k), random(groups, n, k).transpose(1, 2)
    ends = torch.arange(m, groups * m + 1, m, device=device, dtype=torch.int32)
    return lambda: torch._grouped_mm(rows, weights, offs=ends)


def _make_attention(case: Case, device: torch.device) -> Step:
    b, heads, kv_heads, s, dim, causal = case.shape.values()
    backward = case.direction == "backward"
    query, key, value = (
        torch.randn(b, s, count, dim, device=device, dtype=torch.bfloat16, requires_grad=backward).transpose(1, 2)
        for count in (heads, kv_heads, kv_heads)
    )

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(KERNELS[case.variant]):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=bool(causal), enable_gqa=query.shape[1] != key.shape[1]
            )

    return backward_of(forward, query, key, value) if backward else partial(forward, query, key, value)


def _make_convolution(case: Case, device: torch.device) -> Step:
    batch, c_in, c_out, height, width, kernel, stride = case.shape.values()
    backward = case.direction == "backward"
    layout = torch.channels_last if case.variant == "nhwc" else torch.contiguous_format
    images = torch.randn(batch, c_in, height * stride, width * stride, device=device)
    weight = torch.randn(c_out, c_in, kernel, kernel, device=device)
    x, w = (
        t.to(DTYPES[case.dtype]).contiguous(memory_format=layout).requires_grad_(backward) for t in (images, weight)
    )
    forward = partial(F.conv2d, stride=stride, padding=kernel // 2)
    return backward_of(forward, x, w) if backward else partial(forward, x, w)


MAKERS: dict[str, Maker] = {
    "gemm": _make_gemm,
    "batched_gemm": _make_batched_gemm,
    "attention": _make_attention,
    "conv": _make_convolution,
    **MEMORY_MAKERS,
}
