"""Tuning cache: picks of algorithms for products and of options for choices, found by timing.

They lie beside the profiles of this machine (`millrace.executor.user_cache.cache_folder`), one file
per kind of device and version of the library of products: its algorithms mean something to that
version only (`cublasLtMatmulAlgo_t` of cublasLt.h 13.10.0).
"""

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import msgspec

from millrace.models.documents import FileError, read_document, write_bytes
from millrace.models.graph import to_json

SCHEMA_VERSION = 2


class Pick(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Algorithm or option that is taken, and its time.

    A product takes an algorithm, as hexadecimal digits of its 64 bytes; a choice takes an option.
    """

    taken: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{128}$|^[0-9]$")]
    duration_ns: Annotated[int, msgspec.Meta(ge=0)]


class Picks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Picks by product (`products.cublaslt.key_of`) or choice (`choices.key_of_choice`).

    Parameters
    ----------
    device
        Name that the maker of the device gives it.
    library_version
        `cublasLtGetVersion`.
    picks
        The pick of every product and choice.
    """

    device: str
    library_version: int
    picks: dict[str, Pick]
    schema_version: int = SCHEMA_VERSION

    def with_first(self, other: "Picks") -> "Picks":
        """These picks and, wherever another has one too, the other's."""
        if (other.device, other.library_version) != (self.device, self.library_version):
            return self
        return msgspec.structs.replace(self, picks=self.picks | other.picks)


def agreed(several: Sequence[Picks | None], rank: int) -> Picks | None:
    """Picks that a rank takes so that all take the same: each that of the lowest rank that has it.

    Ranks that compute the same value from the same operands must get the same bits. Picks of
    other kinds of devices, and of other versions, are left out.

    Parameters
    ----------
    several
        Picks of every rank; None where it has no products.
    rank
        The rank that asks.
    """
    picks = several[rank]
    if picks is None:
        return None
    for other in reversed(several):
        picks = picks if other is None else picks.with_first(other)
    return picks


def picks_path(folder: Path, device: str, library_version: int) -> Path:
    """File in which picks are kept."""
    digest = sha256(f"{device}; cublasLt {library_version}".encode()).hexdigest()[:16]
    return folder / f"products-{digest}.json"


def load_picks(folder: Path, device: str, library_version: int) -> Picks:
    """Picks that are kept in a folder; none where the file is missing or not one."""
    none = Picks(device=device, library_version=library_version, picks={})
    path = picks_path(folder, device, library_version)
    try:
        picks = read_document(path, Picks, "file of picks")
    except FileError:
        return none
    return picks if picks.schema_version == SCHEMA_VERSION else none


def save_picks(folder: Path, picks: Picks) -> None:
    """Keep picks in a folder; those that were kept before stay, so that runs stay what they were.

    The file is replaced in one step: a reader sees the old one or the new one.
    """
    stored = load_picks(folder, picks.device, picks.library_version)
    if picks.picks.keys() <= stored.picks.keys():
        return
    path = picks_path(folder, picks.device, picks.library_version)
    with suppress(OSError, FileError):  # what cannot be kept is found again
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(path, to_json(picks.with_first(stored)))
