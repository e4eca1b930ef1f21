"""What a request names, as records: the profile store, the cluster, the tokens of a sample."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from estimator.host.cpu import cpu_name
from estimator.profiling.lookup import LOCAL_DEVICE, find_origins
from models_zoo.model import Model, without_dropout
from planner.shared.options.training import JobOptions
from planner.shared.options.values import margin_bytes
from profiles.cluster import Cluster, NodeGroup, map_groups
from profiles.cluster_file import load_cluster
from profiles.errors import InputError
from profiles.measurements import DeviceRates, device_from_rates
from profiles.store import ProfileStore
from profiles.vocabulary import Device, DType

ANY_WORKER = DeviceRates(
    device=LOCAL_DEVICE,
    hardware="",
    software="",
    threads=1,
    memory_bytes=2**40,
    memory_bandwidth_bytes_per_s=1.0,
    flops_per_s=(),
    flash_attention=False,
)
"""This machine's own device where its place alone matters."""


@contextmanager
def open_existing(path: Path | None) -> Iterator[ProfileStore | None]:
    """The profile store at `path`; None where there is no such file, which means that nothing is measured."""
    if path is None or not path.exists():
        yield None
        return
    with ProfileStore(path) as store:
        yield store


def load_place(
    text: str,
    model: Model,
    *,
    store: ProfileStore | None,
    dtype: DType | None,
    seq_len: int,
    optimizer: str,
    margin: str | None = None,
) -> Cluster:
    """Return the cluster that `text` means, with `margin` of each device's memory left free; this host's own devices
    are described by what `store` has measured on them (in `dtype`; None: in bf16)."""

    def local_device() -> Device | None:
        trained = without_dropout(model)
        rates = _local_rates(store, trained, dtype or "bf16", seq_len, optimizer) if store else None
        return device_from_rates(rates) if rates else None

    return _with_margin(load_cluster(text, local_device=local_device), margin)


def place_of(text: str, model: Model, options: JobOptions, *, store: ProfileStore | None) -> Cluster:
    """Return the cluster that `text` means to a job of these options, as `load_place`."""
    return load_place(
        text,
        model,
        store=store,
        dtype=options.dtype,
        seq_len=token_count(model, options.seq_len),
        optimizer=options.optimizer,
        margin=options.memory_margin,
    )


def _with_margin(place: Cluster, margin: str | None) -> Cluster:
    """Return the cluster with `margin` (bytes with a unit, or a share) of each device's memory left free, and a note
    that says so. Raise InputError where a device has no more than that."""
    if margin is None or margin == "0":
        return place

    def kept(group: NodeGroup) -> NodeGroup:
        device = group.device
        free = margin_bytes(margin, device.memory_bytes)
        if free >= device.memory_bytes:
            expected = f"less than the {device.memory_bytes / 2**30:.4g} GiB of {device.name}"
            raise InputError(where="plan", key="--memory-margin", found=margin, expected=expected)
        return replace(group, device=replace(device, memory_bytes=device.memory_bytes - free, margin_bytes=free))

    note = f"{margin} of each device's memory left free (--memory-margin)"
    return replace(map_groups(place, kept), notes=(*place.notes, note))


def trained_on(model: Model, place: Cluster) -> tuple[Model, tuple[str, ...]]:
    """Return the model as it is trained on `place`, and what is assumed of it: this host's own workers are those of
    `run`, which trains without dropout, so that estimates, profiles and runs are of the same layers."""
    undropped = without_dropout(model)
    if undropped is model or any(slot.device != LOCAL_DEVICE for slot in place.slots):
        return model, ()
    return undropped, ("without dropout, as `run` trains on this machine",)


def load_any_place(text: str) -> Cluster:
    """Return the cluster that `text` means, for its places alone: of this host's own devices nothing is measured. Raise
    InputError where it means none."""
    return load_cluster(text, local_device=lambda: device_from_rates(ANY_WORKER))


def _local_rates(store: ProfileStore, model: Model, dtype: DType, tokens: int, optimizer: str) -> DeviceRates | None:
    """Rates of this host's CPU, with as many threads as its measured layer times have."""
    origins = find_origins(store, model.layers, device=LOCAL_DEVICE, optimizer=optimizer, dtype=dtype, seq_len=tokens)
    threads = origins[0].threads if origins else None
    with_threads = store.rates(LOCAL_DEVICE, hardware=cpu_name(), threads=threads)
    return with_threads or store.rates(LOCAL_DEVICE, hardware=cpu_name())


def token_count(model: Model, seq_len: int | None) -> int:
    """Tokens per sample: `seq_len`, or the model's own where it is None. InputError for tokens of a model without."""
    if seq_len is not None and not model.seq_len:
        raise InputError(
            where=f"model {model.name}", key="--seq-len", found=seq_len, expected="none: the model has no tokens"
        )
    return model.seq_len if seq_len is None else seq_len
