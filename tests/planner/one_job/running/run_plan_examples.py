"""Plans by hand, for the tests of what runs them: any model, any stages, figures made up."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from estimator.frontends.load import load_file_model
from estimator.layers.graph import build_graph
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import Plan, PlanBatch, PlanDevice, PlanModel, PlanStage, RecomputeRule, Sharding
from profiles.vocabulary import DType, RecomputeKind, Shard
from tests.planner.shared.plan_examples import example_plan

GPT = {
    "model_type": "gpt2",
    "n_embd": 32,
    "n_layer": 4,
    "n_head": 4,
    "n_positions": 16,
    "vocab_size": 99,
    "resid_pdrop": 0.1,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 99,
    "max_position_embeddings": 16,
    "tie_word_embeddings": False,
}
MIXTRAL = {
    **LLAMA,
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


def write_config(folder: Path, name: str, config: dict[str, Any]) -> str:
    """A Hugging Face config.json; returns what a plan calls it."""
    path = folder / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return str(path / "config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandStage:
    """One stage of a plan by hand; `chunks` are layer ranges, all of its layers recomputed if any."""

    chunks: tuple[tuple[int, int], ...]
    dp: int = 1
    tp: int = 1
    zero: Literal[0, 1, 2, 3] = 0
    shard: int | None = None
    sequence_parallel: bool = False
    recompute: RecomputeKind = "none"
    shares: tuple[int, ...] | None = None
    experts: bool = False

    def to_plan(self, first_rank: int) -> PlanStage:
        shard = self.dp if self.shard is None else self.shard
        layers = sum(end - first for first, end in self.chunks)
        return PlanStage(
            chunks=self.chunks,
            device="cpu",
            ranks=tuple(range(first_rank, first_rank + self.dp * self.tp)),
            dp=self.dp,
            tp=self.tp,
            sequence_parallel=self.sequence_parallel,
            cp=1,
            ep=self.tp if self.experts else 1,
            etp=1,
            sharding=Sharding(
                zero=self.zero, shard=shard if self.zero else 1, replicate=self.dp // shard if self.zero else self.dp
            ),
            attention="flash",
            recompute=RecomputeRule(kind=self.recompute, layers=0 if self.recompute == "none" else layers),
            offload=(),
            micro_batch_shares=self.shares,
            compute_s=0.1,
            communication_s=0.0,
            memory_bytes=2**20,
        )


def hand_plan(
    reference: str,
    *stages: HandStage,
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b",
    global_batch: int = 8,
    micro_batch: int = 2,
    seq_len: int | None = 16,
    dtype: DType = "fp32",
    optimizer: str = "adamw",
) -> Plan:
    """The plan of `stages` one after another, on this machine's workers."""
    model = load_file_model(reference)
    graph = build_graph(model, shard=Shard(seq_len=seq_len or 0, dtype=dtype), degrees=())
    made, first = [], 0
    for stage in stages:
        made.append(stage.to_plan(first))
        first += stage.dp * stage.tp
    example = example_plan()
    return replace(
        example,
        model=PlanModel(
            name=model.name,
            reference=reference,
            sizes=model_sizes(model, parameters=graph.parameters),
            seq_len=seq_len,
            dtype=dtype,
        ),
        cluster=f"local:1x{first}",
        batch=PlanBatch(global_batch=global_batch, micro_batch=micro_batch, micro_batches=global_batch // micro_batch),
        schedule=schedule,
        optimizer=optimizer,
        devices=tuple(PlanDevice(rank=i, site="site", node=0, device="cpu", index=i) for i in range(first)),
        stages=tuple(made),
        estimate=replace(example.estimate, peak_memory_bytes=2**20),
        recipe=None,
    )
