"""What `millrace profile` times: the op kinds that most time goes to, at several sizes.

The kinds left out are priced like one of these (`planner.likeness`). Labels and sizes are those of
small models, which is what fits a CPU: b batch, t queries, s keys, h heads, d and k features, n
made, v vocabulary, p positions, z totals; c channels, y x and j i rows and columns of images, q p
of windows; e experts, k choices, c places.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from executor.data import TokenWindows
from executor.data.corpus import Corpus
from executor.kernels import KernelContext, RunState, Shard
from executor.kernels.context import Array, whole
from models.inference import output_dtypes
from models.labels import parse, shape_of
from models.ops import op_work, state_of
from planner.costs import ATTENTION
from planner.sbp import BROADCAST, PARTIAL_SUM, split

Sizes = Mapping[str, int]
Attributes = Mapping[str, int | float | str | bool]

DTYPE = "float32"
VOCABULARY = 256

# Activations of one microbatch, from what one launch hides to what no cache of a core holds.
TOKENS: tuple[Sizes, ...] = (
    {"b": 1, "t": 32, "h": 2, "d": 32},
    {"b": 2, "t": 64, "h": 4, "d": 64},
    {"b": 4, "t": 128, "h": 4, "d": 192},
    {"b": 16, "t": 128, "h": 8, "d": 384},
)
WEIGHTS: tuple[Sizes, ...] = tuple({"k": k, "n": n} for k, n in ((32, 32), (192, 192), (512, 1024)))
PRODUCTS: tuple[Sizes, ...] = (
    {"b": 1, "t": 32, "k": 32, "n": 32},
    {"b": 2, "t": 64, "k": 64, "n": 64},
    {"b": 4, "t": 64, "k": 128, "n": 192},
    {"b": 4, "t": 128, "k": 192, "n": 384},
    {"b": 4, "t": 128, "k": 384, "n": 1024},
)
SCALARS: tuple[Sizes, ...] = ({"z": 3},)
# Attention's core is taken per head: d features of one head.
HEADS: tuple[Sizes, ...] = tuple(
    {"b": b, "t": t, "h": h, "d": d}
    for d in (16, 32, 64)
    for b, t, h in ((1, 32, 4), (1, 128, 4), (4, 128, 4), (8, 128, 8))
)


# What many models use is timed at three sizes of activations, what few use at the two outermost.
FEW = (TOKENS[0], TOKENS[2], TOKENS[3])
ENDS = (TOKENS[0], TOKENS[3])
TURNED: tuple[Sizes, ...] = (
    {"b": 1, "t": 32, "h": 2, "d": 32},
    {"b": 8, "t": 128, "h": 8, "d": 64},
)
IMAGES: tuple[Sizes, ...] = (
    {"b": 1, "c": 16, "y": 16, "x": 16, "j": 8, "i": 8},
    {"b": 16, "c": 64, "y": 28, "x": 28, "j": 14, "i": 14},
)
_PLACES: Sizes = {"y": 16, "x": 16, "j": 16, "i": 16}
FILTERS: tuple[Sizes, ...] = (
    {"b": 1, "c": 3, "n": 16, "q": 3, "p": 3, **_PLACES},
    {"b": 2, "c": 32, "n": 32, "q": 3, "p": 3, **_PLACES},
    {"b": 8, "c": 64, "n": 64, "q": 3, "p": 3, **_PLACES},
)
POINTS: tuple[Sizes, ...] = ({"b": 4, "c": 64, "n": 128, "q": 1, "p": 1, **_PLACES},)
ROUTES: tuple[Sizes, ...] = (
    {"b": 1, "t": 32, "d": 32, "e": 4, "k": 2, "c": 16},
    {"b": 8, "t": 128, "d": 256, "e": 8, "k": 2, "c": 32},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of op: its labels, the sizes to time it at, and which inputs are ids.

    Ids are below the vocabulary, or below the sizes of the labels in `below`.
    """

    kind: str
    labels: str
    scales: tuple[Sizes, ...] = TOKENS
    ids: tuple[int, ...] = ()
    below: tuple[str, ...] = ("v", "v")
    attributes: Attributes = field(default_factory=dict)


