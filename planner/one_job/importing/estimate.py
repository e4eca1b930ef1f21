"""A launcher's settings estimated: read into the options of one explicit plan, priced as that, compared with the best.

A model that no zoo name stands for is written as a `config.json` beside the plan (`-o PLAN`), which is what the plan's
`model.reference` then names; without `-o` there is no file to name, and an assumption says so.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from estimator.frontends.hugging_face import config_model
from estimator.frontends.load import load_any_model
from estimator.pricing.recipe import Setup
from estimator.pricing.software import overruled
from models_zoo.model import Model
from planner.one_job.explicit.dispatch import flag, whole_training
from planner.one_job.explicit.estimate import describe_estimated, estimate_explicit
from planner.one_job.explicit.evaluation import evaluate_with_store
from planner.one_job.explicit.request import ExplicitRequest, canonical, read_explicit
from planner.one_job.importing.comparison import FindBest, compare, describe_comparison
from planner.one_job.tools.deepspeed.read import read_deepspeed
from planner.one_job.tools.import_records import Imported, Reader
from planner.one_job.tools.megatron.read import read_megatron
from planner.one_job.tools.pipeline import with_blocks
from planner.one_job.tools.torchtitan.read import read_torchtitan
from planner.shared.inputs import load_place, open_existing
from planner.shared.options import EstimateOptions, beyond_default, with_defaults
from planner.shared.plan_file import save_plan
from profiles.errors import InputError, NothingFits
from profiles.files import write_atomically
from profiles.store import ProfileStore

READERS: dict[str, Reader] = {
    "megatron": read_megatron,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
}

OWN_CHOICE = ("software", "devices")
"""Options that hold though the settings say something else: what stands in for a launcher, and where it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedModel:
    """A model, what a plan calls it, and the text of its `config.json` where it needs one."""

    model: Model
    reference: str
    config: str | None


def estimate_imported(
    launcher: str,
    settings: str,
    *,
    model: str | None,
    cluster: str | None,
    output: Path | None,
    store: Path | None,
    options: EstimateOptions,
    find_best: FindBest | None = None,
) -> dict[str, Any]:
    """The explicit plan that the settings are, as `planner.one_job.cells.estimating.estimate_plan` gives it, with
    `launcher` and `comparison` besides; NothingFits, with the same value in it, if it does not fit."""
    read = READERS.get(launcher)
    if read is None:
        raise InputError(where="estimate", key="--from", found=repr(launcher), expected=f"one of {', '.join(READERS)}")
    if cluster is None:
        raise InputError(where="estimate", key="--cluster", found="nothing", expected="a cluster beside --from")
    given = with_defaults(EstimateOptions, options)
    imported = read(settings, model=model, options=given)
    found_model = find_model(imported, output)
    with open_existing(store) as opened:
        request = read_imported(imported, found_model, cluster=cluster, store=opened, given=given)
        evaluate = partial(evaluate_with_store, store=opened, profiles=given["profiles"])
        found = estimate_explicit(request, whole=whole_training(options), evaluate=evaluate)
        best = find_best(request, evaluate) if find_best is not None else None
    result = describe_estimated(found) | {
        "launcher": {"format": launcher, "setting": imported.setting},
        "comparison": describe_comparison(compare(found.plan, best, fits=found.shortfall is None)),
    }
    if found.shortfall is not None:
        message = f"{imported.setting} on {found.plan.cluster}: the setting does not fit; {found.shortfall}"
        raise NothingFits(message, result=result)
    if output is not None:
        if found_model.config is not None:
            write_atomically(found_model.reference, found_model.config)
        save_plan(found.plan, output)
    return result


