"""The rules of placement by name. A new one is a file in `planner/many_jobs/placers/` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from estimator.frontends.factory import find_factory, user_code
from models_zoo.user_code import UserFactory
from planner.many_jobs.placers.records import Placer
from planner.shared.made_by_name import class_of_ours, make_with
from profiles.errors import InputError

BEST_FIT = "best-fit"
"""The rule that the simulator has built in (`planner.many_jobs.simulation.placing`), which stands here as one to be
asked like the others."""

PLACERS: dict[str, str] = {
    "arnold": "planner.many_jobs.placers.arnold:Arnold",
    "best-fit": "planner.many_jobs.placers.best_fit:BestFit",
    "buddy": "planner.many_jobs.placers.buddy:Buddy",
    "elasticflow": "planner.many_jobs.placers.elasticflow:ElasticFlow",
    "first-fit": "planner.many_jobs.placers.first_fit:FirstFit",
    "fragmentation-gradient": "planner.many_jobs.placers.fragmentation_gradient:FragmentationGradient",
    "gandiva": "planner.many_jobs.placers.gandiva:Gandiva",
    "hived": "planner.many_jobs.placers.hived:HiveD",
    "hived-cells": "planner.many_jobs.placers.hived_cells:HiveDCells",
    "kube-pack": "planner.many_jobs.placers.kube:KubePack",
    "kube-spread": "planner.many_jobs.placers.kube:KubeSpread",
    "near-ends": "planner.many_jobs.placers.near_ends:NearEnds",
    "ours": "planner.many_jobs.placers.ours:Ours",
    "packed": "planner.many_jobs.placers.best_fit:Packed",
    "random": "planner.many_jobs.placers.random_nodes:RandomNodes",
    "same-switch": "planner.many_jobs.placers.same_switch:SameSwitch",
    "slurm": "planner.many_jobs.placers.slurm:Slurm",
    "tiresias": "planner.many_jobs.placers.tiresias:Tiresias",
    "titan": "planner.many_jobs.placers.titan:Titan",
    "trace": "planner.many_jobs.placers.trace:FromTrace",
}
"""Name: the class that makes it; its keyword arguments are the rule's options."""


MOVING = ("gandiva", "ours")
"""Those that also move running jobs (`planner.many_jobs.placers.moves.MovingPlacer`)."""


def make_placer(name: str, /, **options: object) -> Placer:
    """Return a new rule of that name with these options. Raise InputError, which names what there is, for an unknown
    name or option. Rules of the user's own are made by `make_users_placer`, apart from this process."""
    if name in PLACERS:
        return _made(name, class_of_ours(PLACERS[name]), options)
    expected = "one of " + ", ".join(sorted(PLACERS))
    if ":" in name:
        expected = "package.module:Class, named on the command line"
    raise InputError(where="placer", key="--placer", found=name, expected=expected)


def make_users_placer(factory: UserFactory, options: Mapping[str, object]) -> Placer:
    """Return a new rule of the user's, whose code runs in this process. Raise InputError as `make_placer`."""
    with user_code():
        return _made(factory.reference, find_factory(factory, "a rule of placement"), options)


def _made(name: str, maker: Callable[..., object], options: Mapping[str, object]) -> Placer:
    made = make_with(
        maker, options, where=f"placer {name}", key="--placer-option", methods=("place",), kind="a rule (POLICIES.md)"
    )
    return cast("Placer", made)
