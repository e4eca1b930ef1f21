"""A node of a running job failed: which free one takes its place with nobody else moving, and what moving all wins."""

from __future__ import annotations

from difflib import get_close_matches

from estimator.pricing.outcome import Evaluation
from estimator.pricing.recipe import Setup
from planner.one_job.site_pods.least_time import Evaluate
from planner.one_job.site_pods.spares import (
    Kind,
    Node,
    fitting_nodes,
    part_of,
    spare_problem,
    used_nodes,
    with_node,
)
from profiles.cluster import host_of
from profiles.errors import InputError, NothingFits
from profiles.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """Free nodes that prices do not tell apart: the first one's name and part, how many there are, and the seconds of
    an iteration with one of them in the place of the node that failed."""

    node: Node
    host: str
    part: str | None
    nodes: int
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The host that failed and the part it was in, the stand-ins, the best first, and the plan on the best; `before_s`
    and `evaluation` are of an iteration before and after."""

    failed: str
    part: str | None
    before_s: float
    stand_ins: tuple[StandIn, ...]
    setup: Setup
    evaluation: Evaluation

    @property
    def cost_s(self) -> float:
        """Seconds that an iteration takes longer."""
        return self.evaluation.iteration_time_s - self.before_s


def replace_host(setup: Setup, host: str, evaluate: Evaluate, *, where: str) -> Replacement:
    """Return what takes the place of `host` in a plan, all others staying. Equal times are decided by the part that the
    host was in, then by the order of the cluster. Raise InputError where the plan has no such host, NothingFits where
    no free node fits."""
    cluster = setup.cluster
    used = used_nodes(setup)
    names = {host_of(cluster, slot): (slot.site, slot.node) for stage in setup.stages for slot in stage.slots}
    if host not in names:
        near = get_close_matches(host, [name for name in names if name], n=3)
        such = f", such as {' or '.join(near)}" if near else ""
        expected = f"one of the plan's {len(names)} hosts{such}"
        raise InputError(where=where, key="--replace", found=repr(host), expected=expected)
    failed = names[host]
    before = evaluate(setup)
    assert isinstance(before, Evaluation), "a plan that was priced"
    kind_of = spare_problem(setup).kind_of
    by_kind: dict[Kind, list[Node]] = {}
    for node in fitting_nodes(setup, failed, used[failed]):
        by_kind.setdefault(kind_of[node], []).append(node)
    priced = []
    for kind, nodes in by_kind.items():
        other = with_node(setup, failed, nodes[0])
        evaluation = evaluate(other)
        if isinstance(evaluation, Evaluation):
            priced.append((evaluation.iteration_time_s, kind != kind_of[failed], nodes, other, evaluation))
    if not priced:
        free = sum(len(nodes) for nodes in by_kind.values())
        raise NothingFits(
            f"{where}: no node takes the place of {host}: {free} free nodes of {failed[0]} have {used[failed]} free"
            " devices of its type: 1 too few"
        )
    priced.sort(key=lambda entry: entry[:2])
    hosts = cluster.site(failed[0]).network.hosts
    return Replacement(
        failed=host,
        part=part_of(cluster, failed),
        before_s=before.iteration_time_s,
        stand_ins=tuple(
            StandIn(
                node=nodes[0],
                host=hosts[nodes[0][1]],
                part=part_of(cluster, nodes[0]),
                nodes=len(nodes),
                time_s=time_s,
            )
            for time_s, _, nodes, _, _ in priced
        ),
        setup=priced[0][3],
        evaluation=priced[0][4],
    )
