"""The options of `models show`, `hardware show` and `hardware topology`."""

from __future__ import annotations

import re
from dataclasses import field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from planner.shared.options.code import CodeOptions
from planner.shared.options.common import ComputeType, ModelName, SeqLen
from planner.shared.options.record import Option, Options
from planner.shared.options.topology import TopologyOptions
from profiles.records import dataclass

_LABEL = re.compile(r"(?:[a-z0-9.-]{1,253}/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")

TopologyFormat = Literal["topology.conf", "kueue"]


@dataclass(frozen=True, kw_only=True)
class ModelsShowOptions(CodeOptions):
    """One model."""

    command: ClassVar[str] = "models show"

    model: ModelName = field(kw_only=False)
    seq_len: SeqLen = None
    dtype: ComputeType = "bf16"


@dataclass(frozen=True, kw_only=True)
class HardwareShowOptions(Options):
    """One device, link or training software."""

    command: ClassVar[str] = "hardware show"

    name: Annotated[str, Option("a device, a link or a training software", "NAME")] = field(kw_only=False)


@dataclass(frozen=True, kw_only=True)
class HardwareTopologyOptions(TopologyOptions):
    """The tree of a cluster's network, for a cluster manager."""

    command: ClassVar[str] = "hardware topology"

    cluster: Annotated[str, Option("whose nodes have names and a tree above them", "C")]
    to: Annotated[
        TopologyFormat,
        Option("Slurm's topology/tree, or Kueue's Topology with the commands that label nodes (default: %(default)s)"),
    ] = "topology.conf"
    site: Annotated[str | None, Option("of a cluster that has several", "NAME")] = None
    labels: Annotated[
        tuple[str, ...], Option("with --to kueue: that nodes carry already, one a level from the nodes up", "LABEL,...")
    ] = ()
    output: Annotated[Path | None, Option("write it to this file", short="-o", writes="file")] = None

    def check(self) -> None:
        """Raise InputError for labels of what has none."""
        if not all(map(_LABEL.fullmatch, self.labels)) or len(set(self.labels)) < len(self.labels):
            expected = "keys of labels such as example.com/rack, each once"
            raise self.wrong("labels", found=repr(",".join(self.labels)), expected=expected)
        if self.labels and self.to != "kueue":
            raise self.wrong("labels", found=f"--to {self.to}", expected="--to kueue beside it")
