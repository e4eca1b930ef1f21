"""Plans of every kind that exports tell apart, by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.one_job.explicit.estimate import estimate_explicit
from planner.one_job.explicit.request import read_explicit
from planner.shared.options.estimate import EstimateOptions
from planner.shared.plan import Plan

LATENT = str(Path(__file__).with_name("latent.json"))
"""Of DeepSeek-V2's kind."""

WINDOWED = str(Path(__file__).with_name("windowed.json"))
"""Of Mistral's kind."""

QWEN = str(Path(__file__).with_name("qwen3-moe.json"))
"""Qwen3-30B-A3B."""

LLAMA = ("llama3-8b", "h100:2x8")
MIXTRAL = ("mixtral-8x7b", "h100:4x8")

PLANS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "one device": ("gpt-mini", "h100:1x1", {"tp": 1}),
    "gpt tp2 pp2": ("gpt2-1.3b", "h100:1x8", {"tp": 2, "pp": 2, "software": "megatron-core"}),
    "gpt gpipe": ("gpt2-1.3b", "h100:1x8", {"tp": 2, "pp": 2, "schedule": "gpipe", "recompute": "full"}),
    "llama tp8 pp2": (*LLAMA, {"tp": 8, "pp": 2, "sequence_parallel": True, "software": "megatron-bridge"}),
    "llama zero 0": (*LLAMA, {"dp": 16, "zero": 0, "grad_dtype": "bf16"}),
    "llama zero 1": (*LLAMA, {"tp": 2, "zero": 1}),
    "llama zero 2": (*LLAMA, {"dp": 16, "zero": 2}),
    "llama zero 3": (*LLAMA, {"dp": 16, "zero": 3, "recompute": "full", "software": "torchtitan"}),
    "llama zero 3 tp2": (*LLAMA, {"tp": 2, "zero": 3, "sequence_parallel": True, "software": "torchtitan"}),
    "llama hsdp": (*LLAMA, {"dp": 16, "hsdp": (8, 2), "recompute": "full"}),
    "llama cp2": (*LLAMA, {"tp": 2, "cp": 2, "zero": 3, "sequence_parallel": True}),
    "llama recompute selective": (*LLAMA, {"tp": 4, "zero": 1, "recompute": "selective"}),
    "llama recompute full": (*LLAMA, {"tp": 4, "pp": 2, "recompute": "full"}),
    "llama recompute 4": (*LLAMA, {"tp": 4, "pp": 2, "recompute": "full:4"}),
    "llama interleaved": (*LLAMA, {"tp": 2, "pp": 4, "vpp": 2, "sequence_parallel": True, "zero": 1}),
    "llama pp4 zero 3": (*LLAMA, {"pp": 4, "zero": 3, "recompute": "full", "software": "torchtitan"}),
    "llama uneven split": ("llama3-8b", "h100:5x4", {"tp": 4, "pp": 5, "sequence_parallel": True}),
    "llama uneven chunks": (
        "llama3-405b",
        "h100:16x8",
        {"tp": 8, "pp": 8, "vpp": 4, "sequence_parallel": True, "zero": 1},
    ),
    "llama gpipe": (*LLAMA, {"tp": 4, "pp": 2, "schedule": "gpipe", "sequence_parallel": True, "zero": 1}),
    "llama dualpipe": (*LLAMA, {"tp": 4, "pp": 4, "schedule": "dualpipe"}),
    "llama zb-h1": (*LLAMA, {"tp": 4, "pp": 4, "schedule": "zb-h1"}),
    "llama fp8": (*LLAMA, {"tp": 4, "zero": 1, "dtype": "fp8"}),
    "llama fp16": (*LLAMA, {"tp": 4, "dtype": "fp16"}),
    "llama adam8bit": (*LLAMA, {"tp": 4, "optimizer": "adam8bit"}),
    "llama lora": (*LLAMA, {"tp": 4, "lora": 16}),
    "llama offload": (*LLAMA, {"tp": 2, "zero": 1, "offload": ("optimizer",), "recompute": "full"}),
    "llama pp4 zero 1": ("llama2-7b", "h100:2x8", {"pp": 4, "zero": 1, "recompute": "full"}),
    "llama tp2 zero 2": ("llama2-7b", "h100:1x8", {"tp": 2, "zero": 2, "recompute": "full"}),
    "llama2 tp2 zero 2": ("llama2-7b", "a100-80gb:2x8", {"tp": 2, "pp": 2, "zero": 2, "sequence_parallel": True}),
    "mixtral ep4": (*MIXTRAL, {"tp": 2, "ep": 4, "etp": 1, "zero": 1, "sequence_parallel": True}),
    "mixtral ep8 zero 3": (*MIXTRAL, {"dp": 32, "ep": 8, "zero": 3, "recompute": "full"}),
    "mixtral tp4 pp2": (*MIXTRAL, {"tp": 4, "pp": 2, "ep": 2, "etp": 4, "sequence_parallel": True, "zero": 1}),
    "mixtral tp2 ep4 zero 2": (*MIXTRAL, {"tp": 2, "ep": 4, "etp": 1, "zero": 2}),
    "gshard moe": ("moe-1.3b", "a100-80gb:2x8", {"dp": 16, "ep": 8, "zero": 1}),
    "latent experts": (LATENT, "h100:1x8", {"tp": 2, "ep": 4, "etp": 1, "zero": 1, "sequence_parallel": True}),
    "latent experts zero 3": (LATENT, "h100:1x8", {"dp": 8, "ep": 4, "zero": 3, "recompute": "full"}),
    "qwen3 ep8 zero 3": (QWEN, "h100:4x8", {"dp": 32, "ep": 8, "zero": 3, "recompute": "full", "seq_len": 4096}),
    "qwen3 tp2 ep4 zero 3": (
        QWEN,
        "h100:4x8",
        {"tp": 2, "ep": 4, "etp": 1, "zero": 3, "sequence_parallel": True, "seq_len": 4096},
    ),
    "windowed": (WINDOWED, "h100:1x8", {"tp": 2, "pp": 2, "zero": 1}),
    "vision": ("resnet-50", "a100-80gb:1x8", {"dp": 8, "zero": 1}),
    "bert": ("bert-large", "a100-80gb:1x8", {"dp": 8, "zero": 1}),
}

