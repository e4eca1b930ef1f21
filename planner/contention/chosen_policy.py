"""Which network policy was asked for: by its name, with other parts in the place of its own, or code of the user's; and
what its answer is held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from estimator.network.steps import Playing
from planner.contention.contention_file import PolicyRow
from planner.contention.planning import Decide, decided_by
from planner.contention.policies.assembling import assemble_policy
from planner.contention.policies.beliefs import Believing
from planner.contention.policies.catalogue import NETWORK_POLICIES
from planner.contention.policies.constrained import Constrained
from planner.contention.policies.mixed import PARTS_OF, Mixed
from planner.contention.policies.ours import Ours
from planner.contention.policies.records import NetworkPolicy
from planner.contention.users_policy import UsersPolicy
from planner.shared.options.contention import NetworkDecisionOptions
from profiles.records import dataclass

PART_NAMES = ("paths", "priorities", "compression", "offsets")
NO_PART = "none"
WITH_OWN_LEVELS = (NO_PART, "ours", "static")
"""Priorities that come with levels, so that nothing is compressed."""

Told = Callable[[int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChosenPolicy:
    """The policy that was asked for, and how the file names it. `unlimited`: it gives each job a level of its own,
    however few the fabric has; `is_static`: levels are the users' own."""

    policy: NetworkPolicy
    row: PolicyRow
    unlimited: bool
    is_static: bool
    keep_paths: bool
    slowdown_cap: float | None

    def decide(self, *, error: float = 0.0, seed: int = 0) -> Decide:
        """Return what decides by it; as it does where W, t and periods that it believes are wrong by the share `error`,
        drawn by the seed, whatever that does to a cap."""
        policy = Believing(self.policy, error, seed) if error else self.policy
        cap = None if error else self.slowdown_cap
        decide = decided_by(policy, keep_paths=self.keep_paths, slowdown_cap=cap)
        return (lambda view: decide(replace(view, levels=None))) if self.unlimited else decide

    @property
    def searching(self) -> Ours | None:
        """The search by simulation inside it."""
        return next((part for part in _inside(self.policy) if isinstance(part, Ours)), None)

    def tell(self, told: Told) -> None:
        """Let `told` hear how many cases its search has played so far."""
        searching = self.searching
        if searching is not None:
            searching.rates = _counted(searching.rates, told)


def choose_policy(options: NetworkDecisionOptions) -> ChosenPolicy:
    """Return the policy that is asked for. Raise InputError for a policy, a part or an option that there is not, and
    for parts beside what has none."""
    stated = dict(options.policy_option or {})
    parts = {name: getattr(options, name) for name in PART_NAMES}
    policy = _users(options, stated) or _ours(options, parts, stated)
    mixed = next((part for part in _inside(policy) if isinstance(part, Mixed)), None)
    own = PARTS_OF.get(options.policy) if mixed is None else mixed.parts
    rows: dict[str, Any] = {name: None if own is None else getattr(own, name) for name in PART_NAMES}
    return ChosenPolicy(
        policy=policy,
        row=PolicyRow(name=options.policy, options=stated, **rows),
        unlimited=own is not None and own.compression == NO_PART and own.priorities not in WITH_OWN_LEVELS,
        is_static=own is not None and own.priorities == "static",
        keep_paths=options.keep_paths,
        slowdown_cap=options.slowdown_cap,
    )


def _ours(options: NetworkDecisionOptions, parts: dict[str, Any], stated: dict[str, Any]) -> NetworkPolicy:
    if options.policy not in NETWORK_POLICIES:
        expected = "one of " + ", ".join(sorted(NETWORK_POLICIES)) + ", or package.module:Class"
        raise options.wrong("policy", found=repr(options.policy), expected=expected)
    if options.slowdown_cap is not None and "slowdown_cap" in stated:
        raise options.wrong("slowdown_cap", found="it beside --policy-option slowdown_cap", expected="one of them")
    if options.policy == "mixed":
        stated, parts = {**stated, **{name: part for name, part in parts.items() if part}}, {}
    return assemble_policy(
        options.policy,
        **parts,
        options=stated,
        change_at_most=options.change_at_most,
        slowdown_cap=options.slowdown_cap or 0.0,
    )


def _users(options: NetworkDecisionOptions, stated: dict[str, Any]) -> NetworkPolicy | None:
    factory = options.user_code.factory(options.policy)
    if factory is None:
        return None
    named = next((part for part in PART_NAMES if getattr(options, part)), None)
    if named is not None:
        expected = "a policy of ours, which is made of parts"
        raise options.wrong(named, found=f"it beside {options.policy}", expected=expected)
    policy = UsersPolicy(factory, stated)
    if options.change_at_most is None and options.slowdown_cap is None:
        return policy
    return Constrained(policy, change_at_most=options.change_at_most, slowdown_cap=options.slowdown_cap or 0.0)


def _inside(policy: NetworkPolicy) -> list[object]:
    """The policy, the one that it holds to something, and so on."""
    chain: list[object] = []
    inner: object = policy
    while inner is not None:
        chain.append(inner)
        inner = getattr(inner, "policy", None)
    return chain


def _counted(rates: Callable[..., Sequence[float]], told: Told) -> Callable[..., Sequence[float]]:
    count = 0

    def counted(jobs: Sequence[Playing], bytes_per_s: Sequence[float]) -> Sequence[float]:
        nonlocal count
        count += 1
        told(count)
        return rates(jobs, bytes_per_s)

    return counted
