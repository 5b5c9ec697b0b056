"""Recompute: forward ops replayed in the backward pass, so that less is kept in between.

A backward op of a recomputing block reads *clones* of forward ops in place of what these made: the
clone of op `h.3.ln1` is op `h.3.ln1.recompute`, which makes `<tensor>.recompute` of every tensor of
its op. A clone is of its op's kind, labels and attributes, so it computes the same numbers; dropout
too, whose bits follow from the forward op that its attributes name.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from millrace.models.errors import ModelError
from millrace.models.graph import Graph, Op, Phase
from millrace.models.labels import EXPERT, parse
from millrace.models.ops import op_kind
from millrace.models.training.unfused_attention import KINDS, scores_ops

NONE, SELECTIVE, FULL = MODES = ("none", "selective", "full")
SUFFIX = ".recompute"

BROUGHT_IN = ("repeat", "input")  # these bring weights and data from outside the block

# Parts of a block: its ops, sorted by what selective recomputation tells apart. Tokens as they came
# to experts are one, for to make them again is to send them again.
PARTS = (ATTENTION, SCORES, PRODUCTS, EXPERT_PRODUCTS, SENT, NORMS, ACTIVATIONS, OTHERS) = (
    *("attention", "scores", "products", "expert-products", "dispatch", "norms"),
    *("expert-activations", "others"),
)
# Some ops of these: what makes queries, keys and values of what latent attention keeps of a token,
# products of experts that are sent back, and all ops of a feed-forward part, by their names.
LATENT, RESULTS = "latent-projections", "expert-results"
FEED_FORWARD = {"mlp.": "feed-forward", "experts.": "experts", "shared.": "shared-experts"}
WITHIN = (LATENT, RESULTS, *FEED_FORWARD.values())
UP, DOWN = ("attn.q", "attn.k", "attn.v"), ("attn.q.latent", "attn.k.shared", "attn.kv.latent")


class Selective(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rule of selective recomputation: what it makes again of a block.

    Attributes
    ----------
    again : tuple of str
        Parts that are made again, where all else is kept; none: all but what it `keeps`. What an
        attention that keeps no scores results in stays, as it goes to other parts.
    keeps : tuple of str
        Parts that are kept.
    sent : tuple of str
        Parts that are kept too where experts lie on several ranks.
    every_second : bool
        Of `products` that are kept only the first, the third and so on of a block are.
    """

    again: tuple[str, ...] = ()
    keeps: tuple[str, ...] = (ATTENTION, PRODUCTS, EXPERT_PRODUCTS, SENT)
    sent: tuple[str, ...] = ()
    every_second: bool = False

    def __post_init__(self) -> None:
        parts = (*PARTS, *WITHIN)
        if unknown := sorted({*self.again, *self.keeps, *self.sent} - {*parts}):
            raise ModelError(f"selective: `{unknown[0]}`, expected some of {', '.join(parts)}")


USUAL = Selective()


def with_recompute(graph: Graph, modes: Mapping[str, str], selective: Selective = USUAL) -> Graph:
    """Return the training graph whose blocks recompute as `modes` say.

    Parameters
    ----------
    graph : Graph
        A training graph without recomputation.
    modes : mapping of str to str
        Per block: none, selective or full; blocks that are not named: none.
    selective : Selective
        What mode selective makes again. Usually what products made (`OpKind.products`: matmul,
        convolution, attention) is kept, but for the scores of unfused attention, and tokens that
        were sent to experts.

    Returns
    -------
    Graph
        Of a block in mode full, clones read only what comes from outside the block (tensors of
        other blocks, weights, data); in mode selective also what is kept.
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
    replayed = _replayed(graph, modes, selective)
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
        for op in {op.name: op for op in clones.values()}.values()
        for name in op.outputs
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


def _replayed(
    graph: Graph, modes: Mapping[str, str], selective: Selective
) -> dict[str, dict[str, Op]]:
    """Ops to clone, by block and by the tensor that each clone makes, in the graph's order."""
    makers: dict[str, Op] = {}
    selected = _selected(graph, selective) if SELECTIVE in modes.values() else {}
    forward: set[str] = set()
    needed: set[str] = set()
    for op in graph.ops:
        if op.phase is Phase.FORWARD:
            forward.update(op.outputs)
            mode = modes.get(op.block, NONE)
            if mode != NONE and op.kind not in BROUGHT_IN:
                outputs = op.outputs if mode == FULL else selected.get(op.name, ())
                makers.update(dict.fromkeys(outputs, op))
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


def _selected(graph: Graph, selective: Selective) -> dict[str, tuple[str, ...]]:
    """Tensors that selective recomputation makes again, by the op that makes them."""
    products: Counter[str] = Counter()
    selected: dict[str, tuple[str, ...]] = {}
    for op, parts in _parts(graph):
        products[op.block] += PRODUCTS in parts
        if selective.again:
            again = not parts.isdisjoint(selective.again)
        else:
            second = selective.every_second and PRODUCTS in parts and products[op.block] % 2 == 0
            again = second or parts.isdisjoint(selective.keeps)
        if again:
            stays = selective.again and ATTENTION in parts
            selected[op.name] = op.outputs[1:] if stays else op.outputs
    return selected


def _parts(graph: Graph) -> Iterator[tuple[Op, set[str]]]:
    """Forward ops, each with the parts of its block that it belongs to."""
    scores = scores_ops(graph)
    latent = {op.block for op in graph.ops if op.name == f"{op.block}.attn.kv.latent"}
    results = {op.inputs[0] for op in graph.ops if op.kind == "combine"}
    for op in graph.ops:
        if op.phase is not Phase.FORWARD:
            continue
        of_expert = EXPERT in parse(op.labels).splittable
        inner = op.name.removeprefix(f"{op.block}.")
        up = op.block in latent and inner.startswith(UP) and not inner.startswith(DOWN)
        within = {part for begin, part in FEED_FORWARD.items() if inner.startswith(begin)}
        within |= {LATENT} if up else {RESULTS} if results.intersection(op.outputs) else set()
        if op.name in scores:
            part = SCORES
        elif op.kind in (*KINDS, "sparse_attention"):
            part = ATTENTION
        elif op_kind(op.kind).products:
            part = EXPERT_PRODUCTS if of_expert else PRODUCTS
        elif op.kind in ("layer_norm", "rms_norm"):
            part = NORMS
        elif op.kind == SENT:
            part = SENT
        else:
            part = ACTIVATIONS if of_expert and op.kind != "combine" else OTHERS
        yield op, {part, *within}


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
