"""Causal convolutions and recurrences on a device, against their definitions."""

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
from tests.executor.examples.recurrences import EXAMPLES

pytestmark = pytest.mark.skipif(COMPILER is None, reason="g++ compiles the kernels")

CASES = cases_of(EXAMPLES)


@pytest.fixture(scope="module")
def emulator(request: pytest.FixtureRequest) -> Emulator:
    """Emulator of all that the tests of this module launch."""
    return emulator_of(selected_cases(CASES, request))


@parametrize_cases(CASES)
def test_a_recurrence_computes_what_its_definition_says(
    cases: list[ExampleCase], emulator: Emulator
):
    check_all(cases, emulator)


def test_keys_wider_than_the_registers_of_a_warp_are_refused():
    shapes = [(1, 2, 1, 300), (1, 2, 1, 300), (1, 2, 1, 1, 4), (1, 2, 1, 1)]
    shards = [whole_shard(shape, "float32") for shape in shapes]
    labels = "b t! g n!, b t! g n!, b t! g r p, b t! g r -> b t! g r p"
    with pytest.raises(ExecutorError, match="a key has 300 features, of at most 256"):
        make_calls(context_of("state_space_scan", labels, shards, [shards[2]]))
