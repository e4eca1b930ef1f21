"""A network policy as a command names it: with parts of others, options, limits on what it may answer, and errors in
what it is told."""

from __future__ import annotations

from collections.abc import Mapping

from planner.contention.policies.beliefs import Believing
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.constrained import Constrained
from planner.contention.policies.mixed import mixed_of
from planner.contention.policies.records import NetworkPolicy
from planner.contention.policies.weighing import WORTHS, Weighing
from profiles.errors import InputError


def assemble_policy(
    name: str,
    *,
    paths: str | None = None,
    priorities: str | None = None,
    compression: str | None = None,
    offsets: str | None = None,
    options: Mapping[str, object] | None = None,
    change_at_most: int | None = None,
    change_s: float = 0.0,
    holds_s: float = 3600.0,
    slowdown_cap: float = 0.0,
    believe: float = 0.0,
    seed: int = 0,
) -> NetworkPolicy:
    """Return the named policy, whose answers keep what is asked: jobs that may not change, at most `change_at_most`
    changes and none that costs more than it brings (`change_s` seconds of the job, while a decision holds for
    `holds_s`), `slowdown_cap` (0: none).

    Args:
        name: a policy of the catalogue, whose parts `paths`, `priorities`, `compression` and `offsets` replace by name.
        options: of the policy by itself; not with parts of others, which have none but `plays` and `seed`. Of all of
            them `worth`: `work`, or `weighted` by the jobs' weights.
        believe: the share by which what the policy is told is wrong.
        seed: of what is believed wrongly.

    Raises:
        InputError: a policy, a part or an option that there is not, or a figure that cannot be.
    """
    parts = {"paths": paths, "priorities": priorities, "compression": compression, "offsets": offsets}
    options = dict(options or {})
    worth = options.pop("worth", WORTHS[0])
    if worth not in WORTHS:
        expected = " or ".join(WORTHS)
        raise InputError(where="contention", key="--policy-option worth", found=str(worth), expected=expected)
    if any(part is not None for part in parts.values()):
        policy = _with_parts(name, parts, options)
    else:
        if name == "ours" and slowdown_cap:
            options.setdefault("slowdown_cap", slowdown_cap)
        policy = make_network_policy(name, **options)
    try:
        policy = Constrained(
            policy,
            change_at_most=change_at_most,
            change_s=change_s,
            holds_s=holds_s,
            slowdown_cap=slowdown_cap,
            searches=name == "ours",
        )
        policy = Weighing(policy) if worth == "weighted" else policy
        return Believing(policy, believe, seed) if believe else policy
    except ValueError as error:
        expected = "changes, costs and errors from 0, a cap of 1 or more"
        raise InputError(where="contention", key="--policy", found=str(error), expected=expected) from error


def _with_parts(name: str, parts: Mapping[str, str | None], options: Mapping[str, object]) -> NetworkPolicy:
    unknown = sorted(set(options) - {"plays", "seed"})
    if unknown:
        expected = "plays or seed, where parts of a policy are named"
        raise InputError(where="contention", key="--policy-option", found=unknown[0], expected=expected)
    chosen = mixed_of(
        name,
        paths=parts["paths"],
        priorities=parts["priorities"],
        compression=parts["compression"],
        offsets=parts["offsets"],
    ).parts
    return make_network_policy(
        "mixed",
        paths=chosen.paths,
        priorities=chosen.priorities,
        compression=chosen.compression,
        offsets=chosen.offsets,
        **options,
    )
