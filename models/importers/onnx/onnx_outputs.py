"""Outputs: which of the tensors that a file returns the loss is taken of."""

from collections.abc import Mapping, Sequence

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.values import Traced, Unknown, Value

LOGITS = "logits"
_HIDDEN = "last_hidden_state"


def prediction_output(
    outputs: Sequence[str], values: Mapping[str, Value], output: str | int | None
) -> str:
    """Return the name of the output that the loss is taken of.

    Parameters
    ----------
    outputs
        Names of the file's outputs.
    values
        Value of each tensor.
    output
        Name or index of one; by default `logits`, or the only floating one that depends on data.

    Raises
    ------
    ModelError
        There is none, or several and none is named.
    """
    candidates = [name for name in outputs if _floating(values.get(name))]
    named = ", ".join(f"`{name}`" for name in candidates)
    if output is not None:
        wanted = (
            candidates[output] if isinstance(output, int) and output < len(candidates) else output
        )
        if wanted in candidates:
            return str(wanted)
        raise ModelError(
            f"the file returns no floating tensor `{output}`; choose one of {named or 'none'}"
        )
    if not candidates:
        raise ModelError(
            f"output `{outputs[0]}` depends on no floating data; the loss needs the model's "
            f"predictions"
        )
    if LOGITS in candidates:
        return LOGITS
    if len(candidates) > 1:
        raise ModelError(
            f"the file returns {len(candidates)} floating tensors ({named}), and the loss is taken "
            f"of one: say which, for example output={candidates[0]!r}"
        )
    if candidates == [_HIDDEN]:
        raise ModelError(
            f"the file returns hidden states (`{_HIDDEN}`), no predictions: export the model with "
            f'its head, or say output="{_HIDDEN}" if they are to be taken as classes'
        )
    return candidates[0]


def _floating(value: Value | None) -> bool:
    """True if a loss could be taken of a value, or might be where it is not understood."""
    return isinstance(value, Unknown) or (isinstance(value, Traced) and not value.ids)
