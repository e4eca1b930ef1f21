"""Measured profiles as records: what was measured, under which circumstances, and the key that says both.

A key holds everything that determines a figure, so two measurements with equal keys are repeats of one another. Its
canonical text is JSON with sorted keys; the first 12 hexadecimal digits of that text's SHA-256 are the profile's id.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, Literal, get_args

from profiles.records import dataclass
from profiles.vocabulary import MOST_S, Device, DType, LinkTable, ReferenceNode, Shard

PROFILES_SCHEMA = "cellplan.profiles/1"
MOST_RATE = 1e30
"""Bytes or FLOP a second beyond any device: what is above was not measured."""

Kind = Literal["layer", "stage"]
Mode = Literal["eager", "compiled"]


def canonical(value: object) -> str:
    """Return one text for one value: records as JSON objects with their type's name, nothing but names and values in
    it.

    Takes frozen records (of any module, nested), tuples, strings, numbers, booleans and None; TypeError otherwise.
    Equal records have one text: a field that takes no part in their comparison is not in it, nor one that has the value
    under `unsaid` in its metadata (a field that came later: older texts, and the ids made of them, stay).

    >>> from profiles.vocabulary import Infeasible
    >>> canonical(Infeasible(reason="too big", lacking="memory"))
    '{"lacking":"memory","lacking_bytes":null,"reason":"too big","type":"Infeasible"}'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        said = (part for part in fields(value) if part.compare and not _is_unsaid(part, getattr(value, part.name)))
        named = {part.name: _plain(getattr(value, part.name)) for part in said}
        return {"type": type(value).__name__, **named}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"canonical: found {type(value).__name__}, expected a record, tuple, string, number, bool or None")


def _is_unsaid(part: Field[Any], value: object) -> bool:
    return "unsaid" in part.metadata and value == part.metadata["unsaid"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasurementKey:
    """Everything that determines a figure.

    `layers` are canonical texts: one for kind `layer`, all of a stage's in order for kind `stage` (profiled as one
    piece). `device` is a catalogue name or `cpu`; `hardware` the CPU's or GPU's own name; `software` its versions,
    such as `torch 2.13.0+cpu, python 3.11.7`; `threads` those that one worker computes with (0 where it is no CPU).
    `workers` were busy on the machine meanwhile, this one among them.
    """

    kind: Kind = "layer"
    layers: tuple[str, ...]
    shard: Shard
    mode: Mode = "eager"
    optimizer: str
    threads: int
    device: str
    hardware: str
    software: str
    workers: int = field(default=1, metadata={"unsaid": 1})

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"measurement key: workers={self.workers}; expected at least 1")
        if self.kind not in get_args(Kind) or self.mode not in get_args(Mode):
            raise ValueError(f"measurement key: kind {self.kind!r}, mode {self.mode!r}; expected {Kind}, {Mode}")
        if not self.layers or (self.kind == "layer" and len(self.layers) != 1) or self.threads < 0:
            raise ValueError(
                f"measurement key: {len(self.layers)} layers of kind {self.kind}, {self.threads} threads; expected one"
                " layer, or one or more for a stage, and threads >= 0"
            )

    @property
    def id(self) -> str:
        """The profile's id: 12 hexadecimal digits."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """On what and with what something was measured: see `MeasurementKey`. Figures of one estimate share one."""

    hardware: str
    software: str
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What was measured: every sample in seconds, in the order taken.

    `forward_s` and `backward_s` are of one micro-batch, `optimizer_s` of one step over `parameters` (empty where there
    is none). `saved_bytes` is what is kept from forward to backward, `peak_memory_bytes` the allocator's peak.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    optimizer_s: tuple[float, ...] = ()
    saved_bytes: int
    peak_memory_bytes: int
    parameters: int

    def __post_init__(self) -> None:
        samples = (*self.forward_s, *self.backward_s, *self.optimizer_s)
        if not self.forward_s or not self.backward_s or not all(0 <= sample <= MOST_S for sample in samples):
            raise ValueError(
                f"measurement: {len(self.forward_s)} forward and {len(self.backward_s)} backward samples; expected at"
                f" least one of each, all from 0 to {MOST_S:g} s"
            )
        if min(self.saved_bytes, self.peak_memory_bytes, self.parameters) < 0:
            raise ValueError(
                f"measurement: saved_bytes={self.saved_bytes}, peak_memory_bytes={self.peak_memory_bytes},"
                f" parameters={self.parameters}; expected none below 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A measurement and what it is of."""

    key: MeasurementKey
    measurement: Measurement

    @property
    def id(self) -> str:
        """The key's id, by which a plan names this profile."""
        return self.key.id


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRates:
    """Measured rates of a device that no catalogue knows, such as this machine's CPU, for one worker.

    `memory_bytes` is the host's, whatever number of workers shares it; `contention` as in `Device`.
    """

    device: str
    hardware: str
    software: str
    threads: int
    memory_bytes: int
    memory_bandwidth_bytes_per_s: float
    flops_per_s: tuple[tuple[str, float], ...]
    flash_attention: bool
    contention: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        workers, slowdowns = [count for count, _ in self.contention], [slowdown for _, slowdown in self.contention]
        if (
            workers != sorted(set(workers))
            or min([2, *workers]) < 2
            or not all(1 <= slowdown <= MOST_RATE for slowdown in slowdowns)
        ):
            raise ValueError(
                f"device rates of {self.device}: contention {self.contention}; expected (workers, slowdown), 2 workers"
                " or more in ascending order, slowdowns of at least 1"
            )
        unknown = [dtype for dtype, _ in self.flops_per_s if dtype not in get_args(DType)]
        if unknown or self.threads < 0:
            known = f"of {', '.join(get_args(DType))}; threads >= 0"
            raise ValueError(
                f"device rates of {self.device}: {unknown}, {self.threads} threads; expected rates {known}"
            )
        rates = (self.memory_bytes, self.memory_bandwidth_bytes_per_s, *(rate for _, rate in self.flops_per_s))
        if not all(1 <= rate <= MOST_RATE for rate in rates):
            raise ValueError(f"device rates of {self.device}: {rates}; expected all from 1 to {MOST_RATE:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSet:
    """All that one store or file of profiles holds."""

    profiles: tuple[Profile, ...] = ()
    rates: tuple[DeviceRates, ...] = ()
    link_tables: tuple[LinkTable, ...] = ()


def device_from_rates(rates: DeviceRates) -> Device:
    """Return the device that `rates` describe, for `local:1xN`: its workers are processes joined by loopback."""
    node = ReferenceNode(
        devices=1, island_link="loopback", island_size=1, host_link="loopback", nic_link="loopback", nics=1
    )
    return Device(
        name=rates.device,
        memory_bytes=rates.memory_bytes,
        memory_bandwidth_bytes_per_s=rates.memory_bandwidth_bytes_per_s,
        peak_flops_per_s=tuple(sorted(rates.flops_per_s)),
        power_w=None,
        flash_attention=rates.flash_attention,
        reference_node=node,
        source=f"measured on {rates.hardware}, {rates.threads} threads a worker, {rates.software}",
        peak_basis="measured",
        contention=rates.contention,
    )
