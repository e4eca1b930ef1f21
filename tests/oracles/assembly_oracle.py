"""Brute force for `estimator.cells.assembly`: every assembly, by the formulas as written, in exact rationals."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

from estimator.cells.assembly import AssemblyProblem


def exact_iteration_time(problem: AssemblyProblem, choices: tuple[int, ...], latency: str) -> Fraction:
    compute = [Fraction(times[x]) for times, x in zip(problem.time_s, choices, strict=True)]
    transfer = [Fraction(0)]
    for i, table in enumerate(problem.transfer_s):
        transfer.append(Fraction(table[choices[i]][choices[i + 1]]))
    time = [t + c for t, c in zip(compute, transfer, strict=True)]
    if latency == "crius":
        _, pace = max(zip(time, compute, strict=True))
    else:
        pace = max(*compute, *transfer)
    tail = max(Fraction(tails[x]) for tails, x in zip(problem.tail_s, choices, strict=True))
    return sum(time) + (problem.micro_batches - 1) * pace + tail


def best_assembly(problem: AssemblyProblem, latency: str) -> tuple[Fraction, tuple[int, ...]]:
    """Least iteration time, and the lexicographically smallest choices that have it."""
    every = product(*(range(len(options)) for options in problem.time_s))
    return min((exact_iteration_time(problem, choices, latency), choices) for choices in every)