_ATTENTION = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
_ATTENTION_GRAD = (
    "b t h d!, b s! h d!, b s! h d!, b t h d!, b t h, b t h d! -> b t h d!, b s! h d!, b s! h d!"
)
_UPDATE = "k n, k n, z!,  -> k n"


def _window(stride: int, pad: int) -> Attributes:
    return {"stride_y": stride, "stride_x": stride, "pad_y": pad, "pad_x": pad}


def _convolutions() -> Iterator[Probe]:
    """Windows of 3 by 3 and of one place."""
    x, w, y = "b c y! x!", "n c q! p!", "b n j! i!"
    forms = (
        ("conv", f"{x}, {w} -> {y}"),
        ("conv_grad_input", f"{y}, {w} -> {x}"),
        ("conv_grad_weight", f"{x}, {y} -> {w}"),
    )
    for kind, labels in forms:
        for scales, pad in ((FILTERS, 1), (POINTS, 0)):
            yield Probe(kind=kind, labels=labels, scales=scales, attributes=_window(1, pad))


_POOL: Attributes = {**_window(2, 1), "size_y": 3, "size_x": 3}
_NORM = {"epsilon": 1e-5}

LAYERS: tuple[Probe, ...] = (
    Probe(kind="mul", labels="b t d, b t d -> b t d", scales=ENDS),
    Probe(kind="silu", labels="b t d -> b t d", scales=ENDS),
    Probe(kind="swiglu", labels="b t d, b t d -> b t d", scales=FEW),
    Probe(kind="swiglu_grad", labels="b t d, b t d, b t d -> b t d, b t d", scales=FEW),
    Probe(
        kind="dropout", labels="b t d -> b t d", scales=ENDS, attributes={"rate": 0.1, "op": "x"}
    ),
    Probe(kind="softmax", labels="b t d! -> b t d!", scales=ENDS),
    Probe(kind="rms_norm", labels="b t d!, d! -> b t d!, b t", scales=FEW, attributes=_NORM),
    Probe(kind="rms_norm_grad_input", labels="b t d!, b t d!, d!, b t -> b t d!", scales=FEW),
    Probe(kind="rms_norm_grad_weight", labels="b t d, b t d, b t -> d", scales=ENDS),
    Probe(
        kind="rotary",
        labels="b t h d! -> b t h d!",
        scales=TURNED,
        attributes={"base": 1e4, "dims": 32, "interleaved": False, "inverse": False},
    ),
    *_convolutions(),
    Probe(kind="max_pool", labels="b c y! x! -> b c j! i!", scales=IMAGES, attributes=_POOL),
    Probe(
        kind="max_pool_grad",
        labels="b c y! x!, b c j! i! -> b c y! x!",
        scales=IMAGES,
        attributes=_POOL,
    ),
    Probe(kind="channel_sums", labels="b c y x -> c", scales=IMAGES),
    Probe(
        kind="batch_norm",
        labels="b c y x, c, c, c, c -> b c y x",
        scales=IMAGES,
        attributes=_NORM,
    ),
    Probe(
        kind="batch_norm_grad_sums",
        labels="b c y x, b c y x, c, c -> c, c",
        scales=IMAGES,
        attributes=_NORM,
    ),
    Probe(
        kind="batch_norm_grad_input",
        labels="b c y x, b c y x, c, c, c, c, c -> b c y x",
        scales=IMAGES,
        attributes=_NORM,
    ),
    Probe(
        kind="top_k",
        labels="b t! e! -> b t! k!, b t! k!, b t! k!",
        scales=ROUTES,
        attributes={"capacity": 32, "groups": 1, "kept_groups": 1},
    ),
    Probe(
        kind="dispatch",
        labels="b t! d, b t! k!, b t! k! -> e b c! d",
        scales=ROUTES,
        ids=(1, 2),
        below=("e", "c"),
    ),
    Probe(
        kind="combine",
        labels="e b c! d, b t! k!, b t! k!, b t! k! -> b t! d",
        scales=ROUTES,
        ids=(1, 2),
        below=("e", "c"),
    ),
)

