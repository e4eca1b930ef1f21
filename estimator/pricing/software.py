"""Training software by name: the features that each is declared to have, read from `profiles/data/software.toml`.

A name stands for its features and for nothing else: estimates see the features alone, and any of them can be stated in
place of the declared one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from estimator.pricing.memory_features import MemoryFeatures
from estimator.pricing.recipe import GradDType, Overlap, Software, ZeroStage
from profiles.errors import InputError
from profiles.records import dataclass
from profiles.tables import DATA, read_tables
from profiles.vocabulary import NARROW_DTYPES, RecomputeKind

GENERIC = "generic"
"""What a competent team runs today: taken where no software is named, unless `usual_on` of another entry names the
device."""

WORDS_FOR_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What a release of a software can do that none before it could, and the public source that says so."""

    feature: str
    source: str
    release: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeHabits:
    """What a software's own recipes have for models of at least `parameters`, in place of its usual settings; None: as
    usual."""

    parameters: float
    source: str
    recompute: RecomputeKind | None = None
    local_tokens: int | None = None
    features: tuple[str, ...] = ()
    dtype: str | None = None
    overlap: frozenset[Overlap] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHabits:
    """Features that a software's own recipes have on some device types, in place of its usual ones."""

    names: tuple[str, ...]
    features: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """An entry of software.toml; the file says what each key means. `software` are its features, the rest are the
    settings of a training that it has by default; `brings` what its own and earlier releases brought."""

    name: str
    software: Software
    grad_dtype: tuple[tuple[str, GradDType], ...]
    overlap: frozenset[Overlap]
    vocabulary_multiple: int
    dtype: str
    zero: ZeroStage
    sequence_parallel: bool
    dropout: bool
    basis: str
    memory_basis: str
    accumulates: bool = True
    recompute: RecomputeKind = "none"
    recomputes_layers: bool = False
    released: str = ""
    brings: tuple[Brought, ...] = ()
    usual_on: tuple[str, ...] = ()
    local_tokens: int | None = None
    narrow: tuple[str, ...] = ()
    often: tuple[str, ...] = ()
    sizes: tuple[SizeHabits, ...] = ()
    devices: tuple[DeviceHabits, ...] = ()

    def for_device(self, device: str) -> Framework:
        """Return the framework with the habits of its recipes on the device type `device`.

        >>> load_framework("megatron-bridge").for_device("gb200").software.launch
        'graph_dense'
        """
        features = [text for habits in self.devices if device in habits.names for text in habits.features]
        return replace(self, software=overruled(self.software, tuple(features)))

    def for_size(self, parameters: int) -> Framework:
        """Return the framework with the habits of its recipes for models of so many parameters.

        >>> load_framework("torchtitan").for_size(70_000_000_000).recompute
        'full'
        """
        habits = max((each for each in self.sizes if each.parameters <= parameters), key=_size, default=None)
        if habits is None:
            return self
        stated = {
            name: value
            for name in ("recompute", "local_tokens", "dtype", "overlap")
            if (value := getattr(habits, name)) is not None
        }
        return replace(self, software=overruled(self.software, habits.features), **stated)

    def for_dtype(self, dtype: str) -> Framework:
        """Return the framework as it is run in `dtype`: some compile wherever products are narrow.

        >>> load_framework("torchtitan").for_dtype("fp8").software.kernels
        'fused'
        """
        return replace(self, software=overruled(self.software, self.narrow)) if dtype in NARROW_DTYPES else self

    def software_under(self, zero: ZeroStage) -> Software:
        """Return the features under a stage of ZeRO: hooks that fetch a module's weights are ZeRO 3's alone."""
        hooked = self.software.modules == "zero3" and zero != 3
        return replace(self.software, modules="torch") if hooked else self.software

    def overlap_under(self, zero: ZeroStage) -> frozenset[Overlap]:
        """What runs beside compute by default. ZeRO 3 fetches weights ahead wherever it exists: FSDP's prefetch,
        DeepSpeed's overlap_comm, whose default is true for stage 3 alone (its runtime/zero/config.py)."""
        return self.overlap | {"dp"} if zero == 3 else self.overlap


