"""The errors of the executor package."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def reason_of(error: Exception) -> str:
    """Reason for which the system refused, in its own words, without numbers and paths."""
    told = error.strerror if isinstance(error, OSError) else None
    return (told or str(error)).lower()


class DataError(ValueError):
    """Training data is missing or unreadable; names the path and what was expected there."""


class CheckpointError(ValueError):
    """A checkpoint is missing, incomplete or of another model; names the tensor or file."""


class ExecutorError(RuntimeError):
    """A run failed; says on which rank and in which actor, and carries the cause.

    Attributes
    ----------
    cause : str
        The failure in one sentence.
    rank, actor : int or None, str or None
        Where, as far as it is known.
    """

    def __init__(self, cause: str, *, rank: int | None = None, actor: str | None = None) -> None:
        places = [] if rank is None else [f"rank {rank}"]
        if actor:
            places.append(f"actor `{actor}`")
        super().__init__(f"{', '.join(places)}: {cause}" if places else cause)
        self.cause = cause
        self.rank = rank
        self.actor = actor


class RankFailedError(ExecutorError):
    """A rank failed, or was lost with its host; the run may go on from its last checkpoint.

    Attributes
    ----------
    host : str or None
        The host, where it was lost with all its ranks.
    """

    def __init__(
        self,
        cause: str,
        *,
        rank: int | None = None,
        actor: str | None = None,
        host: str | None = None,
    ) -> None:
        super().__init__(cause, rank=rank, actor=actor)
        self.host = host


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Say which file the system refused, and why, as an ExecutorError."""
    try:
        yield
    except OSError as error:
        raise ExecutorError(f"cannot save `{path}`: {reason_of(error)}") from error
