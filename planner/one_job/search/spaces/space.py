"""Which plans there are: every way to share the devices that the sizes, the topology and the user allow.

A plan's degrees come first (`Ways`, arrays over all of them); what is open under each of them is a family of plans of
one schedule (`families`). Nothing here knows what is fast.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from estimator.bulk.records import BatchedDegrees, Rule, StateRule
from estimator.layers.split import Split
from estimator.layers.work import refuse_layers
from estimator.pricing.recipe import OffloadPart, ScheduleName
from models_zoo.layers import Embedding, Head
from models_zoo.model import Model
from planner.one_job.search.spaces.constraints import Constraints, Number
from planner.one_job.tools.base.shape import Job, Shape, experts_of
from profiles.cluster import DeviceSlot
from profiles.records import dataclass, replace
from profiles.vocabulary import DType

FEWEST_TOKENS = 1024
"""A rank under context parallelism has at least so many tokens of a sample."""
MOST_CP = 64
MOST_TP = 64
MOST_TOKENS = 1 << 17
"""A rank's micro-batch has at most so many tokens, or MOST_SAMPLES without tokens: more would only fill memory."""
MOST_SAMPLES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What plans are made of. `slots` are the devices that may be used, all of one type; `memory_below`: a plan must
    need less of a device's memory than so many bytes, whatever the device has. `more_memory_bytes`: devices have so
    much more memory, 0 or more, than the cluster's, by whose prices plans are priced all the same."""

    model: Model
    slots: tuple[DeviceSlot, ...]
    island: int
    node: int
    global_batch: int
    seq_len: int
    dtype: DType
    constraints: Constraints
    memory_below: int | None = None
    more_memory_bytes: int = 0
    job: Job | None = None

    @property
    def training(self) -> Job:
        """What is trained, as a tool asks."""
        return self.job or Job(model=self.model, seq_len=self.seq_len, dtype=self.dtype)

    def shape(self, degrees: BatchedDegrees) -> Shape:
        """A plan of these degrees, as far as a tool asks."""
        names = ("tp", "pp", "dp", "cp", "ep", "etp", "sequence_parallel")
        return Shape(
            job=self.training,
            micro_batch_per_rank=degrees.samples,
            micro_batches=self.global_batch // (degrees.dp * degrees.samples),
            **{name: getattr(degrees, name) for name in names},
        )


@dataclass(frozen=True, kw_only=True)
class Ways:
    """Ways to share the devices, column by column, and how many candidates each rule removed."""

    columns: Mapping[str, NDArray[np.int64]]
    considered: int
    removed: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.columns["tp"])

    def degrees(self, number: int) -> BatchedDegrees:
        """The way of that number."""
        numbers = {name: int(column[number]) for name, column in self.columns.items()}
        sequence_parallel = bool(numbers.pop("sequence_parallel"))
        return BatchedDegrees(sequence_parallel=sequence_parallel, **numbers)


def ways_of(space: Space) -> Ways:
    """All degrees of parallelism of the space: tp, pp, dp, cp, ep, etp, samples per rank and micro-batch.

    Candidates are tp up to the devices of a node (or what `--allow tp-across-islands`, or a fixed one, adds), cp a
    power of two, pp up to the layers, dp and samples divisors of the global batch, ep and etp divisors of the experts;
    together no more than the devices.
    """
    limits = space.constraints
    devices = min(len(space.slots), limits.bounds("devices")[1])
    wide = limits.allows_tp_beyond(max(space.island, space.node))
    tps = range(1, min(devices, MOST_TP if wide else max(space.island, space.node)) + 1)
    cps = [cp for cp in (2**i for i in range(7)) if cp <= min(MOST_CP, devices)] if space.seq_len else [1]
    pps = range(1, min(devices, len(space.model.layers)) + 1)
    layouts = _layouts(space, tps, cps)
    batch = divisors(space.global_batch)
    considered = len(layouts) * len(pps) * len(batch) ** 2
    pairs = [(dp, samples) for dp in batch for samples in batch if space.global_batch % (dp * samples) == 0]
    removed = {
        f"dp * micro-batch does not divide the global batch of {space.global_batch}": (
            len(layouts) * len(pps) * (len(batch) ** 2 - len(pairs))
        )
    }
    legal = [layout[:4] for layout in layouts if layout[4]]
    sizes = "sizes of the model that tp, cp, ep or etp do not divide"
    removed[sizes] = (len(layouts) - len(legal)) * len(pps) * len(pairs)
    each = np.array(pairs, dtype=np.int64).T
    grid = np.vstack([np.repeat(np.array(pps), len(pairs)), np.tile(each, len(pps))])
    parts = [_under(layout, grid, devices) for layout in legal]
    columns = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype=np.int64)
        for name in ("tp", "cp", "ep", "etp", "pp", "dp", "samples")
    }
    removed["more devices than there are, or ep * etp that does not divide a stage's"] = len(legal) * grid.shape[
        1
    ] - len(columns["tp"])
    _remove(space, columns, removed)
    return Ways(columns=columns, considered=considered, removed={why: count for why, count in removed.items() if count})


