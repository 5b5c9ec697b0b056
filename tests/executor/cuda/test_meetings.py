"""Meetings on a device, against what members of one process receive.

They are flat collectives between packing and unpacking, and members of one device.
"""

import ctypes
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from millrace.executor.cuda.calls import Bucket, Call, Calls, Collective, CopyCall, Launch, Operand
from millrace.executor.cuda.communication_calls import (
    bucket_calls,
    collective_calls,
    cut_of,
    loopback_calls,
)
from millrace.executor.kernels.context import Array, whole_shard
from millrace.executor.transport.communicator import Exchange, block, exchanges_of, receive
from millrace.planner.actors.graph import ActorGraph, Meeting
from millrace.planner.mesh import Axis
from tests.executor.actor_graphs import ProgramWriter, checked, handed_on
from tests.executor.cuda.calling import Operands, empty, loaded, to_device
from tests.executor.cuda.emulation.machine import COMPILER, Emulator, Ranges
from tests.executor.cuda.flat_collectives import FLAT, reduce_terms

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

TYPES = {
    "float64": "double", "float32": "float", "bfloat16": "bf16", "float16": "f16", "int32": "int"
}  # fmt: skip
Shape = tuple[int, ...]
Factory = Callable[[Exchange, Shape | None, Shape | None, str], Calls]


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    names = [
        f"{name}<bytes{unit}>"
        for name in ("transpose_blocks", "move_block")
        for unit in (2, 4, 8, 16)
    ]
    names += [
        f"join_block<{type_name}, {join}>"
        for type_name in TYPES.values()
        for join in ("Add", "Largest")
    ]
    return Emulator({"meetings": names})


class MeetingCase(NamedTuple):
    """A meeting over one axis."""

    kind: str
    members: int
    shape: Shape  # of the whole tensor
    before: str
    after: str
    reduction: str
    dtype: str


@st.composite
def cases(draw: st.DrawFn, most: int = 4) -> MeetingCase:
    kind = draw(st.sampled_from(sorted(FLAT)))
    members = draw(st.integers(1, most))
    rank = draw(st.integers(2 if kind == "all_to_all" else 1, 3))
    shape = [draw(st.sampled_from((1, 2, 3, 8))) for _ in range(rank)]
    gather, scatter = draw(st.permutations(range(rank)))[:2] if rank > 1 else (0, 0)
    reduction = draw(st.sampled_from(("sum", "max")))
    partial = f"P({reduction})"
    before, after = {
        "all_reduce": (partial, "B"),
        "reduce_scatter": (partial, f"S({scatter})"),
        "all_gather": (f"S({gather})", "B"),
        "all_to_all": (f"S({gather})", f"S({scatter})"),
        "rotate": (f"S({gather})", f"S({gather})"),
    }[kind]
    for dim in {"reduce_scatter": [scatter], "all_gather": [gather], "rotate": [gather]}.get(
        kind, [gather, scatter] if kind == "all_to_all" else []
    ):
        shape[dim] *= members
    dtype = draw(st.sampled_from(sorted(TYPES)))
    return MeetingCase(kind, members, tuple(shape), before, after, reduction, dtype)


def graph_of(case: MeetingCase) -> ActorGraph:
    axes = (Axis(name="tp", size=case.members),)
    writer = ProgramWriter(axes)
    source = writer.source("x", case.shape, case.before)
    target = writer.register("y", case.shape, case.after)
    meeting = Meeting(key="x", kind=case.kind, axes=("tp",), reduction=case.reduction)
    writer.actor("box", case.kind, (source,), (target,), meeting=meeting)
    return checked(axes, writer.program(0, tuple(range(case.members))))


class RendezvousMembers(NamedTuple):
    """The exchanges of the members, their registers' shapes and what they send, as stored."""

    exchanges: list[Exchange]
    send_shape: Shape
    recv_shape: Shape
    sends: list[Array]

    def calls(self, factory: Factory, dtype: str) -> list[Calls]:
        shapes = (self.send_shape, self.recv_shape)
        return [factory(exchange, *shapes, dtype) for exchange in self.exchanges]


def met(case: MeetingCase) -> RendezvousMembers:
    graph = graph_of(case)
    (send, recv) = graph.programs[0].registers
    rng = np.random.default_rng(7)
    sends = [
        to_device(rng.standard_normal(send.shape) * 50, case.dtype) for _ in range(case.members)
    ]
    exchanges = [exchanges_of(graph, rank)[1][0] for rank in range(case.members)]
    return RendezvousMembers(exchanges, send.shape, recv.shape, sends)


