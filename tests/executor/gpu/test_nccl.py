import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest

import millrace.executor.gpu.nccl
from millrace.executor.cuda.calls import Bucket, Collective, Operand
from millrace.executor.errors import ExecutorError
from millrace.executor.gpu.nccl import (
    CALLS,
    LaneGroup,
    NcclCommunicator,
    channels_max,
    exchange_ids,
    set_environment,
    warm_up_bytes,
)
from millrace.planner.errors import InfeasibleError
from tests.executor.gpu.nccl_in_memory import NcclError, NcclInMemory

RANKS = 3
EVERYONE = LaneGroup((0, 1, 2), "dp")
GROUPS = (EVERYONE, LaneGroup((2, 1, 0), "tp"), LaneGroup((0, 2), "dp"), LaneGroup((1, 2), "send"))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[NcclInMemory]:
    in_memory = NcclInMemory()
    monkeypatch.setattr(millrace.executor.gpu.nccl, "require_nccl", lambda: in_memory)
    monkeypatch.setattr(millrace.executor.gpu.nccl, "POLL_S", 0.01)
    return in_memory


def on_ranks(count: int, run: Callable[[SimpleNamespace], object]) -> list:
    """Run a function on threads that see each other as the ranks of a world."""
    barrier, told = threading.Barrier(count, timeout=120), [None] * count

    def rank(index: int) -> object:
        def allgather(value: object) -> list:
            told[index] = value
            barrier.wait()
            values = list(told)
            barrier.wait()
            return values

        communicator = SimpleNamespace(allgather=allgather)
        return run(SimpleNamespace(rank=index, size=count, communicator=communicator))

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(rank, range(count)))


def begin(world: SimpleNamespace, groups=GROUPS, **more) -> NcclCommunicator:
    own_groups = [group for group in groups if world.rank in group.members]
    options = {"use_device": lambda: None, "failed": lambda error: None} | more
    return NcclCommunicator(world.rank, exchange_ids(world, own_groups), **options)


def operand_at(array: np.ndarray) -> Operand:
    return Operand("address", 0, array.ctypes.data)


def collect(
    group: LaneGroup, kind: str, send_size: int, recv_size: int, elements: int, **more
) -> list:
    """Values that every member receives, each having sent 100 rank + (0, 1, …)."""

    def run(world: SimpleNamespace) -> np.ndarray | None:
        communicator = begin(world)
        sent = 100 * world.rank + np.arange(send_size, dtype=np.float32)
        received = np.full(recv_size, -1, np.float32)
        if world.rank in group.members:
            call = Collective(
                kind, operand_at(sent), operand_at(received), elements, "float32", **more
            )
            communicator.issue(call, group, 0)
        communicator.close()
        return received

    received_by_rank = on_ranks(RANKS, run)
    return [received_by_rank[member].tolist() for member in group.members]


def test_all_reduce_gives_every_member_the_sum_or_the_largest(library: NcclInMemory) -> None:
    assert collect(EVERYONE, "all_reduce", 2, 2, 2) == [[300, 303]] * 3
    assert collect(EVERYONE, "all_reduce", 2, 2, 2, reduction="max") == [[200, 201]] * 3


def test_all_gather_puts_blocks_in_the_order_of_the_group(library: NcclInMemory) -> None:
    turned = LaneGroup((2, 1, 0), "tp")
    assert collect(turned, "all_gather", 2, 6, 2) == [[200, 201, 100, 101, 0, 1]] * 3


def test_reduce_scatter_leaves_each_member_its_block(library: NcclInMemory) -> None:
    assert collect(LaneGroup((0, 2), "dp"), "reduce_scatter", 4, 2, 2) == [[200, 202], [204, 206]]


def test_all_to_all_gives_block_i_to_member_i(library: NcclInMemory) -> None:
    received = collect(LaneGroup((2, 1, 0), "tp"), "all_to_all", 6, 6, 2)
    assert received == [
        [200, 201, 100, 101, 0, 1],
        [202, 203, 102, 103, 2, 3],
        [204, 205, 104, 105, 4, 5],
    ]


def test_rotate_gives_every_member_what_the_one_before_it_has(library: NcclInMemory) -> None:
    assert collect(EVERYONE, "rotate", 2, 2, 2) == [[200, 201], [0, 1], [100, 101]]
    assert collect(LaneGroup((0, 2), "dp"), "rotate", 1, 1, 1) == [[200], [0]]


