"""Collectives of a stage that become one bucket, in drafts written by hand and drawn at random."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from millrace.planner.actors.graph import Meeting, Port
from millrace.planner.actors.null_clock import run_to_completion
from millrace.planner.actors.validate import validate
from millrace.planner.cluster import Cluster, Software
from millrace.planner.clusters import parse_cluster
from millrace.planner.compile.collectives import bucketed
from millrace.planner.compile.queue_orders import first_step, joined, unordered, with_queues
from millrace.planner.compile.stage_ir import UPDATE, ActorIR, Section, StageIR
from millrace.planner.errors import ProtocolError
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.schedules import Slot
from tests.bucketed_plans import compiled

MESH = Mesh(axes=(Axis(name="dp", size=4),))
CLUSTER = parse_cluster("h100-sxm-80gb:4x1")
FORWARD: Section = ("F", 0)
MIB = 2**20


class StageWriter:
    """A stage whose ops are added in the order of its compute queue."""

    def __init__(self, section: Section, firings: int) -> None:
        self.section, self.firings = section, firings
        self.draft = StageIR(MESH.sizes)

    def op(self, name: str, *inputs: int) -> int:
        """Add an op; return the register that it fills."""
        return self._actor(name, "op", inputs, None)

    def meeting(self, name: str, source: int, kind: str = "all_reduce", **changes: object) -> int:
        """Add a collective of state; return the register that it fills."""
        about = {"message_bytes": 4 * 1024, "bucketed": True, "reduction": "sum", **changes}
        collective = Meeting(key=name, kind=kind, axes=("dp",), **about)  # type: ignore[arg-type]
        return self._actor(name, kind, (source,), collective)

    def _actor(self, name: str, kind: str, inputs: Sequence[int], meeting: Meeting | None) -> int:
        register = self.draft.add_register(
            name=name,
            tensor=name,
            shape=(1024,),
            dtype="float32",
            sbp=self.draft.replicated,
            memory_kind="gradient",
        )
        self.draft.add_actor(
            ActorIR(
                name=name,
                kind=kind,
                section=self.section,
                firings=self.firings,
                inputs=tuple(Port(register=source) for source in inputs),
                outputs=(Port(register=register),),
                meeting=meeting,
                lane="compute" if meeting is None else "dp",
            )
        )
        return register

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The stage's order."""
        return tuple(Slot("F", 0, microbatch) for microbatch in range(self.firings))

    def joined(self, cluster: Cluster = CLUSTER) -> StageIR:
        return bucketed(self.draft, self.slots, 0, MESH, cluster)


def messages(draft: StageIR) -> list[tuple[str, int, int]]:
    """Kind, parts and bytes of every meeting."""
    meetings = (actor.meeting for actor in draft.actors)
    return [
        (meeting.kind, meeting.parts, meeting.message_bytes)
        for meeting in meetings
        if meeting is not None
    ]


def two(in_time: bool, **changes: object) -> StageIR:
    """Two gradients, each summed for an op; in time if both are there before either is wanted."""
    writer = StageWriter(UPDATE, 1)
    first = writer.meeting("first sum", writer.op("first"), **changes)
    if in_time:
        second = writer.meeting("second sum", writer.op("second"))
        writer.op("use", first)
    else:
        wanted = writer.op("use", first)
        second = writer.meeting("second sum", writer.op("second", wanted))
    writer.op("use of the second", second)
    return writer.joined()


def test_sums_that_are_there_in_time_are_one_message() -> None:
    draft = two(in_time=True)
    assert messages(draft) == [("all_reduce", 2, 8 * 1024)]
    (bucket,) = (actor for actor in draft.actors if actor.meeting)
    names = [draft.registers[port.register].name for port in (*bucket.inputs, *bucket.outputs)]
    assert names == ["first", "second", "first sum", "second sum"]
    assert all(draft.actors[producer].outputs for producer in draft.producer.values())
    assert draft.producer[bucket.outputs[1].register] == draft.actors.index(bucket)


def test_a_sum_that_another_ones_input_waits_for_stays_by_itself() -> None:
    assert messages(two(in_time=False)) == [("all_reduce", 1, 4 * 1024)] * 2


@pytest.mark.parametrize(
    "changes", [{"kind": "all_gather"}, {"reduction": "max"}, {"bucketed": False}]
)
def test_unlike_messages_stay_by_themselves(changes: dict[str, object]) -> None:
    assert len(messages(two(in_time=True, **changes))) == 2


def test_a_framework_has_buckets_of_its_own() -> None:
    writer = StageWriter(UPDATE, 1)
    for name in ("a", "b"):
        writer.op(f"use of {name}", writer.meeting(f"sum of {name}", writer.op(name)))
    assert writer.joined(replace(CLUSTER, software=Software(bucket_bytes=25_000_000))) is (
        writer.draft
    )


