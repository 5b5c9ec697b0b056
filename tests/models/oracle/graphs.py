"""The oracle's table, one op of it, and whole graphs."""

import zlib
from base64 import b64decode
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import numpy as np

from millrace.models.graph import Graph, Op, Tensor
from millrace.models.labels import bind, parse
from tests.models.oracle.call import Array, Call, Definition
from tests.models.oracle.experts import EXPERTS
from tests.models.oracle.images import IMAGES
from tests.models.oracle.layout import LAYOUT
from tests.models.oracle.norms import NORMS
from tests.models.oracle.pointwise import POINTWISE
from tests.models.oracle.products import PRODUCTS
from tests.models.oracle.recurrences import RECURRENCES
from tests.models.oracle.sequence import SEQUENCES
from tests.models.oracle.sparse import SPARSE

KINDS: dict[str, Definition] = {
    **LAYOUT,
    **PRODUCTS,
    **POINTWISE,
    **NORMS,
    **SEQUENCES,
    **RECURRENCES,
    **SPARSE,
    **IMAGES,
    **EXPERTS,
}

GIVEN = ("input", "variable")
UPDATES = ("learning_rate", "adamw", "sgd")


def evaluate(
    kind: str,
    labels: str,
    inputs: Sequence[Array],
    output_shapes: Sequence[tuple[int, ...]] = (),
    attributes: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Array, ...]:
    """Compute the outputs of one op; `sizes` are those of labels that no input has."""
    expression = parse(labels)
    bound = bind(expression, [x.shape for x in inputs], output_shapes, sizes)
    call = Call(expression=expression, sizes=bound, attributes=attributes or {})
    outputs = KINDS[kind](call, *inputs)
    arrays = outputs if isinstance(outputs, tuple) else (outputs,)
    for index, array in enumerate(arrays):
        assert array.shape == call.shape_out(index), (kind, labels, array.shape)
    return arrays


def run(graph: Graph, given: Mapping[str, Array]) -> dict[str, Array]:
    """Compute every tensor of one step with one microbatch, up to the totals of the step.

    `given` holds the tensors of `input` and `variable` ops.
    """
    tensors = graph.tensors_by_name
    values: dict[str, Array] = {}
    for op in graph.ops:
        if op.kind in UPDATES:
            continue
        if not op.inputs and op.kind != "seen_keys":
            name = op.outputs[0]
            values[name] = given[name] if op.kind in GIVEN else _filled(op, tensors[name])
            continue
        shapes = [tensors[name].shape for name in op.outputs]
        inputs = [values[name] for name in op.inputs]
        outputs = evaluate(op.kind, op.labels, inputs, shapes, op.attributes)
        values.update(zip(op.outputs, outputs, strict=True))
    return values


def _filled(op: Op, tensor: Tensor) -> Array:
    """The values of a `fill` or a `constant`."""
    if not op.attributes.get("data"):
        return np.full(tensor.shape, op.attributes["value"])
    content = zlib.decompress(b64decode(str(op.attributes["data"])))
    values = np.frombuffer(content, np.dtype(tensor.dtype).newbyteorder("<"))
    return values.reshape(tensor.shape).astype(float if values.dtype.kind == "f" else np.int64)


def random_values(graph: Graph, seed: int) -> dict[str, Array]:
    """Random variables and features, random ids; a few targets are negative (not counted)."""
    generator = np.random.default_rng(seed)
    tensors = graph.tensors_by_name
    values: dict[str, Array] = {}
    for op in graph.ops:
        if op.kind not in GIVEN:
            continue
        shape = tensors[op.outputs[0]].shape
        ids = op.attributes.get("values", 0)
        if ids:
            source = str(op.attributes["source"])
            low = -1 if source.endswith("targets") or source == "classes" else 0
            values[op.outputs[0]] = generator.integers(low, int(ids), shape)
        else:
            scale = 1 / sqrt(shape[0]) if op.kind == "variable" and shape else 1.0
            values[op.outputs[0]] = generator.normal(0, scale, shape)
    return values