def expected_of(case: MeetingCase, meeting: RendezvousMembers) -> list[Array]:
    """Arrays that `receive` gives members; sums of 16 bits are rounded as their kernels state."""
    received = []
    for member, exchange in enumerate(meeting.exchanges):
        recv = empty(whole_shard(meeting.recv_shape, case.dtype))
        if case.kind in ("all_reduce", "reduce_scatter"):
            cuts = [block(x, exchange.scatter_dim, case.members, member) for x in meeting.sends]
            recv[...] = reduce_terms(cuts, case.reduction, case.dtype)
            if case.dtype not in ("bfloat16", "float16"):
                exact = np.empty_like(recv)
                receive(exchange, meeting.sends, exact)
                if len(meeting.sends) <= 3 or case.dtype == "int32":
                    np.testing.assert_array_equal(recv, exact)
                else:  # CPUs add more than three in a tree: each sum is rounded elsewhere
                    largest = sum(float(np.abs(cut).max()) for cut in cuts)
                    rounding = len(cuts) * float(np.finfo(case.dtype).eps) * largest
                    np.testing.assert_allclose(recv, exact, rtol=0, atol=rounding)
        else:
            receive(exchange, meeting.sends, recv)
        received.append(recv)
    return received


class MeetingMember:
    """The calls of one member and its memory; peers are other members' send registers."""

    def __init__(self, calls: Calls, sends: Sequence[Array], recv: Array, number: int) -> None:
        self.calls, self.recv, self.sends = calls.of(0), recv, sends
        self._operands = Operands(calls, [sends[number]], [recv])
        self._operands.peers = sends

    def address(self, operand: Operand) -> int:
        return self._operands.address(operand)

    def ranges(self, call: Call) -> Ranges:
        return self._operands.ranges(call)


def members_of(
    case: MeetingCase, meeting: RendezvousMembers, factory: Factory
) -> list[MeetingMember]:
    return [
        MeetingMember(
            calls, meeting.sends, empty(whole_shard(meeting.recv_shape, case.dtype)), number
        )
        for number, calls in enumerate(meeting.calls(factory, case.dtype))
    ]


def flat(member: MeetingMember, operand: Operand, count: int, dtype: str) -> Array:
    """`count` elements at an operand, as stored."""
    stored_dtype = np.dtype("uint16" if dtype == "bfloat16" else dtype)
    room = (ctypes.c_char * (count * stored_dtype.itemsize)).from_address(member.address(operand))
    return np.frombuffer(room, stored_dtype)


def meet(members: Sequence[MeetingMember], calls: Sequence[Collective]) -> None:
    """Carry out one collective of all members."""
    (signature, *others) = {(c.kind, c.elements, c.dtype, c.reduction) for c in calls}
    assert not others
    kind, elements, dtype, reduction = signature
    count = len(members)
    sent = elements * (count if kind in ("reduce_scatter", "all_to_all") else 1)
    received = elements * (count if kind in ("all_gather", "all_to_all") else 1)
    sends = [flat(m, c.send, sent, dtype).copy() for m, c in zip(members, calls, strict=True)]
    for member, call, output in zip(
        members, calls, FLAT[kind](sends, reduction, dtype), strict=True
    ):
        flat(member, call.recv, received, dtype)[...] = output


def carry_out(emulator: Emulator, members: Sequence[MeetingMember]) -> None:
    """Carry out every member's calls, in step."""
    for calls in zip(*(member.calls for member in members), strict=True):
        if isinstance(calls[0], Collective):
            meet(members, calls)
            continue
        for member, call in zip(members, calls, strict=True):
            emulator.run(call, member.address, member.ranges(call))


@pytest.mark.parametrize("factory", [collective_calls, loopback_calls])
@given(case=cases())
@settings(max_examples=150, deadline=None)
def test_members_receive_what_those_of_one_process_do(
    emulator: Emulator, factory: Factory, case: MeetingCase
) -> None:
    meeting = met(case)
    members = members_of(case, meeting, factory)
    carry_out(emulator, members)
    for member, expected in zip(members, expected_of(case, meeting), strict=True):
        np.testing.assert_array_equal(member.recv, expected)


@given(case=cases())
@settings(max_examples=60, deadline=None)
def test_only_a_dim_behind_others_is_packed_or_unpacked(case: MeetingCase) -> None:
    assume(case.members > 1)
    meeting = met(case)
    for exchange, calls in zip(
        meeting.exchanges, meeting.calls(collective_calls, case.dtype), strict=True
    ):
        kinds = [type(call) for call in calls.of(0)]
        packed = prod(meeting.send_shape[: exchange.scatter_dim or 0]) > 1
        unpacked = prod(meeting.recv_shape[: exchange.gather_dim or 0]) > 1
        assert kinds == [Launch] * packed + [Collective] + [Launch] * unpacked
        assert (calls.workspace_bytes > 0) == (packed or unpacked)


def case_of(kind: str, before: str, after: str, dtype: str = "float32") -> MeetingCase:
    return MeetingCase(kind, 2, (4, 6), before, after, "sum", dtype)


def test_blocks_of_rows_need_no_workspace() -> None:
    (calls, _) = met(case_of("all_gather", "S(0)", "B")).calls(collective_calls, "float32")
    assert calls.of(0) == (
        Collective("all_gather", Operand("read"), Operand("write"), 12, "float32"),
    )
    (calls, _) = met(case_of("reduce_scatter", "P(sum)", "S(1)")).calls(collective_calls, "float32")
    pack, meeting = calls.of(0)
    assert isinstance(pack, Launch)
    assert isinstance(meeting, Collective)
    assert pack.function == "transpose_blocks<bytes4>"
    assert (meeting.send, meeting.recv) == (Operand("workspace"), Operand("write"))
    assert meeting.elements == 12


