"""Attention by the matrix units against its formulas: widths, masks, groups, cuts, rings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from executor.cuda.kernels.table import make_calls
from executor.kernels.context import Array, KernelContext, Shard, whole
from tests.executor.cuda.calling import call, context_of, loaded, stored
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, functions_of
from tests.executor.examples.attention import Attributes, Form

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

NEAR = {"bfloat16": 2.5e-2, "float16": 4e-3}  # relative to the largest value of a result
CAUSAL: Attributes = {"causal": True}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """One attention: t queries from place `first` of s, b samples, g groups of r heads."""

    t: int
    s: int
    d: int
    u: int = 0
    b: int = 1
    g: int = 1
    r: int = 1
    first: int = 0
    attributes: Attributes = field(default_factory=lambda: CAUSAL)

    def __str__(self) -> str:
        masks = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"t{self.t} s{self.s} d{self.d} u{self.width} b{self.b} g{self.g} r{self.r} {masks}"

    @property
    def width(self) -> int:
        return self.u or self.d

    @property
    def form(self) -> Form:
        return Form(attributes=self.attributes | {"scale": self.scale}, grouped=True)

    @property
    def scale(self) -> float:
        return float(self.d) ** -0.5

    def given(self, dtype: str) -> list[Array]:
        """q, k, v and dout, exact in the dtype."""
        rng = np.random.default_rng(self.t + self.d)
        shapes = (
            (self.b, self.t, self.g, self.r, self.d),
            (self.b, self.s, self.g, self.d),
            (self.b, self.s, self.g, self.width),
            (self.b, self.t, self.g, self.r, self.width),
        )
        return [
            loaded(stored(rng.standard_normal(shape).astype(np.float32), dtype), dtype)
            for shape in shapes
        ]

    def shard(self, array: Array, dtype: str) -> Shard:
        """Of queries: those from `first` on of all."""
        offsets = (0, self.first, *(0 for _ in array.shape[2:]))
        return Shard(
            global_shape=(self.b, self.first + self.t, *array.shape[2:]), offsets=offsets,
            shape=array.shape, dtype=dtype,
        )  # fmt: skip

    def contexts(self, dtype: str) -> tuple[KernelContext, KernelContext]:
        """Of the op and of its gradient."""
        q, k, v, dout = self.given(dtype)
        query, key, value = self.shard(q, dtype), whole(k.shape, dtype), whole(v.shape, dtype)
        out, total = self.shard(dout, dtype), self.shard(dout[..., 0], "float32")
        forward, backward = self.form.labels
        attributes = self.form.attributes
        return (
            context_of("attention", forward, [query, key, value], [out, total], attributes),
            context_of(
                "attention_grad", backward, [query, key, value, out, total, out],
                [query, key, value], attributes,
            ),
        )  # fmt: skip

    def expected(self, given: Sequence[Array]) -> tuple[list[Array], list[Array]]:
        """Out and logsumexp; dq, dk and dv: by the formula, queries before `first` seeing nothing
        of it."""
        q, k, v, dout = (one.astype(np.float64) for one in given)
        form, keep = self.form, slice(self.first, None)
        if self.first:
            nothing = ((0, 0), (self.first, 0), (0, 0), (0, 0), (0, 0))
            q, dout = np.pad(q, nothing), np.pad(dout, nothing)
        out, total = form.forward(q, k, v)
        dq, dk, dv = form.backward(q, k, v, out, total, dout)
        return [out[:, keep], total[:, keep]], [dq[:, keep], dk, dv]


WINDOW: Attributes = {"causal": True, "window": 20}
BOTH_WAYS: Attributes = {"causal": False, "window": 20}
PLAIN: Attributes = {"causal": False}
SIZES = [
    Sizes(t=150, s=150, d=64, g=2),
    Sizes(t=40, s=100, d=64, attributes=PLAIN),
    Sizes(t=130, s=70, d=64, attributes=PLAIN),
    Sizes(t=70, s=90, d=64, first=20),
    Sizes(t=100, s=100, d=64, g=2, r=2, attributes=WINDOW),
    Sizes(t=100, s=100, d=32, b=2, attributes=BOTH_WAYS),
    Sizes(t=70, s=70, d=80, r=3),
    Sizes(t=66, s=66, d=96),
    Sizes(t=100, s=100, d=128, r=2),
    Sizes(t=33, s=33, d=128, u=64),
    Sizes(t=33, s=33, d=48, u=112),
    Sizes(t=33, s=33, d=40, u=8, attributes=PLAIN),
    Sizes(t=1, s=7, d=16, attributes=PLAIN),
]


def functions() -> Iterator[dict[str, set[str]]]:
    for sizes in SIZES:
        for dtype in NEAR:
            for context in sizes.contexts(dtype):
                yield functions_of(make_calls(context).of(0))


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    """All that the tests of this module launch."""
    found: dict[str, set[str]] = {}
    for one in functions():
        for source, names in one.items():
            found.setdefault(source, set()).update(names)
    return Emulator(found)


def assert_near(found: Sequence[Array], expected: Sequence[Array], dtype: str) -> None:
    for one, other in zip(found, expected, strict=True):
        size = max(1.0, np.abs(other[np.isfinite(other)]).max(initial=0))
        np.testing.assert_allclose(one, other, atol=NEAR[dtype] * size, rtol=0)


@pytest.mark.parametrize("dtype", NEAR)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_forward_and_gradients(sizes: Sizes, dtype: str, emulator: Emulator):
    forward, backward = sizes.contexts(dtype)
    given = sizes.given(dtype)
    q, k, v, dout = given
    expected, slopes = sizes.expected(given)
    made = call(
        forward.kind, forward.labels, [q, k, v], forward.outputs, input_shards=forward.inputs,
        attributes=forward.attributes, emulator=emulator,
    )  # fmt: skip
    assert_near(made, expected, dtype)
    found = call(
        backward.kind, backward.labels, [q, k, v, *made, dout], backward.outputs,
        input_shards=backward.inputs, attributes=backward.attributes, emulator=emulator,
    )  # fmt: skip
    assert_near(found, slopes, dtype)
