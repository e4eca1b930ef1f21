"""Operators with FLOPs: products, attention and convolutions, over shapes of the zoo's own layers and a coarse grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.gpu.memory_torch import memory_cases
from bench.gpu.record import Deadline, ResultFile, Run
from bench.gpu.timing_torch import Case, Step, backward_of, run_cases
from estimator.shards import shard_layer
from models_zoo.catalogue import load_model
from profiles.vocabulary import LocalLayer, OperatorKind, Shard

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPES |= {"fp8": torch.float8_e4m3fn}
DEGREES = (1, 2, 4, 8)
TOKENS = (4096, 8192, 2048, 16384, 1024, 32768, 512)
"""Rows of a product, the usual sizes first."""
KERNELS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "math": SDPBackend.MATH,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
SCHEMA = "cellplan.operators/1"


def start_operators(run: Run) -> tuple[ResultFile, list[Case]]:
    """`operators.json`, still without rows, and its cases."""
    cases = planned_cases(tiny=run.tiny, on_gpu=run.device != "cpu")
    planned = [case.label for case in cases]
    return ResultFile(run.out / "operators.json", schema=SCHEMA, provenance=run.provenance, planned=planned), cases


def planned_cases(*, tiny: bool, on_gpu: bool) -> list[Case]:
    """Every operator to time, once each, the most important first."""
    cases = [*gemm_cases(tiny=tiny), *group_cases(tiny=tiny), *attention_cases(tiny=tiny, on_gpu=on_gpu)]
    cases += [*convolution_cases(tiny=tiny), *memory_cases(tiny=tiny, on_gpu=on_gpu)]
    first: dict[str, Case] = {}
    for case in sorted(cases, key=lambda case: case.priority):
        first.setdefault(case.label, case)
    return list(first.values())


def measure_operators(run: Run, deadline: Deadline, file: ResultFile, cases: Sequence[Case]) -> None:
    """Goes on with `cases` until `deadline`."""
    run_cases(cases, file, deadline, device=torch.device(run.device), log=run.log)
    left = len(cases) - file.done
    run.log.write(f"operators: {len(file.rows)} rows, {len(file.failures)} failed, {left} left")


def zoo_shapes(names: Sequence[str], kind: OperatorKind, degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Distinct shapes of one kind in one sample through the layers of zoo models, as the estimator sees them."""
    shapes: dict[tuple[int, ...], None] = {}
    for name, tp in product(names, degrees):
        model = load_model(name)
        shard = Shard(tp=tp, seq_len=model.seq_len)
        for layer in dict.fromkeys(model.layers):
            local = shard_layer(layer, shard)
            if isinstance(local, LocalLayer):
                shapes |= dict.fromkeys(op.shape for op in local.operators if op.kind == kind)
    return list(shapes)


def gemm_cases(*, tiny: bool) -> Iterator[Case]:
    """Products of the zoo for each number of rows, then a grid, skinny and odd ones, then other types."""
    models = ("gpt-tiny",) if tiny else ("llama3-8b", "llama3-70b", "gpt3-175b", "gpt2-1.3b")
    weights = dict.fromkeys((n, k) for _, n, k in zoo_shapes(models, "gemm", (1, 2) if tiny else DEGREES))
    for turn, m in enumerate((64,) if tiny else TOKENS):
        for (n, k), direction in product(weights, ("forward", "dgrad", "wgrad")):
            yield gemm(m, n, k, direction=direction, priority=4 * turn)
    sides = (64,) if tiny else (256, 1024, 4096, 16384)
    odd = [(4095, 4097, 4099), (1000, 1000, 1000), (2047, 50257, 1600), (8192, 8200, 4104)]
    skinny = [(m, n, 4096) for m, n in product((1, 16, 64, 128, 256), (4096, 14336))]
    for m, n, k in [*product(sides, repeat=3), *([(7, 9, 11)] if tiny else [*odd, *skinny])]:
        yield gemm(m, n, k, priority=6)
    squares = [(64, 64, 64)] if tiny else [*((n, n, n) for n in (1024, 2048, 4096, 8192, 16384)), (8192, 14336, 4096)]
    for (m, n, k), dtype in product(squares, ("fp16", "fp32", "tf32", "bf16")):
        yield gemm(m, n, k, dtype=dtype, priority=3)
    for m, n, k in squares:
        yield gemm(m, n, k, dtype="fp8", priority=90)


