"""The options of `place`: what is to be placed, over which sites, and into which pods."""

from __future__ import annotations

from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

from planner.shared.options.common import ClusterName, ModelName, PlanOutput, ReportFile
from planner.shared.options.later import LaterOptions
from planner.shared.options.machines import MachinesOptions
from planner.shared.options.record import Option
from planner.shared.options.search import SpaceOptions
from planner.shared.options.training import JOB
from planner.shared.options.values import NATURAL, NOW, PART, SECONDS
from planner.shared.options.whole import LimitedTrainingOptions
from profiles.errors import InputError
from profiles.numerals import read_whole
from profiles.records import dataclass

SitesMethod = Literal[
    "compact",
    "exact",
    "spin-search",
    "spin-search-free",
    "spin-search-from-local",
    "spin-search-from-local-free",
    "first-fit",
]
"""How sites are chosen: the names in `planner.many_jobs.sites.choosing.METHODS`, the default first."""
PodsMethod = Literal[
    "time",
    "spread",
    "arnold",
    "best-fit",
    "random-fit",
    "gpu-packing",
    "cluster-order",
    "kueue",
    "slurm",
    "topo-aware",
    "enumeration",
]
"""How pods are chosen inside sites: by estimated time, or by one of `planner.one_job.pods.methods.METHODS`."""
Distance = Literal["log", "printed"]
AXES = ("dp", "pp", "tp", "cp", "ep")

