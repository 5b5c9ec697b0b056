"""Choices: one question is answered once, and what was picked can be told in words."""

import pytest

from millrace.executor.cuda.calls import Clear, CopyCall, KernelAlternatives, Operand
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.device_run import DeviceRun
from millrace.executor.gpu.kernel_selection import Can, Choices, key_of_choice
from tests.executor.cuda.emulation.machine import COMPILER
from tests.executor.gpu.emulated_device import EmulatedDevice
from tests.executor.gpu.plans import planned, runs_of

STREAM = 3


def operand_at(address: int) -> Operand:
    return Operand("address", 0, address)


def three_ways(address: int) -> KernelAlternatives:
    """Choice to clear, to copy, or to clear elsewhere."""
    return KernelAlternatives(
        (
            (Clear(operand_at(address), 1),),
            (
                CopyCall(operand_at(address), operand_at(64), 1),
                CopyCall(operand_at(64), operand_at(address), 1),
            ),
            (Clear(operand_at(64), 1),),
        )
    )


def test_the_first_way_that_is_supported_is_taken_and_no_other_can_be_chosen() -> None:
    choices = Choices(lambda call: isinstance(call, CopyCall))
    assert choices.pick(three_ways(0), STREAM) == three_ways(0).options[1]
    assert Choices(lambda call: False).pick(three_ways(0), STREAM) == three_ways(0).options[2]
    choices = Choices(lambda call: isinstance(call, CopyCall), lambda choice, can, stream: 0)
    with pytest.raises(ExecutorError, match="option 0 of 3 ways of one thing is not supported"):
        choices.pick(three_ways(0), STREAM)


def test_choices_that_differ_in_places_alone_are_one_question_and_all_are_counted() -> None:
    asked = []

    def choose(choice: KernelAlternatives, can: Can, stream: int) -> int:
        asked.append((choice, stream))
        return len(asked)

    choices = Choices(lambda call: True, choose)
    for address in (0, 16, 16, 8):
        choices.pick(three_ways(address), STREAM)
    assert asked == [(three_ways(0), STREAM), (three_ways(8), STREAM)], "8 is aligned otherwise"
    assert choices.picked() == {"3 ways of one thing": {"2 copy": 2, "clear": 1}}
    keys = [key_of_choice(three_ways(address)) for address in (0, 16, 8)]
    assert keys[0] == keys[1] != keys[2]
    assert choices.forget() == dict.fromkeys(map(three_ways, (0, 16, 8)), STREAM)
    assert choices.picked() == {}
    with pytest.raises(ExecutorError, match="3 ways was captured before it was prepared"):
        choices.chosen_calls(three_ways(32))


WAYS = {  # ways of two blocks in two microbatches, by option
    0: ("cudnn", "cudnn", "cublaslt fused", "cublaslt fused"),
    1: (
        "cudnn + our movement",
        "our movement + cudnn",
        "cublaslt + our elementwise + our pointwise",
        "3 cublaslt fused",
    ),
    -1: (
        "our attention_mma",
        "3 our attention_mma_grad",
        "cublaslt + our elementwise + our pointwise",
        "3 cublaslt + 3 our elementwise",
    ),
}


@pytest.mark.skipif(COMPILER is None, reason="needs g++")
@pytest.mark.parametrize("option", WAYS)
def test_a_prepared_device_says_which_way_every_choice_took(option: int) -> None:
    plan, _, actors = planned("gpt", "bf16")
    device = EmulatedDevice(option=option)
    DeviceRun(device, actors, runs_of(plan, actors))
    ways_by_subject = device.picked()
    attention = "attention b 4 h 4 g 4 t 16 s 16 d 8 u 8 sees -1 < i - j < None in bfloat16"
    subjects = (
        attention,
        f"gradient of {attention}",
        "product m 64 n 64 k 32 batch 1 in bf16 with bias, gelu",
        "product m 64 n 32 k 32 batch 3 in bf16 with bias",
    )
    assert [ways_by_subject[subject] for subject in subjects] == [{way: 4} for way in WAYS[option]]
