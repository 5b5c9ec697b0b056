"""Kernels in C and by oneDNN against NumPy's, at sizes where they take several threads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from millrace.executor.kernels import KERNELS, KernelContext, make_kernel
from millrace.executor.kernels.context import Array, whole_shard
from millrace.executor.kernels.native import c_compiler
from millrace.executor.kernels.native.c_library import is_available
from millrace.executor.kernels.native.native_table import BY_LIBRARY, NATIVE, native_kernel
from millrace.executor.kernels.onednn.dnnl_library import open_dnnl
from tests.executor.examples.images import window
from tests.executor.kernel_calls import run_state

ROWS, COLUMNS = 96, 768
WINDOW = window((2, 2), (1, 1))
HALF = [(4, 16, 16, 32), (4, 32, 32, 32)]
KEYED = "b t! g n!, b t! g n!, b t! g r p"
STATES = [(4, 8, 8, 16), (4, 8, 8, 16), (4, 8, 8, 2, 24)]
HEADS = [(2, 80, 4, 2, 32), (2, 80, 4, 32), (2, 80, 4, 32)]

# Kind, labels, shapes of inputs and of outputs, attributes.
Case = tuple[str, str, Sequence[tuple[int, ...]], Sequence[tuple[int, ...]], dict[str, object]]
CASES: list[Case] = [
    *((kind, "a b -> a b", [(ROWS, COLUMNS)], [(ROWS, COLUMNS)], {}) for kind in
      ("gelu", "gelu_erf", "silu", "relu")),
    *((f"{kind}_grad", "a b, a b -> a b", [(ROWS, COLUMNS)] * 2, [(ROWS, COLUMNS)], {}) for kind in
      ("gelu", "gelu_erf", "silu", "relu")),
    ("swiglu", "a b, a b -> a b", [(ROWS, COLUMNS)] * 2, [(ROWS, COLUMNS)], {}),
    ("add", "a b, b -> a b", [(ROWS, COLUMNS), (COLUMNS,)], [(ROWS, COLUMNS)], {}),
    ("sum", "a b -> b", [(ROWS, COLUMNS)], [(COLUMNS,)], {}),
    ("squared_sum", "a b -> ", [(ROWS, COLUMNS)], [()], {}),
    ("layer_norm", "a b!, b!, b! -> a b!, a, a", [(ROWS, COLUMNS), (COLUMNS,), (COLUMNS,)],
     [(ROWS, COLUMNS), (ROWS,), (ROWS,)], {}),
    ("rms_norm", "a b!, b! -> a b!, a", [(ROWS, COLUMNS), (COLUMNS,)],
     [(ROWS, COLUMNS), (ROWS,)], {}),
    *(("rotary", "b t h d! -> b t h d!", [(2, 80, 4, 48)], [(2, 80, 4, 48)],
       {"dims": 32, "base": 10000.0, "interleaved": interleaved, "inverse": False})
      for interleaved in (False, True)),
    ("attention", "b t g r d!, b s! g d!, b s! g u! -> b t g r u!, b t g r", HEADS,
     [HEADS[0], HEADS[0][:-1]], {"causal": True}),
    ("state_space_scan", f"{KEYED}, b t! g r -> b t! g r p", [*STATES, (4, 8, 8, 2)],
     [STATES[2]], {}),
    ("conv", "b y! x! c, n q! p! c -> b j! i! n", [HALF[1], (32, 3, 3, 32)], [(*HALF[0][:3], 32)],
     WINDOW),
    ("conv_grad_input", "b j! i! n, n q! p! c -> b y! x! c", [HALF[0], (32, 3, 3, 32)], [HALF[1]],
     WINDOW),
    ("conv_grad_weight", "b y! x! c, b j! i! n -> n q! p! c", [HALF[1], HALF[0]],
     [(32, 3, 3, 32)], WINDOW),
    ("max_pool", "b y! x! c -> b j! i! c", [HALF[1]], [HALF[0]],
     WINDOW | {"size_y": 3, "size_x": 3}),
    ("channel_sums", "b y x c -> c", [HALF[1]], [(32,)], {}),
]  # fmt: skip


def context_of(case: Case) -> KernelContext:
    kind, labels, inputs, outputs, attributes = case
    wide = "float64" if kind == "squared_sum" else "float32"
    return KernelContext(
        kind=kind,
        name=kind,
        labels=labels,
        attributes=attributes,  # type: ignore[arg-type]
        inputs=tuple(whole_shard(shape, "float32") for shape in inputs),
        outputs=tuple(whole_shard(shape, wide) for shape in outputs),
        run=run_state(),
    )


def outputs_of(context: KernelContext, *, native: bool) -> list[Array]:
    draw = np.random.default_rng(3)
    inputs = [draw.standard_normal(shard.shape, np.float32) for shard in context.inputs]
    outputs = [np.empty(shard.shape, shard.dtype) for shard in context.outputs]
    kernel = make_kernel(context) if native else KERNELS[context.kind](context)
    kernel(0, inputs, outputs)
    return outputs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_kernel_computes_what_numpy_does_and_the_same_bits_again(case: Case):
    context = context_of(case)
    first, again = (outputs_of(context, native=True) for _ in range(2))
    for ours, same, expected in zip(first, again, outputs_of(context, native=False), strict=True):
        np.testing.assert_array_equal(ours, same)
        np.testing.assert_allclose(ours, expected, rtol=2e-4, atol=2e-4)


def test_every_kernel_in_c_is_that_of_a_kind():
    assert (NATIVE.keys() | BY_LIBRARY.keys()) <= KERNELS.keys()


@pytest.mark.skipif(not is_available(), reason="no C compiler")
def test_values_that_are_no_numbers_stay_so():
    values = np.array([np.nan, np.inf, -np.inf], np.float32)
    for kind in ("gelu", "silu", "relu"):
        case: Case = (kind, "a -> a", [(3,)], [(3,)], {})
        (out,) = (np.empty(3, np.float32),)
        kernel = native_kernel(context_of(case))
        assert kernel is not None
        kernel(0, [values], [out])
        assert np.isnan(out[0])
        assert out[1] == np.inf


def test_without_a_compiler_numpy_computes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    assert c_compiler.compiled_library() is None


def test_a_source_that_does_not_compile_leaves_numpy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "wrong.c").write_text("no C\n")
    monkeypatch.setattr(c_compiler, "SOURCES", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert c_compiler.compiled_library() is None
    assert not list(tmp_path.glob("millrace/*"))


@pytest.mark.skipif(open_dnnl() is None, reason="no oneDNN")
def test_convolutions_are_onednns_where_it_is_installed():
    convolutions = [case for case in CASES if case[0] in BY_LIBRARY]
    assert all(native_kernel(context_of(case)) is not None for case in convolutions)
