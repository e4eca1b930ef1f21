"""Options of policies that are names out of a table."""

from __future__ import annotations

from collections.abc import Iterable


def known_name(option: str, found: str, names: Iterable[str]) -> str:
    """Return the name that was found for an option. Raise ValueError, which says which names there are, for another."""
    there = sorted(names)
    if found not in there:
        raise ValueError(f"{option} {found}: one of {', '.join(there)}")
    return found
