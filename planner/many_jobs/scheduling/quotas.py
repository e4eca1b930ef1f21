"""Quotas of virtual clusters: read from a file, or split by demand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from profiles.errors import InputError
from profiles.records import dataclass
from profiles.yaml_files import read_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A virtual cluster's nominal quota: devices of each pool, and `everywhere` of each pool not named; how far it may
    exceed that (None: as far as its cohort has room), and whom it lends to and borrows from."""

    devices: Mapping[str, int] = field(default_factory=dict)
    everywhere: int = 0
    borrowing_limit: int | None = None
    cohort: str = ""

    def nominal(self, pool: str) -> int:
        """Devices of the pool that are its own."""
        return self.devices.get(pool, self.everywhere)


def load_queues(path: str) -> dict[str, Queue]:
    """Return the queues of a YAML or JSON file, see `read_queues`. Raise InputError with file and key."""
    return read_queues(read_yaml(path), where=path)


def read_queues(stated: object, *, where: str) -> dict[str, Queue]:
    """Return the queues by virtual cluster, from a mapping like

        research: {nominal: {a100: 64, v100: 32}, borrowing_limit: 32, cohort: all}
        interns: {nominal: 8, cohort: all}
        guests: 0

    `nominal`: devices of each pool, or one number for every pool. A virtual cluster that is not named has 0 and may
    only borrow, in the cohort "". A job larger than all its cohort's quotas together never runs. InputError where
    something else stands.
    """
    if not isinstance(stated, Mapping):
        raise InputError(where=where, found=stated, expected="virtual clusters with their quotas")
    return {str(name): _queue(entry, where, str(name)) for name, entry in stated.items()}


def _queue(entry: object, where: str, name: str) -> Queue:
    if not isinstance(entry, Mapping):
        return Queue(everywhere=_count(entry, where, name))
    unknown = set(entry) - {"nominal", "borrowing_limit", "cohort"}
    if unknown:
        raise InputError(
            where=where,
            key=f"{name}.{sorted(map(str, unknown))[0]}",
            found="it",
            expected="nominal, borrowing_limit, cohort",
        )
    nominal, limit = entry.get("nominal", 0), entry.get("borrowing_limit")
    split = isinstance(nominal, Mapping)
    return Queue(
        devices={str(pool): _count(count, where, f"{name}.nominal.{pool}") for pool, count in nominal.items()}
        if split
        else {},
        everywhere=0 if split else _count(nominal, where, f"{name}.nominal"),
        borrowing_limit=None if limit is None else _count(limit, where, f"{name}.borrowing_limit"),
        cohort=str(entry.get("cohort", "")),
    )


def _count(value: object, where: str, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(where=where, key=key, found=value, expected="a number of devices, 0 or more")
    return value


def demand_quotas(sizes: Mapping[str, int], demand: Mapping[str, Mapping[str, float]]) -> dict[str, Queue]:
    """Return each pool's devices split among the virtual clusters in proportion to `demand[pool][virtual cluster]`,
    whole devices by largest remainders (ties by name); all in one cohort. They add up to the pool."""
    devices: dict[str, dict[str, int]] = {}
    for pool, size in sizes.items():
        wanted = {name: area for name, area in demand.get(pool, {}).items() if area > 0}
        total = sum(wanted.values())
        exact = {name: size * area / total for name, area in wanted.items()}
        whole = {name: int(share) for name, share in exact.items()}
        rest = size - sum(whole.values())
        for name in sorted(exact, key=lambda name: (whole[name] - exact[name], name))[:rest]:
            whole[name] += 1
        for name, count in whole.items():
            devices.setdefault(name, {})[pool] = count
    return {name: Queue(devices=counts) for name, counts in devices.items()}
