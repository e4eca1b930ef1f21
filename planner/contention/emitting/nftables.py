"""DSCP of a job's TCP as an nftables file for its hosts.

The table's chain stands at postrouting, where packets of containers pass, too, and marks TCP to the addresses of the
job's other hosts. Where addresses are not known it marks all TCP that leaves a host of this job alone. A host that two
jobs of different levels share cannot tell them apart by addresses: that is refused by a note.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, ip_address

from planner.contention.emitting.environment import level_of
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap
from profiles.records import dataclass

_TABLE = """\
# {title}
# On each of its hosts: nft -f {file}; to undo: nft delete table inet {table}
table inet {table}
delete table inet {table}
table inet {table} {{
{sets}    chain levels {{
        type filter hook postrouting priority mangle; policy accept;
{rules}
    }}
}}
"""
_SET = """\
    set peers{family} {{
        type ipv{family}_addr
        elements = {{ {addresses} }}
    }}

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NftablesFile:
    """A file's text, None where none can be, and what is to be known of it."""

    text: str | None
    notes: tuple[str, ...] = ()


def nftables_file(
    job: PlannedJob,
    jobs: Sequence[PlannedJob],
    of: PriorityMap,
    addresses: Mapping[str, Sequence[str]],
    *,
    file: str,
) -> NftablesFile:
    """Return the file that marks the TCP of `job`, one of `jobs`. `addresses` are those of hosts by name; `file` is
    what it will be called. InputError for a level that the map has not."""
    level = job.last_level
    if level is None:
        return NftablesFile(text=None)
    dscp, notes = level_of(level, of, job).dscp, []
    if job.axis_levels:
        notes.append(f"TCP has one level for the whole job, {level}: its axes are not told apart")
    beside = [other for other in jobs if other is not job and set(other.hosts) & set(job.hosts)]
    apart = [other.id for other in beside if other.last_level not in (None, level)]
    if apart:
        said = f"it shares hosts with {', '.join(apart)} of other levels: their TCP cannot be told apart by addresses"
        return NftablesFile(
            text=None, notes=(*notes, f"{said}, no file is written (mark by cgroup: nft `socket cgroupv2`)")
        )
    known = {host: addresses.get(host, ()) for host in job.hosts}
    if all(known.values()):
        found = sorted(
            {ip_address(address) for own in known.values() for address in own}, key=lambda ip: (ip.version, ip)
        )
        by_family = {
            family: [str(ip) for ip in found if isinstance(ip, IPv4Address) == (family == 4)] for family in (4, 6)
        }
        by_family = {family: own for family, own in by_family.items() if own}
        sets = "".join(_SET.format(family=family, addresses=", ".join(own)) for family, own in by_family.items())
        rules = [_rule(family, dscp, peers=True) for family in by_family]
    else:
        sets, rules = "", [_rule(family, dscp, peers=False) for family in (4, 6)]
        lacking = [host for host, own in known.items() if not own]
        notes.append(
            f"no address is known of {', '.join(lacking[:4])}{' ...' if len(lacking) > 4 else ''}: all TCP that leaves"
            " the job's hosts is marked (--addresses FILE, as /etc/hosts has them, narrows it to the job's peers)"
        )
    title = f"TCP of the job {job.id}: level {level}, DSCP {dscp}"
    text = _TABLE.format(title=title, file=file, table=table_name(job), sets=sets, rules="\n".join(rules))
    return NftablesFile(text=text, notes=tuple(notes))


def table_name(job: PlannedJob) -> str:
    """Return the name of a job's table.

    >>> table_name(PlannedJob(id="gpt-3/a", hosts=()))
    'cellplan_gpt_3_a'
    """
    return "cellplan_" + re.sub(r"[^A-Za-z0-9]", "_", job.id)[:64]


def _rule(family: int, dscp: int, *, peers: bool) -> str:
    ip = "ip" if family == 4 else "ip6"
    whom = f"{ip} daddr @peers{family}" if peers else f'oifname != "lo" meta nfproto ipv{family}'
    return f"        meta l4proto tcp {whom} {ip} dscp set {dscp}"
