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


def make_plan(name: str) -> Plan:
    """The plan of that name, whether it fits or not. 64 samples, nothing recomputed, activations whole unless it says
    so."""
    model, cluster, options = PLANS[name]
    unsaid = {"global_batch": 64, "recompute": "none", "sequence_parallel": False}
    given = EstimateOptions(model, cluster=cluster, **{**unsaid, **options})
    return estimate_explicit(read_explicit(given, store=None)).plan


def make_plans() -> Iterator[tuple[str, Plan]]:
    """All of them."""
    for name in PLANS:
        yield name, make_plan(name)
