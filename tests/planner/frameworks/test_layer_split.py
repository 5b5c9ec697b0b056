"""Layers dealt out to stages by the rules of frameworks."""

from typing import Any

from msgspec.structs import replace

from millrace.planner.frameworks.framework_memory import LayerSplit
from millrace.planner.frameworks.layer_split import split_layers
from millrace.planner.plan import Plan
from tests.plan_requests import plan_of
from tests.small_models import gpt_of


def pipelined(stages: int, layers: int, vocab: int = 1024) -> Plan:
    """Plan of a small GPT on as many devices as stages."""
    pins: dict[str, Any] = {"dp": 1, "tp": 1, "pp": stages, "micro_batch": 1, "schedule": "1f1b"}
    gpt = gpt_of(layers, 256, 4, vocab=vocab, positions=128)
    return plan_of(gpt, f"a100:{stages}x1", 2 * stages, **pins)


def blocks_of(plan: Plan) -> list[int]:
    return [len(chunk.blocks) for chunk in plan.chunks]


def test_layers_are_dealt_out_evenly() -> None:
    plan = pipelined(2, 4)
    blocks = [choice for chunk in plan.chunks for choice in chunk.blocks]
    chunks = tuple(
        replace(chunk, blocks=tuple(some))
        for chunk, some in zip(plan.chunks, (blocks[:2], blocks[2:]), strict=True)
    )
    even = split_layers(replace(plan, chunks=chunks), LayerSplit.EVEN)
    assert blocks_of(even) == [3, 3]  # the embedding or the head, and two layers
    assert [c.block for k in even.chunks for c in k.blocks] == [choice.block for choice in blocks]


def test_layers_that_do_not_divide_are_dealt_out_with_the_ends_or_left() -> None:
    assert blocks_of(split_layers(pipelined(4, 6), LayerSplit.EVEN)) == [2, 2, 2, 2]
    left = pipelined(3, 5)
    assert split_layers(left, LayerSplit.EVEN) == left


def test_blocks_dealt_out_by_weight_leave_the_stage_of_a_heavy_head_less() -> None:
    heavy, light = (pipelined(2, 4, vocab) for vocab in (6144, 512))
    # The head is as heavy as two layers of four: a share is three, which the third does not exceed.
    assert blocks_of(split_layers(heavy, LayerSplit.WEIGHT)) == [5, 1]
    assert blocks_of(split_layers(light, LayerSplit.WEIGHT)) == [4, 2]
