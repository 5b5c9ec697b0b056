"""Resident memory: what a framework allocates once and keeps from step to step, by cause.

Workspaces of kernel libraries come from PyTorch's allocator, so that it counts them as allocated;
so do tensors that a stage exchanged with its neighbours and that nobody gave back yet.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import NamedTuple

import msgspec

from millrace.models.graph import GLOBAL_BLOCK, Op, Phase, Rate
from millrace.models.labels import EXPERT, parse
from millrace.planner.cluster import generation
from millrace.planner.compile.placement import PlacedOp
from millrace.planner.parallel_degrees import axis_roles, roles
from millrace.planner.plan import Plan
from millrace.planner.sbp import local_size

MIB = 2**20
# PyTorch's workspace of a cuBLAS handle on a stream: `:4096:2:16:8`, 32 MiB on Hopper, and on
# Blackwell since February 2026 (`parseChosenWorkspaceSize`, aten/src/ATen/cuda/
# CublasHandlePool.cpp, and pull request 175344, read 2026-11).
CUBLAS_BYTES, CUBLAS_BYTES_OF_HOPPER = 8 * MIB + MIB // 8, 32 * MIB
HANDLES = 2  # of the thread that calls forward, and of autograd's for the backward pass
# Transformer Engine's workspace of a stream of products (`get_cublas_workspace_size_bytes`,
# pytorch/module/base.py, read 2026-11).
ENGINE_BYTES, ENGINE_BYTES_BEFORE_HOPPER = 32 * MIB, 4 * MIB
GROUPED_STREAMS = 4  # of its grouped products, a workspace each (`get_num_cublas_streams`)
SCORE_BYTES = 4  # of a router's score, which is in float32
BOUNDARIES = 2  # of a chunk: what the stage before sent, and the gradient that goes back


class Workspaces(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Workspaces of the kernel libraries that a framework calls.

    Attributes
    ----------
    engine : bool
        Products are Transformer Engine's.
    grouped : bool
        Experts' products are its grouped ones.
    cublas_bytes : int
        Of a handle, where `CUBLAS_WORKSPACE_CONFIG` says it; 0: by the device.
    since_2026 : bool
        PyTorch is of February 2026 or later: cuBLAS has as much on Blackwell as on Hopper.
    fused_permutation : bool
        Tokens are put in the order of their experts by Transformer Engine's kernel.
    """

    engine: bool = False
    grouped: bool = True
    cublas_bytes: int = 0
    since_2026: bool = False
    fused_permutation: bool = False


def workspace_bytes(workspaces: Workspaces, plan: Plan) -> int:
    """Bytes of the workspaces of kernel libraries on every device of a plan.

    Parameters
    ----------
    workspaces : Workspaces
        Those of the framework.
    plan : Plan
        Its cluster has the device, its graph the experts.
    """
    era = generation(plan.cluster.device.name)
    wide = era == "hopper" or (era == "blackwell" and workspaces.since_2026)
    cublas = CUBLAS_BYTES_OF_HOPPER if wide else CUBLAS_BYTES
    needed = HANDLES * (workspaces.cublas_bytes or cublas)
    experts = any(
        op.kind == "matmul" and EXPERT in parse(op.labels).labels for op in plan.graph.ops
    )
    # Routers call its product whoever makes the others (`RouterGatingLinearFunction`,
    # megatron/core/transformer/moe/moe_utils.py, read 2026-11).
    if workspaces.engine or experts:
        grouped = workspaces.engine and workspaces.grouped and experts
        each = ENGINE_BYTES if era in ("hopper", "blackwell") else ENGINE_BYTES_BEFORE_HOPPER
        needed += each * (1 + (GROUPED_STREAMS if grouped else 0))
    return needed


