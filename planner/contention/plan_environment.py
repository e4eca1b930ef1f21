"""The environment of a plan's job on its network, out of contention.json."""

from __future__ import annotations

from planner.contention.contention_file import check_cluster, load_contention
from planner.contention.jobs_file import Places
from planner.contention.settings import environment_in_file
from planner.shared.options.running import ExportOptions
from planner.shared.plan import Plan
from profiles.cluster_file import is_at_hand, load_cluster
from profiles.errors import InputError


def environment_of_plan(plan: Plan, options: ExportOptions) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """Return the variables of every rank of a plan, and what is to be known of them.

    Raises:
        InputError: a file of another cluster, a job that it has not, or of which it says no level of the fabric.
    """
    assert options.network is not None
    where = options.network
    file = load_contention(where)
    notes = []
    hosts: tuple[str, ...] = ()
    if is_at_hand(plan.cluster):
        cluster = load_cluster(plan.cluster)
        check_cluster(file, cluster, str(where))
        names = Places(cluster).names
        node = {(slot.site, slot.node): 0 for slot in cluster.slots}
        number = {place: count for count, place in enumerate(node)}
        hosts = tuple(dict.fromkeys(names[number[device.site, device.node]] for device in plan.devices))
    elif plan.cluster != file.cluster.name:
        found, expected = file.cluster.name, f"{plan.cluster}: the plan's cluster"
        raise InputError(where=str(where), key="cluster", found=found, expected=expected)
    else:
        notes.append(f"the files of {plan.cluster} are not here: by its name alone it is the cluster of {where}")
    job, environment = environment_in_file(file, options.job, where=where, hosts=hosts)
    said = (
        "its level on the network is" if environment.variables else "its environment on the network, which is empty, is"
    )
    notes.append(f"{said} that of the job {job.id} in {where}")
    if hosts and set(hosts) != set(job.hosts):
        notes.append(f"the plan is on other hosts than the job {job.id} there: decide again (cellplan contention)")
    return environment.variables, (*notes, *environment.notes)
