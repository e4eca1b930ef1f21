"""RESULTS.md of the tuning bench, section by section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bench.accuracy.markdown import percent, table
from bench.tuning.approaches import APPROACHES, Approach, Outcome, Sum, add_up, by_crius, by_default
from bench.tuning.fitting import Fit
from bench.tuning.groups import LEAST_PLANS, Group, Half
from bench.tuning.local import LocalRow
from planner.one_job.tuning.measured import ErrorModel, Rules
from planner.one_job.tuning.traits import TRAITS

ODDS = (0.025, 0.05, 0.075, 0.1, 0.125, 0.15, 0.2)
HALVES: tuple[Half, ...] = ("fit", "held", "all")
COLUMNS = ("groups", "plans", "measured", "accuracy", "worst", "saving", "most", "in sum")
DEFAULT = "our default"


def outcomes(groups: Iterable[Group], approach: Approach) -> list[Outcome]:
    """Of the groups where the approach applies."""
    found = (approach(group) for group in groups)
    return [one for one in found if one is not None]


def write_header(command: str) -> str:
    """What the figures are."""
    return f"""# How few measurements a choice takes

Which of many plans is best, where every one of them was measured by somebody: what an approach chooses, and how many it
has to measure for it. Nothing here is measured against our own model: estimates only say what to measure next.

- *Accuracy* is Crius's (section 8.2): 1 - (Tc - To) / To, Tc the measured time of the plan chosen, To that of the best.
- *Saving* is plans in the group over plans measured until the choice is final: its mean over groups, the most, and all
  plans over all measured (in sum). A plan chosen unmeasured counts as one.
- A *group* is {LEAST_PLANS} or more plans of one source, model, device, device count, batch and sequence length. Rows
  of the run table are in the fit or the held half by a hash of their id: constants of the estimates, of the intervals
  and of the error model rest on the fit half alone. *All rows* mixes both, in groups that are whole.
- Crius's own figures are 96.2% on average, 5.48x on average and 10.88x at most (section 8.2), on its testbed, with
  spaces that hold every plan of a Cell. Here groups hold what somebody published, and halves are of these. A half of a
  group's rows may leave a Cell with nothing but slow plans: of the three tables the whole groups are fairest to Crius.

`{command}`"""


def write_half(groups: Sequence[Group]) -> str:
    """All approaches on one half, then the main ones by source."""
    rows = [(name, *_cells(add_up(outcomes(groups, approach)))) for name, approach in APPROACHES.items()]
    parts = [table(("approach", *COLUMNS), rows)]
    comparable = [group for group in groups if by_crius(group) is not None]
    if len(comparable) < len(groups):
        both = add_up(outcomes(comparable, APPROACHES[DEFAULT]))
        parts.append(
            f"In {len(groups) - len(comparable)} of {len(groups)} groups no plan lies in the halves of a Cell that"
            f" could be estimated. On the other {len(comparable)} our default has {_in_words(both)}."
        )
    return "\n\n".join(parts)


def write_sources(groups: Sequence[Group]) -> str:
    """Crius and the default by source, on the groups where both apply."""
    rows = []
    for source in dict.fromkeys(group.source for group in groups):
        own = [group for group in groups if group.source == source and by_crius(group) is not None]
        rows += [
            (f"{source}: {name}", *_cells(add_up(outcomes(own, APPROACHES[name]))))
            for name in ("Crius, halves of the best Cell", DEFAULT, "estimates alone")
        ]
    return table(("source", *COLUMNS), rows)


def write_cells(groups: Sequence[Group]) -> str:
    """Inside single Cells, where the paper prunes: the half against the default on the Cell's plans."""
    halves, ours = [], []
    for group in groups:
        for whole, half in zip(group.cells, group.halves, strict=True):
            timed = [number for number in half if group.measured_s[number] is not None]
            if len(whole) < LEAST_PLANS or not timed:
                continue
            part = group.part(whole)
            least = min(seconds for number in timed if (seconds := group.measured_s[number]) is not None)
            halves.append(
                Outcome(plans=len(whole), measured=len(half), accuracy=1 - (least - part.least_s) / part.least_s)
            )
            ours += outcomes([part], APPROACHES[DEFAULT])
    return table(
        ("inside each Cell", *COLUMNS),
        [("Crius, its half", *_cells(add_up(halves))), (DEFAULT, *_cells(add_up(ours)))],
    )