def test_a_bucket_is_one_launch_of_all_its_collectives(library: NcclInMemory) -> None:
    def run(world: SimpleNamespace) -> list[list[float]]:
        communicator = begin(world)
        sent = [10 * world.rank + np.arange(size, dtype=np.float32) for size in (1, 2)]
        received = [np.zeros(3 * array.size, np.float32) for array in sent]
        parts = zip(sent, received, strict=True)
        bucket = Bucket(
            tuple(
                Collective("all_gather", operand_at(s), operand_at(r), s.size, "float32")
                for s, r in parts
            )
        )
        communicator.issue(bucket, EVERYONE, 0)
        communicator.close()
        return [array.tolist() for array in received]

    assert on_ranks(RANKS, run) == [[[0, 10, 20], [0, 1, 10, 11, 20, 21]]] * RANKS
    assert library.launches == RANKS


def test_a_transfer_goes_from_its_first_member_to_its_second(library: NcclInMemory) -> None:
    group = LaneGroup((1, 2), "send")

    def run(world: SimpleNamespace) -> list[float]:
        communicator = begin(world)
        buffer = np.full(4, 10 * world.rank, np.float64)
        if world.rank in group.members:
            kind = "send" if world.rank == 1 else "recv"
            communicator.issue(
                Collective(kind, operand_at(buffer), operand_at(buffer), 4, "float64"), group, 0
            )
        communicator.close()
        return buffer.tolist()

    assert on_ranks(RANKS, run) == [[0] * 4, [10] * 4, [10] * 4]


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16", "int32"])
def test_every_dtype_of_registers_moves(library: NcclInMemory, dtype: str) -> None:
    stored = np.dtype(np.uint16 if dtype == "bfloat16" else dtype)

    def run(world: SimpleNamespace) -> np.ndarray:
        communicator = begin(world, [EVERYONE])
        sent = (np.arange(3) + 3 * world.rank).astype(stored)
        received = np.zeros_like(sent)
        communicator.issue(
            Collective("all_to_all", operand_at(sent), operand_at(received), 1, dtype), EVERYONE, 0
        )
        communicator.close()
        return received.astype(int).tolist()

    assert on_ranks(RANKS, run) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_ids_are_agreed_on_whatever_groups_a_rank_is_in(library: NcclInMemory) -> None:
    ids_by_rank = on_ranks(
        RANKS, lambda world: exchange_ids(world, () if world.rank == 1 else GROUPS[2:3])
    )
    assert ids_by_rank[1] == {}
    assert ids_by_rank[0] == ids_by_rank[2]
    assert len(ids_by_rank[0][GROUPS[2]]) == 128


def test_a_group_that_its_first_member_does_not_know_is_refused(library: NcclInMemory) -> None:
    def run(world: SimpleNamespace) -> str:
        try:
            exchange_ids(world, [] if world.rank == 0 else [EVERYONE])
        except ExecutorError as error:
            return str(error)
        return ""

    assert "rank 0 has no group (0, 1, 2) on lane `dp`" in on_ranks(RANKS, run)[1]


def test_warming_up_carries_out_every_kind_once(library: NcclInMemory) -> None:
    def run(world: SimpleNamespace) -> set[str]:
        communicator = begin(world)
        own_groups = [group for group in GROUPS if world.rank in group.members]
        transfer = {"send"} if world.rank == 1 else {"recv"}
        kinds = {
            group: transfer if group.lane == "send" else set(CALLS) - {"send", "recv"}
            for group in own_groups
        }
        scratch = np.zeros(warm_up_bytes(kinds), np.uint8)
        communicator.warm_up(kinds, scratch.ctypes.data, 0)
        communicator.close()
        return set().union(*kinds.values())

    assert set().union(*on_ranks(RANKS, run)) == set(CALLS)


def test_a_member_that_never_comes_is_named_after_the_time(library: NcclInMemory) -> None:
    ids = {EVERYONE: library.get_unique_id()}
    with pytest.raises(ExecutorError, match=r"rank 1: .*ranks \[0, 2\] did not all join within"):
        NcclCommunicator(1, ids, use_device=lambda: None, failed=lambda error: None, timeout_s=0.05)


def test_what_the_library_says_at_the_start_is_passed_on(library: NcclInMemory) -> None:
    def refused() -> None:
        raise NcclError("unhandled cuda error")

    with pytest.raises(ExecutorError, match="rank 0: NCCL: unhandled cuda error"):
        NcclCommunicator(
            0,
            {EVERYONE: library.get_unique_id()},
            use_device=refused,
            failed=lambda error: None,
        )


