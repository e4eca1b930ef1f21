"""What torchtune makes of a torchtune.yaml: its parser and `tune validate`, the keys that the recipe's own code asks
for, and the model that its builder makes."""

from __future__ import annotations

import ast
import shlex
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bench.exports.stubs import install

PACKAGES = ("torchtune", "torchao", "bitsandbytes")
LISTS = ("datasets", "sentencepiece", "tiktoken", "blobfile", "kagglehub", "torchdata")


def prepare() -> list[str]:
    """Data and tokenizers are stood in for: what a recipe is given of them is a path."""
    return install(*LISTS)


def read(folder: Path, world: int, dp: int) -> dict[str, Any]:
    """The settings as the recipe sees them; the model without adapters has as many parameters as the plan says."""
    file = folder / "torchtune.yaml"
    command = shlex.split(file.read_text(encoding="utf-8").splitlines()[1].removeprefix("# "))
    recipe = next(word for word in command if "_finetune_" in word)
    parser = import_module("torchtune.config._parse").TuneRecipeArgumentParser()
    known, _ = parser.parse_known_args(["--config", str(file)])
    config = import_module("omegaconf").OmegaConf.create(vars(known))
    import_module("torchtune.config").validate(config)
    required, asked = _asked(recipe)
    missing, unread = required - set(config), set(config) - asked
    if missing or unread:
        return {"error": f"{recipe} lacks {sorted(missing)}, does not read {sorted(unread)}"}
    torch = import_module("torch")
    with torch.device("meta"):
        model = import_module("torchtune.config").instantiate(config.model)
    named = dict(model.named_parameters())
    tp = config.get("tensor_parallel_dim", 1)
    per_node = command[command.index("--nproc_per_node") + 1] if "--nproc_per_node" in command else "1"
    nodes = command[command.index("--nnodes") + 1] if "--nnodes" in command else "1"
    ranks = world // tp
    return {
        "devices": int(per_node) * int(nodes),
        "tp": tp,
        "dp": ranks,
        **({"zero": 3 if config.fsdp_reshard_after_forward else 2} if dp > 1 else {}),
        "blocks": len(model.layers),
        "hidden": model.tok_embeddings.embedding_dim,
        "parameters": sum(weight.numel() for name, weight in named.items() if "lora" not in name),
        "micro_batch_per_rank": config.batch_size,
        "micro_batches": config.gradient_accumulation_steps,
        "global_batch": config.batch_size * config.gradient_accumulation_steps * ranks,
        "recompute": "full" if config.enable_activation_checkpointing else "none",
    }


def _asked(recipe: str) -> tuple[set[str], set[str]]:
    """Keys that the recipe's code cannot do without, and all that it asks for."""
    spec = find_spec("torchtune")
    assert spec is not None, "torchtune is there"
    source = Path(spec.origin or "").parents[1] / "recipes" / f"{recipe}.py"
    required: set[str] = set()
    asked: set[str] = {"tensor_parallel_plan"}
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "cfg":
            required.add(node.attr)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cfg.get":
            asked |= {str(node.args[0].value)} if isinstance(node.args[0], ast.Constant) else set()
    required.discard("get")
    return required, required | asked
