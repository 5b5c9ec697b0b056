"""Batches: samples of a step as they are asked for, in all or for each device."""

from collections.abc import Mapping
from dataclasses import dataclass
from re import fullmatch
from typing import Any

from millrace.planner.errors import PlanError

PER_DEVICE = "/device"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Samples of a step: the same at every size, or growing with it (weak scaling).

    Attributes
    ----------
    samples : int
        Of a step; with `per_device`, for each device of the cluster.
    per_device : bool
        True if the batch grows with the devices.
    """

    samples: int
    per_device: bool = False

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise PlanError(f"--global-batch {self}: expected whole numbers of at least 1")

    def __str__(self) -> str:
        return f"{self.samples}{PER_DEVICE if self.per_device else ''}"

    def global_batch(self, devices: int) -> int:
        """Samples of a step on so many devices.

        Parameters
        ----------
        devices : int
            Devices of the cluster.
        """
        return self.samples * devices if self.per_device else self.samples


def batch_text(row: Mapping[str, Any]) -> str:
    """Batch of a sweep's row as it was asked for: `512` or `8/device`."""
    per_device = row["batch_per_device"]
    return str(row["global_batch"]) if per_device is None else f"{per_device}{PER_DEVICE}"


def parse_batch(text: str) -> Batch:
    """Batch of a text: `512`, or `8/device`.

    Raises
    ------
    PlanError
        The text has another form.

    Examples
    --------
    >>> parse_batch("8/device").global_batch(64), parse_batch("512").global_batch(64)
    (512, 512)
    """
    match = fullmatch(rf"\s*([+-]?[0-9]{{1,12}})({PER_DEVICE})?\s*", text)
    if match is None:
        raise PlanError(
            f"--global-batch {text}: `{text.strip()}` is not a whole number of samples; write 512, "
            f"or 8/device for a batch that grows with the devices"
        )
    return Batch(samples=int(match.group(1)), per_device=match.group(2) is not None)
