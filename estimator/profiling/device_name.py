"""What a GPU's driver calls it, and what the catalogue does. Pure; no framework."""

from __future__ import annotations

from profiles.errors import InputError
from profiles.hardware import load_device

_NOT_IN_NAMES = {"nvidia", "amd", "tesla", "geforce", "instinct", "oam", "hbm2", "hbm2e", "hbm3", "hbm3e"}


def catalogue_name(hardware: str) -> str:
    """Return the catalogue's name of the GPU that its driver calls `hardware`; one of the same style if it knows none.

    >>> catalogue_name("NVIDIA A100-SXM4-80GB"), catalogue_name("NVIDIA H100 80GB HBM3"), catalogue_name("Acme X1")
    ('a100-80gb', 'h100', 'acme-x1')
    """
    words = hardware.lower().replace("-", " ").split()
    plain = "-".join(word for word in words if word not in _NOT_IN_NAMES)
    try:
        return load_device(plain).name
    except InputError:
        return plain
