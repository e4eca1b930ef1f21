"""Table 1 and figure 7: the weighted spread of every method, ours and the paper's ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean

from bench.pods.cases import Setting, requests_of
from planner.one_job.pods.baselines import NodeOrder
from planner.one_job.pods.methods import place_into_pods
from planner.one_job.pods.records import Placement, PodRequest

PAPERS = ("best-fit", "random-fit", "gpu-packing", "topo-aware")
PEOPLES = ("cluster-order", "kueue", "slurm")
ORDERS: tuple[NodeOrder, ...] = ("rows", "megatron")
ALPHAS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the methods reach on one request: (pods, as printed in eq. 3) by (method, order)."""

    by_method: dict[tuple[str, NodeOrder], tuple[float, float]]
    proved: bool
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting and alpha: the scores of every instance on which the job fits."""

    setting: str
    alpha: float
    left_out: int
    scores: tuple[Scores, ...]

    def mean_of(self, method: str, order: NodeOrder = "rows", *, printed: bool = False) -> float:
        """Return a method's mean score."""
        return mean(one.by_method[method, order][printed] for one in self.scores)

    def best_baseline(self, names: Sequence[str], order: NodeOrder) -> str:
        """Return the baseline of least mean score."""
        return min(names, key=lambda name: self.mean_of(name, order))

    def ratios(self, over: str, names: Sequence[str], order: NodeOrder, *, printed: bool = False) -> list[float]:
        """Return how many times as much the best of these baselines on each instance spreads as method `over`."""
        pairs = [
            (
                min(one.by_method[name, order][printed] for name in names),
                one.by_method[over, "rows"][printed],
            )
            for one in self.scores
        ]
        return [baseline / ours if ours else (1.0 if not baseline else float("inf")) for baseline, ours in pairs]


def run(setting: Setting, alphas: Sequence[float], seeds: int) -> Iterator[Row]:
    """Return the scores of a setting at every alpha."""
    for alpha in alphas:
        requests = list(requests_of(setting, alpha, seeds))
        fitting = [request for request in requests if request.shortage() is None]
        yield Row(
            setting=setting.name,
            alpha=alpha,
            left_out=len(requests) - len(fitting),
            scores=tuple(_scores(request, number) for number, request in enumerate(fitting)),
        )


def _scores(request: PodRequest, seed: int) -> Scores:
    by_method: dict[tuple[str, NodeOrder], tuple[float, float]] = {}
    for method in (*PAPERS, *PEOPLES):
        for order in ORDERS:
            placement = _placed(method, request, order, seed)
            by_method[method, order] = placement.value, placement.value_as_printed
    ours = _placed("spread", request, "rows", seed)
    paper = _placed("arnold", request, "rows", seed)
    by_method["spread", "rows"] = ours.value, ours.value_as_printed
    by_method["arnold", "rows"] = paper.value, paper.value_as_printed
    bound = ours.bound or 0.0
    return Scores(by_method=by_method, proved=ours.proof == "optimal", gap=ours.value / bound - 1)


def _placed(method: str, request: PodRequest, order: NodeOrder, seed: int) -> Placement:
    placement = place_into_pods(method, request, order=order, rng=Random(seed))
    assert isinstance(placement, Placement), placement
    return placement


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Return the lines of the tables."""
    heads = ["setting", "alpha", "ours", "Arnold", *PAPERS, *PEOPLES]
    for order in ORDERS:
        yield f"\nMean weighted spread in pods; baselines' nodes become cells in the order: {order}\n"
        yield _line(heads)
        yield _line(["--"] * 2 + ["--:"] * (len(heads) - 2))
        for row in rows:
            ours = [row.mean_of("spread"), row.mean_of("arnold")]
            others = [row.mean_of(name, order) for name in (*PAPERS, *PEOPLES)]
            yield _line([row.setting, f"{row.alpha:.1f}", *(f"{score:.2f}" for score in (*ours, *others))])
    yield "\nThe best of the paper's baselines on each instance over the method: mean (largest)\n"
    heads = [
        "setting",
        "alpha",
        "instances",
        "Arnold: rows",
        "megatron",
        "ours: rows",
        "megatron",
        "Arnold, eq. 3: rows",
    ]
    yield _line([*heads, "ours over Arnold", "proved", "largest gap"])
    yield _line(["--"] * 2 + ["--:"] * (len(heads) + 1))
    for row in rows:
        cells = [_mean_and_most(row.ratios(over, PAPERS, order)) for over in ("arnold", "spread") for order in ORDERS]
        printed = _mean_and_most(row.ratios("arnold", PAPERS, "rows", printed=True))
        own = [one.by_method["arnold", "rows"][0] / one.by_method["spread", "rows"][0] for one in row.scores]
        proved = sum(one.proved for one in row.scores)
        counted = f"{len(row.scores)}" + (f" ({row.left_out} too full)" if row.left_out else "")
        gap = f"{max(one.gap for one in row.scores):.0%}"
        yield _line([row.setting, f"{row.alpha:.1f}", counted, *cells, printed, _mean_and_most(own), f"{proved}", gap])


def claims(rows: Sequence[Row]) -> Iterator[str]:
    """Return the paper's figures beside ours, alpha up to 0.5."""
    low = [row for row in rows if row.alpha <= 0.5 and row.setting.startswith("(")]
    yield "\n| claim (section 7.1) | paper | Arnold's method here: rows | megatron | ours: rows | megatron |"
    yield "| -- | --: | --: | --: | --: | --: |"
    ways = [(over, order) for over in ("arnold", "spread") for order in ORDERS]
    means = [[ratio for row in low for ratio in row.ratios(over, PAPERS, order)] for over, order in ways]
    yield _line(["mean of best baseline / method, alpha <= 0.5", "1.2", *(f"{mean(one):.2f}" for one in means)])
    yield _line(["largest on one instance", "", *(f"{max(one):.2f}" for one in means)])
    of_means = [
        max(row.mean_of(row.best_baseline(PAPERS, order), order) / row.mean_of(over) for row in low)
        for over, order in ways
    ]
    yield _line(["largest of the means at one setting and alpha", "1.67", *(f"{one:.2f}" for one in of_means)])
    equal = [mean(ratio for row in low if row.setting == "(i)" for ratio in row.ratios(*way)) for way in _ways_of(ways)]
    yield _line(["(i): equal", "1.00", *(f"{one:.2f}" for one in equal)])


def _ways_of(ways: Sequence[tuple[str, NodeOrder]]) -> list[tuple[str, Sequence[str], NodeOrder]]:
    return [(over, PAPERS, order) for over, order in ways]


def _mean_and_most(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({max(values):.2f})"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