SITES = partial(Option, group="the sites")
PODS = partial(Option, group="the pods inside a site (docs/pods.md)")
LINKS = partial(Option, group="links between sites as they are now")


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(MachinesOptions, LaterOptions, LimitedTrainingOptions, SpaceOptions):
    """A job to place over the sites of a cluster, and into the pods of each."""

    command: ClassVar[str] = "place"

    model: ModelName = field(default="", kw_only=False)
    cluster: ClusterName = ""
    devices: Annotated[int | None, JOB("devices that the job wants")] = None
    plan: Annotated[Path | None, Option("place the plan in this file, in place of MODEL and --devices")] = None
    local: Annotated[str | None, SITES("the site that the job is submitted at: it is tried first", "SITE")] = None
    method: Annotated[
        PodsMethod | SitesMethod,
        Option(
            "how pods are chosen: by estimated time (default), least spread, the paper's way or a scheduler's; or how"
            " sites are: compact (default), exact, ...",
            "METHOD",
        ),
    ] = "time"
    types: Annotated[tuple[str, ...], SITES("device types to take, such as a100-80gb,h100")] = ()
    one_type: Annotated[bool, SITES("all devices are of one type")] = False
    all_sites: Annotated[bool, SITES("the plan uses every chosen site, also where thin links make it slower")] = False
    alternatives: Annotated[int, SITES("other ways to plan (default: %(default)s)", values=NATURAL)] = 6
    alpha: Annotated[
        float | None, PODS("what a DP group's spread weighs, 0 to 1 (default: by the affinity)", "A", PART)
    ] = None
    affinity: Annotated[
        Path | None,
        PODS("a database of gains (CSV), or shipped: that of the program (default: the estimator says them)"),
    ] = None
    distance: Annotated[Distance | None, PODS("how near its rows are: by logarithms (default), or as printed")] = None
    affinity_else: Annotated[
        Literal["refuse", "estimate"] | None, PODS("where the database lacks the device (default: refuse)")
    ] = None
    max_spread: Annotated[
        tuple[str, ...],
        PODS("a group of this axis touches so many pods at most, such as pp=1", "AXIS=N", repeated=True),
    ] = ()
    comm: Annotated[
        tuple[Path, ...],
        LINKS("what `comm measure --link north--south --json` printed, or measurements", "FILE", nargs="+"),
    ] = ()
    links: Annotated[
        Path | None, LINKS("the state of the links: read, and written where --comm adds to it", writes="file")
    ] = None
    half_life: Annotated[float, LINKS("age at which a measurement counts half (default: 3600)", "S", SECONDS)] = 3600.0
    now: Annotated[
        float | None,
        LINKS("seconds since 1970 to count ages to, and ends of jobs from (default: now)", "S", NOW),
    ] = None
    output: PlanOutput = None
    report: ReportFile = None

    @property
    def sites_method(self) -> SitesMethod:
        """How sites are chosen."""
        return next((name for name in get_args(SitesMethod) if name == self.method), "compact")

    @property
    def pods_method(self) -> PodsMethod:
        """How pods are chosen."""
        return next((name for name in get_args(PodsMethod) if name == self.method), "time")

    @property
    def most_pods(self) -> dict[str, int]:
        """The most pods that a group of each axis may touch."""
        return {axis: read_whole(count) for axis, _, count in (word.partition("=") for word in self.max_spread)}

    def check(self) -> None:
        """Raise InputError for a job that is said twice or not at all, a schedule that plans over sites have not, a
        device type said twice, or what says nothing without another option."""
        super().check()
        self.refuse_prices()
        self._check_job()
        self._check_pods()
        self.check_later()
        self.check_machines()
        for name in ("half_life", "now"):
            timed = self.comm or self.links is not None or (name == "now" and self.running is not None)
            if name in self.changed() and not timed:
                raise self.wrong(name, found=getattr(self, name), expected="--comm or --links beside it")
        if self.schedule not in (None, ("1f1b",)):
            raise self.wrong("schedule", found=",".join(self.schedule), expected="1f1b, which plans over sites have")
        if len(set(self.types)) != len(self.types):
            raise self.wrong("types", found=",".join(self.types), expected="each type once")

    def _check_job(self) -> None:
        if self.plan is None:
            for name in ("model", "cluster", "devices"):
                value = getattr(self, name)
                if not value:
                    expected = "what is to be placed, or --plan FILE in its place"
                    raise self.wrong(name, found="nothing" if value in (None, "") else value, expected=expected)
            return
        if self.topology is not None and not self.cluster:
            raise self.wrong("topology", found="--plan without --cluster", expected="--cluster C beside it")
        fitting = (
            "plan", "cluster", "topology", "free", "lenient", "method", "alternatives", "alpha", "affinity",
            "distance", "affinity_else", "max_spread", "output", "store", "memory_margin", "train_tokens",
            "train_samples", "packing", "padding", "failure_rate", "checkpoint_time", "restart_time", "price", "prices",
            "budget", "days",
            "running", "jct", "move", "move_time", "reserve", "spares", "replace", "measure_affinity", "now",
        )  # fmt: skip
        others = [name for name in self.changed() if name not in fitting]
        if others:
            raise self.wrong(others[0], found=getattr(self, others[0]), expected="--plan alone: the plan says it")
        if self.method in get_args(SitesMethod):
            raise self.wrong("method", found=self.method, expected="how pods are chosen: the plan has its sites")

    def _check_pods(self) -> None:
        for name in ("distance", "affinity_else"):
            if getattr(self, name) is not None and self.affinity is None:
                raise self.wrong(name, found=getattr(self, name), expected="--affinity beside it")
        if self.alpha is not None and self.affinity is not None:
            raise self.wrong("alpha", found="--affinity too", expected="one of them")
        for word in self.max_spread:
            axis, _, count = word.partition("=")
            try:
                fits = axis in AXES and read_whole(count) >= 1
            except ValueError:
                fits = False
            if not fits:
                expected = f"AXIS=N, an axis of {', '.join(AXES)} and at least 1"
                raise InputError(where=self.command, key="--max-spread", found=repr(word), expected=expected)
        if len({word.partition("=")[0] for word in self.max_spread}) < len(self.max_spread):
            raise self.wrong("max_spread", found=" ".join(self.max_spread), expected="each axis once")