def test_runs_are_moved_in_the_widest_unit_that_divides_them() -> None:
    case = MeetingCase("reduce_scatter", 2, (3, 4, 8), "P(sum)", "S(1)", "sum", "bfloat16")
    (calls, _) = met(case).calls(collective_calls, "bfloat16")
    pack = calls.of(0)[0]
    assert isinstance(pack, Launch)
    assert pack.function == "transpose_blocks<bytes16>"
    assert pack.args[-2:] == (2, 3 * 2 * 2)  # of 16 bytes: in a run (two rows of 8), in all


def test_a_cut_counts_runs_and_strides() -> None:
    cut = cut_of((3, 4, 5), 1, 2)
    assert (cut.run_count, cut.run, cut.stride, cut.elements) == (3, 10, 20, 30)
    assert cut_of((3, 4), None, 2) == (1, 12, 1)


def test_sums_of_16_bits_are_rounded_after_each_member(emulator: Emulator) -> None:
    case = MeetingCase("all_reduce", 3, (1,), "P(sum)", "B", "sum", "bfloat16")
    meeting = met(case)
    for send, value in zip(meeting.sends, (256.0, 1.0, 1.0), strict=True):
        send[...] = to_device(np.array([value]), "bfloat16")
    members = members_of(case, meeting, loopback_calls)
    carry_out(emulator, members)
    assert [loaded(m.recv, "bfloat16").item() for m in members] == [256.0] * 3


def test_a_maximum_keeps_what_is_no_number(emulator: Emulator) -> None:
    case = MeetingCase("all_reduce", 2, (2,), "P(max)", "B", "max", "float32")
    meeting = met(case)
    meeting.sends[0][...] = [np.nan, 1]
    meeting.sends[1][...] = [1, np.nan]
    members = members_of(case, meeting, loopback_calls)
    carry_out(emulator, members)
    assert all(np.isnan(m.recv).all() for m in members)


def test_a_transfer_is_a_send_and_a_recv() -> None:
    graph = handed_on((6, 5))
    ((send,),) = exchanges_of(graph, 0).values()
    ((recv,),) = exchanges_of(graph, 2).values()
    only = Operand("read")
    assert collective_calls(send, (3, 5), None, "float32").of(0) == (
        Collective("send", only, only, 15, "float32"),
    )
    only = Operand("write")
    assert collective_calls(recv, None, (3, 5), "float32").of(0) == (
        Collective("recv", only, only, 15, "float32"),
    )
    assert loopback_calls(send, (3, 5), None, "float32").of(0) == ()
    assert loopback_calls(recv, None, (3, 5), "bfloat16").of(0) == (
        CopyCall(Operand("peer"), Operand("write"), 30),
    )


def of_two(kind: str, before: str, after: str, make: Factory) -> tuple[Calls, Calls, Calls]:
    """Calls of the first member for two parts, each alone and both in a bucket."""
    (first, *_) = met(case_of(kind, before, after)).calls(make, "float32")
    (second, *_) = met(MeetingCase(kind, 2, (8, 2), before, after, "sum", "float32")).calls(
        make, "float32"
    )
    return first, second, bucket_calls([first, second])


def test_parts_of_a_bucket_are_given_to_the_library_at_once() -> None:
    first_calls, second_calls, both = of_two("reduce_scatter", "P(sum)", "S(1)", collective_calls)
    (pack, alone), (second, _) = first_calls.of(0), second_calls.of(0)
    assert isinstance(pack, Launch)
    assert isinstance(second, Launch)
    assert isinstance(alone, Collective)
    first, further, bucket = both.of(0)
    assert first == pack
    behind = Operand("workspace", 0, 256)
    assert further == second._replace(args=(Operand("read", 1), behind, *second.args[2:]))
    assert isinstance(bucket, Bucket)
    assert bucket.collectives == (
        alone,
        Collective("reduce_scatter", behind, Operand("write", 1), 8, "float32"),
    )
    assert both.workspace_bytes == 512


def test_members_on_one_device_read_each_part_of_their_peers() -> None:
    first_calls, second_calls, both = of_two("all_gather", "S(0)", "B", loopback_calls)
    calls = both.of(0)
    assert calls[: len(first_calls.of(0))] == first_calls.of(0)
    assert [copy.source for copy in calls[2:]] == [
        Operand("peer", member, 0, 1) for member in (0, 1)
    ]
    assert [copy.target.number for copy in calls[2:]] == [1, 1]
    assert len(calls) == len(first_calls.of(0)) + len(second_calls.of(0))


def test_a_meeting_of_one_part_is_no_bucket() -> None:
    (calls, _) = met(case_of("all_gather", "S(0)", "B")).calls(collective_calls, "float32")
    assert bucket_calls([calls]) is calls
