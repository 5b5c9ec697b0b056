"""Every function that actors launch: those of all small models' training and of all examples."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import product

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.call_listing import listed_run
from millrace.executor.cuda.calls import Call, CallTensor, Launch, read, write
from millrace.executor.cuda.cuda_rank import RankCalls
from millrace.executor.cuda.kernels.column_sums import ColumnSums, column_sum
from millrace.executor.cuda.kernels.images.batch_norm import NormEpilogue, normed
from millrace.executor.cuda.kernels.kernel_table import CALLS, make_calls
from millrace.executor.cuda.kernels.multi_tensor.moves import accumulate, cast, squared_sum
from millrace.executor.cuda.kernels.multi_tensor.updates import UpdatedVariable, adamw, sgd
from millrace.executor.cuda.kernels.rows.norms import NormResidual, norm, norm_grad_input
from millrace.executor.kernels.context import KernelContext, whole_shard
from millrace.executor.streams import command_buffer
from millrace.models.labels import parse, shape_of
from millrace.models.ops import OPS
from millrace.models.type_inference import at_least_float32
from millrace.models.zoo.catalogue import TrainingSpec, build_training
from millrace.planner.compile import compile_plan
from tests.executor.cuda.calling import FLOATS, context_of
from tests.executor.cuda.emulation.machine import functions_of
from tests.executor.examples.example import Example
from tests.executor.examples.table import EXAMPLES
from tests.executor.plans.reading import stored_plan
from tests.small_models import NAMES, small

PLANS = ("bf16-tp2", "bf16-pp2", "prefetched")
PRECISIONS = ("fp32", "bf16", "fp16")

# True for inputs and outputs of 16 bits, where activations are, of kinds that only expansions
# hold: a split loss is computed in the loss's dtype (`millrace.planner.compile.lowering`), and what
# rounds of attention add up in float32 (`millrace.planner.ring_attention`). Ids are neither.
Narrow = tuple[tuple[bool, ...], tuple[bool, ...]]
EXPANSIONS: dict[str, Narrow] = {
    "attention_round": ((True, True, True, False, False), (False, False)),
    "attention_grad_round": (
        (True, True, True, True, False, True, False),
        (False, True, True),
    ),
    "row_max": ((True,), (False,)),
    "shifted_sums": ((True, False, False), (False,)),
    "loss_from_sums": ((False, False, False), (False, False)),
}


@cache
def launches() -> tuple[Launch, ...]:
    """Every launch that differs from the others, of all kinds, meetings and ends of steps.

    They are those of the small models in all precisions, of the examples in all widths and of the
    stored plans.
    """
    trained = list(_ops_of_the_zoo(PRECISIONS))
    examples = _examples(_narrow(trained), ("float64", "float32", "bfloat16"))
    contexts = (*trained, *(context for _, _, context in examples))
    return _distinct_launches([*_launched_by(contexts), *_launched_by_plans(), *_of_fused_ops()])


@cache
def launched_functions() -> dict[str, frozenset[str]]:
    """Functions of `launches`, by source."""
    return _by_source(launches())


@cache
def functions_in_bf16() -> dict[str, frozenset[str]]:
    """Functions by source that training every small model in bf16 launches, and stored plans."""
    in_bf16 = _launched_by(_ops_of_the_zoo(("bf16",)))
    return _by_source([*in_bf16, *_launched_by_plans(), *_of_fused_ops()])


def _distinct_launches(calls: Iterable[Call]) -> tuple[Launch, ...]:
    distinct = {call._replace(args=()): call for call in leaves(*calls) if isinstance(call, Launch)}
    return tuple(distinct)


def _by_source(calls: Iterable[Call]) -> dict[str, frozenset[str]]:
    names_by_source = functions_of(calls)
    return {source: frozenset(names_by_source[source]) for source in sorted(names_by_source)}


def _launched_by(contexts: Iterable[KernelContext]) -> Iterator[Call]:
    for context in contexts:
        yield from make_calls(context).of(0)


def _launched_by_plans() -> Iterator[Call]:
    """Calls of the ranks of stored plans, those of each plan on one device and apart."""
    for name in PLANS:
        plan = stored_plan(name)
        graph = compile_plan(plan)
        for ranks in ((0,), range(graph.ranks)):
            buffer = command_buffer(graph, ranks)
            for rank in buffer.ranks:
                yield from RankCalls(graph, rank, buffer, listed_run(plan)).all_calls()


def _of_fused_ops() -> Iterator[Call]:
    """Calls that carry out several ops in one pass over memory."""
    yield from _on_many_tensors()
    for columns in (256, 512, 768, 1024, 4096, 8192, 16384, 20000):
        for dtype in ("bfloat16", "float32"):
            yield from _of_norms(dtype, 1000, columns)
    for dtype in ("bfloat16", "float16", "float32", "float64"):
        for shape in ((4, 8, 8, 64), (4, 8, 8, 35)):
            yield from _of_channel_norms(dtype, shape)


def _of_norms(dtype: str, rows: int, columns: int) -> Iterator[Call]:
    """Calls of both norms beside a residual, and of their gradients with those of their weights."""
    x, gamma = CallTensor(read(0), dtype, rows * columns), CallTensor(read(0), dtype, columns)
    rstd, sums = CallTensor(read(0), "float32", rows), CallTensor(write(0), "float32", columns)
    residual = NormResidual(other=read(0), total=write(0))
    for mean in (None, read(0)):
        yield norm(
            x, gamma, write(0), rstd, columns=columns, epsilon=0, beta=mean, mean=mean,
            residual=residual,
        )  # fmt: skip
        weights = ColumnSums(outputs=(sums,) * (2 if mean else 1), rounded=dtype, hold=2)
        for wanted in (None, weights):
            calls = norm_grad_input(
                x, x, gamma, rstd, write(0), columns=columns, mean=mean, other=read(0),
                weights=wanted,
            )  # fmt: skip
            yield from (*calls.of(0), *calls.of(1))
    calls = column_sum(x, ColumnSums(outputs=(sums,), rounded=dtype, hold=2), columns=columns)
    yield from (*calls.of(0), *calls.of(1))


def _of_channel_norms(dtype: str, shape: tuple[int, ...]) -> Iterator[Call]:
    """Calls of a batch norm with all that may follow on it."""
    channels = whole_shard(shape[-1:], "float64" if dtype == "float64" else "float32")
    large, labels = whole_shard(shape, dtype), "b y x c, c, c, c, c -> b y x c"
    context = context_of("batch_norm", labels, [large, *[channels] * 4], [large])
    for other, relu, pre_relu in product((None, read(5)), (False, True), (None, write(1))):
        if relu or pre_relu is None:
            after = NormEpilogue(other=other, relu=relu, pre_relu=pre_relu)
            yield from normed(
                context, [read(position) for position in range(5)], write(0), after
            ).of(0)


def _on_many_tensors() -> Iterator[Call]:
    """Calls that work on many tensors at once: few of them, and as many as a launch takes."""
    for count in (3, 240):
        for narrow in ("float32", "bfloat16"):
            wide, slim = (CallTensor(read(0), dtype, 64) for dtype in ("float32", narrow))
            states = [(read(0),) * arrays for arrays in (2, 1, 0)]
            moments, velocities, alone = (
                [UpdatedVariable(value=wide, gradient=slim, next_value=read(0), state=state)]
                * count
                for state in states
            )
            for calls in (
                adamw(moments, wide, wide),
                sgd(velocities, wide, wide, momentum=0.9),
                sgd(alone, wide, wide),
                cast([(wide, slim)] * count),
                accumulate([(slim, wide)] * count, 2),
                squared_sum([(slim, wide)] * count),
            ):
                yield from (*calls.of(0), *calls.of(1))


def _ops_of_the_zoo(precisions: Sequence[str]) -> Iterator[KernelContext]:
    """Contexts of the ops of every small model's training step, on one device."""
    trained = [(name, TrainingSpec()) for name in NAMES]
    for name, training in (*trained, ("gpt", TrainingSpec(optimizer="muon", momentum=0.9))):
        for precision in precisions:
            graph = build_training(small(name, precision), training, 4)
            tensors = graph.tensors_by_name
            for op in graph.ops:
                if op.kind in CALLS and op.kind != "input":
                    inputs, outputs = (
                        [whole_shard(tensors[x].shape, tensors[x].dtype) for x in names]
                        for names in (op.inputs, op.outputs)
                    )
                    yield context_of(op.kind, op.labels, inputs, outputs, op.attributes)


