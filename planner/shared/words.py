"""Words for people that results and what is printed of them share."""

from __future__ import annotations

RUN_PARTS = {
    "compute_s": "compute",
    "tp_s": "tensor-parallel communication",
    "waiting_s": "waiting for other stages",
    "dp_s": "gradients and weights of the replicas",
    "optimizer_s": "optimizer",
    "other_s": "other",
}
"""Parts of a measured iteration, and their names for people."""


def percent(share: float) -> str:
    """A change with its sign, in as many digits as it takes to see it.

    >>> percent(-0.0123), percent(0.0004), percent(0.0), percent(1.5)
    ('-1.2%', '+0.04%', '0%', '+150%')
    """
    if abs(share) < 5e-5:
        return "0%"
    digits = 2 if abs(share) < 1e-3 else 1 if abs(share) < 1 else 0
    return f"{share:+.{digits}%}"