def row(kind: str, count: int, size: int, section: Section = UPDATE, firings: int = 1) -> list[int]:
    """Bytes of buckets of equal messages, as they are begun."""
    writer = StageWriter(section, firings)
    sources = [writer.op(f"x{number}") for number in range(count)]
    outputs = [
        writer.meeting(f"y{number}", source, kind, message_bytes=size)
        for number, source in enumerate(sources)
    ]
    for number, output in enumerate(outputs):
        writer.op(f"z{number}", output)
    return [size_bytes for _, _, size_bytes in messages(writer.joined())]


def test_buckets_grow_from_the_end_that_shows() -> None:
    gradients, weights = (row(kind, 400, MIB) for kind in ("all_reduce", "all_gather"))
    # The remainder lies at the other end.
    assert gradients[1:] == sorted(gradients[1:], reverse=True)
    assert weights[:-1] == sorted(weights[:-1])
    for sizes in (gradients, weights):
        assert sum(sizes) == 400 * MIB
        assert min(sizes[0], sizes[-1]) * 4 <= max(sizes)
        assert 4 <= len(sizes) <= 20


def test_weights_that_nothing_before_them_hides_begin_with_a_small_bucket_every_microbatch() -> (
    None
):
    weights = row("all_gather", 400, MIB, FORWARD, 2)
    assert sum(weights) == 400 * MIB
    assert weights[0] * 4 <= max(weights)


@st.composite
def drawn(draw: st.DrawFn) -> StageWriter:
    """Ops in a random order, some of which read sums, or gathered sums, of those before them."""
    writer = StageWriter(
        *draw(st.sampled_from(((UPDATE, 1), (FORWARD, 1), (FORWARD, 3))))  # type: ignore[misc]
    )
    plain: list[int] = []
    reduced: list[int] = []
    ready: list[int] = []
    for number in range(draw(st.integers(4, 30))):
        pool = plain + ready
        inputs = draw(st.lists(st.sampled_from(pool), max_size=2, unique=True)) if pool else []
        plain.append(writer.op(f"op {number}", *inputs))
        if draw(st.booleans()):
            reduced.append(writer.meeting(f"sum {number}", plain[-1], "reduce_scatter"))
            ready.append(reduced[-1])
        if reduced and draw(st.booleans()):
            ready.append(writer.meeting(f"gather {number}", reduced[-1], "all_gather"))
    read = {port.register for actor in writer.draft.actors for port in actor.inputs}
    writer.op(
        "all",
        *(register for register in range(len(writer.draft.registers)) if register not in read),
    )
    return writer


@given(writer=drawn())
@settings(max_examples=150, deadline=None)
def test_no_timing_deadlocks_what_was_joined(writer: StageWriter) -> None:
    draft = writer.joined()
    alone = unordered(draft, "stage 0", 0, writer.slots)
    graph = joined([alone], "drawn", MESH.axes)
    took = tuple(1 + 7 * actor % 5 for actor in range(len(draft.actors)))
    first = first_step(graph, [draft], (took,))
    graph = validate(with_queues(graph, [draft], first))
    run_to_completion(graph, steps=2)
    before = sum(size for _, _, size in messages(writer.draft))
    assert sum(size for _, _, size in messages(draft)) == before


def test_a_bucket_begins_once_its_last_gradient_is_there() -> None:
    _, actors = compiled("dp 4")
    (program,) = actors.programs
    compute = next(queue.order for queue in program.queues if queue.name == "compute")
    launch = next(queue.order for queue in program.queues if queue.name == "launch")
    last = {actor: position for position, actor in enumerate(compute)}
    makers = {
        port.register: index for index, actor in enumerate(program.actors) for port in actor.outputs
    }
    ready = [
        max(last[makers[port.register]] for port in program.actors[index].read)
        for index in launch
        if program.actors[index].phase == "update" and program.actors[index].meeting.parts > 1
    ]
    assert len(ready) > 1
    assert ready == sorted(ready)


def test_parts_are_pairs_of_inputs_and_outputs() -> None:
    _, actors = compiled("dp 4")
    (program,) = actors.programs
    bucket_index = next(
        index
        for index, actor in enumerate(program.actors)
        if actor.meeting and actor.meeting.parts > 1
    )
    bucket = program.actors[bucket_index]
    meeting = replace(bucket.meeting, parts=bucket.meeting.parts + 1)
    wrong = (
        *program.actors[:bucket_index],
        replace(bucket, meeting=meeting),
        *program.actors[bucket_index + 1 :],
    )
    with pytest.raises(ProtocolError, match=r"has \d+ parts of one dtype, but \d+ inputs"):
        validate(replace(actors, programs=(replace(program, actors=wrong),)))
