"""What device-hours cost, as the user says: texts, a dated file, and a cluster at these prices."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.prices import DevicePrice, priced_cluster, read_prices

HEAD = {"schema": "cellplan.prices/1", "date": "2026-03-01", "source": "quote 7", "currency": "USD"}


def _file(folder: Path, *, prices: str = "{h100: 2.5}", **changes: str) -> Path:
    file = folder / "prices.yaml"
    lines = [f"{key}: {value}" for key, value in {**HEAD, **changes}.items()]
    file.write_text("\n".join((*lines, f"price_per_device_hour: {prices}\n")), encoding="utf-8")
    return file


def test_a_text_wins_over_the_file(tmp_path: Path) -> None:
    file = _file(tmp_path, prices="{H100: 2.5, a10: 0}")
    assert {price.device: price.price_per_device_hour for price in read_prices(("h100=3",), file)} == {
        "h100": 3.0,
        "a10": 0.0,
    }
    (price,) = (price for price in read_prices((), file) if price.device == "h100")
    assert (price.date, price.currency) == ("2026-03-01", "USD")
    assert price.basis == f"h100 at 2.5 USD a device-hour ({file}: quote 7, 2026-03-01)"


def test_a_cluster_at_these_prices() -> None:
    cluster = load_cluster("a40:1x2+a10:1x2")
    price = DevicePrice(device="a40", price_per_device_hour=1.5, source="--price")
    priced = [group.price_per_device_hour for site in priced_cluster(cluster, (price,)).sites for group in site.nodes]
    assert priced == [1.5, None]
    assert priced_cluster(cluster, ()) is cluster


@pytest.mark.parametrize("text", ["", "h100", "=2", "h100=", "h100=-1", "h100=nan", "h100=1e10", "h100=2.5=3"])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--price: found"):
        read_prices((text,), None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"date": "yesterday"}, "date: found 'yesterday', expected a day as YYYY-MM-DD"),
        ({"currency": "''"}, "currency"),
        ({"schema": "cellplan.prices/2"}, "schema"),
        ({"prices": "{}"}, "price_per_device_hour"),
        ({"prices": "{h100: -1}"}, "price_per_device_hour"),
        ({"prices": "{h100: 1, H100: 2}"}, "found h100 twice"),
        ({"sources": "me"}, "sources"),
        ({"currency": r'"U\e[31mSD"'}, "currency: found 'U\\x1b[31mSD', expected text without control characters"),
        ({"source": r'"a\nb"'}, "source: found 'a\\nb', expected text without control characters"),
    ],
)
def test_what_is_no_prices_file_is_refused(tmp_path: Path, changes: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=r"prices\.yaml") as caught:
        read_prices((), _file(tmp_path, **changes))
    assert said in str(caught.value)
