"""Calls of rows against the oracle, on the emulator.

The examples come as they are, whole in every dtype and cut along any labels they may be cut along,
and in shapes that do not fit packs, blocks and slabs.
"""

from dataclasses import replace

import pytest

from millrace.executor.cuda.kernels.rows.row_kernels import ROWS
from tests.executor.cuda.calling import FLOATS
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.cuda.usual import NARROW, enumerate_by_kind
from tests.executor.examples import attention, losses, norms

pytestmark = pytest.mark.skipif(COMPILER is None, reason="the emulator needs g++")

TOLERANCE = {"float64": 1e-11, "float32": 2e-4, "bfloat16": 1.2e-2, "float16": 1.5e-3}
KEPT_WIDE = {  # inputs that stay float32 where the others have 16 bits
    "cross_entropy_grad": (2,),
    "l2_normalize_grad": (2,),
    "layer_norm_grad_input": (3, 4),
    "layer_norm_grad_weight": (2, 3),
    "loss_from_sums": (1,),
    "rms_norm_grad_input": (3,),
    "rms_norm_grad_weight": (2,),
}
SMALL = list(
    {
        (e.kind, e.labels, str(e.attributes)): e
        for theme in (norms, losses, attention)
        for e in theme.EXAMPLES
        if e.kind in ROWS
    }.values()
)
WIDE = {"b": 2, "t": 19, "s": 19, "d": 520, "n": 131, "v": 2101}  # 38 rows make two slabs
TALL = {"b": 2, "t": 90, "s": 90, "d": 3, "n": 3, "v": 5}  # rows of less than a pack
OTHERS = [replace(e, sizes=e.sizes | more) for e in SMALL for more in (WIDE, TALL)]
CASES = [
    *cases_of(SMALL, KEPT_WIDE, TOLERANCE),
    *(
        ExampleCase(
            example=example, dtype=dtype, wide=KEPT_WIDE.get(example.kind, ()),
            usual=number == 0 or dtype not in NARROW or dtype == NARROW[number % 2],
            firings=2 if dtype == "float32" else 1, tolerance=TOLERANCE,
        )
        for number, example in enumerate_by_kind(OTHERS)
        for dtype in FLOATS
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_calls_compute_what_the_oracle_says(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)
