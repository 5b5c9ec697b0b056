"""Profiled kernels: the op kinds that most time goes to, at several sizes (`millrace profile`).

The kinds left out are priced like one of these (`millrace.planner.proxies`). Labels: b batch, t
queries, s keys, h heads, d and k features, n made, v vocabulary, p positions, z totals; c channels,
y x and j i rows and columns of images, q p of windows; e experts, k choices, c places.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from millrace.executor.data import TokenWindows
from millrace.executor.data.classes import Blobs
from millrace.executor.data.clicks import SyntheticClicks
from millrace.executor.data.corpus import Corpus
from millrace.executor.data.images import Patterns
from millrace.executor.kernels import KernelContext, RunState, Shard
from millrace.executor.kernels.context import Array, Dataset, whole_shard
from millrace.executor.probes.probe_sizes import CPU_SCALES, Scales, Sizes
from millrace.models.labels import parse, shape_of
from millrace.models.ops import state_of
from millrace.models.type_inference import output_dtypes
from millrace.planner.collectives import LOCAL_BOXING
from millrace.planner.costs import ATTENTION
from millrace.planner.costs.op_batch import DRAWN, firing_of, precision_of
from millrace.planner.costs.tables.op_forms import form_table
from millrace.planner.sbp import BROADCAST, PARTIAL_SUM, split

Attributes = Mapping[str, int | float | str | bool]

WIDE = "float32"  # of statistics, losses, master weights and the optimizer, and of all on a CPU
DTYPES = {"fp32": WIDE, "tf32": WIDE, "bf16": "bfloat16", "fp16": "float16"}
# Kinds whose products a library computes, in tf32 where it is asked to.
MULTIPLIED = ("matmul", "conv", "conv_grad_input", "conv_grad_weight")
VOCABULARY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One kind of op: its labels, the sizes to time it at, and which inputs are ids.

    Sizes are told by their name in `Scales`. Ids are below the vocabulary, or below the sizes of
    the labels in `below`. Inputs in `wide` stay float32 where activations have 16 bits.
    """

    kind: str
    labels: str
    scales: str = "tokens"
    ids: tuple[int, ...] = ()
    below: tuple[str, ...] = ("v", "v")
    wide: tuple[int, ...] = ()
    attributes: Attributes = field(default_factory=dict)

    def dtypes(self, dtype: str) -> tuple[str, ...]:
        """Dtypes of the inputs where activations are of `dtype`."""
        return tuple(
            "int32" if index in self.ids else WIDE if index in self.wide else dtype
            for index in range(len(parse(self.labels).inputs))
        )

    @property
    def is_narrowed(self) -> bool:
        """True where an input has the dtype of the activations."""
        return "bfloat16" in self.dtypes("bfloat16")


_ATTENTION = "b t h d!, b s! h d!, b s! h d! -> b t h d!, b t h"
_ATTENTION_GRAD = (
    "b t h d!, b s! h d!, b s! h d!, b t h d!, b t h, b t h d! -> b t h d!, b s! h d!, b s! h d!"
)
_UPDATE = "k n, k n, z!,  -> k n"


def _window(stride: int, pad: int) -> Attributes:
    return {"stride_y": stride, "stride_x": stride, "pad_y": pad, "pad_x": pad}


def _convolutions() -> Iterator[Probe]:
    """Probes of windows of 3 by 3 and of one place."""
    x, w, y = "b y! x! c", "n q! p! c", "b j! i! n"
    forms = (
        ("conv", f"{x}, {w} -> {y}"),
        ("conv_grad_input", f"{y}, {w} -> {x}"),
        ("conv_grad_weight", f"{x}, {y} -> {w}"),
    )
    for kind, labels in forms:
        for scales, pad in (("filters", 1), ("points", 0)):
            yield Probe(kind=kind, labels=labels, scales=scales, attributes=_window(1, pad))


def _input(source: str, labels: str, scales: str, **attributes: int | bool) -> Probe:
    """Probe of drawing samples from one source."""
    return Probe(
        kind=DRAWN, labels=labels, scales=scales, attributes={"source": source, **attributes}
    )


_INPUTS: tuple[Probe, ...] = (
    _input("tokens", " -> b t", "tokens", values=VOCABULARY),
    _input("features", " -> b y x", "features", values=0),
    _input("images", " -> b y x c", "pictures", values=0, channels_last=True),
    _input("categories", " -> b y", "clicks", values=VOCABULARY * 64),
)
_POOL: Attributes = {**_window(2, 1), "size_y": 3, "size_x": 3}
_NORM = {"epsilon": 1e-5}

