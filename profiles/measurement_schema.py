"""The profile file as pydantic reads it: the records of `profiles.measurements` as they are declared."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from profiles.measurements import DeviceRates, Profile
from profiles.schema import STRICT
from profiles.vocabulary import LinkTable


class ProfileFile(BaseModel):
    """A file of `schema: cellplan.profiles/1`."""

    model_config = STRICT

    schema_name: Literal["cellplan.profiles/1"] = Field(alias="schema")
    profiles: tuple[Profile, ...] = ()
    rates: tuple[DeviceRates, ...] = ()
    link_tables: tuple[LinkTable, ...] = ()
