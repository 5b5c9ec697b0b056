"""Outputs: which of the tensors that a file returns the loss is taken of."""

from collections.abc import Mapping, Sequence

from millrace.models.errors import ModelError
from millrace.models.importers.onnx.values import Traced, Unknown, Value

LOGITS = "logits"
_HIDDEN = "last_hidden_state"


def chosen(outputs: Sequence[str], values: Mapping[str, Value], output: str | int | None) -> str:
    """Return the name of the output that the loss is taken of.

    Parameters
    ----------
    outputs
        Names of the file's outputs.
    values
        What is known of each.
    output
        Name or index of one; by default `logits`, or the only floating one that depends on data.

    Raises
    ------
    ModelError
        There is none, or several and none is named.
    """
    found = [name for name in outputs if _floating(values.get(name))]
    named = ", ".join(f"`{name}`" for name in found)
    if output is not None:
        wanted = found[output] if isinstance(output, int) and output < len(found) else output
        if wanted in found:
            return str(wanted)
        raise ModelError(
            f"the file returns no floating tensor `{output}`; choose one of {named or 'none'}"
        )
    if not found:
        raise ModelError(
            f"output `{outputs[0]}` depends on no floating data; the loss needs the model's "
            f"predictions"
        )
    if LOGITS in found:
        return LOGITS
    if len(found) > 1:
        raise ModelError(
            f"the file returns {len(found)} floating tensors ({named}), and the loss is taken of "
            f"one: say which, for example output={found[0]!r}"
        )
    if found == [_HIDDEN]:
        raise ModelError(
            f"the file returns hidden states (`{_HIDDEN}`), no predictions: export the model with "
            f'its head, or say output="{_HIDDEN}" if they are to be taken as classes'
        )
    return found[0]


def _floating(value: Value | None) -> bool:
    """Whether a loss could be taken of a value; of one that is not understood it might."""
    return isinstance(value, Unknown) or (isinstance(value, Traced) and not value.ids)
