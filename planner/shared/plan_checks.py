"""A plan's words held against what they name: the sizes of its model, the places on its cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields

from estimator.frontends.load import load_any_model
from estimator.layers.graph import build_graph
from models_zoo.catalogue import model_names
from models_zoo.model import Model
from models_zoo.user_code import NO_CODE, UserCode, names_code
from planner.shared.inputs import load_any_place
from planner.shared.model_sizes import model_sizes
from planner.shared.plan import Plan
from profiles.cluster import Cluster
from profiles.cluster_file import is_at_hand
from profiles.errors import InputError
from profiles.vocabulary import Shard


def load_plan_model(plan: Plan, code: UserCode = NO_CODE, *, where: str = "plan") -> Model:
    """Return the model that the plan, which came from `where`, names. Raise InputError where it is no longer the one of
    the plan, or is made by code that is not among that of the user's own which the plan may run."""
    reference = plan.model.reference
    for named in code.of_file if not names_code(reference) else ():
        expected = f"{named}, which {code.option} names, or no {code.option}"
        raise InputError(where=where, key="model.reference", found=repr(reference), expected=expected)
    model = load_any_model(reference, code, where=where, key="model.reference", fetches=False)
    if (plan.model.seq_len is None) == bool(model.seq_len):
        found = "null" if plan.model.seq_len is None else str(plan.model.seq_len)
        expected = f"tokens of a sample, such as {model.seq_len}" if model.seq_len else "null: the model has no tokens"
        raise InputError(where=where, key="model.seq_len", found=found, expected=expected)
    try:
        graph = build_graph(model, shard=Shard(seq_len=plan.model.seq_len or 0, dtype=plan.model.dtype), degrees=())
    except InputError as error:
        raise InputError(where=where, key="model.seq_len", found=error.found, expected=error.expected) from None
    sizes = model_sizes(model, parameters=graph.parameters)
    for name in (part.name for part in fields(sizes)):
        stated, actual = getattr(plan.model.sizes, name), getattr(sizes, name)
        if stated != actual:
            raise InputError(
                where=where, key="model.sizes", found=f"{name}={stated}", expected=f"{actual}, as {reference} has now"
            )
    if plan.model.name != model.name and reference in model_names():
        raise InputError(
            where=where,
            key="model.name",
            found=repr(plan.model.name),
            expected=f"{model.name}, as {reference} is called",
        )
    return model


def check_places(plan: Plan, *, where: str) -> None:
    """Raise InputError where the plan's cluster is none, or lacks the places of its ranks. A cluster file that is not
    here, as on a colleague's machine, says nothing."""
    if not is_at_hand(plan.cluster):
        return
    with cluster_of_file(where):
        place = load_any_place(plan.cluster)
    refuse_places(plan, place, where=where)


@contextmanager
def cluster_of_file(where: str) -> Iterator[None]:
    """Name the plan file in what is said against its cluster's short form."""
    try:
        yield
    except InputError as error:
        if error.where != "cluster":
            raise
        raise InputError(where=where, key="cluster", found=error.found, expected=error.expected) from None


def refuse_places(plan: Plan, place: Cluster, *, where: str) -> None:
    """Raise InputError for the first rank of the plan whose place `place`, its own cluster, lacks, or has another
    device in."""
    slot_at = {(slot.site, slot.node, slot.index): slot for slot in place.slots}
    sites = [site.name for site in place.sites]
    hosts = {site.name: frozenset(site.network.hosts) for site in place.sites}
    first: dict[tuple[str, str | int, int], int] = {}
    for rank, device in enumerate(plan.devices):
        key = f"devices[{rank}]"
        if device.site not in sites:
            expected = f"a site of {place.text}: {', '.join(sites)}"
            raise InputError(where=where, key=f"{key}.site", found=repr(device.site), expected=expected)
        if device.host is not None and hosts[device.site] and device.host not in hosts[device.site]:
            expected = f"a node of {device.site} in {place.text} (`estimate --cluster` takes another cluster)"
            raise InputError(where=where, key=f"{key}.host", found=repr(device.host), expected=expected)
        other = first.setdefault((device.site, device.host or device.node, device.index), rank)
        if other != rank:
            stated = f"{device.host or f'node {device.node}'}, index {device.index}, as devices[{other}] has"
            raise InputError(where=where, key=key, found=stated, expected="a device for each rank")
        slot = slot_at.get((device.site, device.node, device.index))
        if slot is None:
            stated = f"node {device.node}, index {device.index} of {device.site}"
            expected = f"a place that {place.text} has (`estimate --cluster` takes another cluster)"
            raise InputError(where=where, key=key, found=stated, expected=expected)
        if slot.device != device.device:
            expected = f"{slot.device}, as {place.text} has there"
            raise InputError(where=where, key=f"{key}.device", found=device.device, expected=expected)
