"""Exported files read back without the tools: the degrees and sizes that each format states, by name."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from bench.exports.shell_arguments import megatron_arguments
from planner.one_job.tools.base.export_records import Export

Facts = dict[str, Any]


def file_of(export: Export, name: str) -> str:
    """The text of one of the files."""
    return next(one.text for one in export.files if one.name == name)


def calls_in(text: str) -> Mapping[str, dict[str, Any]]:
    """The keywords of every call in a Python file, by the called name; those that are no literals as source."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            found[ast.unparse(node.func)] = {word.arg: _literal(word.value) for word in node.keywords if word.arg}
    return found


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)


def read_megatron(export: Export) -> Facts:
    _, given = megatron_arguments(file_of(export, "megatron.sh"))
    tp, pp = given["tensor_model_parallel_size"], given["pipeline_model_parallel_size"]
    each = given.get("num_layers_per_virtual_pipeline_stage")
    layout = given.get("pipeline_model_parallel_layout")
    strategies = {"optim_grads": 2, "optim_grads_params": 3}
    sharded = "use_distributed_optimizer" in given
    return {
        "tp": tp,
        "pp": pp,
        "cp": given["context_parallel_size"],
        "ep": given.get("expert_model_parallel_size", 1),
        "etp": given.get("expert_tensor_parallel_size", tp),
        "vpp": len(layout.split("|")) // pp if layout else given["num_layers"] // pp // each if each else 1,
        "zero": strategies.get(given.get("data_parallel_sharding_strategy", ""), int(sharded)),
        **({"replicate": given.get("num_distributed_optimizer_instances", 1)} if sharded else {}),
        "sequence_parallel": given.get("sequence_parallel", False),
        "micro_batch_per_rank": given["micro_batch_size"],
        "global_batch": given["global_batch_size"],
        "blocks": given["num_layers"],
        "hidden": given["hidden_size"],
        "recompute": given.get("recompute_granularity", "none"),
    }


def read_bridge(export: Export) -> Facts:
    calls = calls_in(file_of(export, "bridge_recipe.py"))
    model = calls.get("GPTModelProvider") or calls["MLAModelProvider"]
    ddp, train = calls["DistributedDataParallelConfig"], calls["TrainingConfig"]
    layout, pp = model.get("pipeline_model_parallel_layout"), model["pipeline_model_parallel_size"]
    strategies = {"optim_grads": 2, "optim_grads_params": 3}
    return {
        "tp": model["tensor_model_parallel_size"],
        "pp": pp,
        "cp": model["context_parallel_size"],
        "ep": model.get("expert_model_parallel_size", 1),
        "etp": model.get("expert_tensor_parallel_size", 1),
        "vpp": len(layout.split("|")) // pp if layout else model.get("virtual_pipeline_model_parallel_size", 1),
        "zero": strategies.get(ddp.get("data_parallel_sharding_strategy", ""), int(ddp["use_distributed_optimizer"])),
        "sequence_parallel": model["sequence_parallel"],
        "micro_batch_per_rank": train["micro_batch_size"],
        "global_batch": train["global_batch_size"],
        "blocks": model["num_layers"],
        "hidden": model["hidden_size"],
        "recompute": model.get("recompute_granularity", "none"),
    }


def read_torchtitan(export: Export) -> Facts:
    calls = calls_in(file_of(export, "torchtitan_plan.py"))
    recompute = calls["Trainer.Config"]["activation_checkpoint"]
    return {
        **_titan(calls["ParallelismConfig"], calls["TrainingConfig"]),
        "recompute": "none" if recompute is None else "full",
    }


def read_torchtitan_toml(export: Export) -> Facts:
    found = tomllib.loads(file_of(export, "torchtitan.toml"))
    return {**_titan(found["parallelism"], found["training"]), "recompute": found["activation_checkpoint"]["mode"]}


def _titan(sizes: dict[str, Any], training: dict[str, Any]) -> Facts:
    pp = sizes["pipeline_parallel_degree"]
    parts = sizes.get("module_fqns_per_model_part")
    policy = sizes.get("fsdp_reshard_after_forward")
    found = {
        "tp": sizes["tensor_parallel_degree"],
        "pp": pp,
        "cp": sizes["context_parallel_degree"],
        "dp": sizes["data_parallel_replicate_degree"] * sizes["data_parallel_shard_degree"],
        "ep": sizes["expert_parallel_degree"],
        "replicate": sizes["data_parallel_replicate_degree"],
        "global_batch": training["global_batch_size"],
        "micro_batch_per_rank": training["local_batch_size"],
    }
    if policy:
        found["zero"] = {"always": 3, "never": 2 if pp == 1 else 1}[policy]
    if parts:
        found["vpp"] = len(parts) // pp
        found["micro_batch_per_rank"] = sizes["pipeline_parallel_microbatch_size"]
        found["blocks"] = sum(name.startswith("layers.") for part in parts for name in part)
    return found


