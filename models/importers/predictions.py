"""Predictions: which of their dims is classes, alike for every format that is imported."""

from collections.abc import Sequence

from millrace.models.errors import ModelError


def classes_dim(
    shape: Sequence[int], along: Sequence[bool], *, tokens: bool, asked: int | None
) -> int:
    """Dim of the predictions that is classes: as PyTorch's cross entropy has it, or the last.

    Parameters
    ----------
    shape : sequence of int
        Length of each dim of the predictions, the batch first.
    along : sequence of bool
        True for each dim that runs along the tokens.
    tokens : bool
        True if an input is of ids.
    asked : int or None
        The dim where it is said, counted from the end if below zero; None: told from the others.

    Returns
    -------
    int
        Index from the left, 1 or more.

    Raises
    ------
    ModelError
        It cannot be told, what is asked for is the batch or no dim, or it is one class only.

    Examples
    --------
    >>> classes_dim((2, 16, 320), (False, True, False), tokens=True, asked=None)
    2
    >>> classes_dim((2, 5, 8, 12), (False,) * 4, tokens=False, asked=None)
    1
    """
    shape, rank = tuple(shape), len(shape)
    dim = rank - 1
    if asked is not None:
        if not -rank < asked < rank or asked % rank == 0:
            raise ModelError(f"the predictions have shape {shape}: classes_dim={asked} is none")
        dim = asked % rank
    elif rank == 3 and tokens:
        dim = 1 if along[2] and not along[1] else 2
    elif rank > 3 and not tokens:
        dim = 1
    elif rank > 2:
        raise ModelError(
            f"the predictions have shape {shape}: which dim is classes? Say classes_dim=1 (as "
            f"PyTorch's cross_entropy has it) or classes_dim={rank - 1} (the last)"
        )
    if rank < 2 or shape[dim] == 1:
        raise ModelError(
            f"the predictions have shape {shape}: over one class cross entropy is always zero; "
            f'for one logit against 0 or 1 say loss="logistic"'
        )
    return dim
