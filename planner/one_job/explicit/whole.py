"""A whole training as the options ask for it: what it takes, as values that `json.dumps` takes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.training import Iteration, Training, WholeTraining, iteration_of, train_wholly
from estimator.pricing.upkeep import POWER_SHARE
from planner.one_job.explicit.batch import refuse
from planner.shared.inputs import load_any_place
from planner.shared.options.whole import WholeTrainingOptions
from profiles.prices import DevicePrice, read_prices
from profiles.vocabulary import Infeasible


def read_whole(options: WholeTrainingOptions) -> WholeTraining | None:
    """Return the whole training that `options` ask for, with its prices read; None where they ask for none. Raise
    InputError where a price is none."""
    if not options.is_whole:
        return None
    return WholeTraining(
        tokens=options.train_tokens,
        samples=options.train_samples,
        sample_tokens=options.packing or options.padding,
        packed=options.packing is not None,
        failures_per_device_day=options.failure_rate,
        checkpoint_s=options.checkpoint_time,
        restart_s=options.restart_time,
        prices=prices_of(options),
        budget=getattr(options, "budget", None),
        days=getattr(options, "days", None),
    )


def prices_of(options: WholeTrainingOptions) -> tuple[DevicePrice, ...]:
    """Return what device-hours cost by `options`. Raise InputError where a price is none, or where `--price` names a
    device that the clusters of the options have not."""
    prices = read_prices(options.price, options.prices)
    clusters = [getattr(options, "cluster", None), *getattr(options, "beside", ())]
    if not options.price or None in clusters:
        return prices
    types = tuple(dict.fromkeys(name for text in clusters if text for name in load_any_place(text).device_types))
    for price in prices:
        if price.source == "--price" and price.device not in types:
            refuse("--price", price.device, f"a device of the cluster: {', '.join(types)}")
    return prices


def train_setup(setup: Setup, evaluation: Evaluation, options: WholeTrainingOptions | None) -> Training | None:
    """Return what the whole training that `options` ask for takes by a setup that `evaluation` prices; None where they
    ask for none. Raise InputError as `train_by`."""
    whole = None if options is None else read_whole(options)
    return None if whole is None else train_by(whole, iteration_of(setup, evaluation), model=setup.model.name)


def train_by(whole: WholeTraining, iteration: Iteration, *, model: str) -> Training:
    """Return what `whole` takes by such iterations. Raise InputError for tokens of a model without, for a training that
    never ends, and for the price of a device that the cluster has not."""
    if whole.tokens is not None and not iteration.seq_len:
        refuse("--train-tokens", f"{whole.tokens:g}", f"none: {model} has no tokens (--train-samples)")
    if whole.sample_tokens is not None and whole.sample_tokens > iteration.seq_len:
        flag = "--packing" if whole.packed else "--padding"
        refuse(flag, f"{whole.sample_tokens:g}", f"at most the {iteration.seq_len} tokens of a sequence (--seq-len)")
    training = train_wholly(whole, iteration)
    if isinstance(training, Infeasible):
        refuse("--failure-rate", training.reason, "a training that ends")
    return training


def describe_training(training: Training) -> dict[str, Any]:
    """Return a whole training as a value that `json.dumps` takes: each figure with its 90% interval; the power rule is
    part of the answer."""
    figures = {
        "days": training.days,
        "device_hours": training.device_hours,
        "price": training.price,
        "energy_kwh": training.energy_kwh,
    }
    described = asdict(training) | figures | {"power_share": POWER_SHARE, "price_basis": list(training.price_basis)}
    del described["interval_90"]
    intervals = {
        f"{name}_interval_90": None if amount is None else list(training.interval_of(amount))
        for name, amount in figures.items()
    }
    return described | intervals
