"""An explicit plan's estimate for people: a line of figures, where the time goes, and what each stage holds."""

from __future__ import annotations

from typing import Any

from planner.cli.output import format_bytes, format_count, format_seconds, print_notes, print_table, print_text, spans

TIME_NAMES = {
    "gemm_s": "matrix products",
    "attention_s": "attention",
    "convolution_s": "convolutions",
    "memory_bound_s": "memory-bound operators",
    "recompute_s": "recomputation",
    "launch_s": "kernel launches",
    "tp_s": "tensor-parallel communication",
    "cp_s": "context-parallel communication",
    "ep_s": "expert-parallel communication",
    "dp_s": "data-parallel communication",
    "pp_s": "pipeline communication",
    "bubble_s": "pipeline bubble",
    "optimizer_s": "optimizer",
    "offload_s": "offload",
}

SMALLEST_SHARE = 0.0005
"""Of an iteration: what takes less is 0.0% of it."""

MEMORY_COLUMNS = ("weights", "grads", "optim.", "activations", "temporary", "buffers", "reserve")
MEMORY_KEYS = ("weight", "gradient", "optimizer", "activation", "temporary", "communication", "reserve")


def print_explicit(result: dict[str, Any], *, guesses: bool) -> None:
    """The plan in a line, its figures, time and memory as tables, the whole training, what was assumed and guessed."""
    plan, estimate = result["plan"], result["estimate"]
    print_text(describe_plan(plan), indent="    ")
    print_text(describe_figures(estimate), indent="    ")
    print()
    print_table("Where the time goes", ("part", "seconds", "share"), time_rows(estimate))
    _print_memory(estimate)
    if estimate["training"] is not None:
        print_notes("the whole training:", describe_training(estimate["training"]))
    print_notes("assumed:", estimate["assumptions"])
    if guesses:
        print_guesses(estimate["guesses"])


def describe_plan(plan: dict[str, Any]) -> str:
    """What the plan is, in a line: the model, where, degrees, batch and schedule."""
    stage, batch = plan["stages"][0], plan["batch"]
    degrees = {"tp": stage["tp"], "pp": len(plan["stages"]), "dp": stage["dp"], "cp": stage["cp"]}
    degrees |= {"ep": stage["ep"], "etp": stage["etp"]}
    if plan["schedule"] == "interleaved":
        degrees["vpp"] = len(stage["chunks"])
    shown = " ".join(f"{name} {count}" for name, count in degrees.items() if count > 1 or name in ("tp", "pp", "dp"))
    sharding, rule = stage["sharding"], stage["recompute"]
    extras = []
    if sharding["zero"]:
        copies = f" of {sharding['shard']} x {sharding['replicate']}" if sharding["replicate"] > 1 else ""
        extras.append(f"ZeRO {sharding['zero']}{copies}")
    extras += [f"recompute {rule['kind']}"] if rule["kind"] != "none" else []
    extras += ["sequence parallel"] if stage["sequence_parallel"] else []
    more = "".join(f", {extra}" for extra in extras)
    return (
        f"{plan['model']['name']} on {len(plan['devices'])} x {stage['device']} ({plan['cluster']}): {shown};"
        f" {batch['global_batch']} samples as {batch['micro_batches']} micro-batches of {batch['micro_batch']},"
        f" {plan['schedule']}, {plan['model']['dtype']}, {plan['optimizer']}{more}"
    )


def describe_figures(estimate: dict[str, Any]) -> str:
    """Iteration time with its interval, rates and memory, in a line."""
    low, high = estimate["interval_90_s"]
    interval = f" (90%: {format_seconds(low)} to {format_seconds(high)})"
    parts = [f"iteration {format_seconds(estimate['iteration_time_s'])}{interval}"]
    if estimate["tokens_per_s_per_device"] is not None:
        parts.append(f"{format_count(estimate['tokens_per_s_per_device'])} tokens/s per device")
    else:
        parts.append(f"{format_count(estimate['samples_per_s'])} samples/s")
    if estimate["mfu"] is not None:
        parts.append(f"MFU {estimate['mfu']:.1%}")
    parts.append(f"{estimate['tflops_per_device']:.3g} TFLOP/s per device")
    parts.append(f"peak memory {format_bytes(estimate['peak_memory_bytes'])}")
    return ", ".join(parts)


def time_rows(estimate: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The parts of an iteration with their shares, those too small to show together, and their sum."""
    total = estimate["iteration_time_s"]
    shown = {TIME_NAMES[name]: s for name, s in estimate["breakdown"].items() if s >= SMALLEST_SHARE * total}
    rest = total - sum(shown.values())
    shown |= {"the rest": rest} if rest > SMALLEST_SHARE * total else {}
    shown["in all"] = total
    return [(name, format_seconds(seconds), f"{seconds / total:.1%}") for name, seconds in shown.items()]


def _print_memory(estimate: dict[str, Any]) -> None:
    """A row for each stage; of those alike, the first with how many."""
    alike: dict[tuple[str, ...], list[int]] = {}
    for rank in estimate["memory"]:
        sizes = tuple(f"{rank[f'{part}_bytes'] / 2**30:.2f}" for part in MEMORY_KEYS)
        needed = (f"{rank[name] / 2**30:.1f}" for name in ("needed_bytes", "device_memory_bytes"))
        alike.setdefault((*sizes, *needed), []).append(rank["stage"])
    columns = ("stage", *MEMORY_COLUMNS, "in all", "device")
    print_table(
        "Memory of a rank in GiB", columns, [(", ".join(spans(stages)), *cells) for cells, stages in alike.items()]
    )


def describe_training(training: dict[str, Any]) -> list[str]:
    """Sentences about a whole training."""
    said = [
        f"{training['iterations']} iterations, {training['days']:.1f} days,"
        f" {training['device_hours']:,.0f} device-hours",
    ]
    interval_s = training["checkpoint_interval_s"]
    if interval_s is not None:
        every = (
            f"a checkpoint every {interval_s / 60:.1f} minutes"
            if interval_s
            else "checkpoints take no time (--checkpoint-time)"
        )
        said.append(f"goodput {training['goodput']:.1%}: {training['failures']:.1f} failures expected, {every}")
    price, energy = training["price"], training["energy_kwh"]
    said.append(
        f"price {price:,.0f}, in the cluster file's currency"
        if price is not None
        else f"no price: {training['price_reason']}"
    )
    said.append(
        f"no energy: {training['energy_reason']}"
        if energy is None
        else f"{energy:,.0f} kWh, every device at {training['power_share']:.0%} of its power throughout, hosts and"
        " cooling not counted"
    )
    return said


def print_guesses(guesses: list[dict[str, Any]]) -> None:
    """What was taken without a measurement near it, the heaviest first."""
    if not guesses:
        print("guessed: nothing that the estimate could name")
        return
    ordered = sorted(guesses, key=lambda guess: -guess["seconds"])
    print_notes(
        "guessed:", [f"{guess['what']}: {guess['share']:.1%} of the time; {guess['remedy']}" for guess in ordered]
    )
