"""Norms: over the residual stream, or over the features of a head.

Shape legend: b batch, t sequence, g groups, r heads of a group, d features normed.
"""

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.labels import parse, write

KINDS = ("rms", "layer", "scale", "unscaled", "bare")


def add_norm(
    builder: GraphBuilder,
    name: str,
    x: str,
    dims: str = "b t d",
    *,
    kind: str = "layer",
    epsilon: float,
    frozen: bool = False,
) -> str:
    """Output of an added norm over the last dim of `x`, with weights of its own.

    Parameters
    ----------
    builder : GraphBuilder
        Gets the op and its weights, in its current block.
    name : str
        Name within the block; the weights are `<name>.weight` and `<name>.bias`.
    x : str
        Tensor to norm; statistics are taken per row of its last dim.
    dims : str
        Labels of `x`, for example `b t d`; the last one is never split.
    kind : str
        "rms", "layer", "scale": a layer norm whose shift is zero and not trained, "unscaled": a
        root mean square whose weights are one and not trained, or "bare": a layer norm without
        weights and shift.
    epsilon : float
        Added to the mean square or variance before the root.
    frozen : bool
        Its weights are not trained.

    Returns
    -------
    str
        The tensor called `<block>.<name>`, of the shape of `x`.

    Raises
    ------
    ModelError
        `dims` do not fit the shape of `x`, `kind` is none of these, or no block is begun.
    """
    if kind not in KINDS:
        raise ModelError(f"norm `{name}` is `{kind}`: expected {', '.join(KINDS)}")
    (operand,) = parse(f"-> {dims}").outputs
    rows, feature = operand[:-1], operand[-1:]
    size = builder.tensors[x].shape[-1]
    if kind in ("unscaled", "bare"):
        scale = _constant(builder, f"{name}.one", size, 1.0)
    else:
        scale = builder.parameter(
            f"{name}.weight", "d", (size,), init="ones", decay=False, frozen=frozen
        )
    attributes = {"epsilon": epsilon}
    whole_labels = frozenset(feature[0])
    if kind in ("rms", "unscaled"):
        labels = write((operand, feature), (operand, rows), whole_labels)
        return builder.apply("rms_norm", name, (x, scale), labels, attributes=attributes)
    if kind == "layer":
        shift = builder.parameter(
            f"{name}.bias", "d", (size,), init="zeros", decay=False, frozen=frozen
        )
    else:
        shift = _constant(builder, f"{name}.zero", size, 0.0)
    labels = write((operand, feature, feature), (operand, rows, rows), whole_labels)
    return builder.apply("layer_norm", name, (x, scale, shift), labels, attributes=attributes)


def _constant(builder: GraphBuilder, name: str, size: int, value: float) -> str:
    """Add a weight or shift that is part of the model and not trained."""
    values = builder.emit(
        "constant",
        builder.full_name(name),
        (),
        "-> d",
        shapes=((size,),),
        dtype=builder.precision.compute,
        attributes={"value": value, "data": ""},
    )[0]
    return builder.repeat(values, name, "d")
