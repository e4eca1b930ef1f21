"""The profile file: its text from a set of measurements, and the set from its text, as pydantic reads it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, Field, JsonValue

from profiles.files import parse_json
from profiles.measurements import PROFILES_SCHEMA, DeviceRates, Profile, ProfileSet, canonical
from profiles.schema import STRICT, validate_json
from profiles.vocabulary import LinkTable


class ProfileFile(BaseModel):
    """A file of `schema: cellplan.profiles/1`. `bench` is what a run of `bench/gpu` lays beside it: an import takes all
    but that."""

    model_config = STRICT

    schema_name: Literal["cellplan.profiles/1"] = Field(alias="schema")
    profiles: tuple[Profile, ...] = ()
    rates: tuple[DeviceRates, ...] = ()
    link_tables: tuple[LinkTable, ...] = ()
    bench: dict[str, JsonValue] | None = None


def profile_set_to_json(held: ProfileSet) -> str:
    """The text of a profile file: an entry a line, sorted, so that equal sets give equal bytes."""
    parts: dict[str, list[Any]] = {
        "profiles": sorted(held.profiles, key=lambda profile: profile.id),
        "rates": sorted(held.rates, key=canonical),
        "link_tables": sorted(held.link_tables, key=canonical),
    }
    lines = [f'{{"schema": {json.dumps(PROFILES_SCHEMA)}']
    for name, entries in parts.items():
        texts = [json.dumps(asdict(entry), sort_keys=True, allow_nan=False) for entry in entries]
        lines.append(f'"{name}": [' + "".join(f"\n{text}," for text in texts).rstrip(",") + "]")
    return ",\n".join(lines) + "}\n"


def parse_profile_set(text: str, *, where: str) -> ProfileSet:
    """Return the set that the text of a profile file holds. Raise InputError naming `where` and the key that is
    wrong."""
    parse_json(text, where=where)
    file = validate_json(ProfileFile, text, where=where)
    return ProfileSet(profiles=file.profiles, rates=file.rates, link_tables=file.link_tables)
