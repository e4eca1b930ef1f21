"""Figures 19 to 22: Crux's testbed of 96 A100s, the paper's figures beside ours over all batches that fit.

A setting is a case, switches, samples a GPU of each model, and whether gradients are summed behind the backward pass;
each has one seed of the switches' hash, in turn. Without Crux: `ecmp`. With it: `crux`, 8 levels, played where anything
is lost without it. Compute varies by 1%.
Alone is on the ports on which a job's own connections meet least.
PCIe has no queues: of two jobs on a link the more important blocks the other while it sends (section 5). That is played
by a link beside each PCIe link which who sends over that fills alone, whatever it sends: exact where the blocking job
sends at its own full rate. Beside it: levels on PCIe links as if they had queues (`queues`).
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache
from itertools import islice, pairwise, product
from pathlib import Path
from statistics import mean, median
from typing import Literal

import numpy as np

from bench.contention.testbed_cases import MODELS, Case, Placed, Switches, cases, samples_that_fit, testbed, training
from estimator.network.fabric import Fabric, fabric_of
from estimator.network.pcie_links import INSIDE_NODES
from estimator.network.player.play import Settings, play
from estimator.network.steps import Mover, Playing
from estimator.network.wires import Floats
from planner.contention.jobs_file import Places
from planner.contention.plan_traffic import SentByPlan, sent_by_model
from planner.contention.playing import playing_under
from planner.contention.policies.catalogue import make_network_policy
from planner.contention.policies.records import Decision, View
from planner.contention.viewing import Seen, contender_of, view_of
from profiles.records import dataclass, replace

LEVELS, HASHES = 8, 8
MOST_SEEN = 2048
"""So many jobs are kept as policies see them."""
PLAYING = Settings(jitter=0.01)
REACHES = (1.0, 0.25)
"""What part of what the estimator's links reach is reached."""
CONTENDS = 0.01
"""Of a setting: without Crux at least so much work is lost."""
SAME = 0.005
"""A time or a share of work that moves by less has moved neither way."""
Network = tuple[Switches, int, float]
"""Switches, oversubscription, and what is reached of links."""
How = Literal["crux", "crux-pa", "blocking", "queues"]
HOWS: dict[bool, tuple[How, ...]] = {False: ("crux", "crux-pa"), True: ("blocking", "queues")}
"""What is played with Crux: where jobs meet on the network, all of it, and its priorities alone; where they meet on
PCIe, all of it by blocking, and as if PCIe had queues."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One of the unpublished choices for a case."""

    case: Case
    switches: Switches
    oversubscription: int
    reach: float
    behind: bool
    samples: tuple[tuple[str, int], ...]
    hash_seed: int

    @property
    def name(self) -> str:
        """What tells it apart from all others."""
        samples = ", ".join(f"{kind} {count}" for kind, count in self.samples)
        behind = "behind" if self.behind else "after"
        return f"{self.case.name}; {self.network}; {behind}; {samples}; hash {self.hash_seed}"

    @property
    def network(self) -> Network:
        """Its switches, and what is above and on them."""
        return self.switches, self.oversubscription, self.reach


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Of a setting: work a second and busy GPUs as shares of those alone, without and with Crux, and by model how much
    longer an iteration is with it than without."""

    setting: Setting
    work: tuple[float, float]
    busy: tuple[float, float]
    longer: tuple[tuple[str, float], ...]

    @property
    def gain(self) -> float:
        """Of the work."""
        return self.work[1] / self.work[0] - 1

    @property
    def contends(self) -> bool:
        """Whether without Crux any work to speak of is lost."""
        return self.work[0] < 1 - CONTENDS

    def moved(self, what: str) -> float:
        """By how much of itself a model's time is longer; of "" the utilisation higher."""
        return dict(self.longer)[what] if what else self.gain

    @property
    def inside(self) -> bool:
        """Whether all of its figures are in the ranges that the paper has."""
        return all(low <= self.moved(what) <= high for what, low, high in self._published)

    @property
    def signs(self) -> bool:
        """Whether all of its figures move to the side to which the paper's do."""
        return all(has_sign(self.moved(what), low, high) for what, low, high in self._published)

    @property
    def ordered(self) -> bool:
        """Whether of two models the one that the paper has gain more does, or the other not by half a percent."""
        order = [self.moved(kind) for kind, _, _ in sorted(self._published[1:], key=lambda one: one[1])]
        return all(first <= second + SAME for first, second in pairwise(order))

    @property
    def _published(self) -> list[tuple[str, float, float]]:
        published = self.setting.case.published
        return [("", *published.utilization), *published.longer]


