"""cuDNN on a GPU: plans are found, compute what the ops say, give equal bits, and are captured."""

from collections.abc import Iterator

import numpy as np
import pytest

from millrace.executor.cuda.binding import leaves
from millrace.executor.cuda.calls import Calls, Convolution, KernelAlternatives, Launch
from millrace.executor.cuda.kernels.images.convolution_library import (
    FORWARD,
    GRAD_INPUT,
    GRAD_WEIGHT,
    with_library,
)
from millrace.executor.cuda.kernels.images.windows import ConvolutionSizes, Dim
from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.gpu.cudnn.cudnn_loading import cudnn_library
from millrace.executor.gpu.cudnn.limits import STATISTICS_VERSION_MIN
from millrace.executor.kernels.context import Array, Shard, whole_shard
from tests.executor.cuda.calling import context_of, loaded, to_device
from tests.executor.cuda.emulation.machine import functions_of, to_stored, to_wide
from tests.executor.cuda.emulation.networks import carry_out as in_numpy
from tests.executor.examples.attention import Attributes, Form
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.kernel_calls import run_state
from tests.extras import optional
from tests.gpu.conftest import EMULATED
from tests.gpu.on_device import DeviceBench, carry_out

# These are relative to the largest value: terms are rounded to 16 bits before they are added up.
NEAR = {"bfloat16": 2e-2, "float16": 4e-3}
STATISTICS_NEAR = 2e-2
CAUSAL: Attributes = {"causal": True, "scale": 0.125}
PLAIN: Attributes = {"causal": False, "scale": 0.125}
# Sizes are samples, queries, keys, groups, query heads of a group, head dim and value dim.
ATTENTION = [
    ((2, 256, 256, 4, 1, 64, 64), CAUSAL),
    ((2, 256, 256, 4, 1, 64, 64), PLAIN),
    ((2, 256, 128, 4, 1, 64, 64), PLAIN),
    ((1, 384, 384, 2, 4, 128, 128), CAUSAL),
    ((1, 512, 512, 2, 2, 64, 64), CAUSAL | {"window": 200}),
    ((1, 512, 512, 1, 1, 64, 64), PLAIN | {"window": 200}),
]
FAR = -400.0  # shift of a logsumexp: exp of it is 0 in float32
# Sizes are samples, channels, output channels, sides, window, stride, pad and groups.
CONVOLUTIONS = [
    (4, 32, 64, 14, 3, 1, 1, 1),
    (4, 64, 32, 14, 1, 2, 0, 1),
    (4, 32, 32, 15, 3, 2, 1, 1),
    (4, 3, 32, 32, 7, 2, 3, 1),
    (4, 32, 32, 14, 3, 1, 1, 32),
]


@pytest.fixture(scope="module")
def version(request: pytest.FixtureRequest) -> int:
    """Version of cuDNN."""
    if EMULATED:
        return STATISTICS_VERSION_MIN
    request.getfixturevalue("gpu")
    cudnn = optional("cudnn", "cuda")
    try:
        return int(cudnn.backend_version())
    except RuntimeError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def bench(version: int) -> Iterator[DeviceBench]:
    """Bench on which a call without a plan of the library is an error, and sums have one order."""
    if EMULATED:
        yield DeviceBench(EmulatedDevice())
        return
    from millrace.executor.gpu.cupy_device import CupyDevice
    from millrace.executor.gpu.gemm.cublaslt import ProductLibrary

    device = CupyDevice(
        0, ProductLibrary, lambda: cudnn_library({"MILLRACE_CUDNN": "on"}, deterministic=True)
    )
    yield DeviceBench(device, 2**28)
    device.close()


def way(calls: Calls, number: int) -> Calls:
    """One way of a choice, as if there were no other."""
    (choice,) = calls.of(0)
    assert isinstance(choice, KernelAlternatives)
    option = choice.options[number]
    return Calls(
        of=lambda firing: option, tables=calls.tables, workspace_bytes=calls.workspace_bytes
    )


def ways(calls: Calls, version: int) -> range:
    """Options by the library that it may be asked for."""
    (choice,) = calls.of(0)
    assert isinstance(choice, KernelAlternatives)
    last = len(choice.options) - 1
    return range(0 if version >= STATISTICS_VERSION_MIN or last == 1 else 1, last)


