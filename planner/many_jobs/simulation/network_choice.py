"""The policy that decides on the network of a simulation, as its options name it."""

from __future__ import annotations

from collections.abc import Mapping

from models_zoo.user_code import UserFactory
from planner.contention.policies.assembling import assemble_policy
from planner.contention.policies.catalogue import NETWORK_POLICIES
from planner.contention.policies.records import NetworkPolicy
from planner.contention.users_policy import UsersPolicy
from planner.shared.options.simulate import PolicyOption, ReplayOptions
from profiles.errors import InputError
from profiles.records import dataclass

LEVELS = 8
"""Of a fabric of which nobody says how many it leaves free, as Crux's simulator assumes (section 6.1)."""
OPTION = "--network-option"
WITHOUT_POLICY = ("none", "fair")
"""Networks on which nobody decides."""
OF_POLICIES = ("network_levels", "network_change_s", "network_change_at_most")
"""Options for those on which somebody does, whoever it is."""
ONLINE: Mapping[str, Mapping[str, PolicyOption]] = {
    "ours": {"plays": 30, "exact": 300, "axes": False, "offsets": False},
}
"""What policies that play cases take for each of many decisions, where nobody says otherwise: their own defaults are
for a single one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSteering:
    """A policy by name with its options, and how it is let: `levels` that the fabric leaves free, what a change of a
    job costs it, and of how many jobs a decision may change anything (None: of all). `factory`: the name is code of the
    user's."""

    name: str
    options: tuple[tuple[str, PolicyOption], ...] = ()
    levels: int = LEVELS
    change_s: float = 0.0
    change_at_most: int | None = None
    factory: UserFactory | None = None

    def policy(self) -> NetworkPolicy:
        """Return the policy, which leaves jobs as they are that may not change. Raise InputError for an option that it
        has not."""
        if self.factory is not None:
            return UsersPolicy(self.factory, dict(self.options), key=OPTION, kind="network policy")
        return assemble_policy(self.name, options=dict(self.options))

    def try_users(self) -> None:
        """Let code of the user's be imported and made. Raise InputError where it cannot be, MachineError where it takes
        too much."""
        policy = self.policy()
        if isinstance(policy, UsersPolicy):
            policy.try_apart()

    @property
    def label(self) -> str:
        """All of it in a text."""
        return repr((self.name, self.options, self.levels, self.change_s, self.change_at_most))

    @property
    def note(self) -> str:
        """What is said of it beside a run's figures."""
        given = "".join(f", {name}={value}" for name, value in self.options)
        levels = "1 level" if self.levels == 1 else f"{self.levels} levels"
        most = "" if self.change_at_most is None else f"; of {self.change_at_most} jobs at most a decision"
        return (
            f"{self.name} ({levels}{given}) decides over paths and levels whenever a job comes to"
            f" the fabric or leaves it; one whose paths or level change while it runs stands still for"
            f" {self.change_s:g} s{most}"
        )


def network_steering(options: ReplayOptions) -> NetworkSteering | None:
    """Return who decides on the network; None where nobody does. Raise InputError for a network that there is not, for
    options that the policy has not, and for those of a policy where there is none."""
    if options.network in WITHOUT_POLICY:
        for name in ("network_option", *OF_POLICIES):
            if getattr(options, name) not in (None, {}):
                key = f"--{name.replace('_', '-')}"
                expected = "--network with a policy that decides: " + ", ".join(sorted(NETWORK_POLICIES))
                raise InputError(where="simulate", key=key, found=f"--network {options.network}", expected=expected)
        return None
    factory = options.user_code.factory(options.network)
    if options.network not in NETWORK_POLICIES and factory is None:
        expected = "none, fair, one of " + ", ".join(sorted(NETWORK_POLICIES)) + ", or package.module:Class"
        raise InputError(where="simulate", key="--network", found=options.network, expected=expected)
    given = {**ONLINE.get(options.network, {}), **(options.network_option or {})}
    steering = NetworkSteering(
        name=options.network,
        options=tuple(sorted(given.items())),
        levels=LEVELS if options.network_levels is None else options.network_levels,
        change_s=options.network_change_s or 0.0,
        change_at_most=options.network_change_at_most,
        factory=factory,
    )
    try:
        steering.policy()
    except InputError as error:
        key = error.key.replace("--policy-option", OPTION) if error.key else OPTION
        raise InputError(where="simulate", key=key, found=error.found, expected=error.expected) from error
    return steering
