"""What is measured, and kept in the store: layers, links."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.shared.options.call import takes
from planner.shared.options.measuring import (
    CommFitOptions,
    CommMeasureOptions,
    CommShowOptions,
    ProfileOptions,
    ProfilesExportOptions,
    ProfilesImportOptions,
    ProfilesShowOptions,
)
from profiles.errors import InputError
from profiles.vocabulary import LinkTable

if TYPE_CHECKING:
    from profiles.store import ProfileStore


@takes(ProfileOptions)
def profile(options: ProfileOptions) -> dict[str, Any]:
    """Measure the model's layer shards on one device into the store; what is there already is not measured again.

    `framework` None: torch, or that of the factory's own model.
    `tp` and `micro_batch` (per rank) are the degrees and sizes to measure, `budget` the seconds this may take. With
    `cluster` (and `global_batch`) they are instead those that `estimate` asks for on the devices of this type in that
    cluster, which must have some.
    `attention` None: flash where the device has it. With `stage`, layers [first, end) alone, and as one piece besides,
    through torch.compile if `compile`.
    """
    from planner.one_job.profiling.profiling import profile_model

    return profile_model(options)


@takes(CommMeasureOptions)
def comm_measure(options: CommMeasureOptions) -> list[dict[str, Any]]:
    """Measure collectives over `link` between processes on this machine, or the ranks of `world`, into the store.

    `sizes` in bytes, as nccl-tests counts them; `busy`: the ranks compute before each call, as in a training. Of
    several processes in a `world`, rank 0 alone stores.
    """
    from estimator.communication.measure_torch import ALL_OPS, DEFAULT_SIZES, measure_links
    from profiles.hardware import check_link_name

    check_link_name(options.link, where="comm measure", key="--link")

    def report(done: int, total: int, what: str) -> None:
        if options.progress is not None:
            options.progress(done, total, None, what)

    tables = measure_links(
        link_name=options.link,
        backend=options.backend,
        ranks=options.ranks,
        sizes=options.sizes or DEFAULT_SIZES,
        ops=options.ops or ALL_OPS,
        repeats=options.repeats,
        busy=options.busy,
        timeout_s=options.timeout,
        progress=report,
        world=options.world,
    )
    if options.world is None or options.world.rank == 0:
        _store_link_tables(options.store, tables)
    return [asdict(table) for table in tables]


@takes(CommFitOptions)
def comm_fit(options: CommFitOptions) -> list[dict[str, Any]] | dict[str, Any]:
    """Read the output of nccl-tests, fit alpha and beta, and put the link tables into the store.

    `link` is the link that was measured and `op` the collective, where the output does not say which. With `spread`, a
    level of `cluster`, it is instead that level's spread table, for the cluster's file; nothing is stored.
    """
    from estimator.communication.nccl_tests import read_nccl_tests
    from profiles.files import read_text
    from profiles.hardware import check_link_name

    check_link_name(options.link, where="comm fit", key="--link")
    if options.spread is not None:
        return _fit_spread(options, options.spread)
    tables = read_nccl_tests(read_text(options.file), where=str(options.file), link=options.link, op=options.op)
    _store_link_tables(options.store, tables)
    return [asdict(table) for table in tables]


def _fit_spread(options: CommFitOptions, level: str) -> dict[str, Any]:
    from estimator.communication.nccl_tests import read_nccl_runs
    from estimator.communication.spread_fit import fit_spread
    from planner.shared.inputs import load_any_place
    from profiles.files import read_text
    from profiles.level_parts import part_finder
    from profiles.yaml_files import yaml_text

    where = str(options.file)
    find_part = part_finder(load_any_place(options.cluster or ""), level, where=where)
    runs = read_nccl_runs(read_text(options.file), where=where, op=options.op)
    fitted = fit_spread(runs, find_part, source=f"nccl-tests: {where}")
    spread = {
        "collective": list(fitted.table.collective),
        "message": list(fitted.table.message),
        "source": fitted.table.source,
    }
    return {
        "level": level,
        "spread": spread,
        "runs": [asdict(point) for point in fitted.points],
        "notes": list(fitted.notes),
        "text": yaml_text({"spread": spread}),
    }


@takes(CommShowOptions)
def comm_show(options: CommShowOptions) -> list[dict[str, Any]]:
    """Return the link tables of the store (of `link` alone); with `size` also the seconds of so many bytes, by each
    method."""
    from estimator.communication.tables import METHODS

    with _open_to_read(options.store) as opened:
        tables = opened.link_tables(options.link)
        if options.link is not None and not tables:
            names = ", ".join(dict.fromkeys(table.link for table in opened.link_tables())) or "none at all"
            raise options.wrong("link", found=f"no table of {options.link!r}", expected=f"one that is stored: {names}")
    size = options.size
    if size is None:
        return [asdict(table) for table in tables]
    return [
        asdict(table) | {"size": size, "seconds": {name: method(table, size) for name, method in METHODS.items()}}
        for table in tables
    ]


def _store_link_tables(path: Path, tables: tuple[LinkTable, ...]) -> None:
    from profiles.store import ProfileStore

    for table in tables:
        if len(table.points) < 2:
            only_size = f"one size ({table.points[0][0]} bytes) of {table.op} over {table.ranks} ranks"
            raise InputError(where=f"link {table.link}", found=only_size, expected="two sizes or more, to fit a line")
    with ProfileStore(path) as store:
        for table in tables:
            store.put_link_table(table)


@takes(ProfilesExportOptions)
def profiles_export(options: ProfilesExportOptions) -> dict[str, int]:
    """Write all of the store into one JSON file; return how much that is."""
    from profiles.store import export_profiles

    with _open_to_read(options.store) as opened:
        export_profiles(opened, options.file)
        contents = opened.contents()
    return {
        "profiles": len(contents.profiles),
        "rates": len(contents.rates),
        "link_tables": len(contents.link_tables),
    }


@takes(ProfilesImportOptions)
def profiles_import(options: ProfilesImportOptions) -> dict[str, int]:
    """Add a file that `profiles_export` wrote to the store, all or nothing; what is there stays unless `replace`."""
    from profiles.store import ProfileStore, import_profiles

    with ProfileStore(options.store) as opened:
        return asdict(import_profiles(opened, options.file, replace=options.replace))


@takes(ProfilesShowOptions)
def profiles_show(options: ProfilesShowOptions) -> list[dict[str, Any]]:
    """Return what the store holds, a line for each profile."""
    from planner.shared.describing import describe_profile

    with _open_to_read(options.store) as opened:
        return [describe_profile(profile) for profile in opened.profiles()]


def _open_to_read(path: Path) -> ProfileStore:
    """The store at `path`; InputError if there is none, since reading is no reason to make one."""
    from profiles.store import ProfileStore

    if not path.exists():
        raise InputError(
            where=str(path), found="no such file", expected="a profile store, as `cellplan profile` makes it"
        )
    return ProfileStore(path)
