"""The groups of rows that have a target, with what others reach on them, and those that are reported without one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.accuracy.runs import Run, model_kind

Holds = Callable[[Run], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Bounds of relative errors (0.05 is 5%), of Kendall's tau, and of memory's; None: none was set."""

    mean: float | None = None
    median: float | None = None
    worst: float | None = None
    tau: float | None = None
    memory_mean: float | None = None

    @property
    def text(self) -> str:
        """As the issue writes it."""
        parts = [
            f"{name} <= {bound * 100:.3g}%"
            for name, bound in (
                ("mean", self.mean),
                ("median", self.median),
                ("worst", self.worst),
                ("memory", self.memory_mean),
            )
            if bound is not None
        ]
        if self.tau is not None:
            parts.append(f"tau >= {self.tau:g}")
        return ", ".join(parts) or "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Rows that are counted together. `peers` is what others publish on all rows of the source."""

    name: str
    holds: Holds
    target: Target = Target()
    peers: str = ""


def _sources(*names: str) -> Holds:
    return lambda run: run.result.source in names


def _is_zero3(run: Run) -> bool:
    return run.setup is not None and any(stage.zero == 3 for stage in run.setup.stages)


def _is_dense(run: Run) -> bool:
    return run.setup is None or model_kind(run.setup) == "dense"


def _is_bf16(run: Run) -> bool:
    return run.setup is not None and run.setup.recipe.dtype == "bf16"


NAMED = frozenset(
    [
        *("VTM", "KORT", "SC21", "BSA", "MPT", "IEVO", "SMXB", "VTS", "BSV", "MBR", "NTRN", "DLE"),
        *("SMXA", "GAVL", "NEMO", "NLNG", "MLLL", "TPUR", "MXT", "LEVT"),
    ]
)
FEW = Target(mean=0.10)

GROUPS: tuple[Group, ...] = (
    Group(
        name="VTM",
        holds=_sources("VTM"),
        target=Target(mean=0.055, tau=0.65),
        peers="vTrain's paper 14.7%; Calculon 15.3%; constant MFU 17-20%",
    ),
    Group(
        name="KORT",
        holds=_sources("KORT"),
        target=Target(mean=0.03, worst=0.06),
        peers="Calculon 3.7%, worst 8.9%",
    ),
    Group(
        name="SC21",
        holds=lambda run: run.result.source == "SC21" and not _is_zero3(run),
        target=Target(mean=0.04),
        peers="constant MFU 19%",
    ),
    Group(
        name="SC21, ZeRO-3",
        holds=lambda run: run.result.source == "SC21" and _is_zero3(run),
        target=Target(mean=0.10),
    ),
    Group(
        name="BSA",
        holds=_sources("BSA"),
        target=Target(mean=0.04, memory_mean=0.05),
        peers="constant MFU 13%",
    ),
    Group(
        name="MPT",
        holds=_sources("MPT"),
        target=Target(mean=0.035, median=0.02),
        peers="constant MFU 19%",
    ),
    Group(name="IEVO", holds=_sources("IEVO"), target=Target(mean=0.025), peers="constant MFU 11%"),
    Group(
        name="SMXB, dense",
        holds=lambda run: run.result.source == "SMXB" and _is_dense(run),
        target=Target(mean=0.025),
    ),
    Group(
        name="SMXB",
        holds=_sources("SMXB"),
        target=Target(mean=0.04, memory_mean=0.01),
        peers="SimuMax 5.6%, worst 13.5%, always low; memory 0.46%, worst 1.4%",
    ),
    Group(
        name="VTS",
        holds=_sources("VTS"),
        target=Target(mean=0.05, tau=0.9),
        peers="vTrain's paper 8.4%; constant MFU 48-55%",
    ),
    Group(name="BSV (V100 Megatron)", holds=_sources("BSV"), target=FEW),
    Group(name="MBR, bf16", holds=lambda run: run.result.source == "MBR" and _is_bf16(run), target=FEW),
    Group(name="NTRN", holds=_sources("NTRN"), target=FEW),
    Group(name="DLE", holds=_sources("DLE"), target=FEW),
    Group(name="other sources of few rows", holds=lambda run: run.result.source not in NAMED, target=FEW),
    Group(name="SMXA", holds=_sources("SMXA")),
    Group(name="GAVL", holds=_sources("GAVL")),
    Group(name="NEMO", holds=_sources("NEMO")),
    Group(name="NLNG", holds=_sources("NLNG")),
    Group(name="MLLL", holds=_sources("MLLL")),
    Group(name="TPUs (TPUR, MXT, LEVT)", holds=_sources("TPUR", "MXT", "LEVT")),
    Group(name="MBR, other dtypes", holds=lambda run: run.result.source == "MBR" and not _is_bf16(run)),
)
"""In the issue's order. Every row is in one of them but SMXB's dense ones, which are in two."""
