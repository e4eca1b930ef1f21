"""The Python interface: a function for each command, with the command's arguments as keywords, or its record of
options (`planner.shared.options`).

Each returns a record or a value that `json.dumps` takes, prints nothing and reads no environment; the command line
parses and prints. Heavy modules are imported inside the functions, so that this one costs nothing to import.

Raises, everywhere: `profiles.errors.InputError` (wrong input), `NothingFits`, `MachineError`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.shared.options.call import takes
from planner.shared.options.catalogue import HardwareShowOptions, ModelsShowOptions
from planner.shared.options.code import CodeOfFileOptions
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.jct import JctEvaluateOptions, JctPredictOptions, JctTrainOptions
from planner.shared.options.measuring import (
    CommFitOptions,
    CommMeasureOptions,
    CommShowOptions,
    ProfileOptions,
    ProfilesExportOptions,
    ProfilesImportOptions,
    ProfilesShowOptions,
)
from planner.shared.options.running import ExportOptions, RunOptions, ValidateOptions
from planner.shared.options.search import (
    FrontOptions,
    PlaceOptions,
    PlanOptions,
    SideBySideOptions,
    SmallestOptions,
)
from planner.shared.options.simulate import SimulateOptions, SweepOptions
from profiles.errors import InputError
from profiles.vocabulary import LinkTable

if TYPE_CHECKING:
    from estimator.profiling.setting import Framework
    from planner.many_jobs.simulation.run import Simulated
    from planner.one_job.planning.answer import PlanAnswer
    from planner.one_job.planning.choices import Choice
    from planner.one_job.planning.plan_comparison import PlanComparison
    from planner.one_job.timeline.events import Timeline
    from planner.shared.plan import Plan
    from profiles.store import ProfileStore


def request_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the options that the function called `command` takes: `estimate(**request)` is what it
    answers."""
    from planner.shared.options.record import schema_of

    return schema_of(globals()[command].options)


def models_list() -> list[dict[str, Any]]:
    """The models of the catalogue, each in numbers."""
    from models_zoo.catalogue import load_model, model_names
    from planner.one_job.cells.describe import describe_model

    return [describe_model(load_model(name)) for name in model_names()]


@takes(ModelsShowOptions)
def models_show(options: ModelsShowOptions) -> dict[str, Any]:
    """Return one model, layer by layer, for one sample of `seq_len` tokens (default: the model's own)."""
    from estimator.frontends.load import load_any_model
    from estimator.layers.graph import build_graph
    from planner.one_job.cells.describe import describe_layers, describe_model
    from planner.shared.inputs import token_count
    from profiles.vocabulary import Shard

    model = load_any_model(options.model, options.user_code)
    tokens = token_count(model, options.seq_len)
    graph = build_graph(model, shard=Shard(seq_len=tokens, dtype=options.dtype))
    about = {"seq_len": tokens or None, "dtype": options.dtype}
    return describe_model(model) | about | {"layers": describe_layers(graph)}


def hardware_list() -> dict[str, list[dict[str, Any]]]:
    """Return the devices and links of the catalogue, and what each training software is declared to do."""
    from estimator.pricing.software import describe_framework, load_frameworks
    from planner.one_job.cells.describe import describe_device
    from profiles.hardware import device_names, link_names, load_device, load_link

    return {
        "devices": [describe_device(load_device(name)) for name in device_names()],
        "links": [asdict(load_link(name)) for name in link_names()],
        "software": [describe_framework(framework) for framework in load_frameworks().values()],
    }


