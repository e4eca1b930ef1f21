"""What a run on a GPU leaves behind, and the clock it keeps to: files that a killed run keeps, and where it ran."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from profiles.files import write_atomically

SAVE_EVERY_S = 3.0
_ASKED_OF_NVIDIA_SMI = (
    "name",
    "driver_version",
    "clocks.sm",
    "clocks.max.sm",
    "clocks.mem",
    "power.draw",
    "power.limit",
    "temperature.gpu",
)


class OutOfTime(BaseException):
    """The run's time is over. No Exception: nothing that goes on after a failure may go on after this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadline:
    """A moment on the monotonic clock."""

    at_s: float

    @property
    def left_s(self) -> float:
        return self.at_s - monotonic()


class Log:
    """Lines with the seconds since the start, on standard output and in a file, each written at once."""

    def __init__(self, path: Path) -> None:
        self._start_s = monotonic()
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def write(self, text: str) -> None:
        line = f"{monotonic() - self._start_s:7.1f}  {text}"
        print(line, flush=True)
        self._file.write(line + "\n")

    def close(self) -> None:
        self._file.close()


class ResultFile:
    """A JSON file of rows, failures and what was skipped, written anew every few seconds while they come in.

    Each thing of `planned`, in order, becomes a row or a failure; those that did not yet are the skipped ones.
    """

    def __init__(self, path: Path, *, schema: str, provenance: dict[str, Any], planned: Sequence[str]) -> None:
        self.path, self.schema, self.provenance, self.planned = path, schema, provenance, tuple(planned)
        self.rows: list[dict[str, Any]] = []
        self.failures: list[dict[str, str]] = []
        self.save()

    @property
    def done(self) -> int:
        """How many of what was planned were tried."""
        return len(self.rows) + len(self.failures)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self._save_if_due()

    def fail(self, error: Exception) -> dict[str, str]:
        """What is to be done next has failed; the entry that says so."""
        self.failures.append({"what": self.planned[self.done], "error": describe_error(error)})
        self._save_if_due()
        return self.failures[-1]

    def save(self) -> None:
        """An entry a line, as in a profile file."""
        lines = [f'{{"schema": {json.dumps(self.schema)}', f'"provenance": {json.dumps(self.provenance)}']
        parts = {"rows": self.rows, "failures": self.failures, "skipped": self.planned[self.done :]}
        for name, entries in parts.items():
            lines.append(f'"{name}": [' + ",".join(f"\n{json.dumps(entry)}" for entry in entries) + "]")
        write_atomically(self.path, ",\n".join(lines) + "}\n")
        self._saved_s = monotonic()

    def _save_if_due(self) -> None:
        if monotonic() - self._saved_s > SAVE_EVERY_S:
            self.save()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What every section is told. `store` is the profile store that layers are measured into and estimates read."""

    out: Path
    store: Path
    device: str
    tiny: bool
    log: Log
    provenance: dict[str, Any]


def describe_error(error: Exception) -> str:
    """Its type and the first line of its message (torch's go on for pages)."""
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:400]


def describe_machine(device: str) -> dict[str, Any]:
    """Names and versions of what is measured on, and what nvidia-smi says of it now (null without one)."""
    import torch

    on_gpu = device.startswith("cuda")
    return {
        "device": device,
        "hardware": torch.cuda.get_device_name(device) if on_gpu else platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version() if on_gpu else None,
        "nvidia_smi_at_start": ask_nvidia_smi(device) if on_gpu else None,
    }


def ask_nvidia_smi(device: str) -> dict[str, str] | None:
    """Driver, clocks, power and temperature of `device`; None where nvidia-smi is not there or does not answer."""
    command = ("nvidia-smi", "-i", device.partition(":")[2] or "0")
    query = (f"--query-gpu={','.join(_ASKED_OF_NVIDIA_SMI)}", "--format=csv,noheader")
    try:
        answer = subprocess.run([*command, *query], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return dict(zip(_ASKED_OF_NVIDIA_SMI, (part.strip() for part in answer.split(",")), strict=False))