def write_odds(by_half: Mapping[Half, Sequence[Group]]) -> str:
    """Surer or cheaper: other odds of the default."""
    rows = []
    for odds in ODDS:
        row = [f"{odds:.3f}"]
        for half in HALVES:
            found = add_up(outcomes(by_half[half], by_default(Rules(odds=odds))))
            row += (
                ["-"] * 3
                if found is None
                else [
                    percent(found.accuracy_mean),
                    percent(found.accuracy_worst),
                    f"{found.saving_mean:.2f}x",
                ]
            )
        rows.append(tuple(row))
    names = ("accuracy", "worst", "saving")
    return table(("odds", *(f"{half}: {name}" for half in HALVES for name in names)), rows)


def write_missed(groups: Sequence[Group]) -> str:
    """Groups in which the default took another plan than the best."""
    default = APPROACHES[DEFAULT]
    found = [(group, outcome) for group in groups if (outcome := default(group)) and outcome.accuracy < 1]
    rows = [
        (f"{group.source} {group.name}", str(one.plans), str(one.measured), percent(one.accuracy))
        for group, one in sorted(found, key=lambda pair: pair[1].accuracy)
    ]
    return table(("group", "plans", "measured", "accuracy"), rows) if rows else "None."


def write_fit(fit: Fit, plans: int) -> str:
    """The error model found, beside the one that is committed."""
    known = ErrorModel()
    rows = [
        ("share common to a group", f"{fit.errors.common:.2f}", f"{known.common:.2f}"),
        ("share alike in like plans", f"{fit.errors.alike:.2f}", f"{known.alike:.2f}"),
        ("each plan's own share", f"{fit.errors.own:.3f}", f"{known.own:.3f}"),
        ("degrees of freedom", str(fit.errors.freedom), str(known.freedom)),
    ]
    rows += [(f"length in {name}", f"{value:.2f}", f"{TRAITS[name][1]:.2f}") for name, value in fit.lengths.items()]
    return (
        f"Most likely on the {plans} plans of the fit half's groups: log likelihood {fit.log_likelihood:.3f} nats a"
        f" plan, {fit.alone_log_likelihood:.3f} if each plan erred on its own.\n\n"
        + table(("parameter", "fitted", "committed"), rows)
    )


def write_local(groups: Sequence[Group], rows: Sequence[LocalRow], machine: str, rounds: int) -> str:
    """Two workers of this machine."""
    plans = [
        (
            f"{row.model}: {row.plan}",
            f"{row.estimated_s * 1e3:.0f} ms",
            f"{row.measured_s * 1e3:.0f} ms",
            percent(row.noise),
        )
        for row in rows
    ]
    sums = []
    for group in groups:
        for name, approach in APPROACHES.items():
            sums.append((f"{group.name.partition(',')[0]}: {name}", *_cells(add_up(outcomes([group], approach)))))
    noise = max(row.noise for row in rows)
    return "\n\n".join(
        (
            f"{machine}. Every plan was trained with torch in {rounds} rounds; of rounds and iterations the fastest"
            f" counts. The machine is shared: rounds lie up to {percent(noise)} apart, and differences below that mean"
            " nothing. Estimates rest on profiles of single layers and a link table, measured here. Plans of 4 workers"
            " are left out where there are 2 cores: they would share them, which the estimates do not know.",
            table(("plan", "estimated", "measured", "noise"), plans),
            table(("model: approach", *COLUMNS), sums),
        )
    )


def _cells(found: Sum | None) -> tuple[str, ...]:
    if found is None:
        return ("0", *["-"] * (len(COLUMNS) - 1))
    return (
        str(found.groups),
        str(found.plans),
        str(found.measured),
        percent(found.accuracy_mean),
        percent(found.accuracy_worst),
        f"{found.saving_mean:.2f}x",
        f"{found.saving_most:.1f}x",
        f"{found.saving_in_sum:.2f}x",
    )


def _in_words(found: Sum | None) -> str:
    if found is None:
        return "nothing"
    return (
        f"{percent(found.accuracy_mean)} on average, {percent(found.accuracy_worst)} at worst,"
        f" and saves {found.saving_mean:.2f}x on average"
    )