@takes(HardwareShowOptions)
def hardware_show(options: HardwareShowOptions) -> dict[str, Any]:
    """Return one device or link of the catalogue, or one training software with its declared features."""
    from estimator.pricing.software import describe_framework, load_frameworks
    from planner.one_job.cells.describe import describe_device
    from profiles.hardware import link_names, load_device, load_link

    if options.name in load_frameworks():
        return describe_framework(load_frameworks()[options.name])
    if options.name in link_names():
        return asdict(load_link(options.name))
    return describe_device(load_device(options.name))


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
def comm_fit(options: CommFitOptions) -> list[dict[str, Any]]:
    """Read the output of nccl-tests, fit alpha and beta, and put the link tables into the store.

    `link` is the link that was measured and `op` the collective, where the output does not say which.
    """
    from estimator.communication.nccl_tests import read_nccl_tests
    from profiles.files import read_text
    from profiles.hardware import check_link_name

    check_link_name(options.link, where="comm fit", key="--link")
    tables = read_nccl_tests(read_text(options.file), where=str(options.file), link=options.link, op=options.op)
    _store_link_tables(options.store, tables)
    return [asdict(table) for table in tables]


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


def _open_to_read(path: Path) -> ProfileStore:
    """The store at `path`; InputError if there is none, since reading is no reason to make one."""
    from profiles.store import ProfileStore

    if not path.exists():
        raise InputError(
            where=str(path), found="no such file", expected="a profile store, as `cellplan profile` makes it"
        )
    return ProfileStore(path)


@takes(EstimateOptions)
def estimate(options: EstimateOptions) -> dict[str, Any]:
    """Return how fast the model trains on the cluster: its Cells, or one explicit plan.

    Without a degree of parallelism among the options, the Cells, one for each device type and stage count. With any, or
    with a `plan` file in place of model and options (`cluster` may then stand for the file's), that one plan: its
    record, and the estimate with time and memory taken apart; `output` and `timeline` are files to write them to. With
    `launcher` (`("megatron", ARGS)`, or `torchtitan` or `deepspeed` and a file) the plan is that launcher's present
    settings, compared with the best plan that the launcher can run, and `model` may be left out where these say it.

    `store` holds measured profiles and link tables; without it, or where it lacks something, the operator model and the
    catalogue's links stand in, and `assumptions` say so. NothingFits, which has the figures all the same, if no Cell
    can be had or the plan does not fit.
    """
    if options.launcher is not None:
        from planner.one_job.importing.best import best_of_setting
        from planner.one_job.importing.estimate import estimate_imported

        find_best = best_of_setting(options.launcher[0], store=options.store, profiles=options.profiles)
        return estimate_imported(options, find_best=find_best)
    if options.explicit:
        from planner.one_job.cells.estimating_plan import estimate_plan

        return estimate_plan(options)
    from planner.one_job.cells.estimating import estimate_cells

    return estimate_cells(options)


@takes(PlanOptions)
def plan(options: PlanOptions) -> PlanAnswer:
    """Return the best plan on the cluster's free devices, proved to be the best of the space that the options leave
    open, with what vouches for it.

    With `search="cells"` it is the best Cell's best assembly, as Crius estimates it, and with `search="crius"` that
    Cell tuned as Crius does. `profile_budget` seconds may be spent on running candidate plans on local workers. With
    `explain` also why: what binds, what the best plans without one of its choices lose, what more hardware or a larger
    batch would bring, what the constraints among the options cost, each a search of its own. With `compare` also what
    the plan in that file does otherwise. `output` and `timeline` are files to write. Failures as of `estimate`.
    """
    from planner.one_job.planning.answer import answer_plan

    return answer_plan(options)


@takes(FrontOptions)
def front(options: FrontOptions) -> tuple[Choice, ...]:
    """Return the plans that no other one beats in both time and devices, or time and memory of a device; the fastest
    first."""
    from planner.one_job.planning.choices import front as find_front

    return find_front(options)


@takes(SmallestOptions)
def smallest(options: SmallestOptions) -> Choice:
    """Return the best plan on the fewest of the cluster's devices on which an iteration takes at most `meet_s`
    seconds."""
    from planner.one_job.planning.choices import smallest as find_smallest

    return find_smallest(options)


@takes(SideBySideOptions)
def side_by_side(options: SideBySideOptions) -> tuple[Choice, ...]:
    """Return the best plan on the cluster, and on each of the clusters `beside` it."""
    from planner.one_job.planning.choices import side_by_side as find_side_by_side

    return find_side_by_side(options)