def gemm(m: int, n: int, k: int, *, direction: str = "forward", dtype: str = "bf16", priority: int) -> Case:
    """x (m, k) by a weight (n, k); `dgrad` gives the gradient of x, `wgrad` that of the weight."""
    width = DTYPES[dtype].itemsize
    return Case(
        kind="gemm",
        dtype=dtype,
        direction=direction,
        shape={"m": m, "n": n, "k": k},
        make=partial(_make_scaled if dtype == "fp8" else partial(_make_gemm, direction, DTYPES[dtype]), m, n, k),
        flops=2 * m * n * k,
        # An fp8 product is written as bf16.
        bytes=width * (m * k + n * k) + max(2, width) * m * n,
        priority=priority,
    )


def _make_gemm(direction: str, dtype: torch.dtype, m: int, n: int, k: int, device: torch.device) -> Step:
    random = partial(torch.randn, device=device, dtype=dtype)
    match direction:
        case "forward":
            return partial(F.linear, random(m, k), random(n, k))
        case "dgrad":
            return partial(torch.mm, random(m, n), random(n, k))
    return partial(torch.mm, random(m, n).t(), random(m, k))


def _make_scaled(m: int, n: int, k: int, device: torch.device) -> Step:
    x, weight = (torch.randn(rows, k, device=device).to(DTYPES["fp8"]) for rows in (m, n))
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def group_cases(*, tiny: bool) -> Iterator[Case]:
    """Products of experts, as one batched product (what our layers run) and as torch's grouped one; and plain ones."""
    models = ("moe-2.4b",) if tiny else ("mixtral-8x7b", "moe-2.4b")
    shapes = [(2, 32, 64, 64)] if tiny else zoo_shapes(models, "grouped_gemm", DEGREES)
    plain = [] if tiny else [(g, s, s, 128) for g, s in product((16, 128), (512, 2048))]
    for turn, times in enumerate((1,) if tiny else (1, 4)):
        for (groups, m, n, k), variant in product([*shapes, *plain], ("bmm", "grouped_mm")):
            yield Case(
                kind="batched_gemm",
                dtype="bf16",
                direction="forward",
                shape={"groups": groups, "m": times * m, "n": n, "k": k},
                make=partial(_make_bmm if variant == "bmm" else _make_grouped, groups, times * m, n, k),
                flops=2 * groups * times * m * n * k,
                bytes=2 * groups * (times * m * (k + n) + n * k),
                variant=variant,
                priority=3 + turn if variant == "bmm" else 91,
            )


def _make_bmm(groups: int, m: int, n: int, k: int, device: torch.device) -> Step:
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    return partial(torch.bmm, random(groups, m, k), random(groups, k, n))


def _make_grouped(groups: int, m: int, n: int, k: int, device: torch.device) -> Step:
    random = partial(torch.randn, device=device, dtype=torch.bfloat16)
    rows, weights = random(groups * m, k), random(groups, n, k).transpose(1, 2)
    ends = torch.arange(m, groups * m + 1, m, device=device, dtype=torch.int32)
    return lambda: torch._grouped_mm(rows, weights, offs=ends)


