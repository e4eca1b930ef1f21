"""The network between nodes: its switches and cables, and the jobs that meet on it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from planner.shared.options.call import takes
from planner.shared.options.contention import ContentionOptions
from planner.shared.options.network import NetworkShowOptions
from planner.shared.options.network_measure import NetworkMeasureOptions
from planner.shared.options.network_paths import NetworkPathsOptions, NetworkProbeOptions


@takes(NetworkShowOptions)
def network_show(options: NetworkShowOptions) -> dict[str, Any]:
    """Return the tiers of switches of each site of a cluster, what their cables carry, what one half of the nodes can
    send to the other, how many equal ways lead `between` two nodes, and the levels that estimates read; `output` is a
    file for the cluster file that means this cluster. InputError for nodes that are in no site together."""
    from planner.shared.inputs import load_any_place
    from planner.shared.network_figures import describe_site_network, site_of_nodes
    from profiles.cluster_description import describe_cluster
    from profiles.files import write_atomically
    from profiles.yaml_files import yaml_text

    cluster = load_any_place(options.cluster)
    asked = site_of_nodes(cluster, options.between)
    sites = [describe_site_network(site, options.between if site.name == asked else ()) for site in cluster.sites]
    if options.output is not None:
        write_atomically(options.output, yaml_text(describe_cluster(cluster)))
    return {
        "cluster": cluster.text,
        "sites": sites,
        "links_between_sites": [{**asdict(link), "between": list(link.between)} for link in cluster.site_links],
        "notes": list(cluster.notes),
        "output": None if options.output is None else str(options.output),
    }


@takes(ContentionOptions)
def contention(options: ContentionOptions) -> dict[str, Any]:
    """Return what becomes of the jobs of a file on a cluster, and what they are to do about it.

    Now: seconds of an iteration alone and beside the others, who slows whom on which links, how busy links and GPUs
    are. `running` says where those sit that name no hosts; `seeds` hashes of the switches are played, one run each;
    compute times vary by the share `jitter`; `model` is what moves as one. `timeline` and `plot` are files to write.

    Then: `policy` (or its parts by name) gives each job a level of the fabric's and each connection a path; seconds,
    links and utilisation as planned stand beside those of now and what nothing can pass. `network_plan` is a file of
    what was decided before in place of a policy; `output` is the file to write it to. The work of an iteration of every
    job that shares links must be known: where it is not and nothing about a decision was asked for, there is none.

    For those who set it: `priority_map` is a file that says the fabric's levels (`reserved` classes of it are not
    jobs'), `transport` how bytes cross the network, `nccl` the release of it that jobs run; `emit` is a folder for
    settings of each job, with `emit_map` for NICs and switches, too, by `addresses` of hosts where they talk TCP;
    `queue_pairs` of stock NCCL are played for what is written. `verify` are counters by priority that are held against
    the plan.

    InputError for jobs that cannot sit so and for what cannot be decided by; NothingFits for a job that cannot
    communicate, and for a `slowdown_cap` that nothing keeps.
    """
    from planner.contention.answering import answer_contention

    return answer_contention(options)


@takes(NetworkPathsOptions)
def network_paths(options: NetworkPathsOptions) -> dict[str, Any]:
    """Return the ways from a node of a cluster to another, those that are known first: the switches and links of each,
    the UDP source ports whose connections take it, and whether it is known or what the model's hash says. InputError
    for a node or a NIC that there is not, NothingFits where no way leads."""
    from planner.shared.inputs import load_any_place
    from planner.shared.network_paths import describe_paths

    return describe_paths(
        load_any_place(options.cluster),
        (options.source, options.destination),
        options.nics,
        options.port_range,
        kind=options.routing,
        hash=options.hash,
        seed=options.seed,
    )


@takes(NetworkProbeOptions)
def network_probe(options: NetworkProbeOptions) -> dict[str, Any]:
    """Return which UDP source ports take which way from this machine to a node of a cluster: packets are sent with
    rising time to live, port by port, until all equal ways have been seen, or traces of other tools are read. `output`
    is a file for the cluster file that knows them. InputError for hosts and hops that the cluster has not, MachineError
    where nobody answers or this machine cannot send."""
    from estimator.network.probing.sockets import Probing, resolve
    from planner.shared import network_probe as probing
    from planner.shared.inputs import load_any_place
    from profiles.cluster_description import describe_cluster
    from profiles.files import write_atomically
    from profiles.yaml_files import yaml_text

    cluster = load_any_place(options.cluster)
    hosts = (options.source or probing.own_node(cluster), options.destination)
    request = probing.ProbeRequest(hosts=hosts, nics=options.nics, confidence=options.confidence)
    if options.read:
        traces = iter(probing.read_reports(options.read))
    else:
        sent = Probing(
            address=resolve(options.address, key="--address")
            if options.address
            else probing.destination_address(cluster, options.destination),
            source_address=resolve(options.source_address, key="--source-address") if options.source_address else "",
            port=options.destination_port,
            wait_s=options.wait_s,
        )
        first, last = options.port_range
        traces = probing.sent_traces(sent, probing.scattered_ports(first, last, options.most))
    answer, known = probing.probe(cluster, request, traces, read=bool(options.read))
    if options.output is not None:
        write_atomically(options.output, yaml_text(describe_cluster(known)))
    return {**answer, "output": None if options.output is None else str(options.output)}


@takes(NetworkMeasureOptions)
def network_measure(options: NetworkMeasureOptions) -> dict[str, Any]:
    """Return what counters by time say of a job's iteration: its length, the bytes that it sends, after how much of its
    compute it begins to, and the lengths that it could have as well. InputError for a file without such counters, and
    for fewer than two iterations."""
    from planner.shared.network_measure import describe_measured

    return describe_measured(options.counters)
