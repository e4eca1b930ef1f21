"""A whole training from one iteration of it: how long, how many device-hours, what it costs, and what failures take."""

from __future__ import annotations

import math

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from estimator.pricing.upkeep import HOUR_S, power_w, price_per_hour
from profiles.records import dataclass
from profiles.vocabulary import Infeasible

DAY_S = 86_400.0
JOULES_PER_KWH = 3.6e6

HOPELESS = 50.0
"""Failures that one checkpoint interval may expect (e to this power is how much longer it takes then)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What training on a number of tokens takes.

    `compute_s` is all iterations without failures or checkpoints, `seconds` with them; `goodput` is their ratio.
    `checkpoint_interval_s` None: nothing fails, so nothing is saved. `failures` are those expected in `seconds`.
    `price` is in the cluster file's currency. None for `price` or `energy_joules`: its `_reason` says what is unknown.
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

    @property
    def days(self) -> float:
        """`seconds` in days."""
        return self.seconds / DAY_S

    @property
    def energy_kwh(self) -> float | None:
        """`energy_joules` in kilowatt-hours."""
        return None if self.energy_joules is None else self.energy_joules / JOULES_PER_KWH


def estimate_training(
    evaluation: Evaluation,
    setup: Setup,
    *,
    train_tokens: float,
    failures_per_device_day: float = 0.0,
    checkpoint_s: float = 0.0,
    restart_s: float = 0.0,
) -> Training | Infeasible:
    """What training `setup` on `train_tokens` takes, with `evaluation` its iteration.

    Iterations are whole: ceil(train_tokens / (global_batch * seq_len)). Devices fail independently,
    `failures_per_device_day` each, and any failure stops all: a failure every M = 86,400 s / (rate * devices) on
    average. `checkpoint_s` is how long training stands still for a checkpoint, `restart_s` how long from a failure to
    the first iteration after it. Price and energy count all of `seconds`, on every device of the setup.
    Infeasible where failures come so often that no checkpoint is reached. ValueError for a model without tokens and for
    negative figures.
    """
    recipe, devices = setup.recipe, setup.devices
    if not recipe.seq_len or train_tokens <= 0:
        raise ValueError(f"training: seq_len={recipe.seq_len}, train_tokens={train_tokens}; expected both above 0")
    if min(failures_per_device_day, checkpoint_s, restart_s) < 0:
        raise ValueError(
            f"training: failures_per_device_day={failures_per_device_day}, checkpoint_s={checkpoint_s},"
            f" restart_s={restart_s}; expected none below 0"
        )
    iterations = math.ceil(train_tokens / (recipe.global_batch * recipe.seq_len))
    compute_s = iterations * evaluation.iteration_time_s
    failures_per_s = failures_per_device_day * devices / DAY_S
    interval_s = None if failures_per_s == 0 else checkpoint_interval_s(failures_per_s, checkpoint_s)
    slowed = slowdown(failures_per_s, checkpoint_s, restart_s)
    if slowed is None:
        return Infeasible(
            reason=f"{devices} devices fail every {1 / failures_per_s:.3g} s, checkpoint and restart take"
            f" {checkpoint_s:.3g} s and {restart_s:.3g} s: the training never ends",
            lacking="support",
        )
    seconds = compute_s * slowed
    slots = [slot for stage in setup.stages for slot in stage.slots]
    hour, power = price_per_hour(setup.cluster, slots), power_w(setup.cluster, slots)
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
    )


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
