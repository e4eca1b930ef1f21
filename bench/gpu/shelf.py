"""A profile store in memory: what one run measures. Needs no pydantic, which a lent machine may lack."""

from __future__ import annotations

from estimator.pricing.layer_times import Lookup
from estimator.profiling.lookup import to_layer_time
from models_zoo.layers import Layer
from profiles.measurements import DeviceRates, Measurement, MeasurementKey, Profile, canonical
from profiles.vocabulary import LayerTime, Shard


class Shelf:
    """Profiles by key and rates by device: an `estimator.profiling.run.Store`, and what the bench reads from it."""

    def __init__(self) -> None:
        self._measured: dict[MeasurementKey, Measurement] = {}
        self._rates: dict[tuple[str, str, int], DeviceRates] = {}

    def get(self, key: MeasurementKey) -> Measurement | None:
        return self._measured.get(key)

    def put(self, key: MeasurementKey, measurement: Measurement) -> None:
        self._measured[key] = measurement

    def profiles(self) -> tuple[Profile, ...]:
        """In the order in which they came."""
        return tuple(Profile(key=key, measurement=found) for key, found in self._measured.items())

    def put_rates(self, rates: DeviceRates) -> None:
        self._rates[rates.device, rates.hardware, rates.threads] = rates

    def rates(self, device: str, *, hardware: str | None = None, threads: int | None = None) -> DeviceRates | None:
        """Of `device`, on any hardware and with any threads where None."""
        for found in self._rates.values():
            if found.device == device and hardware in (None, found.hardware) and threads in (None, found.threads):
                return found
        return None

    def all_rates(self) -> tuple[DeviceRates, ...]:
        return tuple(self._rates.values())

    def lookup(self) -> Lookup:
        """Finds the measured times of a layer's shard, as an estimate asks for them."""
        found = {(profile.key.layers, profile.key.shard): profile for profile in self.profiles()}

        def look_up(layer: Layer, shard: Shard) -> LayerTime | None:
            profile = found.get(((canonical(layer),), shard))
            return None if profile is None else to_layer_time(profile)

        return look_up
