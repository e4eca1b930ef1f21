"""Where the run is: what nvidia-smi says of the device."""

from __future__ import annotations

import subprocess

_ASKED_OF_NVIDIA_SMI = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
    "memory.used",
)


def ask_nvidia_smi(device: str) -> dict[str, str] | None:
    """Driver, clocks, power, temperature and memory in use of `device`; None where it is no GPU, or nvidia-smi is not
    there or does not answer."""
    if not device.startswith("cuda"):
        return None
    command = ("nvidia-smi", "-i", device.partition(":")[2] or "0")
    query = (f"--query-gpu={','.join(_ASKED_OF_NVIDIA_SMI)}", "--format=csv,noheader")
    try:
        answer = subprocess.run([*command, *query], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(_ASKED_OF_NVIDIA_SMI, (part.strip() for part in answer.split(",")), strict=False))