def attention_cases(*, tiny: bool, on_gpu: bool) -> Iterator[Case]:
    """16k tokens or one sample: by length, head size, grouped queries, heads of a tp shard, and by kernel."""
    if tiny:
        for kernel, causal in product(("flash", "math"), (True, False)):
            yield from attention(1, 4, 2 if kernel == "math" else 4, 64, 32, causal=causal, kernel=kernel, priority=1)
        return
    for s, kv_heads, causal in product((512, 1024, 2048, 4096, 8192, 16384, 32768), (32, 8), (True, False)):
        yield from attention(max(1, 16384 // s), 32, kv_heads, s, 128, causal=causal, priority=1 if causal else 5)
    for s, dim, causal in product((1024, 4096, 16384), (64, 80, 96, 192, 256), (True, False)):
        yield from attention(max(1, 16384 // s), 16, 16, s, dim, causal=causal, priority=2 if causal else 5)
    for s, heads in product((1024, 2048, 4096, 8192), (2, 4, 8, 16, 32)):
        yield from attention(1, heads, heads, s, 128, causal=True, priority=5)
    for s in (512, 1024, 2048, 4096):
        yield from attention(1, 32, 32, s, 128, causal=True, kernel="math", priority=5)
    if on_gpu:
        for kernel, s, dim in product(("efficient", "cudnn"), (2048, 8192), (64, 128)):
            yield from attention(16384 // s, 16, 16, s, dim, causal=True, kernel=kernel, priority=89)


def attention(
    b: int, heads: int, kv_heads: int, s: int, dim: int, *, causal: bool, kernel: str = "flash", priority: int
) -> Iterator[Case]:
    """Forward and backward; FLOPs of the full square, the flash kernel's recomputation of scores among them."""
    products = 2 * b * heads * s * s * dim
    values = 2 * b * s * dim  # bytes of one head of queries, keys, values or output
    sizes = {"batch": b, "heads": heads, "kv_heads": kv_heads, "seq_len": s, "head_dim": dim, "causal": int(causal)}
    for direction, count, moved in (
        ("forward", 2, values * (2 * heads + 2 * kv_heads)),
        ("backward", 4 if kernel == "math" else 5, values * (4 * heads + 4 * kv_heads)),
    ):
        yield Case(
            kind="attention",
            dtype="bf16",
            direction=direction,
            shape=sizes,
            make=partial(_make_attention, b, heads, kv_heads, s, dim, causal, kernel, direction == "backward"),
            flops=count * products,
            bytes=moved,
            variant=kernel,
            priority=priority,
        )


def _make_attention(
    b: int, heads: int, kv_heads: int, s: int, dim: int, causal: bool, kernel: str, backward: bool, device: torch.device
) -> Step:
    query, key, value = (
        torch.randn(b, s, count, dim, device=device, dtype=torch.bfloat16, requires_grad=backward).transpose(1, 2)
        for count in (heads, kv_heads, kv_heads)
    )

    def forward(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(KERNELS[kernel]):
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=causal, enable_gqa=query.shape[1] != key.shape[1]
            )

    return backward_of(forward, query, key, value) if backward else partial(forward, query, key, value)


def convolution_cases(*, tiny: bool) -> Iterator[Case]:
    """All convolutions of ResNet-50 in fp16, in both memory layouts; backward gives both gradients."""
    shapes = [(1, 8, 8, 8, 8, 3, 3, 1)] if tiny else zoo_shapes(("resnet-50",), "conv", (1,))
    layouts = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
    for (_, c_in, c_out, height, width, kernel, _, stride), batch in product(shapes, (2,) if tiny else (64, 16, 256)):
        x, y = batch * c_in * height * width * stride**2, batch * c_out * height * width
        weight = c_out * c_in * kernel**2
        sizes = {"batch": batch, "c_in": c_in, "c_out": c_out, "out_h": height, "out_w": width}
        for name, direction in product(layouts, ("forward", "backward")):
            backward = direction == "backward"
            yield Case(
                kind="conv",
                dtype="bf16" if tiny else "fp16",
                direction=direction,
                shape=sizes | {"kernel": kernel, "stride": stride},
                make=partial(_make_convolution, batch, sizes | {"k": kernel, "s": stride}, layouts[name], backward),
                flops=(2 if backward else 1) * 2 * y * c_in * kernel**2,
                bytes=2 * (x + y + weight) * (2 if backward else 1),
                variant=name,
                priority={64: 2, 16: 7}.get(batch, 8),
            )


def _make_convolution(
    batch: int, sizes: dict[str, int], layout: torch.memory_format, backward: bool, device: torch.device
) -> Step:
    kernel, stride = sizes["k"], sizes["s"]
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16
    images = torch.randn(batch, sizes["c_in"], sizes["out_h"] * stride, sizes["out_w"] * stride, device=device)
    weight = torch.randn(sizes["c_out"], sizes["c_in"], kernel, kernel, device=device)
    x, w = (t.to(dtype).contiguous(memory_format=layout).requires_grad_(backward) for t in (images, weight))
    forward = partial(F.conv2d, stride=stride, padding=kernel // 2)
    return backward_of(forward, x, w) if backward else partial(forward, x, w)
