"""A launcher's settings estimated: read into the options of one explicit plan, priced as that, compared with the best.

A model that no zoo name stands for is written as a `config.json` beside the plan (`-o PLAN`), which is what the plan's
`model.reference` then names; without `-o` there is no file to name, and an assumption says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from estimator.pricing.recipe import Setup
from estimator.pricing.software import overruled
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.request import ExplicitRequest, canonical, read_explicit
from planner.one_job.importing.comparison import FindBest, compare, describe_comparison
from planner.one_job.tools.base.import_records import Imported, NamedModel, Reader
from planner.one_job.tools.base.pipeline import with_blocks
from planner.one_job.tools.base.tool import load
from planner.one_job.tools.catalogue import TOOLS
from planner.shared.inputs import load_place, open_existing
from planner.shared.options.common import Launcher, Tool
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.record import entries
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits
from profiles.files import write_atomically
from profiles.store import ProfileStore

READERS: dict[str, str] = {
    name.removesuffix("-toml"): tool.read for name, tool in TOOLS.items() if tool.read is not None
}
READERS["trainer"] = READERS["peft"]
"""By launcher, what reads its settings."""

OWN_CHOICE = ("software", "devices")
"""Options that hold though the settings say something else: what stands in for a launcher, and where it runs."""


def estimate_imported(options: EstimateOptions, *, find_best: FindBest | None = None) -> dict[str, Any]:
    """Return the estimate of the explicit plan that a launcher's settings are, as `estimate_plan` of
    `planner.one_job.cells.estimating_plan` gives it, with `launcher` and `comparison` besides; raise NothingFits, with
    the same value in it, if it does not fit."""
    if options.launcher is None or options.cluster is None:
        expected = "a cluster beside --from"
        raise InputError(where="estimate", key="--cluster", found="nothing", expected=expected)
    launcher, settings = options.launcher
    if launcher not in READERS:
        raise InputError(where="estimate", key="--from", found=repr(launcher), expected=f"one of {', '.join(READERS)}")
    read: Reader = load(READERS[launcher])
    imported = read(settings, model=options.model, options=options)
    imported = replace(imported, model=place_model(imported, options.output))
    with open_existing(options.store) as opened:
        request = read_imported(imported, store=opened, given=options)
        evaluate = partial(evaluate_with_store, store=opened, profiles=options.profiles)
        estimated = estimate_explicit(request, whole=options, evaluate=evaluate)
        best = find_best(request, evaluate) if find_best is not None else None
    result = describe_estimated(estimated) | {
        "launcher": {"format": launcher, "setting": imported.setting},
        "comparison": describe_comparison(compare(estimated.plan, best, fits=estimated.shortfall is None)),
    }
    if estimated.shortfall is not None:
        message = f"{imported.setting} on {estimated.plan.cluster}: the setting does not fit; {estimated.shortfall}"
        raise NothingFits(message, result=result)
    if options.output is not None:
        if imported.model.config is not None:
            write_atomically(imported.model.reference or "", json.dumps(imported.model.config, indent=2) + "\n")
        save_plan(estimated.plan, options.output)
    return result


def tool_of_launcher(launcher: Launcher) -> Tool:
    """Return the tool whose plans are compared with a launcher's settings."""
    return "peft" if launcher == "trainer" else launcher


def place_model(imported: Imported, output: Path | None) -> NamedModel:
    """Return the settings' model with a reference: the file beside `output` that will hold it where it has no name of
    its own."""
    named = imported.model
    if named.config is None:
        return named
    if output is None:
        blocks, hidden = named.config["num_hidden_layers"], named.config["hidden_size"]
        name = reference = f"{imported.launcher}-{blocks}x{hidden}"
    else:
        file = output.with_name(f"{output.stem}-model.json")
        name, reference = file.stem, str(file)
    return replace(named, model=replace(named.model, name=name), reference=reference)


def read_imported(imported: Imported, *, store: ProfileStore | None, given: EstimateOptions) -> ExplicitRequest:
    """The explicit request of the settings, with what no option says put on its setups. InputError in the settings' own
    words."""
    named, options = imported.model, merge_options(imported, given)
    try:
        options = replace(options, hsdp=options.hsdp or _sharing(imported, store, options))
        request = read_explicit(replace(options, model=named.reference), store=store, model=named.model)
    except InputError as error:
        raise _in_own_words(error, imported, given.changed()) from None
    said = list(imported.assumptions)
    if named.config is not None and not Path(named.reference or "").suffix:
        said.append("the model is not in the catalogue: -o PLAN writes its config.json beside the plan")
    return replace(
        request,
        setups=tuple(_adjusted(setup, imported, options) for setup in request.setups),
        assumptions=tuple(dict.fromkeys((*said, *request.assumptions))),
        often=(),
    )


def merge_options(imported: Imported, given: EstimateOptions) -> EstimateOptions:
    """Return all options: those of the settings, and `given` where these say nothing. Raise InputError where both speak
    and differ, but for `OWN_CHOICE`."""
    stated = {**imported.options, **({"devices": imported.devices} if imported.devices else {})}
    said = given.changed()
    for name, value in stated.items():
        if name in said and getattr(given, name) != value and name not in OWN_CHOICE:
            key = imported.words.get(name, flag(name))
            said_twice = f"{value}, and {flag(name)} {getattr(given, name)} beside it"
            raise InputError(where=imported.setting, key=key, found=said_twice, expected="one of them")
    return replace(given, **{name: value for name, value in stated.items() if name not in said})


def flag(name: str) -> str:
    """Return an option's name on the command line."""
    return entries(EstimateOptions)[name].flag


def _sharing(imported: Imported, store: ProfileStore | None, options: EstimateOptions) -> tuple[int, int] | None:
    """The ranks that share the state and the copies of it, where the settings say one of these."""
    if imported.shard is None and imported.copies is None:
        return None
    devices, model = options.devices, imported.model.model
    if devices is None:
        place = load_place(
            options.cluster or "",
            model,
            store=store,
            dtype=options.dtype,
            seq_len=options.seq_len or model.seq_len,
            optimizer=options.optimizer,
        )
        devices = len(place.free_slots)
    beside = (options.tp or 1) * (options.pp or 1)
    ranks = (options.dp or 0) * (options.cp or 1) or devices // beside
    parts = imported.shard or imported.copies or 1
    if ranks % parts:
        said = f"{parts}, of {ranks} data-parallel ranks"
        raise InputError(where=imported.setting, key="--hsdp", found=said, expected="a divisor of the ranks")
    return (parts, ranks // parts) if imported.shard else (ranks // parts, parts)


def _in_own_words(error: InputError, imported: Imported, given: Collection[str]) -> InputError:
    """The error about options of `estimate`, naming what the settings call those that were not `given` beside them."""
    if error.key is None:
        return error
    names = {flag(name): word for name, word in imported.words.items() if name not in given}
    words = [names.get(key.strip(), key.strip()) for key in error.key.split(",")]
    return InputError(
        where=imported.setting, key=", ".join(dict.fromkeys(words)), found=error.found, expected=error.expected
    )


def _adjusted(setup: Setup, imported: Imported, options: EstimateOptions) -> Setup:
    """What the settings say and no option does: features of the software (less those stated), blocks of each chunk."""
    software = overruled(replace(setup.recipe.software, **imported.software), options.feature)
    setup = replace(setup, recipe=replace(setup.recipe, software=software))
    if imported.blocks is None or setup.recipe.schedule == "dualpipe":
        return setup
    return canonical(with_blocks(setup, imported.blocks))
