"""Recompute: forward ops replayed in the backward pass, so that less is kept in between.

A backward op of a recomputing block reads *clones* of forward ops in place of what these made: the
clone of op `h.3.ln1` is op `h.3.ln1.recompute`, which makes `<tensor>.recompute` of every tensor of
its op. A clone is of its op's kind, labels and attributes, so it computes the same numbers; dropout
too, whose bits follow from the forward op that its attributes name.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase
from millrace.models.ops import op_kind
from millrace.models.unfused_attention import scores_products

NONE, SELECTIVE, FULL = MODES = ("none", "selective", "full")
SUFFIX = ".recompute"

BROUGHT_IN = ("repeat", "input")  # these bring weights and data from outside the block

# Selective recomputation also keeps tokens as they came to experts, for to make
# them again is to send them again.
SENT = ("dispatch",)


def with_recompute(graph: Graph, modes: Mapping[str, str]) -> Graph:
    """Return the training graph whose blocks recompute as `modes` say.

    Parameters
    ----------
    graph : Graph
        A training graph without recomputation.
    modes : mapping of str to str
        Per block: none, selective or full; blocks that are not named: none.

    Returns
    -------
    Graph
        Of a block in mode full, clones read only what comes from outside the block (tensors of
        other blocks, weights, data); in mode selective also what products made (`OpKind.products`:
        matmul, convolution, attention), which are kept, but for the scores of unfused attention,
        and tokens that were sent to experts.
        Only the clones that some backward op needs, directly or through other clones, exist. They
        lie before the block's first backward op: as late as can be, yet where they need not wait
        for the gradient of the next block. What the forward pass itself results in, the loss and
        the count, is never replaced.

    Raises
    ------
    ModelError
        A block or a mode is not known, or the graph recomputes already.

    Notes
    -----
    Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 4 (full, a segment
    being a block); Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
    Models", 2022, section 5 (selective; attention kernels that keep no scores need no replay, the
    core of unfused attention does: scores and probabilities).

    Examples
    --------
    >>> from millrace.models.spec import TrainingSpec
    >>> from millrace.models.zoo.catalogue import build_training, model_spec
    >>> plain = build_training(model_spec("gpt2-small"), TrainingSpec(), 1)
    >>> graph = with_recompute(plain, {"h.0": "selective"})
    >>> [op.name for op in graph.ops if op.phase == "recompute"][:2]
    ['h.0.ln1.recompute', 'h.0.attn.q.recompute']
    """
    _check(graph, modes)
    replayed = _replayed(graph, modes)
    ops: list[Op] = []
    begun: set[str] = set()
    forward = {name for op in graph.ops if op.phase is Phase.FORWARD for name in op.outputs}
    for op in graph.ops:
        if op.phase.is_gradient and not _accumulates_loss(op, forward):
            clones = replayed.get(op.block, {})
            if op.block not in begun:
                begun.add(op.block)
                cloned_ops = {cloned.name: cloned for cloned in clones.values()}
                ops.extend(_clone(cloned, clones) for cloned in cloned_ops.values())
            if not clones.keys().isdisjoint(op.inputs):
                op = replace(op, inputs=_replaced(op.inputs, clones))
        ops.append(op)
    tensors_by_name = graph.tensors_by_name
    tensors = (
        replace(tensors_by_name[name], name=name + SUFFIX)
        for clones in replayed.values()
        for name in clones
    )
    return replace(graph, ops=tuple(ops), tensors=(*graph.tensors, *tensors)).validate()


def layers_of(graph: Graph) -> tuple[str, ...]:
    """Blocks that trainers recompute: not the first and the last, embedding and loss; else all.

    Parameters
    ----------
    graph : Graph
        A training graph; an end that is like another block is a layer.

    Examples
    --------
    >>> from millrace.models.spec import TrainingSpec
    >>> from millrace.models.zoo.catalogue import build_training, model_spec
    >>> layers_of(build_training(model_spec("gpt2-small"), TrainingSpec(), 1))[:2]
    ('h.0', 'h.1')
    """
    often = Counter(graph.templates[block] for block in graph.blocks)
    ends = {
        block
        for block in graph.blocks[:1] + graph.blocks[-1:]
        if often[graph.templates[block]] == 1
    }
    return tuple(block for block in graph.blocks if block not in ends) or tuple(graph.blocks)


def _check(graph: Graph, modes: Mapping[str, str]) -> None:
    for block, mode in modes.items():
        if block not in graph.templates:
            raise ModelError(f"recompute: graph `{graph.name}` has no block `{block}`")
        if mode not in MODES:
            raise ModelError(
                f"recompute: block `{block}` has mode `{mode}`; choose one of {', '.join(MODES)}"
            )
    if again := next((op.name for op in graph.ops if op.phase is Phase.RECOMPUTE), ""):
        raise ModelError(
            f"graph `{graph.name}` recomputes already (op `{again}`); start from its training graph"
        )


def _replayed(graph: Graph, modes: Mapping[str, str]) -> dict[str, dict[str, Op]]:
    """Ops to clone, by block and by the tensor that each clone makes, in the graph's order."""
    makers: dict[str, Op] = {}
    scores = scores_products(graph)
    forward: set[str] = set()
    needed: set[str] = set()
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            forward.update(op.outputs)
            if _may_be_replayed(op, modes.get(op.block, NONE), scores):
                makers.update(dict.fromkeys(op.outputs, op))
        elif op.phase.is_gradient and not _accumulates_loss(op, forward):
            pending = [op]
            while pending:
                reader = pending.pop()
                for name in reader.inputs:
                    maker = makers.get(name)
                    if maker is None or maker.block != op.block or maker.name in needed:
                        continue
                    needed.add(maker.name)
                    pending.append(maker)
    replayed: dict[str, dict[str, Op]] = {}
    for name, op in makers.items():
        if op.name in needed:
            replayed.setdefault(op.block, {})[name] = op
    return replayed


def _may_be_replayed(op: Op, mode: str, scores: frozenset[str]) -> bool:
    if mode == NONE or op.kind in BROUGHT_IN:
        return False
    if mode == FULL or op.name in scores:
        return True
    return not op_kind(op.kind).products and op.kind not in SENT


def _accumulates_loss(op: Op, forward: set[str]) -> bool:
    """True if an op adds up over the step what the forward pass results in (loss, count)."""
    return op.kind == "accumulate" and op.inputs[0] in forward


def _clone(op: Op, clones: Mapping[str, Op]) -> Op:
    return replace(
        op,
        name=op.name + SUFFIX,
        inputs=_replaced(op.inputs, clones),
        outputs=tuple(name + SUFFIX for name in op.outputs),
        phase=Phase.RECOMPUTE,
    )


def _replaced(names: tuple[str, ...], clones: Mapping[str, Op]) -> tuple[str, ...]:
    return tuple(name + SUFFIX if name in clones else name for name in names)