def compare(
    plan: Plan | Path,
    other: Path,
    *,
    profiles: Framework | None = None,
    store: Path | None = None,
    code: tuple[str, ...] = (),
) -> PlanComparison:
    """A plan (or that of a file) beside the plan in the file `other`, which is estimated again: what it does otherwise,
    and what of an iteration and of memory takes more. `code` as in `timeline`."""
    from planner.one_job.planning.plan_comparison import compare_with_file
    from planner.shared.plan_file import load_plan

    first_plan = load_plan(plan) if isinstance(plan, Path) else plan
    user_code = CodeOfFileOptions(code=code).user_code
    return compare_with_file(first_plan, other, store=store, profiles=profiles, code=user_code)


def timeline(
    plan: Plan | Path,
    *,
    output: Path | None = None,
    profiles: Framework | None = None,
    store: Path | None = None,
    code: tuple[str, ...] = (),
) -> Timeline:
    """When each stage of a plan, or of the plan in a file, works on which micro-batch, as `estimate` has it.

    `output` is a file to write it to: a picture (.svg) or a trace for Perfetto (.json, .json.gz). `store` and
    `profiles` (whose measured layer times count) as in `estimate`. `code` is what the plan may run of the caller's own.
    """
    from planner.one_job.timeline.events import make_timeline
    from planner.one_job.timeline.save import save_timeline, timeline_form
    from planner.shared.inputs import open_existing
    from planner.shared.plan_file import load_plan

    if output is not None:
        timeline_form(output)
    where, read = (str(plan), load_plan(plan)) if isinstance(plan, Path) else ("plan", plan)
    with open_existing(store) as opened:
        user_code = CodeOfFileOptions(code=code).user_code
        drawn = make_timeline(read, where=where, store=opened, profiles=profiles, code=user_code)
    if output is not None:
        save_timeline(drawn, output)
    return drawn


@takes(PlaceOptions)
def place(options: PlaceOptions) -> dict[str, Any]:
    """Return over which sites of the cluster a job of `devices` devices runs, on which of them, under which plan, and
    what else could be done: `alternatives` other ways at most are planned.

    `local` is the site that the job is submitted at; `method` how sites are chosen; `types` the device types to take
    (none: any). `comm` are files of measured links, `links` the state that they are added to, ages counted to `now`
    (seconds since 1970; None: by the clock). `output` is a file for the plan; where the links are not the cluster
    file's, a cluster file is written beside it. NothingFits where sites or memory do not suffice.
    """
    from planner.many_jobs.placement.alternatives import other_ways
    from planner.many_jobs.placement.describing import describe_placed, save_placed
    from planner.many_jobs.placement.placing import place_model

    placed = place_model(options)
    plan = placed.plan if options.output is None else save_placed(placed, options.output)[0]
    return describe_placed(placed, plan, other_ways(placed, options))


@takes(RunOptions)
def run(options: RunOptions) -> dict[str, Any] | None:
    """Train some iterations with exactly the plan in `file`, and set what was measured beside the estimate.

    Each rank is a process of this machine, or this process is one rank of `world`; of those, rank 0 alone returns
    something. `warm_up` iterations come before the `steps` that are measured; `losses` holds all of them. `data` is
    a file of tokens (`data_dtype` where it is raw), None random samples. On a CPU a worker computes with `threads`,
    on cores of its own where `pin` and there are enough. After `timeout` seconds without any rank getting on it is
    given up. `profile` first measures on one device what the store lacks for the estimate; `learn` puts what the
    run measured into the store; `trace` is a file for Perfetto.
    """
    from planner.one_job.running.run import run_plan

    return run_plan(options)


@takes(ValidateOptions)
def validate(options: ValidateOptions) -> dict[str, Any]:
    """Predict every run of the CSV table at `path` from its configuration alone, beside what was measured.

    Rows with errors, groups with statistics and baselines, and what could not be predicted with the reason; see
    `planner.one_job.validation`. `store` holds measured profiles, which win over the operator model. `plot` is a file
    for the picture, coloured by `group` (None: by source).
    """
    from planner.one_job.validation.plot import save_plot
    from planner.one_job.validation.run import validate_runs
    from planner.shared.inputs import open_existing
    from planner.shared.pictures import picture_format

    if options.plot is not None:
        picture_format(options.plot, where="validate")  # what cannot be drawn is said before the work, not after it
    with open_existing(options.store) as opened:
        result = validate_runs(options.path, store=opened, progress=options.progress)
    if options.plot is not None:
        save_plot(options.plot, result["rows"], by=options.group or "source")
    return result


