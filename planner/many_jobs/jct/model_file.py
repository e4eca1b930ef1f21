"""A model as a file: LightGBM's own text format, and our header as its last line.

LightGBM reads the file as it is (`lightgbm.Booster(model_file=...)`: raw odds). The last line is `cellplan.jct/3` and a
JSON object: feature list, training window, where boosting starts, how intervals are calibrated, what boosters and
simple rules have lost, and the SHA-256 of the text before it. That text is read (`trees.py`) before LightGBM's parser,
which may end the process, sees any of it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.many_jobs.jct.boosting import Parameters, import_lightgbm
from planner.many_jobs.jct.groups import feature_names
from planner.many_jobs.jct.intervals import LOSSES
from planner.many_jobs.jct.mixture import MEMORIES, Mixture, expert_names
from planner.many_jobs.jct.model import JctModel, Start, Window
from planner.many_jobs.jct.trees import check_trees
from profiles.errors import InputError
from profiles.files import parse_json, read_text, write_atomically

SCHEMA = "cellplan.jct/3"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class _Header(_Strict):
    sha256: str
    columns: tuple[str, ...]
    features: tuple[str, ...]
    start: Start
    parameters: Parameters
    window: Window
    level: float = Field(ge=0, le=1)
    mixture: Mixture
    tail_s: float = Field(ge=0)


def save_model(model: JctModel, path: Path) -> None:
    """Write the model, whole or not at all. Raise MachineError where the disk does not take it."""
    text = model.booster.model_to_string()
    text = text if text.endswith("\n") else text + "\n"
    write_atomically(path, text + f"{SCHEMA} {json.dumps(header_of(model, text), allow_nan=False)}\n")


def header_of(model: JctModel, text: str) -> dict[str, Any]:
    """What the last line says."""
    return {
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "columns": model.columns,
        "features": model.features,
        "start": asdict(model.start),
        "parameters": asdict(model.parameters),
        "window": asdict(model.window),
        "level": model.level,
        "mixture": asdict(model.mixture),
        "tail_s": model.tail_s,
    }


def load_model(path: Path) -> JctModel:
    """Return the model in a file. Raise InputError where it is none, or not as it was written."""
    where = str(path)
    text, mark, line = read_text(path).rpartition(f"\n{SCHEMA} ")
    if not mark:
        raise InputError(
            where=where, found=f"no line {SCHEMA}", expected="a model of `cellplan jct train` of this version"
        )
    text += "\n"
    try:
        header = _Header.model_validate(parse_json(line, where=f"{where}, last line"))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise InputError(where=f"{where}, last line", key=key, found=first["input"], expected=first["msg"]) from None
    if hashlib.sha256(text.encode()).hexdigest() != header.sha256:
        raise InputError(where=where, key="sha256", found="trees that were changed", expected="the file as written")
    if header.features != feature_names(header.columns):
        raise InputError(where=where, key="features", found="another list", expected="that of this version")
    outputs = len(header.start.thresholds)
    check_trees(text, where=where, features=len(header.features), outputs=outputs, bags=header.parameters.bags)
    lightgbm = import_lightgbm()
    try:
        booster = lightgbm.Booster(model_str=text)
    except (lightgbm.basic.LightGBMError, ValueError) as error:
        raise InputError(
            where=where, found=f"trees that LightGBM refuses ({error})"[:200], expected="its own"
        ) from None
    if not _is_sound(header.mixture, header.start.cap, len(expert_names(header.columns))):
        raise InputError(where=where, key="mixture", found="other rules", expected="those of this version")
    return JctModel(
        booster=booster,
        start=header.start,
        columns=header.columns,
        features=header.features,
        parameters=header.parameters,
        window=header.window,
        level=header.level,
        mixture=header.mixture,
        tail_s=header.tail_s,
    )


def _is_sound(mixture: Mixture, cap: int, experts: int) -> bool:
    """Whether there are as many shares, weights and losses as of a trace with these columns, none of them negative and
    some of each positive."""
    rows = [mixture.begin, *(sums for of_loss in mixture.lost for sums in of_loss)]
    sizes = [len(of_loss) for of_loss in mixture.lost] == [len(MEMORIES)] * len(LOSSES)
    whole = sizes and len(mixture.shares) == cap and all(len(row) == experts for row in rows)
    return whole and all(min(row) >= 0 for row in (mixture.shares, *rows)) and min(mixture.begin) > 0
