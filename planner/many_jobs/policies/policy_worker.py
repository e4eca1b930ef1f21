"""The process in which a user's policy is first imported and made: `user_policy.py` asks for it."""

from __future__ import annotations

import builtins
from typing import Any

from estimator.frontends.factory import add_to_path
from estimator.host.user_process import serve
from models_zoo.user_code import UserFactory
from planner.many_jobs.policies.catalogue import make_here
from profiles.errors import InputError


def make(question: dict[str, Any]) -> str:
    """Make the policy and return its name. Raise InputError where it cannot be had, or changes what all code uses."""
    before = dict(vars(builtins))
    add_to_path(question["path"])
    policy = make_here(UserFactory(reference=question["reference"]), question["options"])
    changed = sorted(name for name, value in vars(builtins).items() if before.get(name) is not value and name != "_")
    if changed:
        stated = f"code that changes Python's own {', '.join(changed[:5])}"
        expected = "one that leaves them alone: it decides in the simulation's own process"
        raise InputError(where=f"policy {question['reference']}", found=stated, expected=expected)
    return policy.name


if __name__ == "__main__":
    serve(make)
