"""The fields of the page as options of the commands: read by the same words, and refused in the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from planner.cli.arguments import add_options, chosen
from planner.cli.main import Parser, UsageError
from planner.shared.options.estimate import EstimateOptions
from planner.shared.options.search import PlanOptions
from profiles.errors import InputError
from profiles.records import dataclass

JOB = {
    "devices": "devices",
    "global_batch": "global batch",
    "seq_len": "tokens a sample",
    "dtype": "type",
    "optimizer": "optimizer",
    "software": "software",
}
DEGREES = {
    "tp": "tensor (tp)",
    "pp": "pipeline (pp)",
    "dp": "data (dp)",
    "cp": "context (cp)",
    "ep": "experts (ep)",
    "vpp": "chunks (vpp)",
    "micro_batch": "micro-batch",
    "zero": "ZeRO",
}
MONEY = {"train_tokens": "tokens to train on", "price": "price, as h100=2.5"}
RECOMPUTE = ("none", "full", "selective")
NAMES = frozenset({"model", "config", "cluster", "recompute", *JOB, *DEGREES, *MONEY})
MOST_LETTERS = 400
"""Of a field but the config."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the fields ask for: options of a command by name, and the keys of a config in the model's place."""

    options: Mapping[str, Any]
    config: Mapping[str, Any] | None


class FieldError(ValueError):
    """A field that is wrong (`field`, "" where no single one is), and what is wrong with it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


def read_fields(values: object, *, search: bool) -> Asked:
    """Return what the values of a request's body ask for. Raise FieldError where they are wrong."""
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise FieldError("", f"found {type(values).__name__}, expected an object of texts by field")
    for name, value in values.items():
        if name not in NAMES:
            raise FieldError("", f"found a field {name[:40]!r}, expected one of {', '.join(sorted(NAMES))}")
        if name != "config" and len(value) > MOST_LETTERS:
            raise FieldError(name, f"found {len(value)} letters, expected {MOST_LETTERS} at most")
    config = _config(values.get("config", ""))
    # Each value is joined to its flag: one that begins with a hyphen is no flag of its own.
    words = [f"--{name.replace('_', '-')}={value}" for name, value in values.items() if name not in ("model", "config")]
    kind: Any = PlanOptions if search else EstimateOptions
    parser = Parser(prog="serve")
    add_options(parser, kind)
    try:
        parsed = parser.parse_args([*words, "--", "config" if config is not None else values.get("model", "")])
        options = chosen(parsed, kind)
    except (UsageError, InputError) as error:
        field = field_of(error.key)
        said = str(error).partition(" (see `")[0]
        raise FieldError(field, said.removeprefix(f"argument {error.key}: ") if field else said) from None
    taken = {name: getattr(options, name) for name in options.changed() if name != "store"}
    return Asked(options=taken, config=config)


def _config(text: str) -> Mapping[str, Any] | None:
    if not text:
        return None
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FieldError("config", f"found no JSON: {error}") from None
    if not isinstance(config, dict):
        raise FieldError("config", f"found {type(config).__name__}, expected an object of keys")
    return config


def field_of(key: object) -> str:
    """Return the field that an error's key is about; "" where it is none of the page's."""
    name = str(key or "").split("/", maxsplit=1)[-1].strip().lstrip("-").lower().replace("-", "_")
    return name if name in NAMES else ""
