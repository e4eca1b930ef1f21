"""Reader of `data/efficiencies.toml`: which share of its datasheet rates a device reaches."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """Shares of a device's rates by kind of operator; the file says what each field means and rests on."""

    architecture: str
    gemm_max: float
    gemm_half_mn: float
    gemm_half_k: float
    attention_forward: float
    attention_backward: float
    conv: float
    memory: float
    kernel_s: float
    basis: str


@cache
def _load_all() -> dict[str, Efficiencies]:
    text = files("profiles").joinpath("data/efficiencies.toml").read_text(encoding="utf-8")
    by_device: dict[str, Efficiencies] = {}
    for architecture, row in tomllib.loads(text).items():
        devices = row.pop("devices")
        record = Efficiencies(architecture=architecture, **row)
        by_device.update(dict.fromkeys([*devices, architecture], record))
    return by_device


def load_efficiencies(device: str) -> Efficiencies:
    """Efficiencies of the device called `device`; those of `generic`, the named fall-back, if no entry names it."""
    known = _load_all()
    return known.get(device, known["generic"])
