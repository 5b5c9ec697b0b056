"""Assumed shares of peaks, of devices that no published run was fitted on.

A device's file has the shares of its peaks that runs reach, or leaves them out. Those left out are
the worst of the measured devices of its generation, else the worst of all measured devices: a
device that nobody ran is not to look better than those that were. `Device.assumed` names them.
"""

import tomllib
from collections.abc import Iterable
from functools import lru_cache
from importlib import resources
from typing import Any

from millrace.planner.cluster import generation

SHARES = ("matmul_efficiency", "memory_efficiency", "attention_efficiency")
# Products in eight bits, where the share of other products is left out too.
NARROW_SHARE = "narrow_efficiency"

# A device that has none of these is no accelerator, and its shares say nothing of one.
MATRIX_PRECISIONS = {"fp16", "bf16"}


@lru_cache(maxsize=1)
def measured_devices() -> dict[str, dict[str, Any]]:
    """Fields of the catalogue's accelerators whose files have every share, by name."""
    folder = resources.files("millrace.planner") / "catalogue"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".toml"))
    devices = (tomllib.loads((folder / file).read_text("utf-8"))["device"] for file in files)
    return {
        device["name"]: device
        for device in devices
        if device.keys() >= set(SHARES) and device["flops_per_s"].keys() & MATRIX_PRECISIONS
    }


def assumed_shares(name: str, *, alien: bool = False) -> dict[str, float]:
    """Worst share of each peak that devices like this one were measured at.

    Parameters
    ----------
    name : str
        Name of the device.
    alien : bool
        No device of its generation counts, as if none had been measured.

    Examples
    --------
    >>> sorted(assumed_shares("gh200"))
    ['attention_efficiency', 'matmul_efficiency', 'memory_efficiency', 'narrow_efficiency']
    """
    era = generation(name)
    devices = measured_devices()
    siblings = [device for other, device in devices.items() if era and generation(other) == era]
    others = [device for other, device in devices.items() if not era or generation(other) != era]
    counted = others if alien or not siblings else siblings
    told = {share: _present(share, counted) for share in (*SHARES, NARROW_SHARE)}
    return {share: min(values) for share, values in told.items() if values}


def _present(share: str, devices: Iterable[dict[str, Any]]) -> list[float]:
    return [device[share] for device in devices if share in device]


def with_shares(device: dict[str, Any]) -> dict[str, Any]:
    """Fields of a device with the shares that its file leaves out, and their names as `assumed`."""
    missing = [share for share in SHARES if share not in device]
    if not missing:
        return device
    if "matmul_efficiency" in missing and NARROW_SHARE not in device:
        missing.append(NARROW_SHARE)
    shares = assumed_shares(str(device.get("name", "")))
    taken = {share: shares[share] for share in missing if share in shares}
    return taken | device | {"assumed": list(taken)}
