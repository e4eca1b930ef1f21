"""A folder of settings for a plan of contention: a part for each job, maps if asked for, and what is what.

All of it is text that people and their tools read: nothing is run, on no host.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from planner.contention.emitting.axis_levels import axis_levels_snippet
from planner.contention.emitting.environment import JobEnvironment, environment_of, level_of
from planner.contention.emitting.map_files import mlnx_qos_commands, sonic_tables
from planner.contention.emitting.nftables import nftables_file
from planner.contention.emitting.opensm import opensm_lines
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import PriorityMap, warnings_of
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.readme import JobFiles, readme_text
from planner.contention.emitting.source_ports import source_ports_json
from planner.contention.emitting.transports import INFINIBAND, Transport
from profiles.errors import InputError, MachineError
from profiles.files import write_atomically
from profiles.records import dataclass

SCHEMA = "cellplan.contention-settings/1"
INDEX = "settings.json"
"""Every folder of ours has it: one that has it may be written anew."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is emitted: the jobs of a plan, on the levels of a map. `addresses` are those of hosts, for TCP; `pairs` are
    NCCL's queue pairs as they were priced, the best first; `with_map`: files for NICs and switches, too."""

    jobs: tuple[PlannedJob, ...]
    map: PriorityMap
    transport: Transport
    addresses: Mapping[str, Sequence[str]]
    pairs: tuple[PricedPair, ...] = ()
    with_map: bool = False


def settings_files(settings: Settings) -> dict[str, str]:
    """Return the text of each file by its path in the folder. Raise InputError for a level that the map has not."""
    files: dict[str, str] = {}
    described: list[JobFiles] = []
    rows: list[dict[str, Any]] = []
    for job, name in zip(settings.jobs, folder_names([job.id for job in settings.jobs]), strict=True):
        environment = environment_of(job, settings.map, settings.transport)
        own, notes = _job_files(job, environment, settings)
        files |= {f"jobs/{name}/{file}": text for file, text in own.items()}
        described.append(JobFiles(job=job, folder=f"jobs/{name}", files=tuple(own), notes=notes))
        rows.append(
            {
                **_described(job, environment, settings),
                "folder": f"jobs/{name}" if own else None,
                "files": list(own),
                "notes": list(notes),
            }
        )
    if settings.with_map:
        files |= _map_files(settings)
    index = {
        "schema": SCHEMA,
        "transport": settings.transport,
        "map": describe_map(settings.map),
        "warnings": list(warnings_of(settings.map)),
        "queue_pairs": [describe_pair(pair) for pair in settings.pairs],
        "jobs": rows,
    }
    files[INDEX] = json.dumps(index, indent=1) + "\n"
    readme = readme_text(described, settings.map, settings.transport, settings.pairs, with_map=settings.with_map)
    return {"README.md": readme, **files}


def describe_map(of: PriorityMap) -> dict[str, Any]:
    """Return a map as JSON has it."""
    rows = [
        [
            {
                "dscp": each.dscp if of.source != INFINIBAND else None,
                "traffic_class": each.traffic_class,
                "priority": each.priority,
                "pfc": each.pfc,
            }
            for each in levels
        ]
        for levels in (of.levels, of.reserved)
    ]
    return {"source": of.source, "levels": rows[0], "reserved": rows[1]}


def describe_pair(pair: PricedPair) -> dict[str, Any]:
    """Return a pair of NCCL's settings as JSON has it."""
    return {
        "environment": dict(pair.variables),
        "work_share": pair.work_share,
        "range": list(pair.range),
        "certain": False,
    }


def folder_names(ids: Sequence[str]) -> list[str]:
    """Return a name for each job's folder that file systems take, each once.

    >>> folder_names(["gpt/a", "gpt-a", "gpt_a", ".."])
    ['gpt_a', 'gpt-a', 'gpt_a-2', 'job']
    """
    names: list[str] = []
    for own in ids:
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", own)[:100]
        plain = plain if re.search(r"[A-Za-z0-9]", plain) else "job"
        taken = {name.lower() for name in names}
        number = 1
        while (plain if number == 1 else f"{plain}-{number}").lower() in taken:
            number += 1
        names.append(plain if number == 1 else f"{plain}-{number}")
    return names