PROBES: tuple[Probe, ...] = (
    *LAYERS,
    Probe(kind="input", labels=" -> b t", attributes={"source": "tokens", "values": VOCABULARY}),
    Probe(kind="matmul", labels="b t k, k n -> b t n", scales=PRODUCTS),
    Probe(kind="matmul", labels="b t n, k n -> b t k", scales=PRODUCTS),
    Probe(kind="matmul", labels="b t k, b t n -> k n", scales=PRODUCTS),
    Probe(kind="add", labels="b t d, b t d -> b t d"),
    Probe(kind="sum", labels="b t d -> d"),
    Probe(kind="rearrange", labels="b t (h d) -> b t h d"),
    Probe(kind="narrow", labels="p! d -> t! d", attributes={"start": 0}),
    Probe(kind="widen", labels="t! d -> p! d", attributes={"start": 0}),
    Probe(kind="cast", labels="k n -> k n", scales=WEIGHTS),
    Probe(kind="accumulate", labels="k n -> k n", scales=WEIGHTS),
    Probe(kind="relu", labels="b t d -> b t d"),
    Probe(kind="gelu", labels="b t d -> b t d"),
    Probe(kind="relu_grad", labels="b t d, b t d -> b t d"),
    Probe(kind="gelu_grad", labels="b t d, b t d -> b t d"),
    Probe(kind="layer_norm", labels="b t d!, d!, d! -> b t d!, b t, b t"),
    Probe(kind="layer_norm_grad_input", labels="b t d!, b t d!, d!, b t, b t -> b t d!"),
    Probe(kind="layer_norm_grad_weight", labels="b t d, b t d, b t, b t -> d, d"),
    Probe(kind="embedding", labels="b t, v d -> b t d", ids=(0,)),
    Probe(kind="embedding_grad", labels="b t, b t d -> v d", ids=(0,)),
    Probe(kind="attention", labels=_ATTENTION, scales=HEADS, attributes={"causal": True}),
    Probe(kind="attention_grad", labels=_ATTENTION_GRAD, scales=HEADS, attributes={"causal": True}),
    Probe(kind="cross_entropy", labels="b t v!, b t -> b t, b t", ids=(1,)),
    Probe(kind="cross_entropy_grad", labels="b t v, b t, b t -> b t v", ids=(1,)),
    Probe(kind="count_valid", labels="b t -> ", ids=(0,)),
    Probe(kind="row_max", labels="b t v -> b t"),
    Probe(kind="shifted_sums", labels="b t v, b t, b t -> b t c!", ids=(2,)),
    Probe(kind="loss_from_sums", labels="b t, b t c!, b t -> b t, b t", ids=(2,)),
    Probe(kind="squared_sum", labels="k n -> ", scales=WEIGHTS),
    Probe(kind="step_totals", labels=", , ,  -> z!", scales=SCALARS),
    Probe(kind="learning_rate", labels=" -> ", scales=SCALARS),
    Probe(kind="adamw", labels=_UPDATE, scales=WEIGHTS),
    Probe(kind="sgd", labels=_UPDATE, scales=WEIGHTS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel to be timed: its context, the work it is charged by, and its inputs."""

    context: KernelContext
    work: int
    inputs: tuple[Array, ...]

    def outputs(self) -> tuple[Array, ...]:
        """Return fresh output arrays."""
        return tuple(np.zeros(shard.shape, shard.dtype) for shard in self.context.outputs)

    @property
    def table(self) -> str:
        """Name of the table that the timing belongs to."""
        kind = self.context.kind
        return f"{kind}/{self.inputs[0].shape[-1]}" if kind in ATTENTION else kind


def cases() -> Iterator[Case]:
    """Yield every probe at every size, and the compiler's own `slice` and `pad`."""
    for probe in PROBES:
        for sizes in probe.scales:
            yield _case(probe, sizes)
    for size in (2**12, 2**17, 2**22):
        yield from _boxing_cases(size)


def _case(probe: Probe, sizes: Sizes) -> Case:
    rng = np.random.default_rng(0)
    expression = parse(probe.labels)
    tokens = sizes.get("t", 1)
    known = {"v": VOCABULARY, "c": 2, "z": 3, "s": tokens, "p": 2 * tokens, **sizes}
    inputs: list[Array] = []
    for index, operand in enumerate(expression.inputs):
        shape = shape_of(operand, known)
        if index in probe.ids:
            below = known[probe.below[probe.ids.index(index)]]
            inputs.append(rng.integers(0, below, shape).astype(np.int32))
        else:
            inputs.append(rng.random(shape, dtype=np.float32))  # none negative: some are squares
    given = [str(array.dtype) for array in inputs]
    count = len(expression.outputs)
    dtype = "int32" if probe.kind == "input" else DTYPE
    made = output_dtypes(probe.kind, count, given) or (dtype,) * count
    outputs = [
        whole(shape_of(operand, known), found)
        for operand, found in zip(expression.outputs, made, strict=True)
    ]
    work = op_work(
        probe.kind,
        probe.labels,
        probe.attributes,
        [array.shape for array in inputs],
        [shard.shape for shard in outputs],
        [array.itemsize for array in inputs],
        [shard.itemsize for shard in outputs],
    )
    context = KernelContext(
        kind=probe.kind,
        name=f"probe {probe.kind}",
        labels=probe.labels,
        attributes=probe.attributes,
        inputs=tuple(whole(array.shape, str(array.dtype)) for array in inputs),
        outputs=tuple(outputs),
        state=[
            np.zeros(outputs[0].shape, outputs[0].dtype)
            for _ in state_of(probe.kind, probe.attributes)
        ],
        run=RunState(seed=0, dataset=_tokens(), global_batch=1, microbatches=1, batch=1),
    )
    return Case(context=context, work=max(work.flops or work.bytes, 1), inputs=tuple(inputs))


def _tokens() -> TokenWindows:
    """Some text, for `input`."""
    tokens = np.arange(2**16, dtype=np.uint16) % VOCABULARY
    corpus = Corpus(tokens=tokens, vocab=VOCABULARY, origin="probe")
    return TokenWindows(corpus=corpus, seed=0)


def _boxing_cases(size_bytes: int) -> Iterator[Case]:
    """`slice` of half a tensor, and `pad` back, of so many bytes (as `planner.costs` counts)."""
    rows = size_bytes // (4 * 64)
    large, small = whole((rows, 64), DTYPE), whole((rows // 2, 64), DTYPE)
    half = Shard(global_shape=large.shape, offsets=(0, 0), shape=small.shape, dtype=DTYPE)
    for kind, given, wanted, before, after in (
        ("slice", large, half, BROADCAST, split(0)),
        ("pad", half, large, split(0), PARTIAL_SUM),
    ):
        context = KernelContext(
            kind=kind,
            name=f"probe {kind}",
            labels="",
            attributes={},
            inputs=(given,),
            outputs=(wanted,),
            input_sbp=((before,),),
            output_sbp=((after,),),
            coordinate=(0,),
            axis_sizes=(2,),
            run=RunState(seed=0, dataset=None, global_batch=1, microbatches=1, batch=1),
        )
        written = 4 * prod(wanted.shape)
        work = written + min(4 * prod(given.shape), written)
        yield Case(context=context, work=work, inputs=(np.ones(given.shape, np.float32),))
