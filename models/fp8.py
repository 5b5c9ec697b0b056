"""FP8 and FP4 products: the linear layers of a graph multiply in 8 or 4 bits.

A product with a weight reads its other factor through `quantise`, in 8 bits, and so does its
gradient what comes back: what is kept for the backward pass is the narrow copy. Weights stay in 16
bits, as they are gathered; the attribute `arithmetic` says in what the product multiplies. Of
NVFP4 the copy counts as in 8 bits too: more than the 4.5 bits a number of one copy with its scales,
about as much as the two copies, by rows and by columns, that its products read.

Notes
-----
Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433 (2022), section 3: inputs of
the products of linear layers in 8 bits, sums in more; Rouhani et al., "Microscaling data formats
for deep learning", arXiv 2310.10537 (2023). Embeddings and what chooses experts stay in 16 bits,
and so do attention and the head unless a trainer is told else: Transformer Engine's `fp8_dpa`, and
Megatron-Core's `fp8_output_proj` (transformer_config.py, read 2026-11). NVIDIA, "Pretraining large
language models with NVFP4", arXiv 2509.25149 (2025), section 4: the same layers in 4 bits, but for
some of the last blocks, which are in 4 bits here too; its random Hadamard transforms and stochastic
rounding are not counted.
"""

from collections.abc import Collection, Iterator

from msgspec.structs import replace

from millrace.models.builder import GraphBuilder
from millrace.models.errors import ModelError
from millrace.models.graph import FLOAT8, Graph, Op, Phase
from millrace.models.labels import Operand, parse, write
from millrace.models.ops import kinds_where
from millrace.models.ops.pointwise_ops import ACTIVATIONS

ARITHMETIC = "arithmetic"  # attribute of a product that multiplies in one of `NARROW`
NARROW = ("fp8", "mxfp8", "mxfp4", "nvfp4")
NARROW_PARTS = (ATTENTION, HEAD) = ("attention", "head")  # are narrow only where asked for
# Attention of models whose products are in 4 bits: Transformer Engine has none in 4 (common/recipe,
# `NVFP4BlockScaling`, `fp8_dpa`, read 2026-11).
IN_ATTENTION = {"nvfp4": "fp8", "mxfp4": "fp8"}
EPILOGUE = "epilogue"  # attribute of a `quantise` that rounds what an activation made

# Kinds of op between two products of a layer, and their gradients.
BETWEEN_PRODUCTS = frozenset(
    f"{kind}{suffix}"
    for kind in (*ACTIVATIONS, "swiglu", "clamped_swiglu")
    for suffix in ("", "_grad")
)

# Kinds between a variable and a product that reads it; between a router's product and its choice.
_OF_WEIGHTS = kinds_where(lambda row: row.moves)
_OF_SCORES = ("add", "softmax", "sigmoid", "scale")


def with_quantised_products(graph: Graph, precision: str, parts: Collection[str] = ()) -> Graph:
    """Graph in which the linear layers of a 16-bit forward graph multiply in `precision`.

    Parameters
    ----------
    graph : Graph
        A forward graph in 16 bits, without quantised products.
    precision : str
        fp8, mxfp8, mxfp4 or nvfp4; becomes the attribute `arithmetic` of the products.
    parts : collection of str
        Those of `NARROW_PARTS` whose products are narrow too. Attention is in 8 bits beside
        products in 4.

    Raises
    ------
    ModelError
        No product can: the graph has none with a weight between its first and its last block.

    Notes
    -----
    Micikevicius et al., "FP8 formats for deep learning", arXiv 2209.05433 (2022), section 3;
    Rouhani et al., "Microscaling data formats for deep learning", arXiv 2310.10537 (2023).

    Examples
    --------
    >>> from millrace.models.zoo.catalogue import build, model_spec
    >>> graph = build(model_spec("llama3-8b", seq_len=8192, precision="fp8"), 1)
    >>> product = next(op for op in graph.ops if op.name == "h.0.mlp.down")
    >>> product.attributes, graph.tensor(product.inputs[0]).dtype
    ({'arithmetic': 'fp8'}, 'float8')
    """
    chosen = dict(_products(graph, HEAD in parts))
    if not chosen:
        raise ModelError(
            f"model `{graph.name}` has no linear layer between its first and last block that could "
            f"compute in {precision}; use bf16"
        )
    tensors = graph.tensors_by_name
    builder = GraphBuilder.extending(replace(graph, ops=(), tensors=()))
    quantised_copies: dict[tuple[str, str], str] = {}  # one a block, however many readers
    for op in graph.ops:
        if op.name in chosen:
            factor = chosen[op.name]
            key = op.block, op.inputs[factor]
            if key not in quantised_copies:
                quantised_copies[key] = quantised(
                    builder, op.inputs[factor], op, parse(op.labels).inputs[factor]
                )
            inputs = tuple(
                quantised_copies[key] if i == factor else name for i, name in enumerate(op.inputs)
            )
            op = replace(op, inputs=inputs, attributes=op.attributes | {ARITHMETIC: precision})
        elif ATTENTION in parts and op.kind == ATTENTION:
            op = _narrow_attention(builder, op, IN_ATTENTION.get(precision, precision))
        builder.adopt(op, [tensors[name] for name in op.outputs])
    return builder.build()


