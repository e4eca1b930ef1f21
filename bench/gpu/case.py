"""What an operator to time is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Framework = Literal["torch", "jax"]
FRAMEWORKS: tuple[Framework, ...] = ("torch", "jax")

DTYPE_WIDTHS = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator to time, in the same words for every framework.

    `flops` as in `profiles.vocabulary.Operator`; `bytes` is the least traffic of the kernels that torch runs eagerly,
    each reading its inputs and writing its outputs once (a compiler that fuses them moves less). `variant` names the
    kernel or the way to call it. Cases of a lower `priority` number are measured first; from `EXOTIC` on they are those
    that may hurt what comes after them.
    """

    kind: str
    dtype: str
    direction: str
    sizes: tuple[tuple[str, int], ...]
    flops: int = 0
    bytes: int = 0
    variant: str = ""
    priority: int = 0

    @property
    def shape(self) -> dict[str, int]:
        return dict(self.sizes)

    @property
    def label(self) -> str:
        sizes = " ".join(f"{name}={size}" for name, size in self.sizes)
        return " ".join(part for part in (self.kind, self.variant, self.dtype, self.direction, sizes) if part)


EXOTIC = 80


def sizes(**named: int) -> tuple[tuple[str, int], ...]:
    """Of a case, in the order in which they are read."""
    return tuple(named.items())
