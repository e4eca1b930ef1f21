"""A whole training for people: each figure with its 90% interval, and whose prices it is by."""

from __future__ import annotations

from typing import Any

from planner.cli.output import print_notes


def print_training(training: dict[str, Any]) -> None:
    """The days, device-hours, cost and energy of a whole training, and what they rest on."""
    print_notes("the whole training:", describe_training(training))


def describe_training(training: dict[str, Any]) -> list[str]:
    """Return sentences about a whole training."""
    said = [
        f"{training['iterations']} iterations, {_with_interval(training, 'days', '.1f')} days,"
        f" {_with_interval(training, 'device_hours', ',.0f')} device-hours",
    ]
    interval_s = training["checkpoint_interval_s"]
    if interval_s is not None:
        every = (
            f"a checkpoint every {interval_s / 60:.1f} minutes"
            if interval_s
            else "checkpoints take no time (--checkpoint-time)"
        )
        said.append(f"goodput {training['goodput']:.1%}: {training['failures']:.1f} failures expected, {every}")
    said.append(
        f"price {_with_interval(training, 'price', ',.0f')}: {'; '.join(training['price_basis'])}"
        if training["price"] is not None
        else f"no price: {training['price_reason']}"
    )
    said.append(
        f"no energy: {training['energy_reason']}"
        if training["energy_kwh"] is None
        else f"{_with_interval(training, 'energy_kwh', ',.0f')} kWh, every device at {training['power_share']:.0%} of"
        " its power throughout, hosts and cooling not counted"
    )
    return said


def _with_interval(training: dict[str, Any], name: str, form: str) -> str:
    """A figure with its 90% interval.

    >>> _with_interval({"days": 2.0, "days_interval_90": [1.5, 2.5]}, "days", ".1f")
    '2.0 (90%: 1.5 to 2.5)'
    """
    low, high = training[f"{name}_interval_90"]
    return f"{training[name]:{form}} (90%: {low:{form}} to {high:{form}})"
