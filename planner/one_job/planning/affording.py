"""Which cluster, and how many of its devices, for a whole training within a budget or so many days."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from estimator.pricing.training import Training, WholeTraining, is_surely_within, over_limits, say_limits
from planner.one_job.explicit.whole import read_whole
from planner.one_job.planning.choices import Choice, best_choice, each_cluster, fewer_devices
from planner.shared.inputs import load_any_place
from planner.shared.options.search import AffordOptions, SideBySideOptions
from planner.shared.plan_file import save_plan
from profiles.errors import NothingFits
from profiles.records import dataclass


@dataclass(frozen=True, kw_only=True)
class Affordable:
    """What was looked at, cluster by cluster, most devices first, and which of it is chosen (None: nothing is within
    the limits). `nothing`: clusters on which no plan fits, with the reason."""

    whole: WholeTraining
    choices: tuple[Choice, ...]
    chosen: Choice | None
    nothing: tuple[Choice, ...] = ()

    @property
    def limits(self) -> str:
        """Return the budget and the days as a phrase."""
        return say_limits(self.whole)

    @property
    def sure(self) -> Choice | None:
        """The one that would be taken if the far ends of the 90% intervals had to be within too, of what was looked
        at."""
        surely = [choice for choice in self.choices if self.is_sure(choice)]
        return choose_within(self.whole, tuple(surely)).chosen

    def is_sure(self, choice: Choice) -> bool:
        """Return whether the far end of a choice's 90% interval is within the limits too."""
        return is_surely_within(self.whole, training_of(choice))

    def over(self, choice: Choice) -> tuple[str, ...]:
        """Return by how much a choice is beyond the limits, a phrase each."""
        return over_limits(self.whole, training_of(choice))

    def as_dict(self) -> dict[str, Any]:
        """Return it as values that `json.dumps` takes."""
        return {
            "choices": [
                choice.as_dict()
                | {
                    "chosen": choice is self.chosen,
                    "within": not self.over(choice),
                    "surely_within": self.is_sure(choice),
                    "over": list(self.over(choice)),
                }
                for choice in self.choices
            ]
            + [choice.as_dict() | {"chosen": False, "within": False} for choice in self.nothing],
            "budget": self.whole.budget,
            "days": self.whole.days,
            "surely_within": None if self.sure is None else self.choices.index(self.sure),
            "nearest_miss": None if self.chosen else describe_miss(self),
            "assumption_effects": [] if self.chosen is None else [asdict(effect) for effect in self.chosen.effects()],
        }


def training_of(choice: Choice) -> Training:
    """Return the whole training of a choice that has one."""
    if choice.training is None:
        raise ValueError(f"{choice.cluster}: no whole training; expected one of a plan that fits")
    return choice.training


def afford(options: AffordOptions) -> Affordable:
    """Return the fastest training within the budget, or, where days are limited, the cheapest that is within them (and
    within the budget), over fewer and fewer devices of each cluster; write its plan where the options say. Raise
    InputError where a limit can be told of no price, NothingFits, with what was looked at, where nothing is within.

    On so many devices at most the fastest plan is the cheapest that uses all of them. Fewer devices are never faster
    (a plan may leave devices idle): below the first number that takes too many days, none is looked at; and of those
    within a budget alone, the largest number is a cluster's fastest.
    """
    whole = read_whole(options)
    if whole is None:
        raise options.wrong("budget", found=options.budget, expected="--train-tokens (or --train-samples) beside it")
    choices: list[Choice] = []
    nothing = []
    for there in each_cluster(options):
        on_cluster = _on_cluster(there, whole, options)
        choices += on_cluster
        if not on_cluster:
            reason = f"{options.model} on {there.cluster}: no plan fits"
            nothing.append(Choice(cluster=there.cluster, devices=0, plan=None, reason=reason))
    answer = choose_within(whole, tuple(choices), tuple(nothing))
    if answer.chosen is None:
        raise NothingFits(_nothing(options, answer), result=answer)
    if options.output is not None and answer.chosen.plan is not None:
        save_plan(answer.chosen.plan, options.output)
    return answer


def choose_within(whole: WholeTraining, choices: tuple[Choice, ...], nothing: tuple[Choice, ...] = ()) -> Affordable:
    """Return `choices` with the one that is taken: of those within the limits the cheapest where days are limited, else
    the fastest; of equal ones the fastest, or the cheapest, then the first."""
    within = [choice for choice in choices if not over_limits(whole, training_of(choice))]

    def order(choice: Choice) -> tuple[float, float]:
        training = training_of(choice)
        cost = training.device_hours if training.price is None else training.price
        return (training.seconds, cost) if whole.days is None else (cost, training.seconds)

    return Affordable(whole=whole, choices=choices, chosen=min(within, key=order, default=None), nothing=nothing)


def _on_cluster(there: SideBySideOptions, whole: WholeTraining, options: AffordOptions) -> list[Choice]:
    """The best plan on all devices of a cluster, and on fewer as long as that can be what is asked for."""
    free = len(load_any_place(there.cluster).free_slots)
    most = min(options.devices or free, free)
    choices: list[Choice] = []
    for limit in (most, *fewer_devices(most)):
        if choices and limit >= choices[-1].devices:
            continue
        choice = best_choice(replace(there, devices=limit))
        if choice is None or choice.training is None:
            break
        _refuse_unpriced(choice.training, options)
        choices.append(choice)
        over = over_limits(whole, choice.training)
        too_long = whole.days is not None and choice.training.days > whole.days
        if too_long or (whole.days is None and not over):
            break
    return choices


def _refuse_unpriced(training: Training, options: AffordOptions) -> None:
    """What has no price is within no budget, nor is it cheaper than what is on another cluster."""
    if training.price is not None or (options.budget is None and not options.beside):
        return
    name = "days" if options.budget is None else "budget"
    expected = f"--price DEVICE=PRICE or --prices FILE beside it: {training.price_reason}"
    raise options.wrong(name, found=getattr(options, name), expected=expected)


def describe_miss(answer: Affordable) -> str | None:
    """Return which choice is least beyond the limits, and by how much; None where no plan fits anywhere."""

    def beyond(choice: Choice) -> float:
        training, whole = training_of(choice), answer.whole
        ratios = [0.0]
        if whole.budget and training.price is not None:
            ratios.append(training.price / whole.budget)
        if whole.days:
            ratios.append(training.days / whole.days)
        return max(ratios)

    nearest = min(answer.choices, key=beyond, default=None)
    if nearest is None:
        return None
    return f"{nearest.devices} devices of {nearest.cluster}: {' and '.join(answer.over(nearest))}"


def _nothing(options: AffordOptions, answer: Affordable) -> str:
    clusters = " or ".join((options.cluster, *options.beside))
    miss = describe_miss(answer)
    nearest = "no plan fits" if miss is None else f"the nearest miss is {miss}"
    return f"{options.model} on {clusters}: nothing is within {answer.limits}; {nearest}"
