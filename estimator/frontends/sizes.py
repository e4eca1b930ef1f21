"""What traced values take, while the width of the model's own dtype is open. No framework."""

from __future__ import annotations

from profiles.records import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes: elements of the model's own dtype, whose width is open, and bytes of other dtypes."""

    elements: int = 0
    fixed_bytes: int = 0

    def __add__(self, other: Size) -> Size:
        return Size(self.elements + other.elements, self.fixed_bytes + other.fixed_bytes)

    def __mul__(self, times: int) -> Size:
        return Size(self.elements * times, self.fixed_bytes * times)

    def at(self, width: int) -> int:
        """Bytes where an element of the model's own dtype takes `width`."""
        return self.elements * width + self.fixed_bytes


NOTHING = Size()
