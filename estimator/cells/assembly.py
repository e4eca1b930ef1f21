"""The best assembly of a Cell: one option (DP-only, TP-only) for each stage, out of all prod K_i (Crius section 5.1).

Option x of stage i takes t_i[x] for a micro-batch (forward, backward, blocking collectives) and s_i[x] once an
iteration (gradient synchronisation, optimizer step); c_i[y][x] is the transfer into it from option y of stage i - 1.
With T_i = t_i[x_i] + c_i[x_{i-1}][x_i] an assembly x takes one of `estimator.cells.latency.LATENCY` plus max_i
s_i[x_i]:

    cellplan   sum_i T_i + (B - 1) max_i max(T_i - c_i, c_i) + max_i s_i
    crius      sum_i T_i + (B - 1) (T_m - c_m) + max_i s_i,  m = argmax T_i (largest T_i - c_i of equal ones)

Both say: one *step* of the assembly (a stage's option and the one before it) decides the pace, the highest in an order
of steps: by max(T - c, c), or by (T, T - c). `assemble_exact` fixes the deciding step and the largest tail. What
remains is a shortest path over the steps that are no higher and the options whose tail is no larger: polynomial in the
stages and options. A bound from the unrestricted shortest path leaves few of these to solve, all of them at once.

Times are taken as integers, in units of 2^-60 of a bound on the iteration, far finer than a double's own rounding.
So sums do not depend on their order and equal assemblies are equal: among those the lexicographically smallest
choices are returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from estimator.cells.latency import LATENCY
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_NEVER = 1 << 61  # the time of a step that may not be taken; two of them still add in int64
ENUMERABLE = 1 << 22  # assemblies that are tried one by one at most
QUICKLY_TRIED = 1 << 12
"""So few assemblies are tried one by one sooner than they are searched."""
_LANES = 1024  # restricted problems solved at once


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblyProblem:
    """Options of every stage, in seconds. One that cannot be had is left out; a stage without any cannot run at all.

    `time_s[i][x]` and `tail_s[i][x]` are t and s of option x of stage i; `transfer_s[i][y][x]` is the transfer from
    option y of stage i to option x of stage i + 1.
    """

    time_s: tuple[tuple[float, ...], ...]
    tail_s: tuple[tuple[float, ...], ...]
    transfer_s: tuple[tuple[tuple[float, ...], ...], ...]
    micro_batches: int

    def __post_init__(self) -> None:
        sizes = [len(options) for options in self.time_s]
        if not sizes or self.micro_batches < 1:
            raise ValueError(f"assembly: {len(sizes)} stages, micro_batches={self.micro_batches}; expected 1 or more")
        if [len(options) for options in self.tail_s] != sizes:
            raise ValueError(f"assembly: tail_s has other options than time_s; expected {sizes} of them")
        shapes = [[len(row) for row in table] for table in self.transfer_s]
        expected = [[after] * before for before, after in pairwise(sizes)]
        if shapes != expected:
            raise ValueError(f"assembly: transfer_s has rows of {shapes}, expected {expected}")
        values = [v for rows in (self.time_s, self.tail_s, *self.transfer_s) for row in rows for v in row]
        if not all(0 <= value < math.inf for value in values):
            raise ValueError("assembly: found a negative or infinite time; expected finite seconds, none below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """The option of each stage, and what the iteration takes by formula: the pipeline and the largest tail."""

    choices: tuple[int, ...]
    pipeline_s: float
    tail_s: float

    @property
    def iteration_time_s(self) -> float:
        """Seconds by the formula that chose."""
        return self.pipeline_s + self.tail_s


def evaluate_assembly(problem: AssemblyProblem, choices: tuple[int, ...], latency: str = "cellplan") -> Assembly:
    """The assembly of these choices, by the formula called `latency`."""
    pairs = zip(problem.transfer_s, pairwise(choices), strict=True)
    transfers_s = (0.0, *(table[before][after] for table, (before, after) in pairs))
    steps = zip(problem.time_s, choices, transfers_s, strict=True)
    times_s = [times[x] + transfer for times, x, transfer in steps]
    return Assembly(
        choices=choices,
        pipeline_s=LATENCY[latency](times_s, transfers_s, problem.micro_batches),
        tail_s=max(tails[x] for tails, x in zip(problem.tail_s, choices, strict=True)),
    )


def assemble_exact(problem: AssemblyProblem, latency: str = "cellplan") -> Assembly | Infeasible:
    """The fastest assembly, in polynomial time.

    Args:
        problem: the options.
        latency: `cellplan` or `crius`.

    Returns:
        The fastest assembly (of equally fast ones the lexicographically smallest choices), or Infeasible where a
        stage has no option.

    Raises:
        KeyError: no formula of that name.

    >>> stages = AssemblyProblem(
    ...     time_s=((4, 5), (6, 3)),
    ...     tail_s=((1, 0), (1, 0)),
    ...     transfer_s=(((0, 1), (1, 0)),),
    ...     micro_batches=8,
    ... )
    >>> assembly = assemble_exact(stages)
    >>> assembly.choices, assembly.iteration_time_s
    ((0, 1), 37.0)
    """
    missing = _stage_without_options(problem)
    return missing or evaluate_assembly(problem, _search(_steps(problem, latency)), latency)


def assemble_enumerate(problem: AssemblyProblem, latency: str = "cellplan") -> Assembly | Infeasible:
    """As `assemble_exact`, by trying all assemblies: the oracle. ValueError above 2^22 of them."""
    missing = _stage_without_options(problem)
    if missing:
        return missing
    count = math.prod(len(options) for options in problem.time_s)
    if count > ENUMERABLE:
        raise ValueError(f"assembly: {count} assemblies to enumerate, expected at most {ENUMERABLE}")
    steps = _steps(problem, latency)
    total = np.zeros((1, 1), dtype=np.int64)
    highest = tail = total
    for i, options in enumerate(problem.time_s):
        before, after = (len(problem.time_s[i - 1]) if i else 1), len(options)
        total = (total[:, :, None] + steps.time[i, :before, :after]).reshape(-1, after)
        highest = np.maximum(highest[:, :, None], steps.height[i, :before, :after]).reshape(-1, after)
        tail = np.maximum(tail[:, :, None], steps.tail[i, :after]).reshape(-1, after)
    best = int(np.argmin(total + steps.pace[highest] + tail))
    sizes = tuple(len(options) for options in problem.time_s)
    return evaluate_assembly(problem, tuple(int(x) for x in np.unravel_index(best, sizes)), latency)


def _stage_without_options(problem: AssemblyProblem) -> Infeasible | None:
    for i, options in enumerate(problem.time_s):
        if not options:
            return Infeasible(reason=f"stage {i} has no option left", lacking="support")
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steps:
    """The problem in whole units. Arrays are (stages, before, after), with one option before the first stage.

    `time` is T, `_NEVER` where there is no such option; `height` the place of a step in the order that tells which one
    decides the pace, and `pace[height]` the B - 1 further micro-batches then; `tail` is s, (stages, after).
    """

    time: IntArray
    height: IntArray
    pace: IntArray
    tail: IntArray


def _by_longest_part(time_s: FloatArray, transfer_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    longest = np.maximum(time_s - transfer_s, transfer_s)
    return longest, longest


def _by_time(time_s: FloatArray, transfer_s: FloatArray) -> tuple[FloatArray, FloatArray]:
    return time_s, time_s - transfer_s


_DECIDES: dict[str, Callable[[FloatArray, FloatArray], tuple[FloatArray, FloatArray]]] = {
    "cellplan": _by_longest_part,
    "crius": _by_time,
}
"""By what the deciding step is the highest, and the time a micro-batch takes there, which settles ties."""


def _steps(problem: AssemblyProblem, latency: str) -> _Steps:
    stages, most = len(problem.time_s), max(len(options) for options in problem.time_s)
    time_s = np.zeros((stages, most, most))
    transfer_s = np.zeros((stages, most, most))
    tail_s = np.zeros((stages, most))
    exists = np.zeros((stages, most, most), dtype=np.bool_)
    for i, options in enumerate(problem.time_s):
        before, after = (len(problem.time_s[i - 1]) if i else 1), len(options)
        if i:
            transfer_s[i, :before, :after] = problem.transfer_s[i - 1]
        time_s[i, :before, :after] = transfer_s[i, :before, :after] + options
        tail_s[i, :after] = problem.tail_s[i]
        exists[i, :before, :after] = True

    order_s, pace_s = _DECIDES[latency](time_s, transfer_s)
    height, paces_s = _ranked(order_s.ravel(), pace_s.ravel())
    more = problem.micro_batches - 1
    bound_s = time_s.max(axis=(1, 2)).sum() + more * pace_s.max() + tail_s.max()
    shift = 60 - math.frexp(bound_s)[1]

    def units(seconds: FloatArray) -> IntArray:
        return np.rint(np.ldexp(seconds, shift)).astype(np.int64)

    return _Steps(
        time=np.where(exists, units(time_s), _NEVER),
        height=height.reshape(time_s.shape),
        pace=more * units(paces_s),
        tail=units(tail_s),
    )


def _ranked(order_s: FloatArray, pace_s: FloatArray) -> tuple[IntArray, FloatArray]:
    """The place of each step in the order of the pairs (`order_s`, `pace_s`), and the pace at each place."""
    order = np.lexsort((pace_s, order_s))
    ordered_s, paced_s = order_s[order], pace_s[order]
    new = np.ones(len(order), dtype=np.bool_)
    new[1:] = (ordered_s[1:] != ordered_s[:-1]) | (paced_s[1:] != paced_s[:-1])
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(new) - 1
    return places, paced_s[new]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """Restricted problems solved side by side, (lanes,) each: no step above `height`, no tail above `tail`, and the
    step to option `after` of stage `stage` from option `before` is taken. Stage -1: no step is prescribed."""

    stage: IntArray
    before: IntArray
    after: IntArray
    height: IntArray
    tail: IntArray

    def take(self, lanes: IntArray, tail: IntArray) -> _Lanes:
        """These lanes, with other limits on the tail."""
        return _Lanes(
            stage=self.stage[lanes],
            before=self.before[lanes],
            after=self.after[lanes],
            height=self.height[lanes],
            tail=tail,
        )


def _shortest(steps: _Steps, lanes: _Lanes) -> tuple[IntArray, IntArray]:
    """Least sum of T of each lane, and the (smallest) choices that lead to it as a table (stages, before, lanes)."""
    stages, options, _ = steps.time.shape
    rest = np.zeros((options, len(lanes.stage)), dtype=np.int64)  # time after this stage, by the option it takes
    choice = np.zeros((stages, *rest.shape), dtype=np.int64)
    for i in range(stages - 1, -1, -1):
        prescribed = np.flatnonzero(lanes.stage == i)
        least = np.full_like(rest, _NEVER)
        for x in range(options):
            after = np.where(lanes.tail < steps.tail[i, x], _NEVER, rest[x])
            time = steps.time[i, :, x, None] + after
            time[steps.height[i, :, x, None] > lanes.height] = _NEVER
            other = (lanes.before[prescribed] != np.arange(options)[:, None]) | (lanes.after[prescribed] != x)
            time[:, prescribed] = np.where(other, _NEVER, time[:, prescribed])
            shorter = time < least
            least = np.where(shorter, time, least)
            choice[i][shorter] = x
        rest = least
    return rest[0], choice


def _follow(choice: IntArray, lanes: IntArray) -> IntArray:
    """The choices along the shortest paths of `lanes`: (stages, lanes)."""
    path = np.zeros((len(choice), len(lanes)), dtype=np.int64)
    for i, table in enumerate(choice):
        path[i] = table[path[i - 1] if i else 0, lanes]
    return path


def _search(steps: _Steps) -> tuple[int, ...]:
    """Choices of the fastest assembly.

    First every deciding step with any tail, and every limit on the tail with any pace. That bounds each pair of both
    from below, and all from above; pairs in question are then solved, most promising first.
    """
    stage, before, after = np.nonzero(steps.time < _NEVER)
    height = steps.height[stage, before, after]
    everything = np.full(len(stage), steps.tail.max())
    lanes = _Lanes(stage=stage, before=before, after=after, height=height, tail=everything)
    pace = steps.pace[height]
    by_step, choice = _shortest(steps, lanes)
    path = _follow(choice, np.arange(len(stage)))
    tails = np.take_along_axis(steps.tail, path, axis=1).max(axis=0)
    upper = int((by_step + pace + tails)[by_step < _NEVER].min())

    limits = np.array(sorted(set(steps.tail.ravel().tolist())))
    none = np.full(len(limits), -1)
    any_step = np.full(len(limits), len(steps.pace))
    by_tail, _ = _shortest(steps, _Lanes(stage=none, before=none, after=none, height=any_step, tail=limits))
    lower = np.maximum(by_step[:, None], by_tail) + pace[:, None] + limits
    lane, limit = np.nonzero(lower <= upper)
    order = np.argsort(lower[lane, limit], kind="stable")
    lane, limit = lane[order], limit[order]

    best: tuple[int, tuple[int, ...]] | None = None
    for start in range(0, len(lane), _LANES):
        some, tail = lane[start : start + _LANES], limits[limit[start : start + _LANES]]
        if best is not None and lower[some[0], limit[start]] > best[0]:
            break
        time, choice = _shortest(steps, lanes.take(some, tail))
        total = time + pace[some] + tail
        fastest = np.flatnonzero(total == total.min())
        choices = min(map(tuple, _follow(choice, fastest).T.tolist()))
        best = min(best or (int(total.min()), choices), (int(total.min()), choices))
    assert best is not None, "the bound of a known assembly leaves at least that assembly"
    return best[1]