LAYERS: tuple[Probe, ...] = (
    Probe(kind="mul", labels="b t d, b t d -> b t d", scales="ends"),
    Probe(kind="silu", labels="b t d -> b t d", scales="ends"),
    Probe(kind="swiglu", labels="b t d, b t d -> b t d", scales="few"),
    Probe(kind="swiglu_grad", labels="b t d, b t d, b t d -> b t d, b t d", scales="few"),
    Probe(
        kind="dropout", labels="b t d -> b t d", scales="ends", attributes={"rate": 0.1, "op": "x"}
    ),
    Probe(kind="softmax", labels="b t d! -> b t d!", scales="ends"),
    Probe(kind="rms_norm", labels="b t d!, d! -> b t d!, b t", scales="few", attributes=_NORM),
    Probe(
        kind="rms_norm_grad_input",
        labels="b t d!, b t d!, d!, b t -> b t d!",
        wide=(3,),
        scales="few",
    ),
    Probe(kind="rms_norm_grad_weight", labels="b t d, b t d, b t -> d", wide=(2,), scales="ends"),
    Probe(
        kind="rotary",
        labels="b t h d! -> b t h d!",
        scales="turned",
        attributes={"base": 1e4, "dims": 32, "interleaved": False, "inverse": False},
    ),
    *_convolutions(),
    Probe(kind="max_pool", labels="b y! x! c -> b j! i! c", scales="images", attributes=_POOL),
    Probe(
        kind="max_pool_grad",
        labels="b y! x! c, b j! i! c -> b y! x! c",
        scales="images",
        attributes=_POOL,
    ),
    Probe(kind="channel_sums", labels="b y x c -> c", scales="images"),
    Probe(
        kind="batch_norm",
        labels="b y x c, c, c, c, c -> b y x c",
        wide=(1, 2),
        scales="images",
        attributes=_NORM,
    ),
    Probe(
        kind="batch_norm_grad_sums",
        labels="b y x c, b y x c, c, c -> c, c",
        wide=(2, 3),
        scales="images",
        attributes=_NORM,
    ),
    Probe(
        kind="batch_norm_grad_input",
        labels="b y x c, b y x c, c, c, c, c, c -> b y x c",
        wide=(2, 3, 5, 6),
        scales="images",
        attributes=_NORM,
    ),
    Probe(
        kind="top_k",
        labels="b t! e! -> b t! k!, b t! k!, b t! k!",
        scales="routes",
        attributes={"capacity": 32, "groups": 1, "kept_groups": 1},
    ),
    Probe(
        kind="dispatch",
        labels="b t! d, b t! k!, b t! k! -> e b c! d",
        scales="routes",
        ids=(1, 2),
        below=("e", "c"),
    ),
    Probe(
        kind="combine",
        labels="e b c! d, b t! k!, b t! k!, b t! k! -> b t! d",
        scales="routes",
        ids=(1, 2),
        below=("e", "c"),
    ),
)

