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
        f"{training['iterations']} iterations, {_with_interval(training, 'days')} days,"
        f" {_with_interval(training, 'device_hours')} device-hours",
    ]
    if training["padding_share"] or training["samples_a_sequence"] != 1:
        said.append(_filling(training))
    interval_s = training["checkpoint_interval_s"]
    if interval_s is not None:
        every = (
            f"a checkpoint every {interval_s / 60:.1f} minutes"
            if interval_s
            else "checkpoints take no time (--checkpoint-time)"
        )
        said.append(f"goodput {training['goodput']:.1%}: {training['failures']:.1f} failures expected, {every}")
    said.append(
        f"price {_with_interval(training, 'price')}: {'; '.join(training['price_basis'])}"
        if training["price"] is not None
        else f"no price: {training['price_reason']}"
    )
    said.append(
        f"no energy: {training['energy_reason']}"
        if training["energy_kwh"] is None
        else f"{_with_interval(training, 'energy_kwh')} kWh, every device at {training['power_share']:.0%} of"
        " its power throughout, hosts and cooling not counted"
    )
    return said


def _filling(training: dict[str, Any]) -> str:
    """How much of the sequences samples fill."""
    if training["padding_share"]:
        return f"{training['padding_share']:.0%} of all tokens is padding, computed as any: packed (--packing) none is"
    return f"{training['samples_a_sequence']:.3g} samples packed to a sequence, attention over all of it"


def _with_interval(training: dict[str, Any], name: str) -> str:
    """A figure with its 90% interval.

    >>> _with_interval({"days": 212.0, "days_interval_90": [151.5, 252.25]}, "days")
    '212.0 (90%: 151.5 to 252.2)'
    """
    low, high = training[f"{name}_interval_90"]
    shown = [_amount(value, ".1f" if name == "days" else ",.0f") for value in (training[name], low, high)]
    return f"{shown[0]} (90%: {shown[1]} to {shown[2]})"


def _amount(value: float, form: str) -> str:
    """In the form, below ten with as many digits as it takes to see it."""
    return f"{value:{form}}" if value >= 10 else f"{value:.3g}"
