"""Sparse attention and the choice of its keys on a device, against their formulas."""

import pytest

from millrace.executor.cuda.kernels.kernel_table import make_calls
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import whole_shard
from tests.executor.cuda.calling import context_of
from tests.executor.cuda.emulation.machine import COMPILER, Emulator
from tests.executor.cuda.example_cases import (
    ExampleCase,
    cases_of,
    check_all,
    emulator_of,
    parametrize_cases,
    selected_cases,
)
from tests.executor.examples.sparse import EXAMPLES, SCALE

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

CASES = cases_of(EXAMPLES, {"sparse_attention_grad": (5,)})


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_calls_compute_what_the_oracle_says(cases: list[ExampleCase], emulator: Emulator):
    check_all(cases, emulator)


def test_rows_wider_than_a_block_holds_are_refused():
    q, k, v = (
        whole_shard(shape, "float32") for shape in ((1, 2, 1, 1030), (1, 2, 1030), (1, 2, 4))
    )
    chosen, total = whole_shard((1, 2, 1), "int32"), whole_shard((1, 2, 1), "float32")
    out = whole_shard((1, 2, 1, 4), "float32")
    labels = "b t h d!, b s! d!, b s! u!, b t c! -> b t h u!, b t h"
    context = context_of("sparse_attention", labels, [q, k, v, chosen], [out, total], SCALE)
    with pytest.raises(ExecutorError, match="at most 1024 features, found 1030"):
        make_calls(context)
