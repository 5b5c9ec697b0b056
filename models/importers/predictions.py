"""Predictions: which output holds them and which dim is classes, alike for every format."""

from collections.abc import Sequence

from millrace.models.errors import ModelError

LOGITS = "logits"
_HIDDEN = "last_hidden_state"


def prediction_output(names: Sequence[str], asked: str | None, returner: str, verb: str) -> str:
    """Name of the output that the loss is taken of.

    Parameters
    ----------
    names
        Outputs that are floating tensors.
    asked
        The one that is asked for; by default `logits`, or the only one.
    returner, verb
        What returns them, and how it gets here, for messages: a file is exported.

    Raises
    ------
    ModelError
        There is none, or several and none is named.
    """
    named = ", ".join(f"`{name}`" for name in names)
    if asked is not None:
        if asked in names:
            return asked
        raise ModelError(
            f"the {returner} returns no floating tensor `{asked}`; "
            + (f"choose one of {named}" if any(names) else "leave `output` out")
        )
    if not names:
        raise ModelError(
            f"the {returner} returns no floating tensor; the loss needs its predictions"
        )
    if LOGITS in names:
        return LOGITS
    if len(names) > 1:
        example = names[0] if names[0].isdigit() else repr(names[0])
        raise ModelError(
            f"the {returner} returns {len(names)} floating tensors ({named}), and the loss is "
            f"taken of one: say which, for example output={example}"
        )
    if names[0] == _HIDDEN:
        raise ModelError(
            f"the {returner} returns hidden states (`{_HIDDEN}`), no predictions: {verb} the model "
            f'with its head, or say output="{_HIDDEN}" if they are to be taken as classes'
        )
    return names[0]


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