def hooked_software(
    framework: Framework, software: Software, stages: Collection[ZeroStage], stated: Sequence[str]
) -> Mapping[ZeroStage, Software]:
    """Return, for those of `stages` of ZeRO under which `framework` has modules of another kind than `software`, which
    is its own, how it then is; none where the features that are `stated` name the modules."""
    if any(text.partition("=")[0].strip() == "modules" for text in stated):
        return {}
    modules = {zero: framework.software_under(zero).modules for zero in stages}
    return {zero: replace(software, modules=kind) for zero, kind in modules.items() if kind != software.modules}


def _size(habits: SizeHabits) -> float:
    return habits.parameters


def load_framework(name: str | None, *, where: str = "software", key: str | None = None) -> Framework:
    """Return the declaration of the training software `name`, of the generic one for None.

    InputError with all names if there is no such entry; `where` and `key` say where the name was read.

    >>> load_framework("megatron-core").software.fused_cross_entropy
    True
    """
    plain = GENERIC if name is None else name.strip().lower()
    if plain not in _entries():
        raise InputError(where=where, key=key, found=repr(name), expected=f"one of {', '.join(_entries())}")
    return _load_entry(plain)


def usual_framework(device: str) -> Framework:
    """Return what is taken on the device type `device` where no software is named: what a competent team runs on it.

    >>> usual_framework("v100-32gb").name, usual_framework("h100").name
    ('generic-older', 'generic')
    """
    usual = (name for name, entry in _entries().items() if device in entry.get("usual_on", ()))
    return _load_entry(next(usual, GENERIC))


@cache
def load_frameworks() -> Mapping[str, Framework]:
    """Return all entries of software.toml by name, in the file's order; releases are called NAME@VERSION."""
    return {name: _load_entry(name) for name in _entries()}


@cache
def _entries() -> Mapping[str, dict[str, Any]]:
    return read_tables(DATA / "software.toml")


@cache
def _load_entry(name: str) -> Framework:
    return _framework(name, _inherited(name, _entries()))


