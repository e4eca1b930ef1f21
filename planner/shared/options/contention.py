"""The options of `contention`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from planner.shared.options.code import CodeOptions
from planner.shared.options.contention_emitting import ContentionEmittingOptions
from planner.shared.options.record import Option, ProgressHook
from planner.shared.options.simulate import POLICY_OPTION, PolicyOption
from planner.shared.options.values import NATURAL, PART, SHARE, Values, list_of
from profiles.limits import LIMITS
from profiles.numerals import read_number
from profiles.records import dataclass

Model = Literal["collective", "flow"]

MOST_JITTER = 0.4
DECIDED = partial(Option, group="what jobs are to do")
DECIDES = (
    "policy",
    "policy_option",
    "paths",
    "priorities",
    "compression",
    "offsets",
    "levels",
    "keep_paths",
    "change_at_most",
    "slowdown_cap",
)
"""Options that make a decision another."""
MORE_ANSWERS = ("front", "believe")
"""Options that ask for other answers beside it."""
NEEDS_DECISION = (
    *MORE_ANSWERS,
    "network_plan",
    "output",
    "priority_map",
    "reserved",
    "transport",
    "nccl",
    "emit",
    "verify",
)
"""Options that mean nothing without a decision."""
CAP = Values(
    expected="a number from 1 to 1,000,000: times as long as alone",
    read=read_number,
    holds=lambda cap: 1 <= cap <= 1e6,
    schema={"minimum": 1, "maximum": 1e6},
)


@dataclass(frozen=True, kw_only=True)
class NetworkDecisionOptions(CodeOptions):
    """What jobs are to do on their network, and who says so."""

    policy: Annotated[str, DECIDED("what decides: its name, or package.module:Class (default: %(default)s)", "P")] = (
        "ours"
    )
    policy_option: Annotated[
        Mapping[str, PolicyOption] | None,
        DECIDED("an option of the policy", "K=V", POLICY_OPTION, repeated=True),
    ] = None
    paths: Annotated[str | None, DECIDED("who chooses paths, by name, in place of the policy", "P")] = None
    priorities: Annotated[str | None, DECIDED("who puts jobs in order", "P")] = None
    compression: Annotated[str | None, DECIDED("who makes few levels of that order", "P")] = None
    offsets: Annotated[str | None, DECIDED("who says when iterations begin", "P")] = None
    levels: Annotated[
        int | None,
        DECIDED("levels that the fabric leaves free (default: those of --priority-map, else 8)", "K"),
    ] = None
    keep_paths: Annotated[bool, DECIDED("change levels alone")] = False
    change_at_most: Annotated[
        int | None, DECIDED("so many jobs get another level or other paths than now", values=NATURAL)
    ] = None
    slowdown_cap: Annotated[
        float | None, DECIDED("no job's iteration takes more than X times as long as alone", "X", CAP)
    ] = None
    front: Annotated[
        Literal["fairness"] | None,
        DECIDED("also what less work buys: answers in which the worst slowdown is less"),
    ] = None
    believe: Annotated[
        tuple[float, ...] | None,
        DECIDED(
            "also what is lost if the policy believes W, t and periods that are wrong by these shares, such as"
            " 0.05,0.1,0.2",
            "SHARES",
            list_of(SHARE),
        ),
    ] = None
    network_plan: Annotated[
        Path | None,
        DECIDED("no policy: what was decided before, a contention.json, for the jobs of now"),
    ] = None
    output: Annotated[Path | None, DECIDED("write what was decided (contention.json)", short="-o", writes="file")] = (
        None
    )
    progress: ProgressHook = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        """Raise InputError for a decision that was made before and something that makes another."""
        super().check()
        if self.network_plan is not None:
            asked = set(self.changed()) & {*DECIDES, *MORE_ANSWERS}
            if asked:
                wrong = next(name for name in (*DECIDES, *MORE_ANSWERS) if name in asked)
                raise self.wrong(wrong, found="it beside --network-plan", expected="one of them")

    @property
    def decides(self) -> bool:
        """Whether anything was asked for about what jobs are to do."""
        return bool(set(self.changed()) & {*DECIDES, *NEEDS_DECISION})


@dataclass(frozen=True, kw_only=True)
class ContentionOptions(NetworkDecisionOptions, ContentionEmittingOptions):
    """Jobs that run beside each other on a cluster."""

    command: ClassVar[str] = "contention"

    jobs: Annotated[Path, Option("the jobs: what each sends in an iteration, and its hosts (YAML)", "JOBS")] = field(
        kw_only=False
    )
    cluster: Annotated[str, Option("such as h100:16x8, or a cluster file", "C")]
    running: Annotated[
        Path | None,
        Option(
            "who sits where, of jobs that name no hosts: squeue --json, scontrol show job -d, kubectl get pods -o json,"
            " or a table of job, hosts and end"
        ),
    ] = None
    seeds: Annotated[int, Option("so many hashes of the switches, one run by each (default: 1)")] = 1
    jitter: Annotated[float, Option("the share by which compute times vary (default: 0.01)", "SHARE", PART)] = 0.01
    model: Annotated[
        Model,
        Option("what moves as one: a step of a collective, or every connection by itself (default: collective)"),
    ] = "collective"
    timeline: Annotated[
        Path | None, Option("who computes and sends when, for Perfetto (.json, .json.gz)", writes="file")
    ] = None
    plot: Annotated[
        Path | None, Option("links over time by the GPU intensity of who sends (.svg, .png)", writes="file")
    ] = None

    def check(self) -> None:
        """Raise InputError for more runs than are taken, or compute that varies by more than half of it: twice the
        jitter is played as well."""
        super().check()
        self.check_emitting()
        LIMITS.seeds.check(self.seeds, where=self.command, key="--seeds")
        if self.jitter > MOST_JITTER:
            raise self.wrong("jitter", found=f"{self.jitter:g}", expected=f"a share from 0 to {MOST_JITTER}")