def find_model(imported: Imported, output: Path | None) -> ImportedModel:
    """The model of the settings, and the file beside `output` that will hold it where it has no name of its own."""
    if imported.config is None:
        if imported.reference is None:
            expected = "MODEL beside the settings, which do not say it"
            raise InputError(where=imported.setting, key="MODEL", found="nothing", expected=expected)
        return ImportedModel(model=load_any_model(imported.reference), reference=imported.reference, config=None)
    if output is None:
        blocks, hidden = imported.config["num_hidden_layers"], imported.config["hidden_size"]
        name = reference = f"{imported.launcher}-{blocks}x{hidden}"
    else:
        file = output.with_name(f"{output.stem}-model.json")
        name, reference = file.stem, str(file)
    model = config_model(imported.config, where=imported.setting, name=name)
    text = json.dumps(imported.config, indent=2) + "\n"
    return ImportedModel(model=model, reference=reference, config=text)


def read_imported(
    imported: Imported,
    found: ImportedModel,
    *,
    cluster: str,
    store: ProfileStore | None,
    given: Mapping[str, Any],
) -> ExplicitRequest:
    """The explicit request of the settings, with what no option says put on its setups. InputError in the settings' own
    words."""
    options = merge_options(imported, given)
    try:
        options["hsdp"] = options["hsdp"] or _sharing(imported, found.model, cluster, store, options)
        request = read_explicit(found.reference, cluster=cluster, store=store, options=options, model=found.model)
    except InputError as error:
        raise _in_own_words(error, imported, beyond_default(EstimateOptions, given)) from None
    said = list(imported.assumptions)
    if found.config is not None and not Path(found.reference).suffix:
        said.append("the model is not in the catalogue: -o PLAN writes its config.json beside the plan")
    return replace(
        request,
        setups=tuple(_adjusted(setup, imported, options) for setup in request.setups),
        assumptions=tuple(dict.fromkeys((*said, *request.assumptions))),
    )


def merge_options(imported: Imported, given: Mapping[str, Any]) -> dict[str, Any]:
    """All options: those of the settings, and `given` where these say nothing. InputError where both speak and differ,
    but for `OWN_CHOICE`."""
    merged = dict(given)
    own: dict[str, Any] = {**imported.options, **({"devices": imported.devices} if imported.devices else {})}
    said = set(beyond_default(EstimateOptions, given))
    for name, value in own.items():
        if name in said and given[name] != value and name not in OWN_CHOICE:
            key = imported.words.get(name, flag(name))
            found = f"{value}, and {flag(name)} {given[name]} beside it"
            raise InputError(where=imported.setting, key=key, found=found, expected="one of them")
        if name not in said:
            merged[name] = value
    return merged


def _sharing(
    imported: Imported, model: Model, cluster: str, store: ProfileStore | None, options: Mapping[str, Any]
) -> tuple[int, int] | None:
    """The ranks that share the state and the copies of it, where the settings say one of these."""
    if imported.shard is None and imported.copies is None:
        return None
    devices = options["devices"]
    if devices is None:
        place = load_place(
            cluster,
            model,
            store=store,
            dtype=options["dtype"],
            seq_len=options["seq_len"] or model.seq_len,
            optimizer=options["optimizer"],
        )
        devices = len(place.free_slots)
    beside = (options["tp"] or 1) * (options["pp"] or 1)
    ranks = (options["dp"] or 0) * (options["cp"] or 1) or devices // beside
    parts = imported.shard or imported.copies or 1
    if ranks % parts:
        found = f"{parts}, of {ranks} data-parallel ranks"
        raise InputError(where=imported.setting, key="--hsdp", found=found, expected="a divisor of the ranks")
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


def _adjusted(setup: Setup, imported: Imported, options: Mapping[str, Any]) -> Setup:
    """What the settings say and no option does: features of the software (less those stated), blocks of each chunk."""
    software = overruled(replace(setup.recipe.software, **imported.software), options["feature"])
    setup = replace(setup, recipe=replace(setup.recipe, software=software))
    if imported.blocks is None or setup.recipe.schedule == "dualpipe":
        return setup
    return canonical(with_blocks(setup, imported.blocks))