def _inherited(name: str, entries: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The keys of an entry over those of the entry that it inherits; what releases brought adds up."""
    entry = entries[name]
    earlier = _inherited(entry["inherits"], entries) if "inherits" in entry else {}
    own = [{**each, "release": name} for each in entry.get("brings", ())]
    return {**earlier, "usual_on": (), **entry, "brings": [*earlier.get("brings", ()), *own]}


def _framework(name: str, entry: dict[str, Any]) -> Framework:
    stated = {part.name: entry[part.name] for part in fields(Software) if part.name in entry}
    if "selective" in stated:
        stated["selective"] = tuple(stated["selective"])
    stated["memory"] = MemoryFeatures(**entry.get("memory", {}))
    return Framework(
        name=name,
        software=Software(name=name, **stated),
        # What is declared of fp8 holds for every narrow type: they differ in their scales.
        grad_dtype=tuple((dict.fromkeys(NARROW_DTYPES, entry["grad_dtype"]["fp8"]) | entry["grad_dtype"]).items()),
        overlap=frozenset(entry["overlap"]),
        vocabulary_multiple=entry["vocabulary_multiple"],
        dtype=entry["dtype"],
        zero=entry["zero"],
        sequence_parallel=entry["sequence_parallel"],
        dropout=entry["dropout"],
        basis=entry["basis"],
        memory_basis=entry.get("memory_basis", ""),
        accumulates=entry.get("accumulates", True),
        recompute=entry.get("recompute", "none"),
        recomputes_layers=entry.get("recomputes_layers", False),
        released=entry.get("released", ""),
        brings=tuple(Brought(**each) for each in entry["brings"]),
        usual_on=tuple(entry["usual_on"]),
        narrow=tuple(entry.get("narrow", ())),
        often=tuple(entry.get("often", ())),
        sizes=tuple(_size_habits(each) for each in entry.get("sizes", ())),
        devices=tuple(
            DeviceHabits(names=tuple(each["names"]), features=tuple(each["features"]), source=each["source"])
            for each in entry.get("devices", ())
        ),
    )


def _size_habits(entry: Mapping[str, Any]) -> SizeHabits:
    overlap = frozenset(entry["overlap"]) if "overlap" in entry else None
    return SizeHabits(**{**entry, "overlap": overlap, "features": tuple(entry.get("features", ()))})


def features(software: Software) -> dict[str, Any]:
    """Return the features of `software` by name, those of its memory among them; several words joined by +.

    >>> features(load_framework("nanotron").software)["gradient_copy_bytes"]
    2.0
    """
    listed = asdict(software)
    memory = listed.pop("memory")
    del listed["name"]
    words = {name: "+".join(value) for name, value in listed.items() if isinstance(value, tuple)}
    return {**listed, **words, **memory}


def describe_framework(framework: Framework) -> dict[str, Any]:
    """Return what `framework` stands for, as a value that `json.dumps` takes: its features, those beyond the generic
    software's, its default settings, and what the declaration rests on."""
    return {
        "name": framework.name,
        "features": features(framework.software),
        "beyond_generic": features_beyond_generic(framework.software),
        "grad_dtype": dict(framework.grad_dtype),
        "overlap": sorted(framework.overlap),
        "vocabulary_multiple": framework.vocabulary_multiple,
        "dtype": framework.dtype,
        "zero": framework.zero,
        "sequence_parallel": framework.sequence_parallel,
        "accumulates": framework.accumulates,
        "recompute": framework.recompute,
        "recomputes_layers": framework.recomputes_layers,
        "released": framework.released,
        "brings": [f"{each.feature} (since {each.release}; {each.source})" for each in framework.brings],
        "usual_on": list(framework.usual_on),
        "narrow": list(framework.narrow),
        "often": list(framework.often),
        "devices": [f"{', '.join(each.names)}: {each.source}" for each in framework.devices],
        "sizes": [f"from {each.parameters:.3g} parameters: {each.source}" for each in framework.sizes],
        "basis": framework.basis,
        "memory_basis": framework.memory_basis,
    }


def features_beyond_generic(software: Software) -> dict[str, Any]:
    """Return those features of `software` in which it differs from the generic one."""
    usual = features(load_framework(GENERIC).software)
    return {name: value for name, value in features(software).items() if value != usual[name]}


def overruled(software: Software, stated: tuple[str, ...], *, where: str = "plan", key: str = "--feature") -> Software:
    """Return `software` with the features that `stated` gives as NAME=VALUE in place of the declared ones.

    InputError for a feature that there is none of, and for a value that it cannot have.

    >>> overruled(Software(name="generic"), ("kernels=eager", "fragmentation=0.2")).memory.fragmentation
    0.2
    """
    changed: dict[str, Any] = {}
    kinds = _kinds_of_features()
    usable = [name for name in kinds if name not in ("name", "memory")]
    for text in stated:
        name, equals, word = text.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name not in usable:
            expected = f"NAME=VALUE with one of {', '.join(usable)}"
            raise InputError(where=where, key=key, found=repr(text), expected=expected)
        changed[name] = _value(word.strip(), kinds[name], where=where, key=f"{key} {name}")
    memory = {part.name: changed.pop(part.name) for part in fields(MemoryFeatures) if part.name in changed}
    return replace(software, **changed, memory=replace(software.memory, **memory))


@cache
def _kinds_of_features() -> dict[str, Any]:
    """The type of each feature."""
    return {**get_type_hints(Software), **get_type_hints(MemoryFeatures)}


def _value(word: str, kind: Any, *, where: str, key: str) -> Any:
    """The value of a feature of type `kind` (words or numbers to choose from, several words joined by +, a flag, a
    count, a factor)."""
    value: Any
    if get_origin(kind) is tuple:
        value = tuple(_value(part.strip(), get_args(kind)[0], where=where, key=key) for part in word.split("+"))
        return tuple(sorted(set(value)))
    if kind is bool:
        value, expected = WORDS_FOR_FLAGS.get(word.lower()), "yes or no"
    elif kind in (int, float):
        value, expected = _number(word, kind), "a number from 0" if kind is float else "a whole number from 0"
    else:
        choices = {str(choice): choice for choice in get_args(kind)}
        value, expected = choices.get(word.lower()), f"one of {', '.join(choices)}"
    if value is None:
        raise InputError(where=where, key=key, found=repr(word), expected=expected)
    return value


def _number(word: str, kind: type[int] | type[float]) -> float | None:
    try:
        value = kind(word)
    except ValueError:
        return None
    return value if 0 <= value < float("inf") else None