def boundary_bytes(plan: Plan, placed: tuple[PlacedOp, ...]) -> Counter[int]:
    """Bytes per stage of the tensors of a microbatch that it exchanged with other stages.

    Sent and received tensors stay until their process group lets them go, which it does when the
    next collective comes (`TensorShelf`, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp, read
    2026-11): of every chunk the last ones. Tensor parallel ranks have a part each only under
    sequence parallelism (`get_tensor_shapes`, megatron/core/pipeline_parallel/schedules.py, read
    2026-11), whatever the plan splits.

    Parameters
    ----------
    plan : Plan
        The plan, with its mesh and graph.
    placed : tuple of PlacedOp
        Its ops, in order.
    """
    makers, tensors = plan.graph.makers, plan.graph.tensors_by_name
    split = roles(plan, plan.graph)["sequence_parallel"]
    among = tuple(
        1 if not split and axis_role - {"ep"} == {"tp"} else degree
        for degree, axis_role in zip(plan.mesh.sizes, axis_roles(plan, plan.graph), strict=True)
    )
    home = {choice.block: k for k, chunk in enumerate(plan.chunks) for choice in chunk.blocks}
    received: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for placed_op in placed:
        op = placed_op.op
        if op.phase is not Phase.FORWARD or op.block == GLOBAL_BLOCK:
            continue
        for name, sbp in zip(op.inputs, placed_op.inputs, strict=True):
            tensor, maker = tensors[name], makers.get(name)
            if maker is None or maker.block == GLOBAL_BLOCK or tensor.rate is not Rate.MICROBATCH:
                continue
            if maker.kind not in ("repeat", "input") and home[maker.block] < home[op.block]:
                size = 2 * local_size(tensor.shape, sbp, among)
                least = received[home[op.block]].get(name, size)
                received[home[op.block]][name] = min(size, least)
    bytes_by_stage: Counter[int] = Counter()
    for chunk, sizes in received.items():
        bytes_by_stage[plan.chunks[chunk].stage] += BOUNDARIES * sum(sizes.values())
    return bytes_by_stage


# PyTorch's caching allocator: requests above 1 MiB share segments of 20 MiB, those of 10 MiB and
# more get one of their own in steps of 2 MiB; what is left of a segment goes with its last block
# where it is no more than 1 MiB (kSmallSize, kLargeBuffer, kMinLargeAlloc, kRoundLarge and
# `should_split`, c10/cuda/CUDACachingAllocator.cpp, read 2026-11).
SHARED_SEGMENT, ALONE_FROM, ALONE_STEP, REST = 20 * MIB, 10 * MIB, 2 * MIB, MIB


