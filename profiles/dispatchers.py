"""Reader of `data/dispatchers.toml`: how tokens come to the ranks of their experts."""

from __future__ import annotations

from functools import cache

from profiles.records import dataclass
from profiles.tables import DATA, read_tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatcher:
    """One way to exchange tokens; the file says what each field means. Without `multiprocessors` the links alone bound
    it."""

    name: str
    once: bool
    rack: bool
    basis: str
    rows: tuple[str, ...]
    multiprocessors: int = 0
    bytes_per_s: float = 0.0
    startup_s: float = 0.0

    def __post_init__(self) -> None:
        if min(self.multiprocessors, self.bytes_per_s, self.startup_s) < 0 or bool(self.multiprocessors) != bool(
            self.bytes_per_s
        ):
            raise ValueError(
                f"dispatcher {self.name}: {self.multiprocessors} multiprocessors of {self.bytes_per_s} bytes/s,"
                f" startup_s={self.startup_s}; expected both or neither, and nothing below 0"
            )

    def copying_s(self, size_bytes: float) -> float:
        """Return the seconds in which its kernel moves so many bytes of a rank, 0 without a kernel that bounds it."""
        return size_bytes / (self.multiprocessors * self.bytes_per_s) if self.multiprocessors else 0.0


@cache
def load_dispatcher(name: str) -> Dispatcher:
    """Return the dispatcher called `name`. Raise KeyError for a name that the file lacks.

    >>> load_dispatcher("deduplicated").multiprocessors
    20
    """
    entry = read_tables(DATA / "dispatchers.toml")[name]
    return Dispatcher(name=name, **entry | {"rows": tuple(entry["rows"])})
