"""A folder of settings for a plan of contention: a part for each job, maps if asked for, and what is what.

All of it is text that people and their tools read: nothing is run, on no host.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp
from textwrap import wrap
from typing import Any

from planner.contention.emitting.axis_levels import axis_levels_snippet
from planner.contention.emitting.environment import JobEnvironment, JobVariables, level_of, variables_of
from planner.contention.emitting.map_files import mlnx_qos_commands, sonic_tables
from planner.contention.emitting.nccl_release import Release, release_name
from planner.contention.emitting.nftables import nftables_file
from planner.contention.emitting.opensm import opensm_lines
from planner.contention.emitting.planned import PlannedJob
from planner.contention.emitting.priority_map import OPENSM, PriorityMap
from planner.contention.emitting.queue_pairs import PricedPair
from planner.contention.emitting.readme import JobFiles, readme_text
from planner.contention.emitting.settings_json import settings_json
from planner.contention.emitting.source_ports import source_ports_json
from planner.contention.emitting.transports import Transport
from profiles.errors import InputError, MachineError
from profiles.files import write_atomically
from profiles.records import dataclass

INDEX = "settings.json"
"""Every folder of ours has it: one that has it may be written anew."""
ENVIRONMENT, STOCK_NCCL = "environment.sh", "stock_nccl.sh"
WIDTH = 110


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is emitted: the jobs of a plan, on the levels of a map. `addresses` are those of hosts, for TCP; `pairs` are
    NCCL's queue pairs as they were priced, the best first; `release` is NCCL's (None: 2.26 or later); `with_map`: files
    for NICs and switches, too."""

    jobs: tuple[PlannedJob, ...]
    map: PriorityMap
    transport: Transport
    addresses: Mapping[str, Sequence[str]]
    pairs: tuple[PricedPair, ...] = ()
    release: Release | None = None
    with_map: bool = False


def settings_files(settings: Settings) -> dict[str, str]:
    """Return the text of each file by its path in the folder. Raise InputError for a level that the map has not."""
    files: dict[str, str] = {}
    described: list[JobFiles] = []
    rows: list[dict[str, Any]] = []
    for job, name in zip(settings.jobs, folder_names([job.id for job in settings.jobs]), strict=True):
        variables = variables_of(job, settings.map, settings.transport, release=settings.release, pairs=settings.pairs)
        own, notes = _job_files(job, variables, settings)
        files |= {f"jobs/{name}/{file}": text for file, text in own.items()}
        described.append(JobFiles(job=job, folder=f"jobs/{name}", files=tuple(own), notes=notes))
        rows.append(
            {
                **_described(job, variables, settings),
                "folder": f"jobs/{name}" if own else None,
                "files": list(own),
                "notes": list(notes),
            }
        )
    if settings.with_map:
        files |= _map_files(settings)
    files[INDEX] = settings_json(
        settings.map,
        settings.transport,
        rows,
        nccl=None if settings.release is None else release_name(settings.release),
        pairs=settings.pairs,
    )
    readme = readme_text(described, settings.map, settings.transport, settings.pairs, with_map=settings.with_map)
    return {"README.md": readme, **files}


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
    if settings.map.source == OPENSM:
        return {}
    if settings.transport == "infiniband":
        return {"map/opensm.conf": opensm_lines(settings.map)}
    if settings.transport == "other":
        return {}
    return {"map/mlnx_qos.sh": mlnx_qos_commands(settings.map), "map/sonic_qos.json": sonic_tables(settings.map)}


def _job_files(job: PlannedJob, variables: JobVariables, settings: Settings) -> tuple[dict[str, str], tuple[str, ...]]:
    """The files of a job's folder, and what is to be known of them."""
    notes = list(variables.level.notes)
    own = {ENVIRONMENT: _exports(job, variables.level, ENVIRONMENT)} if variables.level.variables else {}
    snippet = axis_levels_snippet(job, settings.map, settings.transport, settings.release)
    if snippet is not None:
        own["axis_levels.py"] = snippet
    if job.transport is not None:
        return own, tuple(notes)
    if settings.transport == "tcp":
        file = nftables_file(job, settings.jobs, settings.map, settings.addresses, file="dscp.nft")
        own |= {"dscp.nft": file.text} if file.text is not None else {}
        notes += file.notes
    if settings.transport == "roce":
        ports = source_ports_json(job)
        own |= {"udp_source_ports.json": ports} if ports is not None else {}
    if variables.stock_nccl.variables:
        own[STOCK_NCCL] = _exports(job, variables.stock_nccl, STOCK_NCCL)
    return own, tuple(notes)


def _described(job: PlannedJob, variables: JobVariables, settings: Settings) -> dict[str, Any]:
    ethernet = settings.transport in ("roce", "tcp") and job.transport is None
    level = None if job.level is None else level_of(job.level, settings.map, job)
    return {
        "id": job.id,
        "level": job.level,
        "axis_levels": dict(job.axis_levels) or None,
        "dscp": level.dscp if level is not None and ethernet else None,
        "environment": variables.level.by_name,
        "stock_nccl": variables.stock_nccl.by_name,
    }


def _exports(job: PlannedJob, environment: JobEnvironment, file: str) -> str:
    """A file that a shell takes in, what is to be known of it in its head."""
    said = [f"Environment of every rank of the job {job.id}: `. {file}` before it starts"]
    lines = [f"# {part}" for note in (*said, *environment.notes) for part in wrap(f"{note}.", WIDTH)]
    return "\n".join([*lines, *(f"export {name}={value}" for name, value in environment.variables)]) + "\n"
