"""Convolution, pooling and batch norm on a device, against their formulas."""

import pytest

from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import Case, cases_of, emulator_of
from tests.executor.examples.images import EXAMPLES

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

STATISTICS = {
    "channel_squares": (1,),
    "batch_norm": (1, 2),
    "batch_norm_grad_sums": (2, 3),
    "batch_norm_grad_input": (2, 3, 5, 6),
}  # inputs that are float32 in a plan of 16 bits
CASES = cases_of(EXAMPLES, STATISTICS)


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return emulator_of(CASES)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_kernels_compute_what_their_formulas_say(case: Case, emulator: Emulator):
    case.check(emulator)
