"""The options of a whole training: what it takes, what it costs, what it may cost."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

from planner.shared.options.record import Option, Options
from planner.shared.options.values import DURATION, FAILURES, LARGE, RATE, TRAINED
from profiles.records import dataclass

WHOLE = partial(Option, group="the whole training: days, device-hours, cost and energy, each with its 90% interval")
NEED_AMOUNT = ("failure_rate", "checkpoint_time", "restart_time", "budget", "days", "packing", "padding")


@dataclass(frozen=True, kw_only=True)
class WholeTrainingOptions(Options):
    """A whole training: tokens (or samples), how many tokens samples have where these are fewer than a sequence's,
    failures of a device a day, seconds of a checkpoint and of a restart, and what device-hours cost."""

    train_tokens: Annotated[float | None, WHOLE("tokens of the whole training, such as 1.4T", "N", TRAINED)] = None
    train_samples: Annotated[
        float | None, WHOLE("samples of the whole training, in place of tokens, such as 90M", "N", TRAINED)
    ] = None
    packing: Annotated[
        float | None, WHOLE("samples of so many tokens on average, packed several to a sequence", "MEAN", RATE)
    ] = None
    padding: Annotated[
        float | None, WHOLE("samples of so many tokens on average, each padded to a sequence of its own", "MEAN", RATE)
    ] = None
    failure_rate: Annotated[float, WHOLE("failures per device and day", "F", FAILURES)] = 0.0
    checkpoint_time: Annotated[float, WHOLE("seconds that saving a checkpoint stops training", "S", DURATION)] = 0.0
    restart_time: Annotated[float, WHOLE("seconds from a failure to training again", "S", DURATION)] = 0.0
    price: Annotated[
        tuple[str, ...],
        WHOLE("what a device-hour costs you, such as h100=2.5; once for each type", "DEVICE=PRICE", repeated=True),
    ] = ()
    prices: Annotated[Path | None, WHOLE("a dated file of prices of yours (docs/money.md)")] = None

    @property
    def is_whole(self) -> bool:
        """Whether a whole training is asked for."""
        return self.train_tokens is not None or self.train_samples is not None

    def check(self) -> None:
        """Raise InputError for tokens and samples at once, and for what says nothing without either."""
        super().check()
        if self.train_tokens is not None and self.train_samples is not None:
            raise self.wrong("train_samples", found="--train-tokens too", expected="one of them")
        if self.packing is not None and self.padding is not None:
            raise self.wrong("padding", found="--packing too", expected="one of them")
        for name in () if self.is_whole else NEED_AMOUNT:
            value = getattr(self, name, None)
            if value:
                raise self.wrong(name, found=value, expected="--train-tokens beside it")

    def refuse_prices(self) -> None:
        """Raise InputError for prices where there is no whole training that they are of."""
        for name in () if self.is_whole else ("price", "prices"):
            if getattr(self, name):
                expected = "--train-tokens beside it"
                raise self.wrong(name, found=self.price or self.prices, expected=expected)


@dataclass(frozen=True, kw_only=True)
class LimitedTrainingOptions(WholeTrainingOptions):
    """What a whole training may cost, and how long it may take."""

    budget: Annotated[float | None, WHOLE("what it may cost: the fastest within is chosen", "MONEY", LARGE)] = None
    days: Annotated[float | None, WHOLE("how long it may take: the cheapest within is chosen", "D", LARGE)] = None
