"""What devices cost in an hour, as their user says: on the command line, or in a dated file of their own.

No price is ever ours: prices change by the week, by the contract and by the region.

    schema: cellplan.prices/1
    date: 2026-03-01
    source: quote 4711 of Example Cloud, one-year reservation
    currency: USD
    price_per_device_hour: {h100: 2.5, a100-80gb: 1.5}
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from profiles.cluster import Cluster, NodeGroup, map_groups
from profiles.errors import InputError
from profiles.hardware import load_device
from profiles.numerals import read_number
from profiles.records import dataclass
from profiles.yaml_files import read_yaml

if TYPE_CHECKING:
    from profiles.prices_schema import PricesModel

MOST_PRICE = 1e9
"""Of a device-hour, in any currency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePrice:
    """What a device of a type costs in an hour. `source` says who says so, `date` (ISO 8601) of when that is; None
    where nobody tells, as `currency`."""

    device: str
    price_per_device_hour: float
    source: str
    date: str | None = None
    currency: str | None = None

    @property
    def basis(self) -> str:
        """The price with where it is from, in a phrase.

        >>> DevicePrice(device="h100", price_per_device_hour=2.5, source="--price").basis
        'h100 at 2.5 a device-hour (--price)'
        """
        money = f"{self.price_per_device_hour:g}{f' {self.currency}' if self.currency else ''}"
        dated = f", {self.date}" if self.date else ""
        return f"{self.device} at {money} a device-hour ({self.source}{dated})"


def read_prices(texts: Sequence[str], file: Path | None) -> tuple[DevicePrice, ...]:
    """Return the prices of `DEVICE=PRICE` texts and of a prices file (None: no file); of a device in both, the text's.
    Raise InputError for what is no price, and for a device said twice."""
    stated: dict[str, DevicePrice] = {}
    for text in texts:
        name, equals, word = text.partition("=")
        device, price = _device_name(name.strip()), _number(word.strip())
        if not equals or not device or price is None:
            expected = "DEVICE=PRICE of a device-hour, such as h100=2.5"
            raise InputError(where="prices", key="--price", found=repr(text), expected=expected)
        if device in stated:
            raise InputError(where="prices", key="--price", found=f"{device} twice", expected="each device once")
        stated[device] = DevicePrice(device=device, price_per_device_hour=price, source="--price")
    filed = {} if file is None else {price.device: price for price in load_prices(file)}
    return tuple((filed | stated).values())


def load_prices(file: Path) -> tuple[DevicePrice, ...]:
    """Return the prices of a file. Raise InputError where it is none."""
    from profiles.prices_schema import PricesModel
    from profiles.schema import validate

    written: PricesModel = validate(PricesModel, read_yaml(file), where=str(file))
    try:
        datetime.date.fromisoformat(written.date)
    except ValueError:
        expected = "a day as YYYY-MM-DD: when the prices were so"
        raise InputError(where=str(file), key="date", found=repr(written.date), expected=expected) from None
    prices: dict[str, DevicePrice] = {}
    for name, price in written.price_per_device_hour.items():
        device = _device_name(name)
        if device in prices:
            expected = "each device once"
            raise InputError(where=str(file), key="price_per_device_hour", found=f"{device} twice", expected=expected)
        prices[device] = DevicePrice(
            device=device,
            price_per_device_hour=price,
            source=f"{file}: {written.source}",
            date=written.date,
            currency=written.currency,
        )
    return tuple(prices.values())


def priced_cluster(cluster: Cluster, prices: Sequence[DevicePrice]) -> Cluster:
    """Return the cluster with these prices in place of its file's."""
    by_device = {price.device: price.price_per_device_hour for price in prices}

    def priced(group: NodeGroup) -> NodeGroup:
        price = by_device.get(group.device.name)
        return group if price is None else replace(group, price_per_device_hour=price)

    return map_groups(cluster, priced) if by_device else cluster


def _device_name(text: str) -> str:
    """The catalogue's name where it knows the device by another; else the text."""
    try:
        return load_device(text).name
    except InputError:
        return text


def _number(word: str) -> float | None:
    try:
        price = read_number(word)
    except ValueError:
        return None
    return price if math.isfinite(price) and 0 <= price <= MOST_PRICE else None