def rounding_bytes(sizes: Iterable[int]) -> int:
    """Bytes by which PyTorch's allocator rounds up tensors, allocated in their order.

    Parameters
    ----------
    sizes : iterable of int
        Bytes of every tensor.

    Examples
    --------
    >>> rounding_bytes([11 * MIB + MIB // 2]), rounding_bytes([19 * MIB // 2] * 2)
    (524288, 1048576)
    """
    free: list[int] = []
    rounded = 0
    for size in sizes:
        if size <= REST:
            continue
        fitting = sorted(room for room in free if room >= size)
        if fitting:
            segment = fitting[0]
            free.remove(segment)
        else:
            alone = -(-size // ALONE_STEP) * ALONE_STEP
            segment = alone if size >= ALONE_FROM else SHARED_SEGMENT
        left = segment - size
        if left > REST:
            free.append(left)
        else:
            rounded += left
    return rounded


def last_shares(tensors: Iterable[tuple[int, int]]) -> list[int]:
    """Elements of every tensor that the last of the ranks has that split a flat buffer.

    Tensors that as many ranks split lie in one buffer, the last of them first.

    Parameters
    ----------
    tensors : iterable of (int, int)
        Elements, and ranks that split them, from the first to the last.

    Examples
    --------
    >>> last_shares([(60, 4), (100, 4), (40, 4), (30, 1)])
    [50, 0, 0, 30]
    """
    every = list(tensors)
    sums: Counter[int] = Counter()
    for number, ranks in every:
        sums[ranks] += number
    left = {ranks: number // ranks for ranks, number in sums.items()}
    shares = []
    for number, ranks in every:
        shares.append(min(number, left[ranks]))
        left[ranks] -= shares[-1]
    return shares


def gather_bytes(plan: Plan, placed: tuple[PlacedOp, ...]) -> Counter[int]:
    """Bytes per stage of the buffer in which ranks gather what each has a part of.

    All calls share it, and it stays (`get_global_memory_buffer`, megatron/core/tensor_parallel/
    layers.py, read 2026-11). Inputs of a split head are gathered in it under sequence parallelism,
    and tokens for experts where the dispatcher gathers them (`MoEAllGatherTokenDispatcher`,
    megatron/core/transformer/moe/token_dispatcher.py, read 2026-11).

    Parameters
    ----------
    plan : Plan
        The plan.
    placed : tuple of PlacedOp
        Its ops, in order.
    """
    tensors = plan.graph.tensors_by_name
    degrees = roles(plan, plan.graph)
    logits = {op.inputs[0] for op in plan.graph.ops if op.kind == "cross_entropy"}
    bytes_by_stage: Counter[int] = Counter()
    for placed_op in placed:
        op, size = placed_op.op, 0
        if op.phase is not Phase.FORWARD:
            continue
        if op.kind == "matmul" and logits.intersection(op.outputs) and degrees["sequence_parallel"]:
            read = tensors[op.inputs[0]]
            size = 2 * local_size(read.shape, placed_op.inputs[0], plan.mesh.sizes)
        elif op.kind == "dispatch" and plan.cluster.software.gathers:
            routed = RoutedTokens.of(plan, op)
            size = 2 * routed.gathered * tensors[op.inputs[0]].shape[-1] if routed.ranks > 1 else 0
        bytes_by_stage[placed_op.stage] = max(size, bytes_by_stage[placed_op.stage])
    return bytes_by_stage


class RoutedTokens(NamedTuple):
    """Tokens of a microbatch that a device routes to experts, and ranks that split those."""

    tokens: int
    experts: int
    chosen: int
    ep: int
    ranks: int  # that split experts, or a product of theirs

    @classmethod
    def of(cls, plan: Plan, dispatch: Op) -> "RoutedTokens":
        """Tokens that an op dispatches by a plan.

        Devices of a stage have a part each of its tokens; without sequence parallelism, tensor
        parallel ranks have the same.
        """
        shown = roles(plan, plan.graph)
        ep, etp, tp = (max(int(shown[role] or 1), 1) for role in ("ep", "etp", "tp"))
        read, chosen, sent = (
            plan.graph.tensors_by_name[name] for name in (*dispatch.inputs[:2], dispatch.outputs[0])
        )
        same = 1 if shown["sequence_parallel"] else tp
        return cls(
            tokens=prod(read.shape[:-1]) * same // prod(plan.mesh.sizes),
            experts=sent.shape[0],
            chosen=chosen.shape[-1],
            ep=ep,
            ranks=ep * etp,
        )

    @property
    def gathered(self) -> int:
        """Tokens of all ranks that split the experts."""
        return self.tokens * self.ranks


def routing_bytes(
    plan: Plan, placed: tuple[PlacedOp, ...], *, fused_permutation: bool
) -> Counter[int]:
    """Bytes per stage of what dispatchers of experts keep of the last microbatch, by layer.

    A dispatcher is an object of its layer, with the scores, a map of tokens to experts and the
    order in which tokens were put as its attributes (megatron/core/transformer/moe/
    token_dispatcher.py, and transformer_engine/pytorch/triton/permutation.py, read 2026-11).

    Parameters
    ----------
    plan : Plan
        The plan.
    placed : tuple of PlacedOp
        Its ops, in order.
    fused_permutation : bool
        The order is a table of a kernel, of two numbers for every token and expert.
    """
    bytes_by_stage: Counter[int] = Counter()
    for placed_op in placed:
        op = placed_op.op
        if op.kind != "dispatch" or op.phase is not Phase.FORWARD:
            continue
        routed = RoutedTokens.of(plan, op)
        if plan.cluster.software.gathers:
            mapped = routed.gathered * routed.experts // routed.ep
            sent = scored = routed.gathered * routed.chosen // routed.ep
        else:
            mapped = scored = routed.tokens * routed.experts
            sent = routed.tokens * routed.chosen
        order = 4 * (2 * mapped) if fused_permutation else 8 * sent
        bytes_by_stage[placed_op.stage] += mapped + SCORE_BYTES * scored + order
    return bytes_by_stage
