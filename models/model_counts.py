"""Counts of a training step from its forward graph alone: FLOPs, and parts that can split.

`model_flops` of the training graph gives the same count; for the list of all models that would mean
to differentiate each of them.
"""

from millrace.models.graph import Graph, Op, Phase
from millrace.models.labels import BATCH, EXPERT, SEQUENCE, parse
from millrace.models.ops import OPS, op_flops, op_kind
from millrace.models.ops.windows import window_fractions

NORMS = ("layer_norm", "rms_norm")


def training_flops(forward: Graph) -> int:
    """FLOPs of one microbatch, forward and backward, as `models/ops` counts them.

    A product's backward is as much again for every factor that training changes; attention's is
    its gradient's own row, and within a window it meets the keys of the window
    (`millrace.models.ops.windows`).
    """
    shares = window_fractions(forward, OPS)
    tensors = forward.tensors_by_name
    sloped = _sloped(forward)
    trained: set[str] = set()
    total = 0
    for op in forward.ops:
        if op.trains or not trained.isdisjoint(op.inputs):
            trained.update(n for n in op.outputs if not tensors[n].dtype.startswith("int"))
        if op.phase is Phase.BEGIN or not op_kind(op.kind).products:
            continue
        inputs = [tensors[name].shape for name in op.inputs]
        outputs = [tensors[name].shape for name in op.outputs]
        flops = op_flops(op.kind, op.labels, inputs, outputs, op=op.name)
        flops = int(flops * shares.get(op.name, 1))
        total += flops
        if op_kind(op.kind).differentiable and not sloped.isdisjoint(op.outputs):
            total += flops * _backward_products(op, trained) // len(op_kind(op.kind).products)
    return total


def _sloped(forward: Graph) -> set[str]:
    """Tensors that the loss follows from: not what is only read to choose something."""
    read = {name for op in forward.ops for name in op.inputs}
    ends = (op.outputs for op in forward.ops if read.isdisjoint(op.outputs))
    sloped = {name for outputs in ends for name in outputs}
    for op in reversed(forward.ops):
        if op_kind(op.kind).differentiable and not sloped.isdisjoint(op.outputs):
            sloped.update(op.inputs)
    return sloped


def _backward_products(op: Op, trained: set[str]) -> int:
    """Number of products in an op's backward pass; its forward pass has `len(row.products)`."""
    row = op_kind(op.kind)
    wanted = sum(name in trained for name in op.inputs)
    whole_gradient = OPS.get(f"{op.kind}_grad")  # of all inputs by one op
    if row.linear and not (whole_gradient and whole_gradient.products):
        return wanted
    return 2 * len(row.products) if wanted else 0


def master_weights(training: Graph) -> frozenset[str]:
    """Variables of a training graph that all ops but the update read through one cast to 16 bits.

    Such a variable is the copy in float32 that training in 16 bits keeps (Micikevicius et al.,
    "Mixed precision training", 2018, section 3.1).
    """
    variables = {op.outputs[0] for op in training.ops if op.kind == "variable"}
    casts: dict[str, int] = {}
    others: set[str] = set()
    for op in training.ops:
        for name in variables.intersection(op.inputs):
            if op.kind == "cast":
                casts[name] = casts.get(name, 0) + 1
            elif op.phase is not Phase.UPDATE:
                others.add(name)
    return frozenset(name for name, count in casts.items() if count == 1) - others


def parallelism_limits(graph: Graph) -> dict[str, int | bool]:
    """Return what a plan may split: number of blocks and experts, and which labels there are.

    Returns
    -------
    dict
        `blocks` (most chunks of a pipeline), `experts` (0: none), and whether products can be
        split by `batch`, by `sequence` and by the labels of weights (`tensor`), and norms by the
        sequence (`sequence_parallel`).
    """
    tensors = graph.tensors_by_name
    labels: set[str] = set()
    norms: set[str] = set()
    experts = 0
    kinds = {op.kind for op in graph.ops}
    telling = {kind for kind in kinds if kind in NORMS or op_kind(kind).products}
    alike = {
        (op.kind, op.labels, *(tensors[name].shape for name in op.inputs)): op
        for op in graph.ops
        if op.kind in telling
    }
    for op in alike.values():
        expression = parse(op.labels)
        if op.kind in NORMS:
            norms.update(expression.splittable)
        if not op_kind(op.kind).products:
            continue
        labels.update(expression.splittable)
        if EXPERT in expression.splittable:
            input_index = next(i for i, o in enumerate(expression.inputs) if (EXPERT,) in o)
            dim = expression.inputs[input_index].index((EXPERT,))
            experts = max(experts, tensors[op.inputs[input_index]].shape[dim])
    return {
        "blocks": len(graph.blocks),
        "experts": experts,
        "batch": BATCH in labels,
        "sequence": SEQUENCE in labels,
        "tensor": bool(labels - {BATCH, SEQUENCE, EXPERT}),
        "sequence_parallel": SEQUENCE in norms,
    }
