"""What hangs under which PCIe switch of a node: its devices and its NICs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from profiles.errors import InputError
from profiles.records import dataclass

if TYPE_CHECKING:
    from profiles.cluster_schema import PcieModel


@dataclass(frozen=True, slots=True, kw_only=True)
class PcieSwitch:
    """The devices and NICs of a node, by number, under one PCIe switch, each on lanes of `bytes_per_s`, one direction;
    as many lead from the switch to the others."""

    devices: tuple[int, ...]
    nics: tuple[int, ...]
    bytes_per_s: float


def check_pcie(switches: Sequence[PcieSwitch], *, devices: int, nics: int) -> None:
    """Raise InputError unless each of a node's devices and NICs hangs under one switch; no switch at all is well."""
    for key, have in (("devices", devices), ("nics", nics)) if switches else ():
        under = Counter(number for switch in switches for number in getattr(switch, key))
        for number in under:
            if not 0 <= number < have:
                raise _wrong(key, f"{number}", f"from 0 to {have - 1}, the node's {key}" if have else f"no {key}")
        twice = next((number for number, times in under.items() if times > 1), None)
        if twice is not None:
            raise _wrong(key, f"{twice} a second time", "each under one switch")
        left = next((number for number in range(have) if number not in under), None)
        if left is not None:
            raise _wrong(key, f"{left} under none", f"each of the node's {have} under one switch")


def read_pcie(
    written: Sequence[PcieModel], rates: Sequence[float], *, devices: int, nics: int
) -> tuple[PcieSwitch, ...]:
    """Return the PCIe switches of a node with so many devices and NICs, with the rate of each row's lanes. Raise
    InputError for numbers of which there are not as many, or that come twice."""
    switches: list[PcieSwitch] = []
    taken: dict[str, set[int]] = {"devices": set(), "nics": set()}
    for row, rate in zip(written, rates, strict=True):
        if row.count > 1 and isinstance(row.devices, list) | isinstance(row.nics, list):
            raise _wrong("count", row.count, "1 beside lists, or numbers of devices and nics")
        for _ in range(row.count):
            own: dict[str, tuple[int, ...]] = {}
            for key, value, have in (("devices", row.devices, devices), ("nics", row.nics, nics)):
                if isinstance(value, int):
                    left = [number for number in range(have) if number not in taken[key]]
                    if value > len(left):
                        raise _wrong(key, value, f"at most {len(left)}: no more are left of the node's {have}")
                    value = left[:value]
                own[key] = tuple(value)
                taken[key].update(value)
            switches.append(PcieSwitch(devices=own["devices"], nics=own["nics"], bytes_per_s=rate))
    check_pcie(switches, devices=devices, nics=nics)
    return tuple(switches)


def describe_pcie(switches: Sequence[PcieSwitch]) -> list[dict[str, Any]]:
    """Return the `pcie` of nodes that means these switches."""
    return [
        {
            "devices": list(switch.devices),
            "nics": list(switch.nics),
            "link": {"bandwidth_bytes_per_s": switch.bytes_per_s, "latency_s": 0.0},
        }
        for switch in switches
    ]


def nics_by_device(switches: Sequence[PcieSwitch], *, devices: int, nics: int) -> tuple[int, ...]:
    """Return the NIC that each device of a node sends by, from 0; -1 for none. Devices in order share the node's NICs
    evenly; of a node whose PCIe switches are known, those under one switch its NICs, and of a switch without a NIC the
    node's."""
    if not nics:
        return (-1,) * devices
    by_device = [device * nics // devices for device in range(devices)]
    for switch in switches:
        for place, device in enumerate(sorted(switch.devices) if switch.nics else ()):
            by_device[device] = sorted(switch.nics)[place * len(switch.nics) // len(switch.devices)]
    return tuple(by_device)


def _wrong(key: str, found: object, expected: str) -> InputError:
    return InputError(where="nodes", key=f"pcie.{key}", found=found, expected=expected)
