"""Nodes and requests for tests of the rules of placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.many_jobs.placers.records import Request
from profiles.network import PLAIN
from tests.scheduling_examples import make_job


class Nodes:
    """A `FreeNodes` with so many free devices by node, and ends where they are stated: the last one's, or all of them
    with the devices of each."""

    def __init__(
        self,
        free: Sequence[int],
        ends_s: Mapping[int, float] | None = None,
        *,
        ends: Mapping[int, Sequence[tuple[float, int]]] | None = None,
    ) -> None:
        self.free, self._ends = tuple(free), dict(ends or {})
        self._ends_s = {node: max(all_ends)[0] for node, all_ends in self._ends.items() if all_ends} | dict(
            ends_s or {}
        )

    def last_end_s(self, node: int) -> float | None:
        return self._ends_s.get(node)

    def ends(self, node: int) -> Sequence[tuple[float, int]]:
        return self._ends.get(node, ())


def request(devices: int, *, size: int = 8, end_s: float | None = None, model: str = "bert-1.3b") -> Request:
    return Request(
        job=make_job("j", devices=devices, model=model),
        pool="a100",
        devices=devices,
        size=size,
        now_s=0.0,
        predicted_end_s=end_s,
        network=PLAIN,
    )