def check_emitted(folder: Path) -> None:
    """Raise InputError unless `folder` can be made, is empty, or has such settings already: said before the work."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        found = f"{folder}, no folder"
    elif not folder.absolute().parent.is_dir():
        found = f"no folder {folder.parent}"
    elif folder.is_dir() and not (folder / INDEX).is_file() and any(folder.iterdir()):
        found = f"{folder}, which has other files"
    else:
        return
    raise InputError(
        where="contention", key="--emit", found=found, expected="a new folder, an empty one, or an earlier one"
    )


def write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Put the files into `folder`, all of them or none: written beside it, then renamed; an earlier folder of settings
    goes. Raise as `check_emitted`, and MachineError where the machine does not let it."""
    check_emitted(folder)
    target = folder.absolute()
    try:
        beside = Path(mkdtemp(prefix=".cellplan-", dir=target.parent))
    except OSError as error:
        raise MachineError(f"{folder}: could not be written: {error.strerror or error}") from error
    made, old = beside / "new", beside / "old"
    try:
        made.mkdir()
        for name, text in files.items():
            path = made / name
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, text)
        if target.exists():
            target.rename(old)
        try:
            made.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    except OSError as error:
        raise MachineError(f"{folder}: could not be written: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            shutil.rmtree(beside)


def _map_files(settings: Settings) -> dict[str, str]:
    """What NICs and switches are set by, none where their network has no levels."""
    if settings.transport == "infiniband":
        return {"map/opensm.conf": opensm_lines(settings.map)}
    if settings.transport == "other":
        return {}
    return {"map/mlnx_qos.sh": mlnx_qos_commands(settings.map), "map/sonic_qos.json": sonic_tables(settings.map)}


def _job_files(
    job: PlannedJob, environment: JobEnvironment, settings: Settings
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files of a job's folder, and what is to be known of them."""
    notes = list(environment.notes)
    own = {"environment.sh": _environment_text(job, environment)} if environment.variables else {}
    snippet = axis_levels_snippet(job, settings.map, settings.transport)
    if snippet is not None:
        own["axis_levels.py"] = snippet
    if settings.transport == "tcp":
        file = nftables_file(job, settings.jobs, settings.map, settings.addresses, file="dscp.nft")
        own |= {"dscp.nft": file.text} if file.text is not None else {}
        notes += file.notes
    if settings.transport == "roce":
        ports = source_ports_json(job)
        own |= {"udp_source_ports.json": ports} if ports is not None else {}
        if settings.pairs and job.connections:
            own["stock_nccl.sh"] = _stock_nccl_text(job, settings.pairs)
    return own, tuple(notes)


def _described(job: PlannedJob, environment: JobEnvironment, settings: Settings) -> dict[str, Any]:
    ethernet = settings.transport in ("roce", "tcp")
    level = None if job.level is None else level_of(job.level, settings.map, job)
    return {
        "id": job.id,
        "level": job.level,
        "axis_levels": dict(job.axis_levels) or None,
        "dscp": level.dscp if level is not None and ethernet else None,
        "environment": environment.by_name,
    }


def _environment_text(job: PlannedJob, environment: JobEnvironment) -> str:
    lines = [f"# Environment of every rank of the job {job.id}: `. environment.sh` before it starts."]
    lines += [f"# {note}." for note in environment.notes]
    return "\n".join([*lines, *(f"export {name}={value}" for name, value in environment.variables)]) + "\n"


def _stock_nccl_text(job: PlannedJob, pairs: Sequence[PricedPair]) -> str:
    best, one = pairs[0], next(pair for pair in pairs if pair.queue_pairs == 1)
    low, high = best.range
    lines = [
        f"# For stock NCCL, which cannot be told ports; beside environment.sh of the job {job.id}, in every job alike.",
        f"# By chance, not by choice: {best.work_share:.1%} of the work of jobs that meet nobody, in the mean of the",
        f"# hashes played ({low:.1%} to {high:.1%}); with one queue pair for each connection {one.work_share:.1%}.",
    ]
    return "\n".join([*lines, *(f"export {name}={value}" for name, value in best.variables)]) + "\n"