def _under(layout: tuple[int, ...], grid: NDArray[np.int64], devices: int) -> dict[str, NDArray[np.int64]]:
    """The rows of `grid` (pp, dp, samples) that go with `layout` (tp, cp, ep, etp)."""
    tp, cp, ep, etp = layout
    pp, dp, samples = grid
    ranks = tp * cp * dp
    kept = (ranks * pp <= devices) & (ranks % (ep * etp) == 0)
    columns = {"pp": pp[kept], "dp": dp[kept], "samples": samples[kept]}
    rows = len(columns["pp"])
    return columns | {name: np.full(rows, value) for name, value in zip(("tp", "cp", "ep", "etp"), layout, strict=True)}


def _remove(space: Space, columns: dict[str, NDArray[np.int64]], removed: dict[str, int]) -> None:
    """Rule by rule, what may not be."""
    limits = space.constraints

    def keep(mask: NDArray[np.bool_], why: str) -> None:
        removed[why] = removed.get(why, 0) + int(len(mask) - mask.sum())
        for name in columns:
            columns[name] = columns[name][mask]

    if not limits.allows_tp_beyond(space.island):
        keep(columns["tp"] <= space.island, f"tp beyond the island of {space.island} devices")
    most = MOST_TOKENS // space.seq_len if space.seq_len else MOST_SAMPLES
    if "micro_batch" not in limits.fix:
        keep(columns["samples"] <= max(1, most), "micro-batches of more than 128 Ki tokens a rank")
    for name in ("tp", "cp", "pp", "dp", "ep", "etp", "micro_batch", "micro_batches", "devices"):
        if any(name in stated for stated in (limits.fix, limits.least, limits.most)):
            keep(permitted(space, columns, name, limits), f"your constraints on {name.replace('_', '-')}")
    fewest = limits.bounds("vpp")[0]
    if fewest > 1:  # a chunk has a layer at least, and a single stage has one chunk
        keep((columns["pp"] > 1) & (columns["pp"] <= len(space.model.layers) // fewest), "your constraints on vpp")
    if limits.shares_tokens is not None:
        stated = (
            _can_share_tokens(space, columns) if limits.shares_tokens else np.ones(len(columns["tp"]), dtype=np.bool_)
        )
        keep((columns["tp"] == 1) | (stated & bool(limits.open_sequence_parallel)), "your word on sequence parallelism")
    _share_tokens(space, columns)
    tool = limits.training_tool
    if tool is not None:
        named: dict[str, Any] = {name: column for name, column in columns.items() if name != "samples"}
        batches: Any = space.global_batch // (columns["dp"] * columns["samples"])
        shape = Shape(job=space.training, micro_batches=batches, **named)
        allowed = np.zeros(len(batches), dtype=np.bool_) | tool.allows_degrees(shape)
        keep(allowed, f"what {limits.tool} cannot run")


def _share_tokens(space: Space, columns: dict[str, NDArray[np.int64]]) -> None:
    """Adds the column `sequence_parallel`: tp ranks share the tokens wherever they can, unless the user says."""
    possible = _can_share_tokens(space, columns)
    wanted = space.constraints.open_sequence_parallel
    shares = possible & (True in wanted)
    both = np.flatnonzero(shares & (False in wanted))
    for name in columns:
        columns[name] = np.concatenate([columns[name], columns[name][both]])
    columns["sequence_parallel"] = np.concatenate([shares.astype(np.int64), np.zeros(len(both), dtype=np.int64)])


def _can_share_tokens(space: Space, columns: Mapping[str, NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Of each way whether its tp ranks can share the tokens."""
    ranks = columns["tp"] * columns["cp"]
    return np.asarray((columns["tp"] > 1) & (space.seq_len % ranks == 0) & (space.seq_len > 0))


def permitted(
    space: Space, columns: Mapping[str, NDArray[np.int64]], name: Number, limits: Constraints
) -> NDArray[np.bool_]:
    """Return of each way whether `limits` permit its number of that name."""
    if name == "micro_batch":
        values = columns["samples"]
    elif name == "micro_batches":
        values = space.global_batch // (columns["dp"] * columns["samples"])
    elif name == "devices":
        values = columns["tp"] * columns["cp"] * columns["dp"] * columns["pp"]
    else:
        values = columns[name]
    least, most = limits.bounds(name)
    return np.asarray((values >= least) & (values <= most))


def _layouts(space: Space, tps: Sequence[int] | range, cps: Sequence[int]) -> list[tuple[int, int, int, int, bool]]:
    """(tp, cp, ep, etp, whether the model's sizes allow it)."""
    experts = experts_of(space.model)
    return [
        (tp, cp, ep, etp, _holds(space, tp, cp, ep, etp))
        for tp in tps
        for cp in cps
        for ep in (divisors(experts.count) if experts else (1,))
        for etp in (dict.fromkeys((1, tp)) if experts else (1,))
    ]


def _holds(space: Space, tp: int, cp: int, ep: int, etp: int) -> bool:
    """Whether every layer can be held so, with tokens enough for each context-parallel rank."""
    split = Split(samples=1, seq_len=space.seq_len, tp=tp, cp=cp, ep=ep, etp=etp)
    enough = cp == 1 or space.seq_len // cp >= FEWEST_TOKENS
    return enough and refuse_layers(space.model.layers, split) is None


def schedules_of(space: Space, degrees: BatchedDegrees) -> Iterator[tuple[ScheduleName, int]]:
    """(schedule, chunks a stage) that are legal under `degrees`; with one stage they are all the same."""
    limits, tool, shape = space.constraints, space.constraints.training_tool, space.shape(degrees)
    names = limits.open_schedules
    if tool is not None and degrees.pp > 1:
        names = tuple(name for name in names if tool.is_searched(replace(shape, schedule=name)))
    if degrees.pp == 1 and not names:
        # With one stage all schedules are the same, the tool's too.
        names = limits.schedules[:1]
    for name in names:
        if name == "interleaved":
            continue
        if limits.permits("vpp", 1):
            yield name, 1
        if degrees.pp == 1:
            break
    if "interleaved" in names:
        yield from (("interleaved", vpp) for vpp in _interleaved_chunks(space, degrees))


def _interleaved_chunks(space: Space, degrees: BatchedDegrees) -> Iterator[int]:
    """Chunks a stage with which the micro-batches can pass interleaved and the layers can be cut evenly."""
    limits, layers = space.constraints, len(space.model.layers)
    if degrees.pp == 1 or space.global_batch // (degrees.dp * degrees.samples) % degrees.pp:
        return
    ends = sum(isinstance(layer, Embedding | Head) for layer in space.model.layers)
    for vpp in range(2, layers // degrees.pp + 1):
        chunks = degrees.pp * vpp
        even = (layers - ends) % chunks == 0 or layers % chunks == 0
        if limits.permits("vpp", vpp) and (even or limits.fix.get("vpp") == vpp):
            yield vpp


def recompute_rules(space: Space, layers: int, *, vpp: int = 1) -> tuple[Rule, ...]:
    """What may be recomputed where a stage of `vpp` chunks has at most `layers` layers that can be."""
    limits, tool = space.constraints, space.constraints.training_tool
    counts = tool is None or (tool.counts_recomputed_layers and (vpp == 1 or not tool.alike))
    rules: list[Rule] = []
    for kind in limits.open_recompute:
        if kind == "full" and limits.recompute_layers is not None:
            rules += [("full", limits.recompute_layers)] * (counts or limits.recompute_layers >= layers)
        elif kind == "full" and counts:
            rules += [("full", count) for count in range(1, layers)]
            rules.append(("full", None))
        else:
            rules.append((kind, None))
    return tuple(rules)


def state_rules(space: Space, degrees: BatchedDegrees) -> tuple[StateRule, ...]:
    """Who may hold weights, gradients and optimizer state under `degrees`."""
    limits, shape = space.constraints, space.shape(degrees)
    hosted: tuple[frozenset[OffloadPart], ...] = (frozenset(), frozenset({"optimizer"}))
    rules = [
        rule
        for offload in (hosted if limits.offload else hosted[:1])
        for rule in limits.open_states(shape, inside=space.node // degrees.tp, offload=offload)
    ]
    return tuple(sorted(rules, key=lambda rule: (rule.zero, rule.shard or 0, len(rule.offload))))


def fills_evenly(space: Space) -> bool:
    """Return whether the devices are of one site, and replicas that divide the batch can use all of them, or have to be
    alike."""
    limits, site = space.constraints, space.slots[0].site
    if any(slot.site != site for slot in space.slots):
        return False
    return limits.alike or space.global_batch % min(len(space.slots), limits.bounds("devices")[1]) == 0


def fewest_replicas(ranks: int, holders: int) -> int:
    """Return how many replicas of `ranks` ranks a stage has at least whose experts are spread over `holders`.

    >>> fewest_replicas(4, 8), fewest_replicas(2, 1)
    (2, 1)
    """
    return holders // math.gcd(ranks, holders)


@lru_cache(maxsize=4096)
def divisors(number: int) -> tuple[int, ...]:
    """Return the divisors of a number, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(dict.fromkeys([*small, *(number // i for i in reversed(small))]))