def has_sign(moved: float, low: float, high: float) -> bool:
    """Whether what moved is on the side of nothing of the paper's range; what moves by less than half a percent is on
    both."""
    return moved < SAME if low + high < 0 else moved > -SAME


def settings(case: Case, thin: int) -> Iterator[Setting]:
    """Yield every setting of a case, or every `thin`-th of them."""
    gpus = {kind: max(len(job.devices) for job in case.jobs if job.kind == kind) for kind in case.kinds}
    every = list(product(*(samples_that_fit(kind, gpus[kind]) for kind in case.kinds)))
    networks: list[tuple[Switches, int]] = [("one leaf a host", 1)]
    if not case.inside:
        networks += [("one leaf a host", 2), ("one leaf a host", 4), ("a leaf for each NIC", 1)]
        networks += [("a leaf for each NIC", 2)]
    choices = enumerate(product(networks, REACHES, (True, False), every))
    for number, ((switches, oversubscription), reach, behind, samples) in islice(choices, 0, None, thin):
        yield Setting(
            case=case,
            switches=switches,
            oversubscription=oversubscription,
            reach=reach,
            behind=behind,
            samples=tuple(zip(case.kinds, samples, strict=True)),
            hash_seed=number % HASHES,
        )


def outcomes(setting: Setting) -> dict[How, Outcome]:
    """Return what becomes of a setting without Crux and with it, in each of the ways that its case is played. Where
    nothing is lost without it, it is as without."""
    network = setting.network
    fabric = _fabric(network, setting.hash_seed)
    samples = dict(setting.samples)
    sent = [_sent(job, samples[job.kind], setting.behind, network) for job in setting.case.jobs]
    seen = [
        _seen(job, number, samples[job.kind], setting.behind, network, setting.hash_seed)
        for number, job in enumerate(setting.case.jobs)
    ]
    view = view_of(seen, fabric, LEVELS)
    computes_s = [sum(span.times * span.compute_s for span in own.traffic.spans) for own in sent]
    without_s = _played(view, make_network_policy("ecmp").decide(view), fabric, blocking=False)
    idle = _outcome(setting, view, computes_s, without_s, without_s)
    found: dict[How, Outcome] = dict.fromkeys(HOWS[setting.case.inside], idle)
    for how in found if idle.contends else ():
        decision = make_network_policy("crux-pa" if how == "crux-pa" else "crux").decide(view)
        with_s = _played(view, decision, fabric, blocking=how == "blocking")
        found[how] = _outcome(setting, view, computes_s, without_s, with_s)
    return found


def _outcome(
    setting: Setting,
    view: View,
    computes_s: Sequence[float],
    without_s: Sequence[float],
    with_s: Sequence[float],
) -> Outcome:
    jobs = view.jobs
    alone_s = [job.alone_s for job in jobs]
    work = [sum(job.flops / each for job, each in zip(jobs, its, strict=True)) for its in (without_s, with_s, alone_s)]
    busy = [
        sum(job.devices * compute_s / each for job, compute_s, each in zip(jobs, computes_s, its, strict=True))
        for its in (without_s, with_s, alone_s)
    ]
    longer: defaultdict[str, list[float]] = defaultdict(list)
    for job, before_s, after_s in zip(setting.case.jobs, without_s, with_s, strict=True):
        longer[job.kind].append(after_s / before_s - 1)
    return Outcome(
        setting=setting,
        work=(work[0] / work[2], work[1] / work[2]),
        busy=(busy[0] / busy[2], busy[1] / busy[2]),
        longer=tuple((kind, mean(its)) for kind, its in longer.items()),
    )


