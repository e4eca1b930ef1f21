"""The policies by name. A new one is a file in `planner/scheduling/policies/` and a line here."""

from __future__ import annotations

from importlib import import_module
from inspect import isclass, signature
from typing import cast

from planner.scheduling.records import Policy
from profiles.errors import InputError

POLICIES: dict[str, str] = {
    "easy-backfill": "planner.scheduling.policies.backfill:EasyBackfill",
    "elasticflow": "planner.scheduling.policies.elasticflow:ElasticFlow",
    "elasticflow-ls": "planner.scheduling.policies.elasticflow:ElasticFlowLs",
    "fcfs": "planner.scheduling.policies.fcfs:Fcfs",
    "crius": "planner.scheduling.policies.crius:Crius",
    "crius-na": "planner.scheduling.policies.crius:CriusNA",
    "crius-nh": "planner.scheduling.policies.crius:CriusNH",
    "crius-ddl": "planner.scheduling.policies.crius:CriusDDL",
    "marginal": "planner.scheduling.policies.marginal:Marginal",
    "marginal-throughput": "planner.scheduling.policies.marginal:MarginalThroughput",
    "marginal-now": "planner.scheduling.policies.marginal:MarginalNow",
    "marginal-ddl": "planner.scheduling.policies.marginal:MarginalDDL",
    "gandiva": "planner.scheduling.policies.gandiva:Gandiva",
    "gang": "planner.scheduling.policies.gang:Gang",
    "gavel": "planner.scheduling.policies.gavel:Gavel",
    "pollux": "planner.scheduling.policies.pollux:Pollux",
    "priority": "planner.scheduling.policies.priority:PriorityPreemption",
    "quota": "planner.scheduling.policies.quota:Quota",
    "sia": "planner.scheduling.policies.sia:Sia",
    "sjf": "planner.scheduling.policies.sjf:ShortestFirst",
    "tiresias": "planner.scheduling.policies.tiresias:Tiresias",
}
"""Name: the class that makes it; its keyword arguments are the policy's options."""


def make_policy(name: str, **options: object) -> Policy:
    """The policy of that name, or of the user's `package.module:Class`; InputError names what there is."""
    place = POLICIES.get(name, name if ":" in name else None)
    if place is None:
        raise InputError(where="policy", key="--policy", found=name, expected="one of " + ", ".join(sorted(POLICIES)))
    module, _, made = place.partition(":")
    try:
        maker = getattr(import_module(module), made)
    except (ImportError, AttributeError) as error:
        raise InputError(where="policy", key="--policy", found=name, expected="a class that can be imported") from error
    try:
        return cast("Policy", maker(**options))
    except (TypeError, ValueError) as error:
        known = ", ".join(signature(maker).parameters) if isclass(maker) else ""
        expected = f"of its options ({known or 'it has none'}) what they can be"
        raise InputError(where=f"policy {name}", key="--option", found=str(error), expected=expected) from error
