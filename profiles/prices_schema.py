"""The prices file as its author writes it (`schema: cellplan.prices/1`)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from profiles.schema import FileModel, printable


class PricesModel(FileModel):
    """Prices of device-hours, on a day, from somebody."""

    schema_name: Literal["cellplan.prices/1"] = Field(alias="schema")
    date: str
    source: Annotated[str, Field(min_length=1, max_length=500), printable("text")]
    currency: Annotated[str, Field(min_length=1, max_length=20), printable("text")]
    price_per_device_hour: dict[str, Annotated[float, Field(ge=0, le=1e9)]] = Field(min_length=1, max_length=1000)
