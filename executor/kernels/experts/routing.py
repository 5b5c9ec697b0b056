"""Routing: the experts that a token goes to, and the place that it gets there.

Ties go to the expert with the lower index, and places are given by choice, then by position, so
that the same scores give the same places on any number of ranks.

Shape legend: b samples, t tokens of a sample, k choices of a token, e experts, g groups of experts.
"""

from collections.abc import Callable, Sequence

import numpy as np

from millrace.executor.errors import ExecutorError
from millrace.executor.kernels.context import Array, Kernel, KernelContext


class _Best:
    """Search for the largest of every row, one after the other, in a copy of the rows.

    Parameters
    ----------
    rows, columns
        Shape of what is chosen from.

    Attributes
    ----------
    left
        What may still be found.
    index, flat, value
        Of every row's largest: its place in the row and in all rows, and the number.
    """

    def __init__(self, rows: int, columns: int, dtype: str) -> None:
        self.left = np.empty((rows, columns), dtype)
        self.index = np.empty(rows, np.intp)
        self.value = np.empty(rows, dtype)
        self._starts = np.arange(rows, dtype=np.intp) * columns
        self.flat = np.empty(rows, np.intp)

    def find(self) -> None:
        """Leave the first largest of every row in `index` and `value`."""
        np.argmax(self.left, axis=1, out=self.index)
        np.add(self.index, self._starts, out=self.flat)
        np.take(self.left.reshape(-1), self.flat, out=self.value, mode="clip")

    def remove(self) -> None:
        """Let what was found not be found again."""
        self.left.reshape(-1)[self.flat] = -np.inf


def top_k(context: KernelContext) -> Kernel:
    """Kernel of the largest scores of every token, their experts, and its places there.

    Where there is a bias of every expert, choices are those of the sums, values the scores alone.
    The smallest distance between a score that was chosen and one that just was not, of groups too,
    is kept in the run: within it, another order of sums may choose otherwise.

    Raises
    ------
    ExecutorError
        Fewer experts may be chosen than a token chooses.
    """
    samples, tokens, experts = context.inputs[0].shape
    choices, dtype = context.outputs[0].shape[2], context.inputs[0].dtype
    groups = int(context.attributes.get("groups", 1))
    kept_groups = int(context.attributes.get("kept_groups", groups)) if groups > 1 else 1
    if choices > experts // groups * kept_groups:
        raise ExecutorError(
            f"a token chooses {choices} experts of {experts // groups * kept_groups} that it may "
            f"choose",
            actor=context.name,
        )
    best = _Best(tokens, experts, dtype)
    limit = _group_limit(best, groups, kept_groups) if 1 < groups != kept_groups else None
    capacity = int(context.attributes["capacity"])
    last = np.empty(tokens, dtype)
    unbiased = np.empty(tokens, dtype) if len(context.inputs) > 1 else best.value

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        margin = np.inf
        for sample in range(samples):
            value, expert, place = (array[sample] for array in outputs)
            if len(inputs) > 1:
                np.add(inputs[0][sample], inputs[1], out=best.left)
            else:
                np.copyto(best.left, inputs[0][sample])
            if limit is not None:
                margin = min(margin, limit())
            for choice in range(choices):
                best.find()
                if len(inputs) > 1:
                    scores = inputs[0][sample].reshape(-1)
                    np.take(scores, best.flat, out=unbiased, mode="clip")
                value[:, choice], expert[:, choice] = unbiased, best.index
                best.remove()
            if choices < experts:
                np.copyto(last, best.value)
                best.find()
                margin = min(margin, float(np.min(np.subtract(last, best.value, out=last))))
            place[...] = places(expert, experts, capacity)
        context.run.record_margin(margin)

    return kernel


def _group_limit(best: _Best, groups: int, kept_groups: int) -> Callable[[], float]:
    """Function that hides experts outside a token's best groups, and says by how much those won.

    A group counts for the sum of its two largest scores (DeepSeek-V3, arXiv 2412.19437, 2.1.2).
    """
    tokens, experts = best.left.shape
    inside = _Best(tokens * groups, experts // groups, str(best.left.dtype))
    among = _Best(tokens, groups, str(best.left.dtype))
    scores, last = np.empty((tokens, groups), best.left.dtype), np.empty(tokens, best.left.dtype)

    def limit() -> float:
        np.copyto(inside.left, best.left.reshape(inside.left.shape))
        inside.find()
        np.copyto(scores, inside.value.reshape(scores.shape))
        if experts > groups:
            inside.remove()
            inside.find()
            np.add(scores, inside.value.reshape(scores.shape), out=scores)
        np.copyto(among.left, scores)
        for _ in range(kept_groups):
            among.find()
            among.remove()
        np.copyto(last, among.value)
        apart = best.left.reshape(tokens, groups, -1)
        # what is still there was not kept
        np.copyto(apart, -np.inf, where=(among.left > -np.inf)[:, :, None])
        among.find()
        return float(np.min(np.subtract(last, among.value, out=last)))

    return limit


def places(expert: Array, experts: int, capacity: int) -> Array:
    """Place [t, k] that every choice [t, k] gets at its expert; -1 where it is full."""
    tokens, choices = expert.shape
    chosen = expert.T.reshape(-1)
    order = np.argsort(chosen, kind="stable")
    counts = np.bincount(chosen, minlength=experts)
    starts = np.cumsum(counts) - counts
    place = np.empty(chosen.size, np.int32)
    place[order] = np.arange(chosen.size) - starts[chosen[order]]
    place[place >= capacity] = -1
    return place.reshape(choices, tokens).T


def top_k_grad(context: KernelContext) -> Kernel:
    """Kernel of dscores from (dvalue, expert)."""
    samples, tokens, choices = context.inputs[0].shape
    experts = context.outputs[0].shape[2]
    starts = np.arange(tokens, dtype=np.intp) * experts
    flat = np.empty(tokens, np.intp)

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        outputs[0].fill(0)
        for sample in range(samples):
            dvalue, expert = inputs[0][sample], inputs[1][sample]
            scores = outputs[0][sample].reshape(-1)
            for choice in range(choices):
                np.add(expert[:, choice], starts, out=flat)
                scores[flat] = dvalue[:, choice]

    return kernel


def expert_load(context: KernelContext) -> Kernel:
    """Kernel of the share of a sample's choices that fall on each expert, dropped ones too."""
    samples, tokens, choices = context.inputs[0].shape
    experts = context.outputs[0].shape[1]

    def kernel(firing: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        for sample in range(samples):
            counts = np.bincount(inputs[0][sample].reshape(-1), minlength=experts)
            np.divide(counts, tokens * choices, out=outputs[0][sample], casting="same_kind")

    return kernel
