"""What a cluster manager says of its nodes, as records: which GPUs a node has, and how many of them are free."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from estimator.profiling.device_name import catalogue_name
from profiles.errors import InputError
from profiles.hardware import device_names
from profiles.records import dataclass

MIG = re.compile(r"\d+c?\.?\d*g\.\d+gb|(^|[-_])mig([-_]|$)", re.IGNORECASE)
"""Names of slices of a GPU, such as a100_1g.10gb and NVIDIA-A100-SXM4-40GB-MIG-1g.5gb."""

OTHER_NAMES = {
    "p100-sxm2-16gb": "p100",
    "p100-pcie-16gb": "p100",
    "gh200-480gb": "gh200",
    "gh200-96gb-hbm3": "gh200",
    "a800-sxm4-80gb": "a800",
    "b300-sxm6-ac": "b300",
    "tesla-a100": "a100-40gb",
    "h100-mega-80gb": "h100",
    "rtx3090": "rtx-3090",
    "rtx4090": "rtx-4090",
    "rtx5090": "rtx-5090",
    "mi300x-oam": "mi300x",
}
"""Names that drivers and Google's node labels use and the catalogue has no alias for (`tesla-a100` is GKE's accelerator
nvidia-tesla-a100, of 40 GB: Google Kubernetes Engine documentation, "About GPUs")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNode:
    """GPUs of one type in one node. `device` is the catalogue's name, or the manager's own in the same style where the
    catalogue has none, or empty where the manager names no type. `said` is the name as it stands in the file.
    `barred`: it takes no new job, also once those on it have ended. `held` are the indices of those that are not free,
    None where the manager tells their number alone."""

    name: str
    device: str
    said: str
    devices: int
    free: int
    barred: bool = False
    held: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeNodes:
    """All of a file: nodes in its order, one record for each type of GPU in a node, and what was left out and why."""

    nodes: tuple[FreeNode, ...]
    notes: tuple[str, ...]


@lru_cache(maxsize=1024)
def device_type(said: str) -> str:
    """The catalogue's name of a GPU that a manager calls `said`; a name of the same style where it has none.

    >>> device_type("NVIDIA-H100-80GB-HBM3"), device_type("nvidia_a100-sxm4-40gb"), device_type("Tesla-V100-SXM2-32GB")
    ('h100', 'a100-40gb', 'v100-32gb')
    >>> device_type("rtx_a6000")
    'rtx-a6000'
    """
    words = said.strip().lower().replace("_", "-")
    plain = words.removeprefix("nvidia-")
    if plain in OTHER_NAMES:
        return OTHER_NAMES[plain]
    name = catalogue_name(words)
    return OTHER_NAMES.get(name, name)


@lru_cache(maxsize=1024)
def in_catalogue(device: str) -> bool:
    """Whether the catalogue has a device of that very name."""
    return device in device_names()


@lru_cache(maxsize=1024)
def is_slice(said: str) -> bool:
    """Whether `said` names a part of a GPU: a MIG instance, or a GPU that several share in turn."""
    return MIG.search(said) is not None or said.upper().endswith("-SHARED")


def gpu_indices(text: str, devices: int | None, where: str, key: str) -> tuple[int, ...]:
    """Return the indices that Slurm writes as `0-2,7`. Raise InputError for what is no such list, for an index twice,
    and for one that a node of so many GPUs lacks (None: nobody knows how many).

    >>> gpu_indices("0-2,7", 8, "here", "gpus")
    (0, 1, 2, 7)
    """
    indices: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"(\d{1,4})(?:-(\d{1,4}))?", piece.strip(), re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first:
            raise InputError(where=where, key=key, found=repr(text), expected="indices of GPUs such as 0-2,7")
        if devices is not None and last >= devices:
            expected = f"an index from 0 to {devices - 1}: it has {devices} GPUs"
            raise InputError(where=where, key=key, found=f"GPU {last}", expected=expected)
        indices += range(first, last + 1)
    if len(set(indices)) < len(indices):
        raise InputError(where=where, key=key, found=repr(text), expected="each index once")
    return tuple(indices)


def count_nodes(names: Iterable[str], what: str) -> tuple[str, ...]:
    """A note that `names` are `what`, none where there are none: `not free: gpu-03 (drained)`."""
    listed = list(dict.fromkeys(names))
    return (f"{what}: {brief(listed)}",) if listed else ()


def all_free_nodes(
    nodes: Sequence[FreeNode],
    groups: Iterable[tuple[Iterable[str], str]],
    *,
    without: int,
    where: str,
    expected: str,
    more: tuple[str, ...] = (),
) -> FreeNodes:
    """Return `nodes` with notes on the others: `groups` of names and what these are, `without` GPUs so many, `more`.

    InputError naming `where` and what was `expected` where there are no nodes.
    """
    notes = tuple(note for names, what in groups for note in count_nodes(names, what))
    if without:
        notes += (f"nodes without GPUs, which are left out: {without}",)
    if not nodes:
        raise InputError(where=where, found="; ".join(notes) or "no node", expected=expected)
    return FreeNodes(nodes=tuple(nodes), notes=(*notes, *more))


def brief(names: list[str], most: int = 12) -> str:
    """The names, or the first of them and how many there are.

    >>> brief(["a", "b", "c"], most=2)
    'a, b, ... (3 in all)'
    """
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"