def _narrow(contexts: Sequence[KernelContext]) -> dict[str, Narrow]:
    """Inputs and outputs of 16 bits, by kind, where some are; taken from one of the kind's ops."""
    narrow_by_kind = dict(EXPANSIONS)
    for context in contexts:
        if context.kind not in narrow_by_kind:
            inputs, outputs = (
                tuple(shard.dtype in ("bfloat16", "float16") for shard in shards)
                for shards in (context.inputs, context.outputs)
            )
            if any(inputs):
                narrow_by_kind[context.kind] = inputs, outputs
    return narrow_by_kind


def examples_in_every_width() -> Iterator[tuple[Example, str, KernelContext]]:
    """Every example that has CUDA calls, with the dtype of its activations and its context."""
    return _examples(_narrow(list(_ops_of_the_zoo(PRECISIONS))), FLOATS)


def _examples(
    narrow: dict[str, Narrow], dtypes: Sequence[str]
) -> Iterator[tuple[Example, str, KernelContext]]:
    for example in EXAMPLES:
        if example.kind in CALLS:
            for dtype in dtypes:
                yield example, dtype, _context(example, dtype, narrow.get(example.kind))


def _context(example: Example, dtype: str, narrow: Narrow | None) -> KernelContext:
    """The example's context where activations are of `dtype`; what is not narrow is float32."""
    arrays, operands = example.inputs("float64"), parse(example.labels).outputs
    row = OPS[example.kind]
    if narrow is None or len(narrow[0]) != len(arrays):
        narrow = (
            (True,) * len(arrays),
            tuple(position not in row.wide_outputs for position in range(len(operands))),
        )
    inputs = [
        whole_shard(
            array.shape,
            "int32" if array.dtype == "int32" else dtype if is_narrow else at_least_float32(dtype),
        )
        for array, is_narrow in zip(arrays, narrow[0], strict=True)
    ]
    outputs = [
        whole_shard(
            shape_of(operand, example.label_sizes), dtype if is_narrow else at_least_float32(dtype)
        )
        for operand, is_narrow in zip(operands, narrow[1], strict=True)
    ]
    for position in row.integer_outputs:
        outputs[position] = whole_shard(outputs[position].shape, "int32")
    return context_of(example.kind, example.labels, inputs, outputs, example.attributes)
