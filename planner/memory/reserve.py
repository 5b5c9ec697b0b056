"""Reserve: memory of a device that a plan leaves, for what predictions of peaks miss."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Reserve of every device: a fraction of its memory, and bytes."""

    fraction: float = 0.0
    size_bytes: int = 0

    def bytes_of(self, memory_bytes: int) -> int:
        """Bytes that a device with so much memory keeps free.

        Examples
        --------
        >>> Reserve(fraction=0.05).bytes_of(80_000), Reserve(size_bytes=100).bytes_of(80_000)
        (4000, 100)
        """
        return round(self.fraction * memory_bytes) + self.size_bytes


NO_RESERVE = Reserve()

# Of 169 published peaks (tier A) no more than 5 % lie further above their prediction than this
# share of their device: `reserve_fraction` of `memory` in `millrace validate --json`, 2026-11-27.
DEFAULT_RESERVE = Reserve(fraction=0.13)