TUNED = {"seq_len": 2048, "global_batch": 16}
PURE = {"software": "torchtune", "seq_len": 2048}

FINE_TUNING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "qlora on one": ("llama3.1-8b", "4090:1x1", {"qlora": 16, **TUNED}),
    "lora on two, zero 2": ("llama3.1-8b", "a10:1x2", {"lora": 16, "dp": 2, "zero": 2, "recompute": "full", **TUNED}),
    "lora zero 3": ("qwen2.5-7b", "a100-80gb:1x4", {"lora": 8, "zero": 3, "software": "torchtune", **TUNED}),
    "lora, offloaded": ("llama3-8b", "l40s:1x4", {"lora": 8, "zero": 2, "offload": ("optimizer",), **TUNED}),
    "lora of attention": ("llama3-8b", "l4:1x2", {"lora": 8, "feature": ("lora_targets=attention",), **TUNED}),
    "lora of gpt": ("gpt2-1.3b", "a10:1x1", {"lora": 8, "seq_len": 1024, "global_batch": 16}),
    "qlora zero 3": ("llama3-70b", "h100:1x8", {"qlora": 16, "dp": 8, "zero": 3, "recompute": "full", **PURE}),
    "full on one": ("llama3.2-1b", "h100:1x1", {"tp": 1, **PURE}),
    "full, paged 8 bits": ("llama3.2-1b", "3090:1x1", {"tp": 1, "optimizer": "adam8bit", "paged": True, **PURE}),
    "full, 8 bits, zero 3": ("llama2-7b", "h100:1x8", {"dp": 8, "zero": 3, "optimizer": "adam8bit", **PURE}),
    "full zero 2": ("qwen2.5-7b", "h100:2x8", {"dp": 16, "zero": 2, "recompute": "full", **PURE}),
    "full tp2 zero 3": ("llama3-70b", "h100:4x8", {"tp": 2, "zero": 3, "recompute": "full", **PURE}),
    "full ddp": ("llama3.2-1b", "a100-80gb:1x4", {"dp": 4, "zero": 0, "seq_len": 2048}),
    "last layers": ("llama3-8b", "h100:1x4", {"freeze": (0, 29), "dp": 4, "zero": 2, "seq_len": 2048}),
    "first layers": ("llama3-8b", "h100:1x4", {"freeze": (9, 34), "dp": 4, "zero": 2, "seq_len": 2048}),
}
"""What fine-tuners tell apart beside these."""


def make_plan(name: str) -> Plan:
    """The plan of that name, whether it fits or not. 64 samples, nothing recomputed, activations whole unless it says
    so."""
    model, cluster, options = {**PLANS, **FINE_TUNING}[name]
    unsaid = {"global_batch": 64, "recompute": "none", "sequence_parallel": False}
    given = EstimateOptions(model, cluster=cluster, **{**unsaid, **options})
    return estimate_explicit(read_explicit(given, store=None)).plan


def make_plans(*, fine_tuning: bool = False) -> Iterator[tuple[str, Plan]]:
    """All of them; or those of `fine_tuning`."""
    for name in FINE_TUNING if fine_tuning else PLANS:
        yield name, make_plan(name)
