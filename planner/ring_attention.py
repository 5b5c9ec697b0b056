"""Ring attention: keys and values travel round the devices that share the sequence.

Every device of a ring of n has a block of the queries, of the keys and of the values. In round 0 it
works on its own keys and values; meanwhile it hands them to the device after it and receives those
of the device before it, to work on them in round 1, and so on for n rounds. What a query sees of
one block is joined to what it saw of others by the logarithms of the sums. In the backward pass the
gradients of a block's keys and values travel with it, one round behind, and one round more, home.

    device 0   device 1   device 2          in       q S(1), k S(1), v S(1)
    k0 v0      k1 v1      k2 v2    round 0   out      S(1), logsumexp S(1)
    k2 v2      k0 v0      k1 v1    round 1   inside   n - 1 rotations of k and of v, each as a round
    k1 v1      k2 v2      k0 v0    round 2            computes; never more than two that travel

`RINGS` says what a kind of op does so; its extra signature is called `RING`. The compiler makes the
rounds actors (`millrace.planner.compile.rounds`), the search prices them (`ring_ns`).

Notes
-----
Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context", 2023. Blocks are
contiguous: under a causal mask the device with the last queries works in every round, and is what a
round waits for (Brandon et al., "Striped Attention", 2023, spread them).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from millrace.models.graph import ITEMSIZE
from millrace.models.ops import op_kind
from millrace.planner.sbp import NdSbp, split

RING = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """Rounds of one kind of op.

    Round 0 is the op itself on the device's own blocks. `in0` … are the op's inputs, `out0` … its
    outputs.

    Attributes
    ----------
    later : str
        The kind of the other rounds; it reads the op's inputs and what is carried on.
    carried : tuple of int
        Outputs of a round that the next one reads.
    travelling : tuple of int
        Inputs of which every round has another device's block.
    returning : tuple of int
        Outputs that belong to such a block: added up as they travel with it.
    dim : int
        The dim along which travelling operands are split.
    """

    later: str
    carried: tuple[int, ...]
    travelling: tuple[int, ...]
    returning: tuple[int, ...] = ()
    dim: int = 1

    def labels(self, labels: str) -> str:
        """Labels of a later round, from those of the op."""
        input_labels, output_labels = labels.split("->")
        outputs = output_labels.split(",")
        carried = ", ".join(outputs[index].strip() for index in self.carried)
        return f"{input_labels.strip()}, {carried} -> {output_labels.strip()}"

    def adding(self, labels: str, output: int) -> str:
        """Labels of the op that adds up an output which returns."""
        operand = labels.split("->")[1].split(",")[output].strip()
        return f"{operand}, {operand} -> {operand}"

    def dtypes(self, dtypes: Sequence[str]) -> tuple[str, ...]:
        """Dtypes of the outputs that a round hands on, from those of the op's outputs."""
        wide = op_kind(self.later).wide_outputs
        return tuple(
            "float32" if output in wide and ITEMSIZE[dtype] < ITEMSIZE["float32"] else dtype
            for output, dtype in enumerate(dtypes)
        )

    def axes(self, inputs: Sequence[NdSbp]) -> tuple[int, ...]:
        """Indexes of the mesh axes that make the ring, from the SBPs of the op's inputs."""
        sbp = inputs[self.travelling[0]]
        return tuple(axis for axis, axis_sbp in enumerate(sbp) if axis_sbp == split(self.dim))


RINGS: dict[str, Ring] = {
    "attention": Ring(later="attention_round", carried=(0, 1), travelling=(1, 2)),
    "attention_grad": Ring(
        later="attention_grad_round", carried=(0,), travelling=(1, 2), returning=(1, 2)
    ),
}


def ring_ns(size: Any, first: Any, later: Any, sending: Any, adding: Any, returning: Any) -> Any:
    """Nanoseconds of all rounds, of numbers or arrays.

    A round takes as long as its work or what is sent meanwhile, whichever is longer.

    Parameters
    ----------
    size : int or int array
        Devices of the ring, which are as many as rounds; with 1 there is the first round alone.
    first, later : nanoseconds, number or array
        The work of the first and of any other round.
    sending : nanoseconds, number or array
        Handing on the blocks of all inputs that travel, once.
    adding, returning : nanoseconds, number or array
        Adding what returns, and handing that on, once; zero where nothing does.

    Returns
    -------
    array
        Of the shape that the parameters have together.

    Examples
    --------
    >>> int(ring_ns(4, 10, 10, 8, 0, 0)), int(ring_ns(4, 10, 10, 12, 0, 0))
    (40, 46)
    """
    between = np.maximum(later, sending + returning)
    last = np.maximum(later, returning)
    rounds = np.maximum(first, sending) + (size - 2) * between + last + (size - 1) * adding
    return np.where(np.asarray(size) > 1, rounds + returning, first)