def read_deepspeed(export: Export) -> Facts:
    config = json.loads(file_of(export, "ds_config.json"))
    found = {
        "tp": config.get("tensor_parallel", {}).get("autotp_size", 1),
        "ep": config.get("expert_parallel", {}).get("autoep_size", 1),
        "zero": config["zero_optimization"]["stage"],
        "micro_batch_per_rank": config["train_micro_batch_size_per_gpu"],
        "micro_batches": config["gradient_accumulation_steps"],
    }
    if "train_batch_size" in config:
        found["global_batch"] = config["train_batch_size"]
    if any(one.name == "pipeline.py" for one in export.files):
        topology = calls_in(file_of(export, "pipeline.py"))["PipeDataParallelTopology"]
        found |= {"pp": topology["num_pp"], "dp": topology["num_dp"]}
    return found


def read_accelerate(export: Export) -> Facts:
    config = yaml.safe_load(file_of(export, "accelerate.yaml"))
    found: Facts = {"devices": config["num_processes"]}
    if "parallelism_config" in config:
        sizes = {name.removeprefix("parallelism_config_"): n for name, n in config["parallelism_config"].items()}
        found |= {
            "tp": sizes["tp_size"],
            "cp": sizes["cp_size"],
            "dp": sizes["dp_replicate_size"] * sizes["dp_shard_size"],
            "replicate": sizes["dp_replicate_size"],
        }
    if "fsdp_config" in config:
        settings = config["fsdp_config"]
        found["zero"] = 3 if settings["fsdp_reshard_after_forward"] else 2
        found["recompute"] = "full" if settings["fsdp_activation_checkpointing"] else "none"
    return found


def read_maxtext(export: Export) -> Facts:
    config = yaml.safe_load(file_of(export, "maxtext.yml"))
    axes = {name: config[f"ici_{name}_parallelism"] for name in ("pipeline", "data", "fsdp", "expert", "context")}
    dp = axes["data"] * axes["fsdp"] * axes["expert"]
    tp = config["ici_tensor_parallelism"] * config["ici_tensor_sequence_parallelism"]
    batches = config.get("num_pipeline_microbatches", config["gradient_accumulation_steps"])
    devices = tp * dp * axes["pipeline"] * axes["context"]
    return {
        "tp": tp,
        "pp": axes["pipeline"],
        "cp": axes["context"],
        "dp": dp,
        "ep": axes["expert"],
        "sequence_parallel": config["ici_tensor_sequence_parallelism"] > 1,
        "devices": devices,
        "micro_batches": batches,
        "global_batch": round(config["per_device_batch_size"] * devices * config["gradient_accumulation_steps"]),
        "blocks": config["base_num_decoder_layers"],
        "hidden": config["base_emb_dim"],
    }


def read_llm_foundry(export: Export) -> Facts:
    config = yaml.safe_load(file_of(export, "llm_foundry.yaml"))
    fsdp, model = config.get("fsdp_config", {}), config["model"]
    strategies = {"FULL_SHARD": 3, "HYBRID_SHARD": 3, "SHARD_GRAD_OP": 2, "_HYBRID_SHARD_ZERO2": 2}
    return {
        "tp": 1,
        "pp": 1,
        "cp": 1,
        "zero": strategies.get(fsdp.get("sharding_strategy", ""), 0),
        **({"replicate": fsdp.get("data_parallel_replicate_degree", 1)} if fsdp else {}),
        "micro_batch_per_rank": config["device_train_microbatch_size"],
        "global_batch": config["global_train_batch_size"],
        "blocks": model["n_layers"],
        "hidden": model["d_model"],
        "recompute": "full" if fsdp.get("activation_checkpointing") else "none",
    }


def read_nanotron(export: Export) -> Facts:
    config = yaml.safe_load(file_of(export, "nanotron.yaml"))
    degrees, tokens, sizes = config["parallelism"], config["tokens"], config["model"]["model_config"]
    batches = tokens["batch_accumulation_per_replica"]
    return {
        **{name: degrees[name] for name in ("tp", "pp", "dp")},
        "cp": 1,
        "zero": config["optimizer"]["zero_stage"],
        "sequence_parallel": degrees["tp_mode"] == "REDUCE_SCATTER" and degrees["tp"] > 1,
        "micro_batch_per_rank": tokens["micro_batch_size"],
        "micro_batches": batches,
        "global_batch": tokens["micro_batch_size"] * batches * degrees["dp"],
        "blocks": sizes["num_hidden_layers"],
        "hidden": sizes["hidden_size"],
        "recompute": "full" if degrees["recompute_layer"] else "none",
    }


READERS: dict[str, Callable[[Export], Facts]] = {
    "megatron": read_megatron,
    "bridge": read_bridge,
    "torchtitan": read_torchtitan,
    "torchtitan-toml": read_torchtitan_toml,
    "deepspeed": read_deepspeed,
    "accelerate": read_accelerate,
    "maxtext": read_maxtext,
    "llm-foundry": read_llm_foundry,
    "nanotron": read_nanotron,
}
