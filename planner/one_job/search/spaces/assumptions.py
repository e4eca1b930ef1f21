"""What a search takes for granted, a sentence each with the option that says otherwise."""

from __future__ import annotations

from estimator.pricing.recipe import Recipe
from models_zoo.model import Model
from planner.one_job.tools.base.shape import experts_of
from planner.shared.options.search import SpaceOptions
from planner.shared.options.training import TrainingOptions


def training_assumed(model: Model, recipe: Recipe, options: TrainingOptions) -> list[str]:
    """Of the training: the tokens, what is computed and kept in which type, how experts are used, and what of the
    model's config no layer has."""
    said = []
    if options.seq_len is None and recipe.seq_len:
        said.append(f"{recipe.seq_len} tokens a sample, {model.tokens_from} (--seq-len)")
    precision = recipe.dtype if recipe.dtype in ("fp32", "tf32") else f"{recipe.dtype} with fp32 master weights"
    said.append(
        f"{recipe.optimizer} in {precision}, gradients in {recipe.grad_dtype} (--optimizer, --dtype, --grad-dtype)"
    )
    if experts_of(model) is not None and recipe.moe_imbalance == 1:
        said.append("all experts get as many tokens (--moe-imbalance)")
    return [*said, *model.notes]


def freedom_assumed(devices: int, options: SpaceOptions, *, has_host: bool) -> list[str]:
    """Of the space: what is open because nobody said otherwise. `has_host`: there is memory beside the devices'."""
    said = []
    if options.devices is None:
        said.append(f"all {devices} free devices may be used (--devices)")
    fixed = {text.partition("=")[0].strip().replace("-", "_") for text in options.fix}
    choices = {
        "samples a rank": ("micro_batch", None),
        "micro-batches": ("micro_batches", None),
        "recomputation": ("recompute", "auto"),
        "ZeRO": ("zero", None),
    }
    left = {
        what: name
        for what, (name, default) in choices.items()
        if getattr(options, name) == default and name not in fixed
    }
    if left:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in left.values())
        said.append(f"{_listed(list(left))} {'are' if len(left) > 1 else 'is'} open ({flags})")
    if has_host and not options.no_offload:
        said.append("the optimizer's state may be in host memory (--no-offload)")
    if options.tool is None:
        said.append("any training framework that runs the plan (--tool)")
    return said


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
