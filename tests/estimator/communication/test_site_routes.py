"""Routes and rings between sites, beside trying all of them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from random import Random

import pytest

from estimator.communication.site_routes import MOST_TRIED, SiteRing, SiteRoutes
from profiles.cluster import SiteLink


def draw(rng: Random, count: int, share: float) -> tuple[list[str], SiteRoutes]:
    """Sites joined by a share of all links."""
    names = [f"s{number}" for number in range(count)]
    links = tuple(
        SiteLink(
            between=pair, bandwidth_bytes_per_s=float(rng.choice((1, 2, 3, 5, 8))), latency_s=rng.choice((1.0, 2.0))
        )
        for pair in itertools.combinations(names, 2)
        if rng.random() < share
    )
    return names, SiteRoutes(links=links)


def ways(routes: SiteRoutes, one: str, other: str) -> Iterator[tuple[SiteLink, ...]]:
    """All simple paths."""

    def walk(site: str, met: tuple[str, ...], way: tuple[SiteLink, ...]) -> Iterator[tuple[SiteLink, ...]]:
        if site == other:
            yield way
            return
        for link in routes.links:
            if site in link.between:
                (ahead,) = set(link.between) - {site}
                if ahead not in met:
                    yield from walk(ahead, (*met, ahead), (*way, link))

    return walk(one, (one,), ())


def width(way: tuple[SiteLink, ...]) -> float:
    return min(link.bandwidth_bytes_per_s for link in way)


def measured(routes: SiteRoutes, order: tuple[str, ...]) -> tuple[float, float]:
    """Bandwidth and latency of a ring, link by link and direction by direction."""
    uses: Counter[tuple[str, str]] = Counter()
    rates: dict[tuple[str, str], float] = {}
    far = 0.0
    for one, other in zip(order, (*order[1:], order[0]), strict=True):
        way, site = routes.route(one, other), one
        assert way is not None
        far = max(far, sum(link.latency_s for link in way))
        for link in way:
            (ahead,) = set(link.between) - {site}
            uses[site, ahead] += 1
            rates[site, ahead] = link.bandwidth_bytes_per_s
            site = ahead
        assert site == other
    return min(rates[step] / count for step, count in uses.items()), far


def test_routes_are_of_the_fewest_links_then_the_widest() -> None:
    apart = longer = 0
    for seed in range(150):
        names, routes = draw(Random(seed), 6, 0.35)
        for one, other in itertools.combinations(names, 2):
            found, all_ways = routes.route(one, other), list(ways(routes, one, other))
            if not all_ways:
                assert found is None
                apart += 1
                continue
            assert found is not None
            assert (len(found), -width(found)) == min((len(way), -width(way)) for way in all_ways)
            assert sum(link.latency_s for link in routes.route(other, one) or ()) > 0
            longer += len(found) > 1
    assert apart > 50
    assert longer > 300


@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_the_best_ring_is_that_of_all_orders(count: int) -> None:
    found = 0
    for seed in range(60):
        names, routes = draw(Random(seed), count, 0.6)
        best = routes.best_ring(names)
        if best is None:
            assert any(routes.route(names[0], other) is None for other in names[1:])
            continue
        found += 1
        every = [measured(routes, order) for order in itertools.permutations(names)]
        assert (best.bandwidth_bytes_per_s, best.latency_s) == min(every, key=lambda one: (-one[0], one[1]))
        assert sorted(best.order) == names
    assert found > 15


def test_a_ring_is_measured_in_its_order() -> None:
    for seed in range(80):
        names, routes = draw(Random(seed), 5, 0.6)
        order = tuple(Random(seed).sample(names, 4))
        ring = routes.ring(order)
        if ring is None:
            assert any(routes.route(order[0], other) is None for other in order)
            continue
        assert (ring.bandwidth_bytes_per_s, ring.latency_s) == measured(routes, order)
        assert routes.ring(order) is ring


def test_rings_through_many_sites_are_near_the_best() -> None:
    """Beside all orders of eight; around a tree of many sites each link is passed once in each direction."""
    shares = []
    for seed in range(6):
        names, routes = draw(Random(seed), MOST_TRIED + 1, 0.7)
        best = routes.best_ring(names)
        assert best is not None
        first, *rest = names
        most = max(measured(routes, (first, *order))[0] for order in itertools.permutations(rest))
        shares.append(best.bandwidth_bytes_per_s / most)
    assert max(shares) <= 1
    assert sum(shares) / len(shares) > 0.8
    rng = Random(1)
    links = tuple(
        SiteLink(between=(f"s{rng.randrange(k)}", f"s{k}"), bandwidth_bytes_per_s=float(2 + k % 5), latency_s=1.0)
        for k in range(1, 40)
    )
    around: SiteRing | None = SiteRoutes(links=links).best_ring([f"s{k}" for k in range(40)])
    assert around is not None
    assert around.bandwidth_bytes_per_s == 2.0


def test_sites_apart() -> None:
    link = SiteLink(between=("a", "b"), bandwidth_bytes_per_s=1.0, latency_s=0.0)
    routes = SiteRoutes(links=(link,))
    assert routes.route("a", "c") is None
    assert routes.ring(("a", "c")) is None
    assert routes.best_ring(["a", "b", "c"]) is None
    assert routes.route("a", "a") == ()
