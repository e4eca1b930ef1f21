"""Which cells virtual clusters own, as a file or a mapping says it."""

from __future__ import annotations

from collections.abc import Mapping

from planner.many_jobs.scheduling.buddy_cells import CellTree
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCells:
    """What each virtual cluster owns: of each pool, and of "" every pool that is not named, how many cells of a level,
    which is told by its name or its devices. `where` says who states it."""

    where: str
    owned: Mapping[str, Mapping[str, Mapping[str, int]]]

    def on(self, pool: str, tree: CellTree) -> dict[str, dict[int, int]]:
        """Return how many cells of which levels of a pool each owns. InputError for a level that it has not."""
        levels = {name: number for number, name in enumerate(tree.names)}
        levels |= {str(size): number for number, size in enumerate(tree.sizes)}
        found: dict[str, dict[int, int]] = {}
        for name, pools in self.owned.items():
            own = found.setdefault(name, {})
            for level, count in pools.get(pool, pools.get("", {})).items():
                if level not in levels:
                    expected = f"a level of the cells of {pool}: {', '.join(tree.names)}, or their devices"
                    raise InputError(where=self.where, key=name, found=level, expected=expected)
                own[levels[level]] = own.get(levels[level], 0) + count
        return found


def load_owned_cells(path: str) -> OwnedCells:
    """Return what a YAML or JSON file says, see `read_owned_cells`. Raise InputError with file and key."""
    return read_owned_cells(read_yaml(path), where=path)


def read_owned_cells(stated: object, *, where: str) -> OwnedCells:
    """Return who owns what, from a mapping like

        research: {leaf: 1, node: 3}
        interns: {a100-80gb: {node: 1, "4": 1}, v100-32gb: {node: 2}}

    Levels are called `device`, `4 devices` and the like inside a node, `node`, and above as the network's are; or by
    how many devices they have (as text). Who is not named owns nothing. InputError where something else stands.
    """
    if not isinstance(stated, Mapping):
        raise InputError(where=where, found=stated, expected="virtual clusters with the cells that they own")
    return OwnedCells(where=where, owned={str(name): _pools(entry, where, str(name)) for name, entry in stated.items()})


def _pools(entry: object, where: str, key: str) -> dict[str, dict[str, int]]:
    if not isinstance(entry, Mapping) or not entry:
        raise InputError(where=where, key=key, found=entry, expected="cells by level, such as {leaf: 1, node: 3}")
    by_pool = [isinstance(value, Mapping) for value in entry.values()]
    if all(by_pool):
        return {str(pool): _levels(cells, where, f"{key}.{pool}") for pool, cells in entry.items()}
    if any(by_pool):
        raise InputError(where=where, key=key, found="pools and levels side by side", expected="one or the other")
    return {"": _levels(entry, where, key)}


def _levels(cells: Mapping[object, object], where: str, key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for level, count in cells.items():
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(where=where, key=f"{key}.{level}", found=count, expected="a number of cells, 0 or more")
        found[str(level)] = count
    return found
