"""Which stages of ZeRO an explicit plan has, and how many ranks share the state."""

from __future__ import annotations

from estimator.pricing.build import PipelineDegrees
from estimator.pricing.recipe import ZeroStage
from estimator.pricing.software import Framework
from planner.one_job.explicit.batch import refuse
from planner.shared.options.estimate import EstimateOptions


def sharding(
    options: EstimateOptions, grid: PipelineDegrees, framework: Framework, assumed: list[str]
) -> tuple[ZeroStage, int | None]:
    """Return the stage of ZeRO and how many ranks share the state (None: all), what nobody said among `assumed`. Raise
    InputError for `--hsdp` that are not the ranks there are."""
    zero = zero_stage(options, grid, framework)
    if options.hsdp is None:
        if options.zero is None and zero:
            assumed.append(f"ZeRO {zero}, as {framework.name} has it (--zero)")
        return zero, None
    shard, replicate = options.hsdp
    ranks = grid.dp * grid.cp
    if options.zero == 0:
        refuse("--hsdp, --zero", f"{shard}x{replicate} with ZeRO 0", "1, 2 or 3 (FSDP), which is what is sharded")
    if min(shard, replicate) < 1 or shard * replicate != ranks:
        refuse("--hsdp", f"{shard}x{replicate}", f"SHARDxREPLICATE with SHARD * REPLICATE = dp * cp = {ranks}")
    if not options.zero:
        assumed.append("ZeRO 3: what --hsdp shards (--zero)")
    return zero, shard


def open_stages(options: EstimateOptions, grid: PipelineDegrees, usual: ZeroStage) -> tuple[ZeroStage, ...]:
    """Return the stages of ZeRO to be tried: the usual one, and where nobody names a software the one that holds
    least."""
    is_open = options.zero is None and options.hsdp is None and options.software is None
    return (usual, 3) if is_open and usual < 3 and grid.dp * grid.cp > 1 else (usual,)


def zero_stage(options: EstimateOptions, grid: PipelineDegrees, framework: Framework) -> ZeroStage:
    """Return the stage of ZeRO: --hsdp alone shards weights; nothing said, the software's own where there is what to
    share."""
    if not options.zero and options.hsdp is not None:
        return 3
    if options.zero is not None:
        return options.zero
    return framework.zero if grid.dp * grid.cp > 1 else 0
