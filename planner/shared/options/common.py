"""Options that several commands have alike."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from planner.shared.options.record import Option
from planner.shared.options.values import TOKENS
from profiles.vocabulary import DType

MeasuredOptimizer = Literal["adamw", "sgd"]
"""Optimizers whose step is measured."""
Tool = Literal[
    "megatron",
    "bridge",
    "torchtitan",
    "torchtitan-toml",
    "deepspeed",
    "accelerate",
    "device-mesh",
    "jax-mesh",
    "maxtext",
    "llm-foundry",
    "nanotron",
    "llama-factory",
    "axolotl",
    "peft",
    "torchtune",
]
"""Training frameworks whose limits are known."""
Launcher = Literal[
    "megatron",
    "torchtitan",
    "deepspeed",
    "accelerate",
    "llm-foundry",
    "nanotron",
    "llama-factory",
    "axolotl",
    "peft",
    "trainer",
    "torchtune",
]
"""Those whose settings are read; the Trainer's are those that peft's are written for."""

LargestOf = Literal["seq-len", "micro-batch", "model"]
"""What may be asked for that is the largest that fits."""
LARGEST = "the longest sequence, the largest micro-batch or the largest model of MODEL's family that fits"

_MODEL = Option("a zoo name, a path to a Hugging Face config.json, or package.module:factory", "MODEL")
_CLUSTER = Option("such as a100-80gb:2x8 (2 nodes of 8), a sum of such with +, local:1x2, or a YAML file", "C")
_STORE = Option(
    "the store of measured profiles and link tables (default: $CELLPLAN_STORE, else the user's own)",
    "PATH",
    supplied=True,
    writes="file",
)

ModelName = Annotated[str, _MODEL]
ModelIfAny = Annotated[str | None, _MODEL]
ClusterName = Annotated[str, _CLUSTER]
ClusterIfAny = Annotated[str | None, _CLUSTER]
Store = Annotated[Path, _STORE]
"""A store that there must be, or that is written."""
StoreIfAny = Annotated[Path | None, _STORE]
"""A store that is read where there is one; None: nothing is measured."""
SeqLen = Annotated[int | None, Option("tokens per sample (default: the model's)", values=TOKENS)]
ComputeType = Annotated[DType, Option("compute type (default: %(default)s)")]
PlanOutput = Annotated[Path | None, Option("write the plan to this file", short="-o", writes="file")]
ReportFile = Annotated[
    Path | None,
    Option("write a page of it, to look at and to hand on, to this file (.html; extra `report`)", writes="file"),
]
TimelineFile = Annotated[
    Path | None,
    Option(
        "write when each stage works on which micro-batch: .svg a picture, .json or .json.gz a trace for Perfetto",
        writes="file",
    ),
]
