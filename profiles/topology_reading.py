"""A tree of hosts from a file in whichever of the forms it is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from profiles.errors import InputError
from profiles.files import parse_json, read_text
from profiles.limits import LIMITS
from profiles.network import Network
from profiles.topology_infiniband import is_ibnetdiscover, read_ibnetdiscover
from profiles.topology_labels import read_kubernetes, read_table
from profiles.topology_slurm import read_topology_conf, read_topology_yaml
from profiles.topology_tree import HostTree
from profiles.topology_volcano import KIND, read_hypernodes
from profiles.yaml_files import parse_yaml

FORMS = (
    "Slurm's topology.conf or topology.yaml, the output of scontrol show topology, of kubectl get nodes -o json (or"
    " hypernodes, of Volcano) or of ibnetdiscover, or a CSV of a host and its switch at each level"
)


def read_topology(path: Path) -> HostTree:
    """Return the tree of the file at `path`: Slurm's `topology.conf`, `topology.yaml` or what `scontrol show topology`
    prints, the output of `kubectl get nodes -o json` (or `hypernodes`) or of `ibnetdiscover`, or a CSV. Raise
    InputError with the line or key."""
    where = str(path)
    text = read_text(path)
    start = text.lstrip()
    if start.startswith("{"):
        data = parse_json(text, where=where)
        listed = data.get("items") if isinstance(data, dict) else None
        if isinstance(listed, list) and any(isinstance(item, dict) and item.get("kind") == KIND for item in listed):
            return read_hypernodes(listed, where)
        if isinstance(data, dict) and ("items" in data or data.get("kind") == "Node"):
            return read_kubernetes(data, where)
        raise InputError(where=where, found="JSON of something else", expected=FORMS)
    if path.suffix in (".yaml", ".yml"):
        LIMITS.yaml_bytes.check(len(text), where=where)
        trees = parse_yaml(text, where=where)
        if not isinstance(trees, list):
            raise InputError(where=where, found=type(trees).__name__, expected="a list, as topology.yaml is one")
        return read_topology_yaml(trees, where)
    if is_ibnetdiscover(start):
        return read_ibnetdiscover(text, where)
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and "=" not in lines[0] and "," in lines[0]:
        return read_table(text, where)
    if lines and "=" not in lines[0]:
        raise InputError(where=where, found=repr(lines[0][:60]), expected=FORMS)
    return read_topology_conf(text, where)


def network_under(tree: HostTree, nodes: int, hosts: Sequence[str], where: str) -> Network:
    """Return the tree above a site's nodes: those called `hosts`, or, where these have no names, all of the file's, in
    its order. Raise InputError unless each node of the site is in the tree."""
    if hosts:
        lacking = [host for host in hosts if host not in tree.places]
        if lacking:
            stated = f"no node {lacking[0]}" + (f", and {len(lacking) - 1} more" if len(lacking) > 1 else "")
            raise InputError(where=tree.where, found=stated, expected=f"all nodes that {where} names")
        return tree.network(hosts)
    if len(tree.places) != nodes:
        expected = f"the {nodes} of {where}, or names of its nodes in the cluster file, which say which they are"
        raise InputError(where=tree.where, found=f"{len(tree.places)} nodes", expected=expected)
    return tree.network(tuple(tree.places))
