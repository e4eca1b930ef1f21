"""The words by which a user says how Cells are made; what they mean is said where they are used."""

from __future__ import annotations

from typing import Literal

Partition = Literal["exact", "crius"]
Formula = Literal["cellplan", "crius"]
Method = Literal["exact", "enumerate"]
MicroBatchRule = Literal["crius", "fit", "best"]
