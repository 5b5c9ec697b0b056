"""Gathers that could happen at any time wait for the block before, and their results share room."""

from msgspec.structs import replace

from millrace.planner.actors.graph import ActorGraph
from millrace.planner.compile import compile_plan
from tests.plan_requests import plan_of
from tests.small_models import small


def sharded(layers: int) -> ActorGraph:
    """Actor graph in which two ranks split every layer's weights and gather them per microbatch."""
    model = small("llama")
    return compile_plan(
        plan_of(
            replace(model, config={**model.config, "layers": layers}),
            2,
            dp=2,
            tp=1,
            pp=1,
            zero=3,
            micro_batch=2,
        )
    )


def test_room_for_gathered_weights_does_not_grow_with_the_layers() -> None:
    few, many = (sharded(n).programs[0].memory_bytes_by_kind for n in (5, 9))
    for kind in ("communication", "temporary"):
        assert few[kind] == many[kind]


def test_a_gather_waits_for_an_op_of_the_block_before_its_reader() -> None:
    (program,) = sharded(4).programs
    makers = {port.register: actor for actor in program.actors for port in actor.outputs}
    ops = [actor for actor in program.actors if actor.meeting is None and actor.block]
    blocks = list(dict.fromkeys(actor.block for actor in ops if actor.phase == "forward"))
    waited: set[str] = set()
    for gather in program.actors:
        if gather.meeting is None or len(gather.inputs) == 1:
            continue
        (result,) = (port.register for port in gather.outputs)
        before = makers[gather.inputs[1].register]
        reader = next(op for op in ops if result in {port.register for port in op.inputs})
        step = 1 if reader.phase == "forward" else -1
        assert blocks.index(reader.block) - blocks.index(before.block) == step
        waited.add(reader.block)
    assert len(waited) >= 4, "every layer but the first has one before it"


def test_a_sum_of_reduced_gradients_waits_beside_the_next_block() -> None:
    (program,) = sharded(4).programs
    compute = program.queues[0].order
    backward = [
        program.actors[index]
        for index in dict.fromkeys(compute)
        if program.actors[index].phase in ("recompute", "backward_input", "backward_weight")
    ]
    blocks = list(dict.fromkeys(actor.block for actor in backward if actor.kind != "accumulate"))
    last = {
        actor.block: position
        for position, actor in enumerate(backward)
        if actor.kind != "accumulate"
    }
    reduced = {
        port.register
        for actor in program.actors
        if actor.meeting is not None
        for port in actor.outputs
    }
    late = 0
    for position, actor in enumerate(backward):
        if actor.kind != "accumulate" or actor.inputs[0].register not in reduced:
            continue
        late += 1
        following = blocks[blocks.index(actor.block) + 1 :][:1]
        assert position > last[following[0] if following else actor.block]
    assert late > 0