@cache
def _fabric(network: Network, hash_seed: int) -> Fabric:
    fabric = fabric_of(testbed(*network))
    return replace(fabric, routing=replace(fabric.routing, seed=hash_seed))


@cache
def _places(network: Network) -> Places:
    return Places(testbed(*network))


@cache
def _sent(job: Placed, samples: int, behind: bool, network: Network) -> SentByPlan:
    places = _places(network)
    slots = [places.devices(host)[gpu] for host, gpu in job.devices]
    options = {"dp": len(slots), **training(samples, behind=behind)}
    return sent_by_model(MODELS[job.kind], options, slots, testbed(*network), job=job.kind, where="figures 19 to 22")


@lru_cache(maxsize=MOST_SEEN)
def _seen(job: Placed, number: int, samples: int, behind: bool, network: Network, hash_seed: int) -> Seen:
    """A job of a case as policies see it: the same beside whatever others train."""
    own, places = _sent(job, samples, behind, network), _places(network)
    seats = [places.seat(slot) for slot in own.slots]
    fabric = _fabric(network, hash_seed)
    return contender_of(f"{job.kind} {number}", own.traffic, seats, fabric, flops=own.traffic.flops, seed=number)


def _played(view: View, decision: Decision, fabric: Fabric, *, blocking: bool) -> list[float]:
    """Seconds of an iteration of each job."""
    playings = [
        playing_under(job, paths, level=level)
        for job, paths, level in zip(view.jobs, decision.paths, decision.levels, strict=True)
    ]
    rates = fabric.links.bytes_per_s
    if blocking:
        playings, rates = _blocking(playings, fabric)
    played = play(playings, rates, settings=PLAYING)
    return [job.seconds for job in played.jobs]


def _blocking(playings: Sequence[Playing], fabric: Fabric) -> tuple[list[Playing], Floats]:
    """The jobs with a link of rate 1 beside each PCIe link, which each mover over that fills alone; and all rates."""
    links = fabric.links
    inside = np.flatnonzero((links.tier_of[links.ends] == INSIDE_NODES).any(axis=1))
    beside = {int(link): links.count + number for number, link in enumerate(inside)}

    def held(mover: Mover) -> Mover:
        return replace(mover, way=(*mover.way, *((beside[link], 1.0) for link, _ in mover.way if link in beside)))

    blocked = [
        replace(
            job,
            steps=tuple(
                replace(
                    step,
                    transfers=tuple(
                        replace(transfer, movers=tuple(map(held, transfer.movers))) for transfer in step.transfers
                    ),
                )
                for step in job.steps
            ),
        )
        for job in playings
    ]
    return blocked, np.concatenate([links.bytes_per_s, np.ones(len(inside))])


def lines(thin: int, kept: Path | None = None) -> Iterator[str]:
    """Yield the tables; `thin`: of the settings every so many-th. What is played is added to the lines
    of `kept`, and not played again."""
    found: defaultdict[tuple[str, How], list[Outcome]] = defaultdict(list)
    by_case: defaultdict[tuple[str, How], list[Outcome]] = defaultdict(list)
    known = {} if kept is None or not kept.exists() else dict(map(_from_line, kept.read_text().splitlines()))
    began_s = time.process_time()
    for case in cases():
        for setting in settings(case, thin):
            for how, one in _known_outcomes(setting, known, kept).items():
                by_case[case.name, how].append(one)
                found[case.figure, how].append(one)
    played = sum(len(its) for (_, how), its in by_case.items() if how in ("crux", "blocking"))
    yield f"{played} settings; {time.process_time() - began_s:.0f} s of CPU"
    yield ""
    yield "| figure | with | settings | contend | | paper | ours, median of those | 5% to 95% | inside | paper's sign |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for (figure, how), its in found.items():
        yield from _rows(figure, how, its)
    yield ""
    yield "| case | with | settings | contend | work without, with (% of alone) | busy GPUs | inside | signs | order |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for (name, how), its in by_case.items():
        yield _case_row(name, how, its)
    yield ""
    yield "| of those that contend | settings | work without, with Crux (% of alone) | inside | signs | order |"
    yield "|---|---|---|---|---|---|"
    yield from _by_choice([one for (_, how), its in found.items() if how in ("crux", "blocking") for one in its])