def fired(
    bench: DeviceBench, calls: Calls, inputs: list[Array], outputs: list[Shard]
) -> list[Array]:
    """Outputs as numbers; fired twice and replayed with the same bits."""
    launches = [call for call in leaves(*calls.of(0)) if isinstance(call, Launch)]
    bench.device.load(functions_of(launches))
    first, again = (carry_out(bench, calls, inputs, outputs) for _ in range(2))
    for array, other in zip(first, again, strict=True):
        assert array.tobytes() == other.tobytes(), "two firings give different bits"
    return [loaded(array, shard.dtype) for array, shard in zip(first, outputs, strict=True)]


def assert_near(actual: Array, expected: Array, dtype: str) -> None:
    assert np.isfinite(actual).all()
    near = NEAR[dtype] * float(np.abs(expected).max())
    np.testing.assert_allclose(actual, expected, rtol=0, atol=near)


@pytest.mark.parametrize("shift", [0.0, FAR], ids=["near", "far"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("sizes", "attributes"), ATTENTION)
def test_attention_and_its_gradient_are_those_of_the_formula(
    bench: DeviceBench,
    version: int,
    sizes: tuple[int, ...],
    attributes: Attributes,
    dtype: str,
    shift: float,
) -> None:
    b, t, s, g, r, d, u = sizes
    form = Form(attributes=attributes, grouped=True)
    rng = np.random.default_rng(0)
    shapes = (b, t, g, r, d), (b, s, g, d), (b, s, g, u), (b, t, g, r, u)
    numbers = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    if shift:  # a feature that adds the same to every score
        numbers[0][..., 0], numbers[1][..., 0] = 64, shift / (64 * 0.125)
    operands = [to_device(values, dtype) for values in numbers]
    exact = [loaded(operand, dtype).astype(np.float64) for operand in operands]
    expected = form.forward(*exact[:3])
    slopes = form.backward(*exact[:3], *expected, exact[3])
    q, k, v, out = (whole_shard(shape, dtype) for shape in shapes)
    rows = whole_shard((b, t, g, r), "float32")
    forward, backward = (
        make_calls(context_of(kind, labels, inputs, outputs, attributes))
        for kind, labels, inputs, outputs in (
            ("attention", form.labels[0], [q, k, v], [out, rows]),
            ("attention_grad", form.labels[1], [q, k, v, out, rows, out], [q, k, v]),
        )
    )
    for number in ways(forward, version):
        output, statistics = fired(bench, way(forward, number), operands[:3], [out, rows])
        assert_near(output, expected[0], dtype)
        np.testing.assert_allclose(statistics, expected[1], rtol=0, atol=STATISTICS_NEAR)
        given = [
            *operands[:3],
            to_device(output, dtype),
            to_device(statistics, "float32"),
            operands[3],
        ]
        gradients = fired(bench, way(backward, number), given, [q, k, v])
        for gradient, slope in zip(gradients, slopes, strict=True):
            # Along the feature that was added there are differences of large numbers.
            assert_near(gradient[..., 1:], slope[..., 1:], dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("direction", [FORWARD, GRAD_INPUT, GRAD_WEIGHT])
@pytest.mark.parametrize("sizes", CONVOLUTIONS)
def test_convolutions_are_those_of_images_whose_channels_lie_last(
    bench: DeviceBench, sizes: tuple[int, ...], direction: str, dtype: str
) -> None:
    b, c, n, side, window, stride, pad, groups = sizes
    dim = Dim(side, (side + 2 * pad - window) // stride + 1, window, stride, pad, 1)
    layer = ConvolutionSizes(b=b, g=groups, c=c // groups, n=n // groups, y=dim, x=dim, dtype=dtype)
    calls = way(with_library(direction, layer, run_state(), Calls(of=lambda firing: ())), 0)
    (call,) = calls.of(0)
    assert isinstance(call, Convolution)
    rng = np.random.default_rng(0)
    operands = [  # channels last in memory
        to_device(rng.standard_normal([shape[axis] for axis in (0, 2, 3, 1)]) / 4, dtype)
        for shape in call.sizes
    ]
    expected = [operand.copy().transpose(0, 3, 1, 2) for operand in operands]
    in_numpy(call, expected, to_wide, to_stored)
    *read, target = {FORWARD: (0, 1, 2), GRAD_INPUT: (2, 1, 0), GRAD_WEIGHT: (0, 2, 1)}[direction]
    (output,) = fired(
        bench,
        calls,
        [operands[number] for number in read],
        [whole_shard(operands[target].shape, dtype)],
    )
    assert_near(output.transpose(0, 3, 1, 2), loaded(expected[target], dtype), dtype)
