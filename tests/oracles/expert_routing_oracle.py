"""Brute force of expert parallelism: every rank sends each of its token copies to the rank of its expert."""

from __future__ import annotations

from itertools import cycle


def route(*, ranks: int, tokens: int, top_k: int, count: int) -> tuple[list[int], list[list[int]]]:
    """Copies that each expert receives, and copies that each rank sends to each rank, under even routing."""
    received = [0] * count
    sent = [[0] * ranks for _ in range(ranks)]
    per_rank = count // ranks
    for sender in range(ranks):
        experts = cycle(range(count))
        for _ in range(tokens * top_k):
            expert = next(experts)
            received[expert] += 1
            sent[sender][expert // per_rank] += 1
    return received, sent
