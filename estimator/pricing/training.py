"""A whole training from one iteration of it: how long, how many device-hours, what it costs, and what failures take."""

from __future__ import annotations

import math
from collections.abc import Sequence

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.upkeep import HOUR_S, power_w, price_per_hour
from profiles.cluster import Cluster, DeviceSlot
from profiles.prices import DevicePrice, priced_cluster
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

DAY_S = 86_400.0
JOULES_PER_KWH = 3.6e6

HOPELESS = 50.0
"""Failures that one checkpoint interval may expect (e to this power is how much longer it takes then)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeTraining:
    """A training that is to be paid for: on how many tokens, or samples of a model without tokens; how often a device
    fails, what saving and starting again take; what device-hours cost beside (or in place of) the cluster file's
    prices; and what it may cost, in the prices' currency, and how many days it may take (None: as much as it does).

    `sample_tokens`: the mean tokens of a sample, where samples are `packed` several to a sequence of the iteration's
    length, or else each is padded to one (None: they are as long). Tokens of padding are none of `tokens`.
    """

    tokens: float | None = None
    samples: float | None = None
    sample_tokens: float | None = None
    packed: bool = False
    failures_per_device_day: float = 0.0
    checkpoint_s: float = 0.0
    restart_s: float = 0.0
    prices: tuple[DevicePrice, ...] = ()
    budget: float | None = None
    days: float | None = None

    def __post_init__(self) -> None:
        if (self.tokens is None) == (self.samples is None) or (self.tokens or self.samples or 0) <= 0:
            raise ValueError(f"training: tokens={self.tokens}, samples={self.samples}; expected one, above 0")
        least = (self.failures_per_device_day, self.checkpoint_s, self.restart_s, self.budget or 0, self.days or 0)
        if min(least) < 0:
            raise ValueError(
                f"training: failures_per_device_day={self.failures_per_device_day}, checkpoint_s={self.checkpoint_s},"
                f" restart_s={self.restart_s}, budget={self.budget}, days={self.days}; expected none below 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration of a plan: how long, with its 90% interval, of how many samples of how many tokens (0: none), on
    which devices of a cluster."""

    time_s: float
    interval_90_s: tuple[float, float]
    samples: int
    seq_len: int
    cluster: Cluster
    slots: tuple[DeviceSlot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What a whole training takes.

    `compute_s` is all iterations without failures or checkpoints, `seconds` with them; `goodput` is their ratio.
    `checkpoint_interval_s` None: nothing fails, so nothing is saved. `failures` are those expected in `seconds`.
    `price` is in the currency of `price_basis`, which says what each type of device costs and who says so. None for
    `price` or `energy_joules`: its `_reason` says what is unknown. `interval_90` is the iteration's 90% interval as
    factors of its time: seconds, device-hours, price and energy are as uncertain. `samples_a_sequence` are packed
    together; `padding_share` of the tokens of an iteration are padding.
    """

    iterations: int
    compute_s: float
    seconds: float
    device_hours: float
    goodput: float
    checkpoint_interval_s: float | None
    failures: float
    price: float | None
    price_reason: str | None
    energy_joules: float | None
    energy_reason: str | None
    price_basis: tuple[str, ...] = ()
    interval_90: tuple[float, float] = (1.0, 1.0)
    samples_a_sequence: float = 1.0
    padding_share: float = 0.0

    @property
    def days(self) -> float:
        """`seconds` in days."""
        return self.seconds / DAY_S

    @property
    def energy_kwh(self) -> float | None:
        """`energy_joules` in kilowatt-hours."""
        return None if self.energy_joules is None else self.energy_joules / JOULES_PER_KWH

    def interval_of(self, amount: float) -> tuple[float, float]:
        """Return the 90% interval of one of the figures that go with the iteration's time."""
        low, high = self.interval_90
        return amount * low, amount * high


def estimate_training(
    evaluation: Evaluation,
    setup: Setup,
    *,
    train_tokens: float,
    failures_per_device_day: float = 0.0,
    checkpoint_s: float = 0.0,
    restart_s: float = 0.0,
) -> Training | Infeasible:
    """Return what training `setup` on `train_tokens` takes, as `train_wholly` has it, with `evaluation` its
    iteration."""
    whole = WholeTraining(
        tokens=train_tokens,
        failures_per_device_day=failures_per_device_day,
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
    )
    return train_wholly(whole, iteration_of(setup, evaluation))


def iteration_of(setup: Setup, evaluation: Evaluation) -> Iteration:
    """Return the iteration of a setup that `evaluation` prices."""
    return Iteration(
        time_s=evaluation.iteration_time_s,
        interval_90_s=evaluation.interval_90_s,
        samples=setup.recipe.global_batch,
        seq_len=setup.recipe.seq_len,
        cluster=setup.cluster,
        slots=tuple(slot for stage in setup.stages for slot in stage.slots),
    )


def train_wholly(whole: WholeTraining, iteration: Iteration) -> Training | Infeasible:
    """Return what `whole` takes by iterations that are all like `iteration`.

    Iterations are whole: ceil(tokens / (samples * seq_len)), of the tokens that are not padding. Devices fail
    independently, `failures_per_device_day`
    each, and any failure stops all: a failure every M = 86,400 s / (rate * devices) on average. `checkpoint_s` is how
    long training stands still for a checkpoint, `restart_s` how long from a failure to the first iteration after it.
    Price and energy count all of `seconds`, on every device. Infeasible where failures come so often that no checkpoint
    is reached. ValueError for tokens of a model without.
    """
    if whole.tokens is not None and not iteration.seq_len:
        raise ValueError(f"training: seq_len={iteration.seq_len}, tokens={whole.tokens}; expected samples")
    devices, checkpoint_s, restart_s = len(iteration.slots), whole.checkpoint_s, whole.restart_s
    together, padding = _filled(whole, iteration.seq_len)
    tokens = iteration.seq_len * (1 - padding)
    each = iteration.samples * (tokens if whole.tokens is not None else together)
    iterations = math.ceil((whole.tokens or whole.samples or 0) / each)
    compute_s = iterations * iteration.time_s
    failures_per_s = whole.failures_per_device_day * devices / DAY_S
    interval_s = None if failures_per_s == 0 else checkpoint_interval_s(failures_per_s, checkpoint_s)
    slowed = slowdown(failures_per_s, checkpoint_s, restart_s)
    if slowed is None:
        return Infeasible(
            reason=f"{devices} devices fail every {1 / failures_per_s:.3g} s, checkpoint and restart take"
            f" {checkpoint_s:.3g} s and {restart_s:.3g} s: the training never ends",
            lacking="support",
        )
    seconds = compute_s * slowed
    cluster = priced_cluster(iteration.cluster, whole.prices)
    hour, power = price_per_hour(cluster, iteration.slots), power_w(cluster, iteration.slots)
    low_s, high_s = iteration.interval_90_s
    return Training(
        iterations=iterations,
        compute_s=compute_s,
        seconds=seconds,
        device_hours=seconds * devices / HOUR_S,
        goodput=1 / slowed,
        checkpoint_interval_s=interval_s,
        failures=failures_per_s * seconds,
        price=None if isinstance(hour, Infeasible) else hour * seconds / HOUR_S,
        price_reason=hour.reason if isinstance(hour, Infeasible) else None,
        energy_joules=None if isinstance(power, Infeasible) else power * seconds,
        energy_reason=power.reason if isinstance(power, Infeasible) else None,
        price_basis=() if isinstance(hour, Infeasible) else price_basis(cluster, iteration.slots, whole.prices),
        interval_90=(low_s / iteration.time_s, high_s / iteration.time_s),
        samples_a_sequence=together,
        padding_share=padding,
    )


def _filled(whole: WholeTraining, seq_len: int) -> tuple[float, float]:
    """(samples in a sequence, share of it that is padding)."""
    if whole.sample_tokens is None:
        return 1.0, 0.0
    share = whole.sample_tokens / seq_len
    return (1 / share, 0.0) if whole.packed else (1.0, 1 - share)


def price_basis(cluster: Cluster, slots: Sequence[DeviceSlot], prices: Sequence[DevicePrice]) -> tuple[str, ...]:
    """Return what a device-hour of each type of `slots` costs, and who says so: one of `prices`, else the cluster's
    file."""
    by_device = {price.device: price for price in prices}
    phrases: dict[str, None] = {}
    for slot in slots:
        group = cluster.group_of(slot)
        if group.price_per_device_hour is not None:
            filed = DevicePrice(
                device=slot.device, price_per_device_hour=group.price_per_device_hour, source=cluster.text
            )
            phrases[by_device.get(slot.device, filed).basis] = None
    return tuple(phrases)


def over_limits(whole: WholeTraining, training: Training) -> tuple[str, ...]:
    """Return by how much a training is beyond the budget and the days of `whole`, a phrase each; empty where it is
    within. What has no price is within no budget."""
    phrases = []
    if whole.budget is not None and (training.price is None or training.price > whole.budget):
        costs = "its cost is not known" if training.price is None else f"it costs {say_amount(training.price)}"
        more = "" if training.price is None else f", {_times(training.price, whole.budget)}the budget"
        phrases.append(f"{costs}{more} of {say_amount(whole.budget)}" if more else f"{costs} (--budget)")
    if whole.days is not None and training.days > whole.days:
        phrases.append(f"it takes {training.days:.1f} days, {_times(training.days, whole.days)}the {whole.days:g}")
    return tuple(phrases)


def say_limits(whole: WholeTraining) -> str:
    """Return the budget and the days of `whole` as a phrase: 'a budget of 100,000 and 20 days'."""
    limits = [f"a budget of {say_amount(whole.budget)}"] if whole.budget is not None else []
    limits += [f"{whole.days:g} days"] if whole.days is not None else []
    return " and ".join(limits)


def say_amount(money: float) -> str:
    """Return an amount of money as people read it: whole from a hundred on.

    >>> say_amount(160748.2), say_amount(8.3487)
    ('160,748', '8.35')
    """
    return f"{money:,.0f}" if money >= 100 else f"{money:.3g}"


def _times(much: float, limit: float) -> str:
    """How far beyond a limit it is.

    >>> _times(12, 10), _times(120, 10)
    ('20.0% more than ', '12 times ')
    """
    if limit <= 0:
        return "more than "
    return f"{much / limit - 1:.1%} more than " if much < 10 * limit else f"{much / limit:,.0f} times "


def is_surely_within(whole: WholeTraining, training: Training) -> bool:
    """Return whether the far end of the 90% interval is within the limits of `whole` too."""
    high = training.interval_90[1]
    costs = whole.budget is None or (training.price is not None and training.price * high <= whole.budget)
    return costs and (whole.days is None or training.days * high <= whole.days)


def checkpoint_interval_s(failures_per_s: float, checkpoint_s: float) -> float:
    """Seconds of training between checkpoints that lose least, to first order: sqrt(2 * checkpoint_s * M), M the mean
    time between failures (Young 1974, equation 1; Daly 2006, section 2, without its restart term, which the optimum
    does not have to first order in checkpoint_s / M).

    >>> checkpoint_interval_s(1 / 20_000, 100)
    2000.0
    """
    return math.sqrt(2 * checkpoint_s / failures_per_s)


def slowdown(failures_per_s: float, checkpoint_s: float, restart_s: float) -> float | None:
    """Wall time over undisturbed time, checkpointing at Young's interval t; None where it exceeds e^50.

    exp(R / M) * (exp((t + d) / M) - 1) * M / t, with M the mean time between failures, d `checkpoint_s` and R
    `restart_s`: failures come at random, also while checkpointing and restarting (Daly 2006, equation 20).

    >>> slowdown(0.0, 100.0, 600.0)
    1.0
    >>> round(slowdown(1 / 20_000, 100.0, 600.0), 4)
    1.1408
    """
    if failures_per_s == 0:
        return 1.0
    restarting = failures_per_s * restart_s
    working = failures_per_s * checkpoint_interval_s(failures_per_s, checkpoint_s)
    saving = failures_per_s * checkpoint_s
    if restarting + working + saving > HOPELESS:
        return None
    # With free checkpoints the interval shrinks to nothing, and (exp(x) - 1) / x to 1.
    lost = math.expm1(working + saving) / working if working else 1.0
    return math.exp(restarting) * lost
