"""The record of a training tool: what it can run, whose habits it has, who reads its settings and who writes a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from estimator.pricing.recipe import ScheduleName, ZeroStage
from planner.one_job.tools.base.export_records import CannotExpress
from planner.one_job.tools.base.pipeline import Division
from planner.one_job.tools.base.shape import MEGATRON_ORDER, Job, Shape
from planner.shared.plan import RankAxis
from profiles.records import dataclass
from profiles.vocabulary import RecomputeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that a tool asks of a plan. `key` is the plan's.

    `allows` answers for a shape; where a search asks, for arrays of degrees at once, which is why it is written with
    `|` and `&`. `found` (empty: what the key names) and `expected` are sentences with fields of the shape, as in
    "{s.zero} with {s.pp} stages".
    """

    key: str
    allows: Callable[[Shape], Any]
    expected: str
    found: str = ""

    def refusal(self, tool: str, shape: Shape) -> CannotExpress | None:
        """Return why `tool` cannot run the plan, None where this rule does not stand against it."""
        if self.allows(shape):
            return None
        said = (self.found or f"{{s.{self.key.rpartition('.')[2]}}}").format(s=shape)
        expected = self.expected.format(s=shape)
        return CannotExpress(tool=tool, key=self.key, found=said, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTool:
    """A training framework in one of the forms that it takes settings in.

    `basis` names its versions; `software` the entry of software.toml whose habits it has. `alike`: all stages are the
    same but for their layers, with ranks in one of `orders`. `zero` are the stages of ZeRO that it has with one
    pipeline stage, `sharded_pipelines` with several. `counts_recomputed_layers`: its settings say how many are, of
    stages of one chunk. `division`: how it divides the blocks of a pipeline (None: as the plan says). `trains_all`: all
    weights learn; `optimizers` and `dtypes` are those it has (None: any).

    `overlaps_unsharded`: gradients are summed beside compute without ZeRO too.

    What no field says are rules: on the job, on degrees alone, on who holds the state under them, on the whole plan;
    and `searched`, on schedule or state: what breaks them is written with a note, as the tool runs it otherwise, and
    not searched for.
    `model`, `write` and `read` are "module:function" below `planner.one_job.tools`: what refuses models (None: any
    model), the writer, and the reader of its settings, where there is one.
    """

    name: str
    summary: str
    basis: str
    software: str
    schedules: tuple[ScheduleName, ...]
    recompute: tuple[RecomputeKind, ...]
    zero: tuple[ZeroStage, ...]
    sharded_pipelines: tuple[ZeroStage, ...]
    write: str
    read: str | None = None
    model: str | None = None
    alike: bool = True
    orders: tuple[tuple[RankAxis, ...], ...] = (MEGATRON_ORDER,)
    counts_recomputed_layers: bool = False
    division: Division | None = None
    trains_all: bool = True
    overlaps_unsharded: bool = True
    optimizers: tuple[str, ...] | None = None
    dtypes: tuple[str, ...] | None = None
    job: tuple[Rule, ...] = ()
    degrees: tuple[Rule, ...] = ()
    states: tuple[Rule, ...] = ()
    whole: tuple[Rule, ...] = ()
    searched: tuple[Rule, ...] = ()

    def job_refusal(self, job: Job) -> CannotExpress | None:
        """Return why the tool runs no plan of the job: its model, precision, optimizer."""
        shape = Shape(job=job)
        refusals = (rule.refusal(self.name, shape) for rule in (*_job_rules(self), *self.job))
        refusal = next(filter(None, refusals), None)
        if refusal is None and self.model is not None:
            try:
                load(self.model)(job.model, self.name)
            except CannotExpress as raised:
                return raised
        return refusal

    def refusal(self, shape: Shape) -> CannotExpress | None:
        """Return why the tool cannot run the plan: the first rule against it; None where it can."""
        rules = (*self.degrees, *_state_rules(self), *self.states, *_whole_rules(self), *self.whole)
        refusals = (rule.refusal(self.name, shape) for rule in rules)
        return self.job_refusal(shape.job) or next(filter(None, refusals), None)

    def allows_degrees(self, shape: Shape) -> Any:
        """Return whether plans of such degrees can be run, whatever else they are: for arrays of degrees an array."""
        allowed: Any = True
        for rule in self.degrees:
            allowed = allowed & rule.allows(shape)
        return allowed

    def is_searched(self, shape: Shape) -> bool:
        """Return whether the tool runs such a schedule or state as it is priced."""
        return all(rule.allows(shape) for rule in self.searched)

    def allows_state(self, shape: Shape) -> bool:
        """Return whether weights, gradients and optimizer state can be held so under the degrees."""
        return all(rule.allows(shape) for rule in (*_state_rules(self), *self.states))

    def state_refusal(self, shape: Shape) -> CannotExpress | None:
        """Return why the tool does not hold the state so under the degrees, or not as it is priced; None where it
        does."""
        rules = (*_state_rules(self), *self.states, *self.searched)
        return next(filter(None, (rule.refusal(self.name, shape) for rule in rules)), None)

    def sequence_parallel(self) -> tuple[bool, ...]:
        """Return whether tp ranks may, and may not, share the tokens."""
        rules = [rule for rule in self.degrees if rule.key.endswith("sequence_parallel")]
        return tuple(shares for shares in (True, False) if all(_allows_sharing(rule, shares) for rule in rules))


def load(name: str) -> Any:
    """Return the function that "module:function" names, below `planner.one_job.tools`."""
    module, _, function = name.partition(":")
    return getattr(import_module(f"planner.one_job.tools.{module}"), function)


def _allows_sharing(rule: Rule, shares: bool) -> bool:
    class Sharing:
        tp, sequence_parallel = 2, shares

    return bool(rule.allows(Sharing()))  # type: ignore[arg-type]


def _job_rules(tool: TrainingTool) -> Iterator[Rule]:
    if tool.trains_all:
        yield Rule(
            key="recipe.lora_rank",
            allows=lambda s: not s.job.lora_rank,
            found="{s.job.lora_rank}",
            expected="0: all weights learn",
        )
        yield Rule(
            key="recipe.frozen_layers",
            allows=lambda s: s.job.frozen_layers is None,
            found="{s.job.frozen_layers[0]} to {s.job.frozen_layers[1]}",
            expected="null: all layers learn",
        )
    for key, part, values in (("optimizer", "optimizer", tool.optimizers), ("model.dtype", "dtype", tool.dtypes)):
        if values is not None:
            yield Rule(
                key=key,
                allows=lambda s, part=part, values=values: getattr(s.job, part) in values,  # type: ignore[misc]
                found=f"{{s.job.{part}}}",
                expected=listed(values),
            )


def _state_rules(tool: TrainingTool) -> Iterator[Rule]:
    key = "stages[].sharding.zero"
    # Where there is nothing to share, all stages of ZeRO are the same.
    yield Rule(
        key=key,
        allows=lambda s: s.pp > 1 or s.ranks == 1 or s.zero in tool.zero,
        found="{s.zero}",
        expected=f"ZeRO {listed(tool.zero)}",
    )
    yield Rule(
        key=key,
        allows=lambda s: s.pp == 1 or s.ranks == 1 or s.zero in tool.sharded_pipelines,
        found="{s.zero} with {s.pp} stages",
        expected=f"ZeRO {listed(tool.sharded_pipelines)} with pipeline stages",
    )


def _whole_rules(tool: TrainingTool) -> Iterator[Rule]:
    yield Rule(
        key="schedule",
        allows=lambda s: s.pp == 1 or s.schedule in tool.schedules,
        expected=listed(tool.schedules),
    )
    yield Rule(
        key="stages[].recompute.kind",
        allows=lambda s: s.recompute in tool.recompute,
        found="{s.recompute}",
        expected=listed(tool.recompute),
    )
    division = tool.division
    if division is not None:
        yield Rule(
            key="stages[].chunks",
            allows=lambda s: s.pp == 1 or tuple(chunk.blocks for chunk in s.chunks) == division.blocks(s),
            found="{s.blocks_by_chunk} blocks",
            expected=division.words,
        )


def backwards(names: Mapping[str, Any]) -> dict[Any, str]:
    """Return a table of a tool's names read the other way: what to write, the first of several names.

    >>> backwards({"adam": "adamw", "fusedadam": "adamw"})
    {'adamw': 'adam'}
    """
    return {meant: name for name, meant in reversed(list(names.items()))}


def listed(values: tuple[Any, ...]) -> str:
    """Return the values in words.

    >>> listed((0, 1, 3)), listed(("full",))
    ('0, 1 or 3', 'full')
    """
    words = [str(value) for value in values]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)
