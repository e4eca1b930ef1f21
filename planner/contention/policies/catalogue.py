"""The network policies by name. A new one is a file in this folder and a line here."""

from __future__ import annotations

from typing import cast

from planner.contention.policies.records import NetworkPolicy
from planner.shared.made_by_name import class_of_ours, make_with
from profiles.errors import InputError

NETWORK_POLICIES: dict[str, str] = {
    "cassini": "planner.contention.policies.cassini:Cassini",
    "crux": "planner.contention.policies.crux:Crux",
    "crux-fair": "planner.contention.policies.crux_fair:CruxFair",
    "crux-pa": "planner.contention.policies.crux:CruxPriorities",
    "crux-ps-pa": "planner.contention.policies.crux:CruxPathsPriorities",
    "ecmp": "planner.contention.policies.unmanaged:Ecmp",
    "mixed": "planner.contention.policies.mixed:Mixed",
    "ours": "planner.contention.policies.ours:Ours",
    "sincronia": "planner.contention.policies.coflows:Sincronia",
    "spray": "planner.contention.policies.unmanaged:Spray",
    "static": "planner.contention.policies.unmanaged:Static",
    "tacclstar": "planner.contention.policies.taccl_star:TacclStar",
    "varys": "planner.contention.policies.coflows:Varys",
}
"""Name: the class that makes it; its keyword arguments are the policy's options."""


def make_network_policy(name: str, /, **options: object) -> NetworkPolicy:
    """Return a policy of that name with these options. Raise InputError, which names what there is, for an unknown
    name or option."""
    if name not in NETWORK_POLICIES:
        expected = "one of " + ", ".join(sorted(NETWORK_POLICIES))
        raise InputError(where="contention", key="--policy", found=name, expected=expected)
    made = make_with(
        class_of_ours(NETWORK_POLICIES[name]),
        options,
        where=f"policy {name}",
        key="--policy-option",
        methods=("decide",),
        kind="a network policy",
    )
    return cast("NetworkPolicy", made)
