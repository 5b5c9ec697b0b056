"""Norms with what stands beside them: by warps, by blocks, in rows that registers do not hold."""

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from millrace.executor.cuda.calls import (
    Call,
    Calls,
    CallTensor,
    Launch,
    read,
    same_calls,
    workspace,
    write,
)
from millrace.executor.cuda.kernels.column_sums import ColumnSums
from millrace.executor.cuda.kernels.rows.norms import (
    NormResidual,
    norm,
    norm_grad_input,
    norm_grad_weight,
)
from millrace.executor.cuda.kernels.rows.row_partition import team_of
from millrace.executor.kernels.context import Array, whole_shard
from tests.executor.cuda.calling import Operands, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.cuda.usual import runs_exhaustive

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

# Rows and features make one pack, cut packs, several rows of a warp, blocks of two and four packs
# of a thread, and rows that are read again; of 16 bits and of 64.
SIZES = [
    ("bfloat16", 1, 8), ("bfloat16", 5, 12), ("float16", 3, 7), ("float32", 2200, 16),
    ("bfloat16", 300, 264), ("float32", 3, 1032), ("bfloat16", 2, 4096), ("float64", 2, 2056),
    ("float32", 2, 8192), ("bfloat16", 2, 16392), ("float32", 1, 8200),
]  # fmt: skip
KINDS = ("layer_norm", "rms_norm")
every_size = pytest.mark.parametrize(("dtype", "rows", "columns"), SIZES)
both = pytest.mark.parametrize("kind", KINDS)


def is_usual(number: int) -> bool:
    """True of every pair of a size, a kind, and with or without something."""
    size_number, of_size = divmod(number, 4)
    return of_size in ((0, 3), (1, 2))[size_number % 2]


def either_way(name: str) -> pytest.MarkDecorator:
    """Mark of a test of all sizes and kinds, with and without something."""
    parameters = [
        pytest.param(*size, kind, with_it, marks=() if is_usual(number) else pytest.mark.exhaustive)
        for number, (size, kind, with_it) in enumerate(product(SIZES, KINDS, (False, True)))
    ]
    return pytest.mark.parametrize(("dtype", "rows", "columns", "kind", name), parameters)


EPSILON = 1e-5