def test_an_asynchronous_error_aborts_everything_and_names_the_actor(library: NcclInMemory) -> None:
    heard = threading.Event()
    errors: list[ExecutorError] = []

    def failed(error: ExecutorError) -> None:
        errors.append(error)
        heard.set()

    alone = LaneGroup((0,), "dp")
    (communicator,) = on_ranks(1, lambda world: begin(world, [alone], failed=failed))
    buffer = np.ones(2, np.float32)
    call = Collective("all_reduce", operand_at(buffer), operand_at(buffer), 2, "float32")
    communicator.issue(call, alone, 0, "block.0.grad all_reduce")
    library.broken = KeyError(7)  # CuPy says "in progress" so
    assert not heard.wait(0.1)
    communicator.check()
    library.broken = NcclError("NCCL_ERROR_REMOTE_ERROR: remote error")
    assert heard.wait(120)
    assert library.aborted == 1
    assert str(errors[0]).startswith("rank 0, actor `block.0.grad all_reduce`: NCCL of ranks (0,)")
    with pytest.raises(ExecutorError, match="REMOTE_ERROR"):
        communicator.check()
    communicator.close()


def test_collectives_that_are_abandoned_are_aborted_and_named(library: NcclInMemory) -> None:
    alone = [LaneGroup((0,), lane) for lane in ("dp", "tp")]
    errors: list[ExecutorError] = []
    (communicator,) = on_ranks(1, lambda world: begin(world, alone, failed=errors.append))
    buffer = np.ones(2, np.float32)
    call = Collective("all_reduce", operand_at(buffer), operand_at(buffer), 2, "float32")
    for group, actor in zip((*alone, alone[0]), ("first", "second", "third"), strict=True):
        communicator.issue(call, group, 0, actor)
    assert communicator.last_issued() == [
        "`third` of ranks (0,) on lane `dp`",
        "`second` of ranks (0,) on lane `tp`",
    ]
    told = ExecutorError("step 3 did not end", rank=0)
    communicator.abandon(told)
    assert library.aborted == 2
    for ask in (communicator.check, lambda: communicator.issue(call, alone[0], 0, "late")):
        with pytest.raises(ExecutorError, match="rank 0: step 3 did not end"):
            ask()
    communicator.close()
    assert not errors, "who abandons them tells it"


def test_a_library_that_hangs_in_its_abort_is_left(
    library: NcclInMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(millrace.executor.gpu.nccl, "ABORT_S_MAX", 0.01)
    (communicator,) = on_ranks(1, lambda world: begin(world, [LaneGroup((0,), "dp")]))
    library.answers.clear()
    communicator.abandon(ExecutorError("step 3 did not end"))
    with pytest.raises(ExecutorError, match="step 3 did not end"):
        communicator.check()
    library.answers.set()


def test_closing_destroys_every_communicator(library: NcclInMemory) -> None:
    on_ranks(RANKS, lambda world: begin(world).close())
    assert library.destroyed == sum(len(group.members) for group in GROUPS)


def test_a_group_or_dtype_that_is_not_there_is_refused_by_name(library: NcclInMemory) -> None:
    alone = LaneGroup((0,), "dp")
    (communicator,) = on_ranks(1, lambda world: begin(world, [alone]))
    buffer = np.ones(2, np.float32)
    with pytest.raises(ExecutorError, match=r"NCCL has no complex64"):
        communicator.issue(
            Collective("all_reduce", operand_at(buffer), operand_at(buffer), 2, "complex64"),
            alone,
            0,
            "x",
        )
    with pytest.raises(ExecutorError, match=r"actor `x`: .*no communicator was made for it"):
        communicator.issue(
            Collective("all_reduce", operand_at(buffer), operand_at(buffer), 2, "float32"),
            LaneGroup((0,), "tp"),
            0,
            "x",
        )
    communicator.close()


def test_channels_of_all_lanes_fit_on_the_device() -> None:
    for lanes in range(1, 118):
        assert 1 <= channels_max(lanes, 132) <= 32
        assert lanes * channels_max(lanes, 132) <= 117
        assert channels_max(lanes, 132).bit_count() == 1
    with pytest.raises(InfeasibleError, match="118 lanes at once do not fit on 132"):
        channels_max(118, 132)


def test_all_ranks_take_the_same_channels_and_what_the_user_set_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "environ", {"NCCL_RUNTIME_CONNECT": "1"})
    on_ranks(2, lambda world: set_environment(world, 2 + 4 * world.rank, 132 + world.rank))
    expected = {"NCCL_MAX_CTAS": "16"}
    assert os.environ == {"NCCL_RUNTIME_CONNECT": "1", **expected}
