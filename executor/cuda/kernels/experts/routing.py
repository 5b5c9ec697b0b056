"""Routing: calls that choose the experts of a token and its places there.

Ties go to the expert with the lower index, and places are given by choice, then by position, so
that the same scores give the same places on any number of ranks.

Shape legend: b samples, t tokens of a sample, k choices of a token, e experts, g groups of experts.
"""

from math import ceil

import numpy as np

from millrace.executor.cuda.calls import (
    BLOCK_THREADS,
    BLOCKS_MAX,
    CONTROL,
    WARP_THREADS,
    Calls,
    Launch,
    elementwise,
    read,
    same_calls,
    types,
    workspace,
    write,
)
from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import KernelContext

SOURCE = "routing"
WARPS = BLOCK_THREADS // WARP_THREADS


def top_k(context: KernelContext) -> Calls:
    """Calls of the largest scores of every token, their experts, and its places there.

    Where there is a bias of every expert, choices are those of the sums, values the scores alone.
    The smallest distance between a score that was chosen and one that just was not, of groups too,
    is kept in the rank's `Control`.

    Raises
    ------
    ExecutorError
        Fewer experts may be chosen than a token chooses.
    """
    scores = context.inputs[0]
    samples, tokens, experts = scores.shape
    choices = context.outputs[0].shape[2]
    groups = int(context.attributes.get("groups", 1))
    kept_groups = int(context.attributes.get("kept_groups", groups)) if groups > 1 else 1
    if choices > experts // groups * kept_groups:
        raise ExecutorError(
            f"a token chooses {choices} experts of {experts // groups * kept_groups} that it may "
            f"choose",
            actor=context.name,
        )
    rows = samples * tokens
    limited = 1 < groups != kept_groups
    # Scores of groups come first: their elements may be wider than the chosen experts' numbers.
    groups_bytes = rows * groups * (8 if scores.dtype == "float64" else 4) if limited else 0
    chosen = workspace(groups_bytes)
    biased = len(context.inputs) > 1
    read_scores = (read(0), read(int(biased)), np.int32(biased))
    choose = Launch(
        SOURCE, "choose" + types(scores.dtype),
        (max(1, min(ceil(rows / WARPS), BLOCKS_MAX)), 1, 1), (BLOCK_THREADS, 1, 1),
        (
            *read_scores, workspace(), write(0), write(1), chosen, CONTROL, np.int32(experts),
            np.int32(choices), np.int32(groups), np.int32(kept_groups if limited else 0),
            np.int64(tokens), np.int64(rows),
        ),
    )  # fmt: skip
    warps = samples * experts
    places = Launch(
        SOURCE, "give_places", (ceil(warps / WARPS), 1, 1), (BLOCK_THREADS, 1, 1),
        (
            chosen, write(2), np.int32(experts), np.int32(choices),
            np.int32(context.attributes["capacity"]), np.int64(tokens), np.int64(warps),
        ),
    )  # fmt: skip
    workspace_bytes = groups_bytes + rows * choices * 4
    if not limited:
        return same_calls(choose, places, workspace_bytes=workspace_bytes)
    of_groups = elementwise(
        SOURCE, "group_scores" + types(scores.dtype), rows * groups,
        *read_scores, workspace(), np.int64(experts // groups), np.int64(groups),
    )  # fmt: skip
    return same_calls(of_groups, choose, places, workspace_bytes=workspace_bytes)


def top_k_grad(context: KernelContext) -> Calls:
    """Calls of dscores of (dvalue, expert)."""
    dvalue, dscores = context.inputs[0], context.outputs[0]
    return same_calls(
        elementwise(
            SOURCE, "top_k_grad" + types(dvalue.dtype, dscores.dtype), dscores.size,
            read(0), read(1), write(0), np.int64(dscores.shape[2]), np.int64(dvalue.shape[2]),
        )
    )  # fmt: skip


def expert_load(context: KernelContext) -> Calls:
    """Calls of the share of a sample's choices that fall on each expert, dropped ones too."""
    _, tokens, choices = context.inputs[0].shape
    load = context.outputs[0]
    return same_calls(
        Launch(
            SOURCE, "expert_load" + types(load.dtype), (ceil(load.size / WARPS), 1, 1),
            (BLOCK_THREADS, 1, 1),
            (
                read(0), write(0), np.int64(load.shape[1]), np.int64(tokens * choices),
                np.int64(load.size),
            ),
        )
    )  # fmt: skip
