"""The Python interface: a function for each command, with the command's arguments as keywords, or its record of
options (`planner.shared.options`).

Each returns a record or a value that `json.dumps` takes, prints nothing and reads no environment; the command line
parses and prints. Heavy modules are imported inside the functions, so that this one costs nothing to import.

Raises, everywhere: `profiles.errors.InputError` (wrong input), `NothingFits`, `MachineError`; `describe_failure` makes
of them what the command prints with `--json`.
"""

from __future__ import annotations

from typing import Any

from planner.api.catalogue import hardware_list, hardware_show, hardware_topology, models_list, models_show
from planner.api.many_jobs import jct_evaluate, jct_predict, jct_train, place, simulate, simulate_sweep
from planner.api.measured import (
    comm_fit,
    comm_measure,
    comm_show,
    profile,
    profiles_export,
    profiles_import,
    profiles_show,
)
from planner.api.network import contention, network_measure, network_paths, network_probe, network_show
from planner.api.one_job import (
    afford,
    compare,
    estimate,
    export,
    export_formats,
    front,
    largest,
    plan,
    run,
    side_by_side,
    smallest,
    timeline,
    validate,
)

__all__ = (
    "afford",
    "answer_schema",
    "comm_fit",
    "comm_measure",
    "comm_show",
    "compare",
    "contention",
    "describe_failure",
    "estimate",
    "export",
    "export_formats",
    "front",
    "hardware_list",
    "hardware_show",
    "hardware_topology",
    "jct_evaluate",
    "jct_predict",
    "jct_train",
    "largest",
    "models_list",
    "models_show",
    "network_measure",
    "network_paths",
    "network_probe",
    "network_show",
    "place",
    "plan",
    "profile",
    "profiles_export",
    "profiles_import",
    "profiles_show",
    "request_schema",
    "run",
    "side_by_side",
    "simulate",
    "simulate_sweep",
    "smallest",
    "timeline",
    "validate",
)


def answer_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of all that a command, such as `"plan"` or `"comm fit"`, prints with `--json`: its answer,
    and what it says where it fails. Raise InputError for a name that is none."""
    from planner.shared.documents import answer_schema as schema_of_answer

    return schema_of_answer(command)


def describe_failure(error: Exception, *, command: str | None = None) -> dict[str, Any]:
    """Return what the `command` prints with `--json` where a function here raised `error`: `failure` with its status,
    kind and message, and where nothing fits the keys of the command's answer that are known."""
    from planner.shared.documents import describe_failure as describe

    return describe(error, command=command)


def request_schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of the options that the function called `command` takes: `estimate(**request)` is what it
    answers."""
    from planner.shared.options.record import schema_of

    return schema_of(globals()[command].options)