def wide_of(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def tolerance(dtype: str) -> dict[str, float]:
    close = {"float64": 1e-12, "float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}[dtype]
    return {"rtol": close, "atol": close}


class NormOperands:
    """Operands of a norm and of its gradient, as stored, and as numbers."""

    def __init__(self, dtype: str, rows: int, columns: int) -> None:
        rng = np.random.default_rng(rows * columns)
        shapes = {"x": (rows, columns), "dy": (rows, columns), "other": (rows, columns)}
        shapes |= {"gamma": (columns,), "beta": (columns,)}
        self.dtype, self.wide = dtype, wide_of(dtype)
        self.shape, self.columns = (rows, columns), columns
        self.stored = {
            name: to_device(rng.standard_normal(shape) + 0.5, dtype)
            for name, shape in shapes.items()
        }
        self.numbers = {
            name: loaded(array, dtype).astype(np.float64) for name, array in self.stored.items()
        }

    def forward(self, kind: str, *, added: bool) -> tuple[Array, Array, Array, Array]:
        """The sum, the norm, and what is kept: mean and one over the deviation."""
        x = self.numbers["x"]
        if added:
            x = loaded(to_device(x + self.numbers["other"], self.dtype), self.dtype).astype(
                np.float64
            )
        mean = x.mean(1) if kind == "layer_norm" else np.zeros(len(x))
        rstd = 1 / np.sqrt(((x - mean[:, None]) ** 2).mean(1) + EPSILON)
        y = (x - mean[:, None]) * rstd[:, None] * self.numbers["gamma"]
        return x, y + (self.numbers["beta"] if kind == "layer_norm" else 0), mean, rstd

    def backward(self, kind: str) -> tuple[Array, Array, Array]:
        """The gradients of x, gamma and beta."""
        x, _, mean, rstd = self.forward(kind, added=False)
        dy, normal = self.numbers["dy"], (x - mean[:, None]) * rstd[:, None]
        g = dy * self.numbers["gamma"]
        away = g.mean(1, keepdims=True) if kind == "layer_norm" else 0
        dx = rstd[:, None] * (g - away - normal * (g * normal).mean(1, keepdims=True))
        return dx, (dy * normal).sum(0), dy.sum(0)


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Emulator of all that the tests of this module launch, in one library a source."""
    calls: list[Call] = []
    everything = runs_exhaustive(request)
    for number, (size, kind, with_it) in enumerate(product(SIZES, KINDS, (False, True))):
        given = NormOperands(*size)
        calls += gradient_of(given, kind, added=with_it, weights=None)[0].of(0)
        if everything or is_usual(number):
            calls += norm_of(given, kind, added=with_it).of(0)
            weighted, _ = weights_of(given, kind, fused=with_it)
            calls += [*weighted.of(0), *weighted.of(1)]
    return Emulator(functions_of(calls))


def carried_out(
    emulator: Emulator, calls: Calls, reads: Sequence[Array], writes: Sequence[Array],
    firings: Sequence[int] = (0,),
) -> list[Call]:  # fmt: skip
    done = [call for firing in firings for call in calls.of(firing)]
    Operands(calls, reads, writes).carry_out(done, emulator)
    return done


def norm_of(given: NormOperands, kind: str, *, added: bool) -> Calls:
    """The calls of a norm, which reads x, gamma, beta and other."""
    rows, columns = given.shape
    layer, dtype = kind == "layer_norm", given.dtype
    launch = norm(
        CallTensor(read(0), dtype, rows * columns), CallTensor(read(1), dtype, columns), write(1),
        CallTensor(write(3), given.wide, rows), columns=columns, epsilon=EPSILON,
        beta=read(2) if layer else None, mean=write(2) if layer else None,
        residual=NormResidual(other=read(3), total=write(0)) if added else None,
    )  # fmt: skip
    return same_calls(launch)


@either_way("added")
def test_a_norm_and_what_is_added_before_it(
    kind: str, dtype: str, rows: int, columns: int, added: bool, emulator: Emulator
) -> None:
    given = NormOperands(dtype, rows, columns)
    names = ("x", "gamma", "beta", "other")
    shapes = [(given.shape, dtype), (given.shape, dtype), *[((rows,), given.wide)] * 2]
    total, y, mean, rstd = (
        empty(whole_shard(shape, stored_dtype)) for shape, stored_dtype in shapes
    )
    layer = kind == "layer_norm"
    calls, reads = norm_of(given, kind, added=added), [given.stored[name] for name in names]
    carried_out(emulator, calls, reads, [total, y, mean, rstd])
    expected = given.forward(kind, added=added)
    if added:
        np.testing.assert_array_equal(loaded(total, dtype), expected[0])
    np.testing.assert_allclose(loaded(y, dtype), expected[1], **tolerance(dtype))
    if layer:
        np.testing.assert_allclose(mean, expected[2], **tolerance(given.wide))
    np.testing.assert_allclose(rstd, expected[3], **tolerance(given.wide))


def gradient_of(
    given: NormOperands, kind: str, *, added: bool, weights: ColumnSums | None
) -> tuple[Calls, list[Array]]:
    """The calls of a norm's gradient, and what they read."""
    _, _, mean, rstd = given.forward(kind, added=False)
    rows, columns = given.shape
    size, wide, dtype = rows * columns, given.wide, given.dtype
    calls = norm_grad_input(
        CallTensor(read(0), dtype, size),
        CallTensor(read(1), dtype, size),
        CallTensor(read(2), dtype, columns),
        CallTensor(read(4), wide, rows),
        write(0),
        columns=columns,
        mean=read(3) if kind == "layer_norm" else None,
        other=read(5) if added else None,
        weights=weights,
    )
    reads = [given.stored[name] for name in ("dy", "x", "gamma")]
    return calls, [*reads, to_device(mean, wide), to_device(rstd, wide), given.stored["other"]]


@every_size
@both
def test_the_gradient_of_a_norm_alone_and_with_what_goes_around_it(
    kind: str, dtype: str, rows: int, columns: int, emulator: Emulator
) -> None:
    given = NormOperands(dtype, rows, columns)
    gradients = []
    for added in (False, True):
        calls, reads = gradient_of(given, kind, added=added, weights=None)
        dx = empty(whole_shard(given.shape, dtype))
        carried_out(emulator, calls, reads, [dx])
        gradients.append(dx)
    plain = loaded(gradients[0], dtype)
    np.testing.assert_allclose(plain, given.backward(kind)[0], **tolerance(dtype))
    # Two ops would have stored it so.
    both_added = to_device(plain + loaded(given.stored["other"], dtype), dtype)
    np.testing.assert_array_equal(gradients[1], both_added)


def weights_of(given: NormOperands, kind: str, *, fused: bool) -> tuple[Calls, list[Array]]:
    """The calls that add to the gradients of weights, and what they read."""
    layer, wide, dtype = kind == "layer_norm", given.wide, given.dtype
    rows, columns = given.shape
    outputs = tuple(CallTensor(write(1 + number), wide, columns) for number in range(1 + layer))
    weights = ColumnSums(outputs=outputs, hold=2, scratch=workspace(64))
    calls, reads = gradient_of(given, kind, added=True, weights=weights if fused else None)
    if not fused:
        calls = norm_grad_weight(
            CallTensor(read(0), dtype, rows * columns), CallTensor(read(1), dtype, rows * columns),
            CallTensor(read(4), wide, rows), weights, columns=columns,
            mean=read(3) if layer else None,
        )  # fmt: skip
    return Calls(of=calls.of, workspace_bytes=calls.workspace_bytes + 64), reads


@either_way("fused")
def test_gradients_of_weights_are_added_to_those_of_earlier_firings(
    kind: str, fused: bool, dtype: str, rows: int, columns: int, emulator: Emulator
) -> None:
    given = NormOperands(dtype, rows, columns)
    layer, wide = kind == "layer_norm", given.wide
    dx, *sums = (
        empty(whole_shard(given.shape, dtype)),
        *(empty(whole_shard((columns,), wide)) for _ in "ab"),
    )
    calls, reads = weights_of(given, kind, fused=fused)
    done = carried_out(emulator, calls, reads, [dx, *sums], firings=(0, 1, 2, 3))
    expected = given.backward(kind)
    for summed, gradient in list(zip(sums, expected[1:], strict=True))[: 1 + layer]:
        np.testing.assert_allclose(
            summed, 2 * gradient, rtol=2e-4, atol=tolerance(wide)["atol"] * rows
        )
    if fused:
        right = loaded(to_device(expected[0], dtype), dtype) + given.numbers["other"]
        np.testing.assert_allclose(loaded(dx, dtype), right, **tolerance(dtype))
        team = team_of(rows, columns, 16 // np.dtype(to_device(np.zeros(1), dtype).dtype).itemsize)
        passes = 2 if team.by_warp or team.packs == 2 else 3
        assert len(done) == 4 * passes


def test_a_sum_that_is_added_on_is_rounded_as_a_gradient_of_its_own_was() -> None:
    given = NormOperands("bfloat16", 40, 24)
    sums = [empty(whole_shard((24,), "float32")) for _ in "ab"]
    outputs = tuple(CallTensor(write(number), "float32", 24) for number in range(2))
    weights = ColumnSums(outputs=outputs, rounded="bfloat16", hold=2)
    calls = norm_grad_weight(
        CallTensor(read(0), "bfloat16", 960), CallTensor(read(1), "bfloat16", 960),
        CallTensor(read(3), "float32", 40), weights, columns=24, mean=read(2),
    )  # fmt: skip
    _, _, mean, rstd = given.forward("layer_norm", added=False)
    reads = [
        given.stored["dy"],
        given.stored["x"],
        to_device(mean, "float32"),
        to_device(rstd, "float32"),
    ]
    carried_out(
        Emulator(functions_of([*calls.of(0), *calls.of(1)])), calls, reads, sums, firings=(0, 1)
    )
    for summed in sums:
        half = summed / 2
        np.testing.assert_array_equal(loaded(to_device(half, "bfloat16"), "bfloat16"), half)


@pytest.mark.parametrize(
    ("rows", "columns", "pack", "expected"),
    [
        (8192, 768, 8, (3, True, 256)),
        (200, 1024, 8, (4, True, 64)),
        (8192, 1600, 8, (2, False, 128)),
        (8192, 8192, 8, (2, False, 512)),
        (8192, 8192, 4, (4, False, 512)),
        (8192, 16384, 4, (0, False, 512)),
    ],
)
def test_a_team_holds_its_row(
    rows: int, columns: int, pack: int, expected: tuple[int, bool, int]
) -> None:
    team = team_of(rows, columns, pack)
    assert team == expected
    if team.packs:
        threads = 32 if team.by_warp else team.threads
        assert team.packs * threads * pack >= columns


def test_rows_are_shared_out_over_no_more_blocks_than_a_device_has_room_for() -> None:
    launch = norm(
        CallTensor(read(0), "bfloat16", 65536 * 4096),
        CallTensor(read(1), "bfloat16", 4096),
        write(0),
        CallTensor(write(1), "float32", 65536),
        columns=4096,
        epsilon=EPSILON,
    )
    assert isinstance(launch, Launch)
    assert launch.grid == (2112, 1, 1)
    assert launch.function == "rms_norm<bf16, bf16, float, 8, 2, false, false>"