@takes(SimulateOptions)
def simulate(options: SimulateOptions) -> Simulated:
    """Replay a trace on a cluster under a policy of `planner.many_jobs.policies.catalogue` (or
    `package.module:Class`) with its options, and return what it comes to.

    `planner.many_jobs.simulation.result.Summary` says what the figures are. `jobs_csv`, `series_csv`, `timeline` and
    `plot` are files to write; `bound` adds what no policy can beat. With `checkpoint` the run writes there what it
    takes to go on, every `checkpoint_every_s` seconds and when `stop` says that it must end (KeyboardInterrupt); with
    `resume` it goes on from that file, where there is one, to the very result of a run without a stop.
    """
    from planner.many_jobs.simulation.run import simulate_trace

    return simulate_trace(options)


@takes(SweepOptions)
def simulate_sweep(options: SweepOptions) -> dict[str, Any]:
    """Run `simulate` for each policy, seed and load, in `workers` processes of this machine or on the Ray cluster at
    `ray`, and return `runs` (a summary of each) and `means` over the seeds with half the width of their 95% confidence
    intervals."""
    from planner.many_jobs.simulation.sweep import simulate_sweep as sweep

    return sweep(options)


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
    from planner.one_job.cells.describe import describe_profile

    with _open_to_read(options.store) as opened:
        return [describe_profile(profile) for profile in opened.profiles()]


@takes(ExportOptions)
def export(options: ExportOptions) -> dict[str, Any]:
    """Write the plan in a file as what a tool is started with; return its files and what the user should know of them.

    `to` is a format of `export_formats`; `script` the training script that a launcher starts; `output` a file, or a
    folder where there are several. NothingFits where the tool cannot run the plan, with the key of the plan, the
    nearest plan that it runs and both times; `nearest` exports that one instead. `store` as in `estimate`.
    """
    from planner.one_job.exporting.exporting import export_plan

    return export_plan(options)


def export_formats() -> list[dict[str, str]]:
    """Return the formats that a plan is exported in, each with a line about it."""
    from planner.one_job.exporting.exporting import list_formats

    return list_formats()


@takes(JctTrainOptions)
def jct_train(options: JctTrainOptions) -> dict[str, Any]:
    """Train a predictor of completion times on a trace and write it to `output`; return what it rests on.

    `cap` is the last, open one of the intervals of 600 s. Nothing is used that was not known at `until_s` on the
    trace's clock (None: all of it). `search` parameter sets are drawn at random and compared on chronological splits.
    """
    from planner.many_jobs.jct.commands import train_file

    return train_file(options)


@takes(JctPredictOptions)
def jct_predict(options: JctPredictOptions) -> dict[str, Any]:
    """Return what the model in a file says of the jobs of `trace`: the likely interval, a point for the loss, a 90%
    interval.

    Each job is predicted from what is known at its submission: itself, and the jobs of `trace` and of the files in
    `history` before it. `from_s`: only jobs submitted from then on.
    """
    from planner.many_jobs.jct.commands import predict_file

    return predict_file(options)


@takes(JctEvaluateOptions)
def jct_evaluate(options: JctEvaluateOptions) -> dict[str, Any]:
    """Return how good predictions of a trace are, beside baselines: the last share `tested` of its jobs in `origins`
    blocks, each predicted by a model of what was known when it begins. `network` and `quantiles` set the paper's neural
    network and intervals of quantile boosters beside it. Errors are in intervals of 600 s; see
    `planner.many_jobs.jct.evaluation`.
    """
    from planner.many_jobs.jct.commands import evaluate_file

    return evaluate_file(options)
