"""The policies by name. A new one is a file in `planner/many_jobs/policies/` and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from estimator.frontends.factory import find_factory, user_code
from models_zoo.user_code import UserFactory
from planner.many_jobs.jobs.records import Policy
from planner.shared.made_by_name import class_of_ours, make_with
from profiles.errors import InputError

POLICIES: dict[str, str] = {
    "arnold": "planner.many_jobs.policies.arnold:Arnold",
    "easy-backfill": "planner.many_jobs.policies.backfill:EasyBackfill",
    "elasticflow": "planner.many_jobs.policies.elasticflow:ElasticFlow",
    "elasticflow-ls": "planner.many_jobs.policies.elasticflow:ElasticFlowLs",
    "fcfs": "planner.many_jobs.policies.fcfs:Fcfs",
    "crius": "planner.many_jobs.policies.crius:Crius",
    "crius-na": "planner.many_jobs.policies.crius:CriusNA",
    "crius-nh": "planner.many_jobs.policies.crius:CriusNH",
    "crius-ddl": "planner.many_jobs.policies.crius:CriusDDL",
    "marginal": "planner.many_jobs.policies.marginal:Marginal",
    "marginal-throughput": "planner.many_jobs.policies.marginal:MarginalThroughput",
    "marginal-now": "planner.many_jobs.policies.marginal:MarginalNow",
    "marginal-ddl": "planner.many_jobs.policies.marginal:MarginalDDL",
    "gandiva": "planner.many_jobs.policies.gandiva:Gandiva",
    "gang": "planner.many_jobs.policies.gang:Gang",
    "gavel": "planner.many_jobs.policies.gavel:Gavel",
    "hived": "planner.many_jobs.policies.hived:HiveD",
    "muri": "planner.many_jobs.policies.muri:Muri",
    "muri-s": "planner.many_jobs.policies.muri:MuriS",
    "pollux": "planner.many_jobs.policies.pollux:Pollux",
    "priority": "planner.many_jobs.policies.priority:PriorityPreemption",
    "quota": "planner.many_jobs.policies.quota:Quota",
    "sia": "planner.many_jobs.policies.sia:Sia",
    "dt-fm": "planner.many_jobs.policies.dt_fm:DtFm",
    "global-ilp": "planner.many_jobs.policies.global_ilp:GlobalIlp",
    "lyra": "planner.many_jobs.policies.lyra:Lyra",
    "opportunistic": "planner.many_jobs.policies.opportunistic:Opportunistic",
    "mast": "planner.many_jobs.policies.mast:Mast",
    "spiderflow": "planner.many_jobs.policies.spiderflow:SpiderFlow",
    "spiderflow-no-spin": "planner.many_jobs.policies.spiderflow:SpiderFlowNoSpin",
    "spiderflow-no-tpa": "planner.many_jobs.policies.spiderflow:SpiderFlowNoTpa",
    "sjf": "planner.many_jobs.policies.sjf:ShortestFirst",
    "tiresias": "planner.many_jobs.policies.tiresias:Tiresias",
}
"""Name: the class that makes it; its keyword arguments are the policy's options."""


def make_policy(name: str, /, **options: object) -> Policy:
    """Return a new policy of that name with these options. Raise InputError, which names what there is, for an unknown
    name or option. Policies of the user's own are made by `planner.many_jobs.policies.user_policy`."""
    if name in POLICIES:
        return _made(name, class_of_ours(POLICIES[name]), options)
    expected = "one of " + ", ".join(sorted(POLICIES))
    if ":" in name:
        expected = "package.module:Class, named on the command line"
    raise InputError(where="policy", key="--policy", found=name, expected=expected)


def make_here(factory: UserFactory, options: Mapping[str, object]) -> Policy:
    """Return a new policy of the user's, whose code runs in this process. Raise InputError as `make_policy`."""
    with user_code():
        return _made(factory.reference, find_factory(factory, "a policy"), options)


def _made(name: str, maker: Callable[..., object], options: Mapping[str, object]) -> Policy:
    made = make_with(
        maker,
        options,
        where=f"policy {name}",
        key="--option",
        methods=("decide", "state", "restore"),
        kind="a policy (POLICIES.md)",
    )
    return cast("Policy", made)
