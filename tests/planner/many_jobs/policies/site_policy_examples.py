"""Sites, links, jobs and closed-form truths, for tests of policies over sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from random import Random

from planner.many_jobs.jobs.records import Grant, Job, Pool
from planner.many_jobs.simulation.settings import Placement
from planner.many_jobs.simulation.sharing import SharedAmounts
from planner.many_jobs.simulation.site_prices import link_name
from profiles.cluster import SiteLink
from tests.scheduling_examples import make_job, make_pool

NAMES = (
    "dt-fm",
    "global-ilp",
    "lyra",
    "mast",
    "opportunistic",
    "spiderflow",
    "spiderflow-no-spin",
    "spiderflow-no-tpa",
)
GBIT = 1.25e8


def site_pools(counts: Mapping[str, tuple[int, int]]) -> dict[str, Pool]:
    """A pool of (nodes, devices a node) at each site."""
    return {
        f"{site}/d": make_pool(f"{site}/d", site=site, device="d", nodes=nodes, devices_per_node=size)
        for site, (nodes, size) in counts.items()
    }


def all_joined(sites: Sequence[str], gbit: float = 5.0) -> tuple[SiteLink, ...]:
    """Every two sites joined alike."""
    return tuple(link(one, other, gbit) for one, other in combinations(sites, 2))


def link(one: str, other: str, gbit: float) -> SiteLink:
    """One link of 1 ms."""
    return SiteLink(between=(one, other), bandwidth_bytes_per_s=gbit * GBIT, latency_s=1e-3)


class WideTruth:
    """An iteration takes 8 / devices seconds, times 1 + (sites - 1) / (Gb/s of the thinnest direct link between two of
    the sites); None where two of them have none, or there are fewer devices than `least[model]`."""

    def __init__(
        self, pools: Mapping[str, Pool], links: Sequence[SiteLink], least: Mapping[str, int] | None = None
    ) -> None:
        self.pools, self.least = pools, dict(least or {})
        self.gbit = {frozenset(one.between): one.bandwidth_bytes_per_s / GBIT for one in links}

    def __call__(self, job: Job, grant: Grant, placement: Placement | None) -> float | None:
        del placement
        return self.takes_s(job, grant, {})

    def takes_s(self, job: Job, grant: Grant, users: Mapping[str, int]) -> float | None:
        """With so many jobs on each link."""
        if grant.devices < self.least.get(job.workload.model, 1):
            return None
        sites = sorted({self.pools[name].site for name, _ in grant.parts})
        widths = [
            self.gbit.get(frozenset(pair), 0.0) / users.get(link_name(*pair), 1) for pair in combinations(sites, 2)
        ]
        if widths and not min(widths):
            return None
        return 8.0 / grant.devices * (1 + (len(sites) - 1) / min(widths) if widths else 1.0)


class WideSharing(SharedAmounts):
    """Links between all of a job's sites are shared evenly."""

    def __init__(self, truth: WideTruth) -> None:
        self.truth = truth

    def uses(self, job: Job, grant: Grant, placement: Placement) -> Mapping[str, int]:
        del job, placement
        sites = sorted({self.truth.pools[name].site for name, _ in grant.parts})
        return {link_name(*pair): 1 for pair in combinations(sites, 2)}

    def iteration_s(self, job: Job, grant: Grant, placement: Placement, in_use: Mapping[str, int]) -> float:
        del placement
        found = self.truth.takes_s(job, grant, in_use)
        assert found is not None
        return found


def draw_sites(rng: Random) -> tuple[dict[str, Pool], tuple[SiteLink, ...]]:
    """One to five sites, some pairs not joined."""
    sites = [f"s{number}" for number in range(rng.randint(1, 5))]
    pools = site_pools({site: (rng.randint(1, 3), rng.choice((1, 2, 4))) for site in sites})
    pairs = [pair for pair in combinations(sites, 2) if rng.random() < 0.7]
    return pools, tuple(link(*pair, rng.choice((1.0, 5.0, 15.0))) for pair in pairs)


def draw_jobs(rng: Random, pools: Mapping[str, Pool], count: int) -> list[Job]:
    """Some larger than any site, some larger than all together; one model that needs four devices."""
    total, now_s, found = sum(pool.devices for pool in pools.values()), 0.0, []
    for number in range(count):
        now_s += rng.choice((0.0, rng.expovariate(1 / 50.0)))
        found.append(
            make_job(
                f"j{number}",
                submit_s=now_s,
                pool=rng.choice(list(pools)),
                devices=rng.choice((1, 1, 2, 3, 4, 6, 8, total, total + 1)),
                model=rng.choice(("bert-1.3b", "bert-1.3b", "big")),
                iterations=rng.choice((0.0, 10.0, 100.0)) * rng.uniform(0.5, 1.5),
            )
        )
    return found
