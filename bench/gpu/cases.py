"""Operators with FLOPs: products, attention and convolutions, over shapes of the zoo's own layers and a coarse grid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from bench.gpu.case import DTYPE_WIDTHS, EXOTIC, Case, Framework, sizes
from bench.gpu.cases_memory import memory_cases
from estimator.layers.shards import shard_layer
from models_zoo.catalogue import load_model
from profiles.vocabulary import LocalLayer, OperatorKind, Shard

DEGREES = (1, 2, 4, 8)
TOKENS = (4096, 8192, 2048, 16384, 1024, 32768, 512)
"""Rows of a product, the usual sizes first."""
TURNS = {"gemm": 6, "attention": 3}
"""How many of a kind come in each turn, where a framework may not get through them all; 1 of any other."""


def planned_cases(framework: Framework, *, tiny: bool, on_gpu: bool) -> list[Case]:
    """Every operator to time, once each, the most important first.

    JAX compiles each for a second or so, most of a short run: there the kinds take turns, so that none is left out.
    """
    cases = [
        *gemm_cases(tiny=tiny),
        *group_cases(tiny=tiny),
        *attention_cases(framework, tiny=tiny, on_gpu=on_gpu),
        *convolution_cases(tiny=tiny),
        *memory_cases(framework, tiny=tiny, on_gpu=on_gpu),
    ]
    first: dict[str, Case] = {}
    for case in sorted(cases, key=lambda case: case.priority):
        first.setdefault(case.label, case)
    return list(first.values()) if framework == "torch" else take_turns(list(first.values()))


def take_turns(cases: Sequence[Case]) -> list[Case]:
    """Some of each kind in turn, each kind's in their own order; the exotic ones last."""
    seen: Counter[str] = Counter()
    turns = []
    for case in cases:
        turns.append((case.priority >= EXOTIC, seen[case.kind] // TURNS.get(case.kind, 1)))
        seen[case.kind] += 1
    return [case for _, case in sorted(zip(turns, cases, strict=True), key=lambda pair: pair[0])]


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
    weights = list(dict.fromkeys((n, k) for _, n, k in zoo_shapes(models, "gemm", DEGREES)))[: 2 if tiny else None]
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
    width = DTYPE_WIDTHS[dtype]
    return Case(
        kind="gemm",
        dtype=dtype,
        direction=direction,
        sizes=sizes(m=m, n=n, k=k),
        flops=2 * m * n * k,
        # An fp8 product is written as bf16.
        bytes=width * (m * k + n * k) + max(2, width) * m * n,
        priority=priority,
    )


def group_cases(*, tiny: bool) -> Iterator[Case]:
    """Products of experts, as one batched product (what our layers run) and as a grouped one; and plain ones."""
    models = ("moe-2.4b",) if tiny else ("mixtral-8x7b", "moe-2.4b")
    shapes = [(2, 32, 64, 64)] if tiny else zoo_shapes(models, "grouped_gemm", DEGREES)
    plain = [] if tiny else [(g, s, s, 128) for g, s in product((16, 128), (512, 2048))]
    for turn, times in enumerate((1,) if tiny else (1, 4)):
        for (groups, m, n, k), variant in product([*shapes, *plain], ("bmm", "grouped_mm")):
            yield Case(
                kind="batched_gemm",
                dtype="bf16",
                direction="forward",
                sizes=sizes(groups=groups, m=times * m, n=n, k=k),
                flops=2 * groups * times * m * n * k,
                bytes=2 * groups * (times * m * (k + n) + n * k),
                variant=variant,
                priority=3 + turn if variant == "bmm" else 91,
            )


def attention_cases(framework: Framework, *, tiny: bool, on_gpu: bool) -> Iterator[Case]:
    """16k tokens or one sample: by length, head size, grouped queries, heads of a tp shard, and by kernel.

    JAX's fused kernel is cuDNN's, for GPUs alone, its plain one what XLA makes of the formula.
    """
    fused, plain = ("flash", "math") if framework == "torch" else ("cudnn" if on_gpu else "xla", "xla")
    if tiny:
        for kernel, kv_heads, causal in ((fused, 4, True), (plain, 2, False)):
            yield from attention(1, 4, kv_heads, 64, 32, causal=causal, kernel=kernel, priority=1)
        return
    for s, kv_heads, causal in product((512, 1024, 2048, 4096, 8192, 16384, 32768), (32, 8), (True, False)):
        batch, priority = max(1, 16384 // s), 1 if causal else 5
        yield from attention(batch, 32, kv_heads, s, 128, causal=causal, kernel=fused, priority=priority)
    for s, dim, causal in product((1024, 4096, 16384), (64, 80, 96, 192, 256), (True, False)):
        batch, priority = max(1, 16384 // s), 2 if causal else 5
        yield from attention(batch, 16, 16, s, dim, causal=causal, kernel=fused, priority=priority)
    for s, heads in product((1024, 2048, 4096, 8192), (2, 4, 8, 16, 32)):
        yield from attention(1, heads, heads, s, 128, causal=True, kernel=fused, priority=5)
    for s in (512, 1024, 2048, 4096):
        yield from attention(1, 32, 32, s, 128, causal=True, kernel=plain, priority=5)
    if on_gpu:
        others = ("efficient", "cudnn") if framework == "torch" else ("cudnn",)
        for kernel, s, dim in product(others, (2048, 8192), (64, 128)):
            yield from attention(16384 // s, 16, 16, s, dim, causal=True, kernel=kernel, priority=89)


def attention(
    b: int, heads: int, kv_heads: int, s: int, dim: int, *, causal: bool, kernel: str, priority: int
) -> Iterator[Case]:
    """Forward and backward; FLOPs of the full square, a fused kernel's recomputation of scores among them."""
    products = 2 * b * heads * s * s * dim
    values = 2 * b * s * dim  # bytes of one head of queries, keys, values or output
    for direction, count, moved in (
        ("forward", 2, values * (2 * heads + 2 * kv_heads)),
        ("backward", 4 if kernel in ("math", "xla") else 5, values * (4 * heads + 4 * kv_heads)),
    ):
        yield Case(
            kind="attention",
            dtype="bf16",
            direction=direction,
            sizes=sizes(batch=b, heads=heads, kv_heads=kv_heads, seq_len=s, head_dim=dim, causal=int(causal)),
            flops=count * products,
            bytes=moved,
            variant=kernel,
            priority=priority,
        )


def convolution_cases(*, tiny: bool) -> Iterator[Case]:
    """All convolutions of ResNet-50 in fp16, in both memory layouts; backward gives both gradients."""
    shapes = [(1, 8, 8, 8, 8, 3, 3, 1)] if tiny else zoo_shapes(("resnet-50",), "conv", (1,))
    for (_, c_in, c_out, height, width, kernel, _, stride), batch in product(shapes, (2,) if tiny else (64, 16, 256)):
        x, y = batch * c_in * height * width * stride**2, batch * c_out * height * width
        weight = c_out * c_in * kernel**2
        for layout, direction in product(("nchw", "nhwc"), ("forward", "backward")):
            passes = 2 if direction == "backward" else 1
            yield Case(
                kind="conv",
                dtype="bf16" if tiny else "fp16",
                direction=direction,
                sizes=sizes(
                    batch=batch, c_in=c_in, c_out=c_out, out_h=height, out_w=width, kernel=kernel, stride=stride
                ),
                flops=passes * 2 * y * c_in * kernel**2,
                bytes=passes * 2 * (x + y + weight),
                variant=layout,
                priority={64: 2, 16: 7}.get(batch, 8),
            )