def _narrow_attention(builder: GraphBuilder, op: Op, precision: str) -> Op:
    """Attention that reads queries, keys and values in 8 bits; they are copied before it."""
    operands = parse(op.labels).inputs
    names = [f"{op.name}.{part}" for part in ("q", "k", "v")]
    copies = [
        quantised(builder, tensor, replace(op, name=name), operand)
        for name, tensor, operand in zip(names, op.inputs, operands, strict=False)
    ]
    inputs = (*copies, *op.inputs[len(copies) :])
    return replace(op, inputs=inputs, attributes=op.attributes | {ARITHMETIC: precision})


def quantised(
    builder: GraphBuilder, tensor: str, reader: Op, operand: Operand, *, phase: Phase | None = None
) -> str:
    """Added copy in 8 bits, by name, of a tensor that a product reads (or of its gradient).

    Parameters
    ----------
    builder : GraphBuilder
        Gets the `quantise` op, in the block of `reader`.
    tensor : str
        Tensor to copy, of any floating dtype; its shape stays.
    reader : Op
        The forward product; the copy is called `<reader>.quantised`.
    operand : Operand
        Labels of `tensor` in the product.
    phase : Phase, optional
        Phase of the op where `tensor` is the gradient of the product's output; the copy is called
        `<reader>.grad_quantised` then. None: a forward input, in the phase of `reader`.

    Raises
    ------
    ModelError
        `tensor` does not exist, does not fit `operand`, or has been copied for this reader before.
    """
    epilogue = builder.maker_kind(tensor) in BETWEEN_PRODUCTS
    return builder.emit(
        "quantise",
        f"{reader.name}.quantised" if phase is None else f"{reader.name}.grad_quantised",
        (tensor,),
        write((operand,), (operand,)),
        dtype=FLOAT8,
        attributes={EPILOGUE: True} if epilogue else {},
        block=reader.block,
        phase=phase or reader.phase,
    )[0]


def _products(graph: Graph, head: bool) -> Iterator[tuple[str, int]]:
    """Products to quantise, by name, each with the index of the factor that is not the weight."""
    inner = set(graph.blocks[1:] if head else graph.blocks[1:-1])
    makers = {name: op for op in graph.ops for name in op.outputs}
    weights: set[str] = set()
    for op in graph.ops:
        if op.kind == "variable" or (op.kind in _OF_WEIGHTS and op.inputs[0] in weights):
            weights.update(op.outputs)
    routers = {_router_product(op, makers) for op in graph.ops if op.kind == "top_k"}
    for op in graph.ops:
        if op.kind != "matmul" or op.block not in inner or op.name in routers:
            continue
        factors = [index for index, name in enumerate(op.inputs) if name not in weights]
        if len(factors) == 1:
            yield op.name, factors[0]


def _router_product(op: Op, makers: dict[str, Op]) -> str:
    """The product that made the scores among which a `top_k` chooses."""
    maker = makers[op.inputs[0]]
    while maker.kind in _OF_SCORES:
        maker = makers[maker.inputs[0]]
    return maker.name
