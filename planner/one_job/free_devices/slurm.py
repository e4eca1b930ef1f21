"""Slurm's word on its nodes: the output of `sinfo` and `scontrol show node`, as text or as JSON.

Read are `sinfo -N` with a header and columns of nodes, state and GRES (`-O NodeList:40,Gres:80,GresUsed:80,StateLong`
says all that is needed), `scontrol show node` with and without `-d` and `-o`, and `--json` of both. Fields and states
are those of the man pages sinfo(1) and scontrol(1) of Slurm 22.05. `sinfo --json` of that version holds nodes, as
`scontrol show node --json` of later ones does; later ones' holds rows of nodes that are alike (data_parser v0.0.39 and
v0.0.40). GRES counts of GPUs are `gpu:TYPE:COUNT(detail)`; of GRES in use the detail says which: `(IDX:0-2,7)`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from planner.one_job.free_devices.nodes import (
    FreeNode,
    FreeNodes,
    all_free_nodes,
    device_type,
    gpu_indices,
    in_catalogue,
    is_slice,
)
from planner.one_job.free_devices.schema import SinfoRow, SinfoRows, SlurmNode, SlurmNodes
from profiles.errors import InputError
from profiles.files import text_lines
from profiles.host_lists import expand_hosts, split_outside_brackets
from profiles.limits import LIMITS
from profiles.records import dataclass
from profiles.schema import validate

UNSTATED_USE = "in use, and the file does not say how many of its GPUs are: counted as not free (GresUsed says it)"

_ENTRY = re.compile(
    r"(?P<name>[^:()]+)(?::(?P<type>\(null\)|[^()]*?))??(?::no_consume)?:(?P<count>\d{1,9})[KMGTP]?(?P<detail>\(.*\))?",
    re.ASCII,
)
_IDLE = {"idle"}
_PARTLY = {"mix", "mixed"}
_FULL = {"allocated", "alloc", "completing", "comp"}
_HARMLESS = {"cloud", "dynamic_norm", "dynamic", "powered_down", "power_saving", "power", "powered_up"}
"""Flags beside a state that do not keep a job off the node: one that is powered down is started for it."""
_NODE_COLUMNS = ("NODELIST", "HOSTNAMES", "NODEHOST")
_STATE_COLUMNS = ("STATECOMPLETE", "STATE")
_FEATURE_COLUMNS = ("ACTIVE_FEATURES", "AVAIL_FEATURES", "FEATURES")
_NOTHING = {"", "(null)", "n/a", "none"}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Said:
    """What is said of one node. `used` None: nothing is said of what its GPUs do."""

    name: str
    gres: str
    used: str | None
    state: tuple[str, ...]
    features: tuple[str, ...] = ()


def read_slurm_text(text: str, where: str) -> FreeNodes:
    """The nodes of a text that `sinfo` or `scontrol show node` printed. InputError names line or node."""
    said = _scontrol(text, where) if re.search(r"^NodeName=", text, re.MULTILINE) else _sinfo(text, where)
    return _free_nodes(said, where)


def read_slurm_json(data: Mapping[str, Any], where: str) -> FreeNodes:
    """The nodes of JSON that holds `nodes` (scontrol, sinfo of Slurm 22.05) or `sinfo`. InputError names the key."""
    if "sinfo" in data:
        rows = validate(SinfoRows, data, where=where).sinfo
        said: list[_Said] = []
        for number, row in enumerate(rows):
            said += _sinfo_row(row, where, f"sinfo[{number}]")
            LIMITS.nodes.check(len(said), where=where, key=f"sinfo[{number}]")
    else:
        said = [_json_node(node) for node in validate(SlurmNodes, data, where=where).nodes]
    return _free_nodes(said, where)


def parse_gres(text: str | None, where: str, key: str) -> dict[str, tuple[tuple[str, int], ...]]:
    """GRES by name, each with its (type, count); the type is empty where none is named.

    >>> parse_gres("gpu:a100:4(S:0-1),gpu:h100:2,nic:1", "here", "Gres")
    {'gpu': (('a100', 4), ('h100', 2)), 'nic': (('', 1),)}
    """
    entries: dict[str, tuple[tuple[str, int], ...]] = {}
    if text is None or text.strip().lower() in _NOTHING:
        return entries
    for part in split_outside_brackets(text.strip()):
        match = _ENTRY.fullmatch(part)
        if match is None:
            expected = "GRES such as gpu:a100:8 or gpu:a100:8(S:0-1), whole (a wider column: sinfo -O Gres:80)"
            raise InputError(where=where, key=key, found=repr(part), expected=expected)
        kind = (match["type"] or "").replace("(null)", "")
        entries[match["name"]] = (*entries.get(match["name"], ()), (kind, int(match["count"])))
    return entries


# Text


def _sinfo(text: str, where: str) -> list[_Said]:
    """Rows under a header that names the columns."""
    lines = [(number, line) for number, line in enumerate(text_lines(text, where=where), 1) if line.strip()]
    top = next((i for i, (_, line) in enumerate(lines) if any(name in line.upper() for name in _NODE_COLUMNS)), None)
    if top is None:
        expected = (
            "`sinfo -N` with its header (NODELIST, STATE, GRES), `scontrol show node`, or JSON of these or kubectl"
        )
        raise InputError(where=where, found="no such header" if lines else "an empty file", expected=expected)
    bar = "|" if "|" in lines[top][1] else None
    header = [name.strip().upper() for name in lines[top][1].split(bar)]
    wanted = (("NODELIST", _NODE_COLUMNS), ("STATE", _STATE_COLUMNS), ("GRES", ("GRES",)))
    place, state, gres = (_column(header, name, names, f"{where}, line {lines[top][0]}") for name, names in wanted)
    said = []
    for number, line in lines[top + 1 :]:
        at = f"{where}, line {number}"
        fields = [field.strip() for field in line.split(bar, len(header) - 1)]
        if [field.upper() for field in fields] == header:
            continue
        if len(fields) < len(header):
            expected = f"{len(header)} columns ({', '.join(header)})"
            raise InputError(where=at, found=f"{len(fields)} columns", expected=expected)
        values = {name: fields[header.index(name)] for name in header}
        features = next((values[name] for name in _FEATURE_COLUMNS if name in values), "")
        said += [
            _Said(
                name=name,
                gres=values[gres],
                used=values.get("GRES_USED"),
                state=_state(values[state]),
                features=_words(features),
            )
            for name in expand_hosts(values[place], at, "NODELIST")
        ]
        LIMITS.nodes.check(len(said), where=at)
    return said


def _column(header: Sequence[str], name: str, names: Sequence[str], where: str) -> str:
    """The first of `names` that is in the header; InputError for a column `name` where none is."""
    for candidate in names:
        if candidate in header:
            return candidate
    expected = f"a column {name}: sinfo -N -O NodeList:40,Gres:80,GresUsed:80,StateLong"
    raise InputError(where=where, found=" ".join(header), expected=expected)


def _scontrol(text: str, where: str) -> list[_Said]:
    """Blocks of KEY=VALUE, one for each node, on one line or several."""
    said = []
    for block in re.split(r"(?m)^(?=NodeName=)", text)[1:]:
        name = re.match(r"NodeName=(\S*)", block)
        values: dict[str, str] = {}
        for key, value in re.findall(r"(?:^|\s)([A-Za-z]+)=(\S*)", block):
            values.setdefault(key, value)
        node = name[1] if name else ""
        for key in ("State", "Gres"):
            if not node or key not in values:
                expected = f"{key}= as `scontrol show node` prints it of every node (is the file whole?)"
                raise InputError(where=where, key=f"NodeName={node}", found=f"no {key}", expected=expected)
        used = values.get("GresUsed")
        if used is None and "gres/gpu" in values.get("CfgTRES", ""):
            used = _used_of_tres(values.get("AllocTRES", ""))
        said.append(
            _Said(
                name=node,
                gres=values["Gres"],
                used=used,
                state=_state(values["State"]),
                features=_words(values.get("ActiveFeatures", values.get("AvailableFeatures", ""))),
            )
        )
    return said


def _used_of_tres(text: str) -> str:
    """What `AllocTRES=cpu=8,gres/gpu=3,gres/gpu:a100=3` says of GPUs, as GRES: its typed entries where it has any."""
    entries = re.findall(r"gres/gpu(?::([^=,]+))?=(\d{1,9})(?!\d)", text, re.ASCII)
    typed = [f"gpu:{kind}:{count}" for kind, count in entries if kind]
    return ",".join(typed or [f"gpu:{count}" for _, count in entries]) or "gpu:0"


# JSON


def _json_node(node: SlurmNode) -> _Said:
    return _Said(
        name=node.name,
        gres=node.gres,
        used=_used_in_json(node),
        state=_state([*([node.state] if isinstance(node.state, str) else node.state), *(node.state_flags or ())]),
        features=_listed(node.active_features or node.features or ()),
    )


def _used_in_json(node: SlurmNode) -> str | None:
    if node.gres_used and node.gres_used.strip():
        return node.gres_used
    return _used_of_tres(node.tres_used or "") if "gres/gpu" in (node.tres or "") else None


def _sinfo_row(row: SinfoRow, where: str, key: str) -> Iterator[_Said]:
    """A row of nodes that are alike, as `sinfo --json` has them after Slurm 22.05. Where GPUs are in use in a row of
    several nodes, it does not say in which."""
    names = expand_hosts(",".join(row.nodes.nodes), where, f"{key}.nodes.nodes") if row.nodes.nodes else ()
    used = row.gres.used if row.gres.used and row.gres.used.strip() else None
    if used is not None and len(names) > 1:
        counts = parse_gres(used, where, f"{key}.gres.used")
        used = None if any(count for kinds in counts.values() for _, count in kinds) else used
    features = row.features or {}
    for name in names:
        yield _Said(
            name=name,
            gres=row.gres.total,
            used=used,
            state=_state(row.node.state),
            features=_listed(features.get("active") or features.get("total") or ""),
        )


def _listed(features: object) -> tuple[str, ...]:
    return tuple(map(str, features)) if isinstance(features, list | tuple) else _words(str(features))


# What it means


def _free_nodes(said: Sequence[_Said], where: str) -> FreeNodes:
    nodes: list[FreeNode] = []
    seen: set[str] = set()
    barred: list[str] = []
    without: list[str] = []
    slices: list[str] = []
    unknown: list[str] = []
    for node in said:
        if node.name in seen:
            continue  # A node stands once for each of its partitions.
        seen.add(node.name)
        gpus = parse_gres(node.gres, where, f"node {node.name}, GRES").get("gpu", ())
        whole = [(kind, count) for kind, count in gpus if count and not is_slice(kind)]
        slices += [f"{node.name} ({kind})" for kind, count in gpus if is_slice(kind)]
        if not whole:
            without += [] if gpus else [node.name]
            continue
        why = _why_barred(node.state)
        barred += [f"{node.name} ({why})"] if why else []
        used = None if why else _used(node, whole, where)
        if used is None and not why:
            unknown.append(node.name)
        held = _held(node, whole[0][1], where) if used is not None and len(gpus) == 1 else None
        for kind, count in whole:
            free = 0 if used is None else count - used[kind]
            told = held if held is not None and len(held) == count - free else None
            nodes.append(_free_node(node, kind, count, free=free, barred=_stays_barred(node.state), held=told))
    return all_free_nodes(
        nodes,
        (
            (barred, "not free"),
            (unknown, UNSTATED_USE),
            (slices, "slices of GPUs (MIG) are left out"),
        ),
        without=len(without),
        where=where,
        expected="GPUs in some node's GRES, such as gpu:a100:8",
    )


def _free_node(
    node: _Said, kind: str, count: int, *, free: int, barred: bool, held: tuple[int, ...] | None
) -> FreeNode:
    said = kind
    if not kind:
        device_features = [feature for feature in node.features if in_catalogue(device_type(feature))]
        said = device_features[0] if len({device_type(feature) for feature in device_features}) == 1 else ""
    return FreeNode(
        name=node.name,
        device=device_type(said) if said else "",
        said=said,
        devices=count,
        free=max(0, free),
        barred=barred,
        held=held,
    )


def _held(node: _Said, devices: int, where: str) -> tuple[int, ...] | None:
    """The indices of the GPUs in use; None where that is not said. Raise InputError for one that the node lacks."""
    if node.used is None:
        return ()
    parts = [part for part in split_outside_brackets(node.used) if part.strip().startswith("gpu:")]
    details = [re.search(r"\(IDX:([^)]*)\)", part) for part in parts]
    if not all(details):
        return None
    texts = [detail[1] for detail in details if detail is not None and detail[1].strip().lower() not in _NOTHING]
    key = f"node {node.name}, GRES_USED"
    return tuple(sorted({index for text in texts for index in gpu_indices(text, devices, where, key)}))


def _used(node: _Said, gpus: Sequence[tuple[str, int]], where: str) -> dict[str, int] | None:
    """GPUs in use by type, None where that is not said. Of two types whose use is told as one sum, none is free."""
    if node.used is None:
        return {kind: 0 for kind, _ in gpus} if node.state[0] in _IDLE else None
    counts = parse_gres(node.used, where, f"node {node.name}, GRES_USED")
    shared = sum(count for name in ("shard", "mps") for _, count in counts.get(name, ()))
    taken = dict(counts.get("gpu", ()))
    unnamed = taken.pop("", 0)
    if shared or (unnamed and len(gpus) > 1):
        return dict(gpus)
    return {kind: taken.get(kind, 0) + unnamed for kind, _ in gpus}


def _state(value: str | Sequence[str]) -> tuple[str, ...]:
    """The base state first, then flags, in lower case: `IDLE+DRAIN`, `mix-` and `["IDLE", "DRAIN"]` alike."""
    words = [word for part in ([value] if isinstance(value, str) else value) for word in part.lower().split("+")]
    flags: list[str] = []
    for word in filter(None, map(str.strip, words)):
        match = re.fullmatch(r"([a-z_]+)([*~#!%$@^-]*)", word)
        flags += [match[1], *({"~": "powered_down"}.get(mark, mark) for mark in match[2])] if match else [word]
    return tuple(flags)


def _why_barred(state: tuple[str, ...]) -> str | None:
    """What keeps a job off a node, None where nothing does."""
    flags = [flag for flag in state[1:] if flag not in _HARMLESS]
    if state and state[0] in _IDLE | _PARTLY and not flags:
        return None
    return "".join(flag if flag in "*#!%$@^-" else f"+{flag}" for flag in state).removeprefix("+") or "no state"


def _stays_barred(state: tuple[str, ...]) -> bool:
    """Whether a node takes no new job also once those on it have ended: drained, down, reserved, planned."""
    ended = tuple(word for word in state[1:] if word not in _FULL)
    return _why_barred(("idle" if state and state[0] in _FULL else state[0] if state else "", *ended)) is not None


def _words(text: str) -> tuple[str, ...]:
    return tuple(word for word in re.split(r"[,&|()\s]+", text) if word and word.lower() not in _NOTHING)
