"""Reader of `data/spreads.toml`: what collectives and messages reach over several parts of a fabric."""

from __future__ import annotations

from profiles.errors import InputError
from profiles.network import SpreadTable
from profiles.tables import DATA, read_tables


def load_spread(name: str, *, where: str, key: str) -> SpreadTable:
    """Return the spread table called `name`. Raise InputError about `key` at `where` for a name that the file lacks.

    >>> load_spread("arnold-h800", where="here", key="spread").share(4, message=True)
    0.3
    """
    tables = read_tables(DATA / "spreads.toml")
    if name not in tables:
        expected = f"{' or '.join(tables)}, or collective and message, shares over 1, 2, ... parts"
        raise InputError(where=where, key=key, found=repr(name), expected=expected)
    table = tables[name]
    return SpreadTable(collective=tuple(table["collective"]), message=tuple(table["message"]), source=table["source"])
