"""Type inference: dtypes and rates of an op's outputs, given its inputs; check of a graph."""

from collections.abc import Mapping, Sequence

from millrace.models.errors import ModelError
from millrace.models.graph import FLOAT8, ITEMSIZE, Graph, Op, Rate, Tensor
from millrace.models.labels import bind, parse
from millrace.models.ops import op_kind


def output_dtypes(kind: str, outputs: int, input_dtypes: Sequence[str]) -> tuple[str, ...] | None:
    """Dtypes of an op's outputs: that of the first floating input, widened where the row says so.

    None when no input is floating, or all are of 8 bits, in which nothing is computed: the dtype is
    the caller's to choose.

    Parameters
    ----------
    kind : str
        Row of the op table; its `wide_outputs` are at least float32, its `integer_outputs` int32.
    outputs : int
        Number of outputs.
    input_dtypes : sequence of str
        One per input, in order: float64, float32, bfloat16, float16, float8, int64 or int32.

    Raises
    ------
    ModelError
        An input is floating, and there is no such kind.
    """
    floating = [
        dtype for dtype in input_dtypes if dtype.startswith(("float", "bfloat")) and dtype != FLOAT8
    ]
    if not floating:
        return None
    narrow = floating[0]
    wide = at_least_float32(narrow)
    row = op_kind(kind)
    return tuple(
        "int32" if index in row.integer_outputs else wide if index in row.wide_outputs else narrow
        for index in range(outputs)
    )


def at_least_float32(dtype: str) -> str:
    """Name of `dtype` where it has more than 32 bits, else float32."""
    return dtype if ITEMSIZE[dtype] > 4 else "float32"


def output_rate(kind: str, op: str, input_rates: Sequence[Rate]) -> Rate:
    """Rate of an op's outputs.

    Raises
    ------
    ModelError
        Inputs of different rates meet, or `repeat` or `accumulate` is given the rate it makes.
    """
    row = op_kind(kind)
    if len(set(input_rates)) > 1:
        raise ModelError(
            f"op `{op}` ({kind}) reads tensors of both rates; bring those made once a step to the "
            f"microbatch with `repeat`, or the others to the step with `accumulate`"
        )
    if row.rate is None:
        if not input_rates:
            raise ModelError(f"op `{op}` ({kind}) has no inputs; it needs at least one")
        return input_rates[0]
    if input_rates and input_rates[0] is row.rate:
        raise ModelError(f"op `{op}` ({kind}) reads a tensor made once a {row.rate} already")
    return row.rate


def check_graph(graph: Graph) -> Graph:
    """Return the graph itself once every op is known to fit its row of the table.

    Raises
    ------
    ModelError
        What `Graph.validate` refuses; an unknown kind; a missing attribute; shapes that do not fit
        the labels; rates that do not meet; a batch dim that no label `b` explains.
    """
    graph.validate()
    tensors = graph.tensors_by_name
    for op in graph.ops:
        _check_op(op, tensors)
    return graph


def _check_op(op: Op, tensors: Mapping[str, Tensor]) -> None:
    row = op_kind(op.kind)
    if row.expansion_only:
        raise ModelError(f"op `{op.name}`: kind `{op.kind}` occurs in expansions only")
    if missing := [name for name in row.attributes if name not in op.attributes]:
        raise ModelError(f"op `{op.name}` ({op.kind}) lacks attribute `{missing[0]}`; add it")
    inputs = [tensors[name] for name in op.inputs]
    outputs = [tensors[name] for name in op.outputs]
    bind(
        parse(op.labels),
        tuple(tensor.shape for tensor in inputs),
        tuple(tensor.shape for tensor in outputs),
        op=op.name,
        tensors=op.inputs + op.outputs,
    )
    rate = output_rate(op.kind, op.name, [tensor.rate for tensor in inputs])
    for tensor in outputs:
        if tensor.rate is not rate:
            raise ModelError(
                f"op `{op.name}` makes `{tensor.name}` once a {rate}, but it is declared once a "
                f"{tensor.rate}"
            )