Kept = dict[How, tuple[tuple[float, float], tuple[float, float], tuple[tuple[str, float], ...]]]


def _known_outcomes(setting: Setting, known: dict[str, Kept], kept: Path | None) -> dict[How, Outcome]:
    """What becomes of a setting, from what is known where it is there; else it is played, and added to the file."""
    key = setting.name
    if key not in known:
        played = outcomes(setting)
        if kept is not None:
            row = {how: (one.work, one.busy, one.longer) for how, one in played.items()}
            with kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([key, row]) + "\n")
        return played
    return {
        how: Outcome(setting=setting, work=work, busy=busy, longer=longer)
        for how, (work, busy, longer) in known[key].items()
    }


def _from_line(line: str) -> tuple[str, Kept]:
    key, row = json.loads(line)
    kept: Kept = {
        how: (tuple(work), tuple(busy), tuple((kind, by) for kind, by in longer))
        for how, (work, busy, longer) in row.items()
    }
    return key, kept


def _rows(figure: str, how: How, its: Sequence[Outcome]) -> Iterator[str]:
    contend = [one for one in its if one.contends]
    published = its[0].setting.case.published
    head = f"| {figure} | {how} | {len(its)} | {len(contend)} |"
    for what, low, high in (("", *published.utilization), *published.longer):
        own = sorted(one.moved(what) for one in contend)
        spread = f"{_at(own, 0.05)} to {_at(own, 0.95)}"
        inside = _share([low <= each <= high for each in own])
        signs = _share([has_sign(each, low, high) for each in own])
        middle = f"{median(own):+.1%}" if own else ""
        name = f"{what}'s time" if what else "utilisation"
        yield f"{head} {name} | {low:+.1%} to {high:+.1%} | {middle} | {spread} | {inside} | {signs} |"
        head = "| | | | |"


def _at(ranked: Sequence[float], part: float) -> str:
    return f"{ranked[round(part * (len(ranked) - 1))]:+.1%}" if ranked else ""


def _share(own: Sequence[bool]) -> str:
    return f"{sum(own) / len(own):.0%}" if own else ""


def _case_row(name: str, how: How, its: Sequence[Outcome]) -> str:
    contend = [one for one in its if one.contends]
    shares = f"{_shares(contend, 'work')} | {_shares(contend, 'busy')}"
    return f"| {name} | {how} | {len(its)} | {len(contend)} | {shares} | {_verdicts(contend)} |"


def _verdicts(its: Sequence[Outcome]) -> str:
    columns = [one.inside for one in its], [one.signs for one in its], [one.ordered for one in its]
    return " | ".join(map(_share, columns))


def _shares(its: Sequence[Outcome], what: str) -> str:
    pairs = [one.work if what == "work" else one.busy for one in its]
    return ", ".join(f"{100 * mean(pair[place] for pair in pairs):.1f}" for place in (0, 1)) if pairs else ""


def _by_choice(its: Sequence[Outcome]) -> Iterator[str]:
    """A line for each of the choices that the paper leaves open."""
    named: defaultdict[str, list[Outcome]] = defaultdict(list)
    for one in its:
        if one.contends:
            named["gradients behind the backward pass" if one.setting.behind else "gradients after it"].append(one)
            named[f"links reach {one.setting.reach:.0%} of what the estimator's do"].append(one)
            if not one.setting.case.inside:
                named[f"{one.setting.switches}, {one.setting.oversubscription} : 1"].append(one)
    for name, own in named.items():
        yield f"| {name} | {len(own)} | {_shares(own, 'work')} | {_verdicts(own)} |"
