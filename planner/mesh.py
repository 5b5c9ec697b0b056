"""Mesh: the named axes over which the devices of one stage are laid out."""

from math import prod

import msgspec


class Axis(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mesh axis; the last axis of a mesh joins neighbouring devices."""

    name: str
    size: int


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Axes from outer to inner; device i of a stage lies at the row-major coordinate of i."""

    axes: tuple[Axis, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of the axes, outer first."""
        return tuple(axis.size for axis in self.axes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the axes, outer first."""
        return tuple(axis.name for axis in self.axes)

    @property
    def devices(self) -> int:
        """Number of devices."""
        return prod(self.sizes)
