"""Reader of `data/training.toml`: what whole training runs show beyond operators, collectives and schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import Any

from profiles.records import dataclass
from profiles.tables import DATA, read_tables


@dataclass(frozen=True, kw_only=True)
class TrainingParameters:
    """Parameters fitted on whole runs, by name; the file says what each means and which rows it rests on.

    A name may have a value for a device, a generation of devices, a link or a declared feature (`gemm_share.hopper`)
    beside the plain one (`gemm_share`), which everything else carries over.
    """

    values: Mapping[str, float] = field(hash=False)

    def of(self, name: str, *qualifiers: str) -> float:
        """Return the value for the first of `qualifiers` that has one, else the plain one.

        Raise KeyError for a name that the file lacks.
        """
        for qualifier in qualifiers:
            if (value := self.values.get(f"{name}.{qualifier}")) is not None:
                return value
        return self.values[name]


@cache
def load_training_rows() -> dict[str, dict[str, Any]]:
    """Return the file's rows by name: value, bounds, what it means, what it rests on."""
    return {str(row["name"]): row for row in read_tables(DATA / "training.toml")["parameter"]}


@cache
def load_training_parameters() -> TrainingParameters:
    """Return the committed parameters."""
    return TrainingParameters(values={name: float(row["value"]) for name, row in load_training_rows().items()})


@cache
def neutral_parameters() -> TrainingParameters:
    """Return parameters that change nothing: shares of 1, no seconds, and the p-norm of the file."""
    names = {name.partition(".")[0] for name in load_training_rows()}
    values = {name: 1.0 if name.endswith("_share") else 0.0 for name in names}
    return TrainingParameters(values=values | {"launch_norm": load_training_parameters().of("launch_norm")})