PROBES: tuple[Probe, ...] = (
    *LAYERS,
    *_INPUTS,
    Probe(kind="matmul", labels="b t k, k n -> b t n", scales="products"),
    Probe(kind="matmul", labels="b t n, k n -> b t k", scales="products"),
    Probe(kind="matmul", labels="b t k, b t n -> k n", scales="products"),
    Probe(kind="add", labels="b t d, b t d -> b t d"),
    Probe(kind="sum", labels="b t d -> d"),
    Probe(kind="rearrange", labels="b t (h d) -> b t h d"),
    Probe(kind="narrow", labels="p! d -> t! d", attributes={"start": 0}),
    Probe(kind="widen", labels="t! d -> p! d", attributes={"start": 0}),
    Probe(kind="cast", labels="k n -> k n", wide=(0,), scales="weights"),
    Probe(kind="accumulate", labels="k n -> k n", scales="weights"),
    Probe(kind="relu", labels="b t d -> b t d"),
    Probe(kind="gelu", labels="b t d -> b t d"),
    Probe(kind="relu_grad", labels="b t d, b t d -> b t d"),
    Probe(kind="gelu_grad", labels="b t d, b t d -> b t d"),
    Probe(kind="layer_norm", labels="b t d!, d!, d! -> b t d!, b t, b t"),
    Probe(
        kind="layer_norm_grad_input", labels="b t d!, b t d!, d!, b t, b t -> b t d!", wide=(3, 4)
    ),
    Probe(kind="layer_norm_grad_weight", labels="b t d, b t d, b t, b t -> d, d", wide=(2, 3)),
    Probe(kind="embedding", scales="lookups", labels="b t, v d -> b t d", ids=(0,)),
    Probe(kind="embedding_grad", scales="lookups", labels="b t, b t d -> v d", ids=(0,)),
    Probe(kind="attention", labels=_ATTENTION, scales="heads", attributes={"causal": True}),
    Probe(
        kind="attention_grad",
        labels=_ATTENTION_GRAD,
        wide=(4,),
        scales="heads",
        attributes={"causal": True},
    ),
    Probe(kind="cross_entropy", scales="logits", labels="b t v!, b t -> b t, b t", ids=(1,)),
    Probe(
        kind="cross_entropy_grad",
        scales="logits",
        labels="b t v, b t, b t -> b t v",
        wide=(2,),
        ids=(1,),
    ),
    Probe(kind="count_valid", labels="b t -> ", ids=(0,)),
    Probe(kind="row_max", scales="logits", labels="b t v -> b t"),
    Probe(
        kind="shifted_sums",
        scales="logits",
        labels="b t v, b t, b t -> b t c!",
        wide=(1,),
        ids=(2,),
    ),
    Probe(
        kind="loss_from_sums",
        scales="logits",
        labels="b t, b t c!, b t -> b t, b t",
        wide=(0, 1),
        ids=(2,),
    ),
    Probe(kind="squared_sum", labels="k n -> ", wide=(0,), scales="weights"),
    Probe(kind="step_totals", labels=", , ,  -> z!", wide=(0, 1, 2, 3), scales="scalars"),
    Probe(kind="learning_rate", labels=" -> ", scales="scalars"),
    Probe(kind="adamw", labels=_UPDATE, wide=(0, 1, 2, 3), scales="weights"),
    Probe(kind="sgd", labels=_UPDATE, wide=(0, 1, 2, 3), scales="weights"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One kernel to be timed: its context, the work it is charged by, and the table it goes to.

    `ids` has the number of different ids of every input that holds some; `moved_bytes` is what it
    moves where the work is FLOPs.
    """

    context: KernelContext
    work: int
    table: str
    moved_bytes: int = 0
    ids: Mapping[int, int] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that a timing goes to where forms have tables of their own."""
        context = self.context
        if context.kind in (*LOCAL_BOXING, *ATTENTION):
            return (self.table,)
        form = form_table(context.kind, context.labels, context.attributes)
        return tuple(dict.fromkeys((self.table, form)))

    def numbers(self, index: int) -> Array:
        """Ids of an input."""
        rng = np.random.default_rng(index)
        return rng.integers(0, self.ids[index], self.context.inputs[index].shape).astype(np.int32)

    def inputs(self) -> tuple[Array, ...]:
        """Fresh input arrays, ids and float32; none is negative: some are squares."""
        rng = np.random.default_rng(0)
        return tuple(
            self.numbers(index) if index in self.ids else rng.random(shard.shape, dtype=np.float32)
            for index, shard in enumerate(self.context.inputs)
        )

    def outputs(self) -> tuple[Array, ...]:
        """Fresh output arrays."""
        return tuple(np.zeros(shard.shape, shard.dtype) for shard in self.context.outputs)


def cases(scales: Scales = CPU_SCALES, precision: str | None = None) -> Iterator[KernelCase]:
    """Yield probes at every size, and the compiler's own `slice` and `pad`.

    Parameters
    ----------
    scales
        Sizes by name.
    precision
        fp32, tf32, bf16 or fp16: those that compute in it, their tables told by it; together these
        have every kind, and a table without a precision where the kind computes in one alone. None:
        every probe, in float32, tables by kind.
    """
    for probe in PROBES:
        if precision is None or _computes_in(probe, precision):
            for sizes in scales[probe.scales]:
                yield _case(probe, sizes, precision)
    if precision in (None, "fp32"):
        for sizes in scales["boxing"]:
            yield from _boxing_cases(sizes["bytes"])


def _computes_in(probe: Probe, precision: str) -> bool:
    """True if a probe is timed in a precision: each kind once where its dtypes never change."""
    if precision == "tf32":
        return probe.kind in MULTIPLIED
    if probe.kind == "cast":
        return precision != "fp32"  # what it makes has 16 bits; it reads float32
    dtypes = probe.dtypes(DTYPES[precision])
    return precision == "fp32" or precision_of(probe.kind, dtypes) == precision


def _table(probe: Probe, sizes: Sizes, precision: str | None) -> str:
    """Name of the table that a timing belongs to; attention has one per size of a head.

    The kind's own table of `input` is that of text.
    """
    name = f"{probe.kind}/{sizes['d']}" if probe.kind in ATTENTION else probe.kind
    if probe.kind == DRAWN and probe.attributes["source"] != "tokens":
        name = form_table(probe.kind, probe.labels, probe.attributes)
    return f"{name}@{precision}" if precision is not None and probe.is_narrowed else name


def _output_dtypes(
    probe: Probe, outputs: int, inputs: Sequence[str], dtype: str
) -> tuple[str, ...]:
    """Dtypes of the outputs where activations are of `dtype`."""
    kind, attributes = probe.kind, probe.attributes
    if kind == DRAWN:
        return ("int32",) if attributes["values"] else (WIDE,)
    if kind == "cast":
        return (dtype,)
    if (
        kind == "row_max"
    ):  # of a split loss, in the loss's own dtype (`millrace.planner.compile.lowering`)
        return (WIDE,)
    return output_dtypes(kind, outputs, inputs) or (WIDE,) * outputs


def _case(probe: Probe, sizes: Sizes, precision: str | None) -> KernelCase:
    expression = parse(probe.labels)
    tokens = sizes.get("t", 1)
    label_sizes = {"v": VOCABULARY, "c": 2, "z": 3, "s": tokens, "p": 2 * tokens, **sizes}
    dtype = WIDE if precision is None else DTYPES[precision]
    in_dtypes = probe.dtypes(dtype)
    out_dtypes = _output_dtypes(probe, len(expression.outputs), in_dtypes, dtype)
    inputs, outputs = (
        tuple(
            whole_shard(shape_of(operand, label_sizes), operand_dtype)
            for operand, operand_dtype in zip(operands, dtypes, strict=True)
        )
        for operands, dtypes in ((expression.inputs, in_dtypes), (expression.outputs, out_dtypes))
    )
    firing = firing_of(
        probe.kind,
        probe.labels,
        probe.attributes,
        [shard.shape for shard in inputs],
        [shard.shape for shard in outputs],
        in_dtypes,
        out_dtypes,
    )
    states = state_of(probe.kind, probe.attributes)
    context = KernelContext(
        kind=probe.kind,
        name=f"probe {probe.kind}",
        labels=probe.labels,
        attributes=probe.attributes,
        inputs=inputs,
        outputs=outputs,
        state=[np.zeros(outputs[0].shape, outputs[0].dtype) for _ in states],
        run=_run(_dataset(probe, sizes) if probe.kind == DRAWN else None, precision),
    )
    below = zip(probe.ids, probe.below, strict=False)
    return KernelCase(
        context=context,
        work=max(round(float(firing.work[0])), 1),
        table=_table(probe, sizes, precision),
        moved_bytes=int(firing.bytes[0]) if firing.sizes else 0,
        ids={index: label_sizes[label] for index, label in below},
    )


def _run(dataset: Dataset | None, precision: str | None) -> RunState:
    return RunState(
        seed=0,
        dataset=dataset,
        global_batch=1,
        microbatches=1,
        batch=1,
        arithmetic="tf32" if precision == "tf32" else "fp32",
    )


def _dataset(probe: Probe, sizes: Sizes) -> Dataset:
    """Data of a source, of no meaning."""
    match probe.attributes["source"]:
        case "features":
            return Blobs(classes=10, seed=0)
        case "images":
            return Patterns(classes=10, seed=0)
        case "categories":
            rows = int(probe.attributes["values"])
            return SyntheticClicks(fields=sizes["y"], numbers=sizes["x"], rows=rows, seed=0)
    tokens = np.arange(2**16, dtype=np.uint16) % VOCABULARY
    corpus = Corpus(tokens=tokens, vocab=VOCABULARY, origin="probe")
    return TokenWindows(corpus=corpus, seed=0)


def _boxing_cases(size_bytes: int) -> Iterator[KernelCase]:
    """Cases of `slice` of half a tensor, and of `pad` back, of so many bytes.

    They move bytes, of whatever dtype: one table serves every precision.
    """
    rows = size_bytes // (4 * 64)
    large, small = whole_shard((rows, 64), WIDE), whole_shard((rows // 2, 64), WIDE)
    half = Shard(global_shape=large.shape, offsets=(0, 0), shape=small.shape, dtype=WIDE)
    ways = ((large, half, BROADCAST, split(0)), (half, large, split(0), PARTIAL_SUM))
    for kind, (given, wanted, before, after) in zip(LOCAL_BOXING, ways, strict=True):
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
            run=_run(None, None),
        )
        written = 4 * prod(wanted.shape)
        work = written + min(4 * prod(given.shape), written)
        yield KernelCase(context=context, work=work, table=kind)
