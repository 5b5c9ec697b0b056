"""Reverse mode: gradient rules applied from the loss back to the variables.

Every use of a variable (its `repeat`) gets one `accumulate`; uses are added up once a step, where
the variable lives.

Notes
-----
Griewank and Walther, "Evaluating derivatives", 2nd ed., 2008, section 3.2 (incremental reverse
mode): gradients of a tensor with several readers are added before its producer is differentiated.
"""

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.gradients.gradient_rules import RULES
from millrace.models.gradients.tape import UNIT_GRADIENT, Rule, Tape
from millrace.models.graph import Graph, Op


def backward(builder: GraphBuilder, graph: Graph, loss: str) -> dict[str, str]:
    """Add the backward ops of `graph` and return the gradients of the variables that are trained.

    Parameters
    ----------
    builder : GraphBuilder
        Made by `GraphBuilder.extending(graph)`.
    graph : Graph
        The forward graph.
    loss : str
        A scalar tensor that is the sum of the losses, read by nothing; the gradients are of this
        sum, over all samples of the step (not of a mean).

    Returns
    -------
    dict
        Variable to gradient, once a step, in the order of the variables.

    Raises
    ------
    ModelError
        An op on the way to the loss has no rule, or a variable that is trained does not reach it.
    """
    tape = Tape(builder, graph.ops)
    parts: dict[str, list[tuple[Op, int, str]]] = {}
    gradients: dict[str, str] = {}
    for op in reversed(graph.ops):
        totals = [tape.total(name, parts.pop(name, [])) for name in op.outputs]
        gradient = UNIT_GRADIENT if loss in op.outputs else totals[0]
        if any(total is not None for total in totals[1:]):
            raise ModelError(f"op `{op.name}`: only its first output can reach the loss")
        if gradient is None or not tape.requires_grad(op.outputs[0]):
            continue
        if op.kind == "variable":
            gradients[op.outputs[0]] = gradient
            continue
        for index, part in enumerate(_rule(op)(tape, op, gradient)):
            if part is not None and tape.requires_grad(op.inputs[index]):
                parts.setdefault(op.inputs[index], []).append((op, index, part))
    variables = [op.outputs[0] for op in graph.ops if op.trains]
    if lost := [name for name in variables if name not in gradients]:
        raise ModelError(f"variable `{lost[0]}` does not reach the loss `{loss}`; remove it")
    return {name: gradients[name] for name in variables}


def _rule(op: Op) -> Rule:
    try:
        return RULES[op.kind]
    except KeyError:
        kinds = ", ".join(RULES)
        raise ModelError(
            f"op `{op.name}`: kind `{op.kind}` cannot be differentiated; these can: {kinds}"
        ) from None
