"""OpKind: what a row of the op table says."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from millrace.models.graph import Rate

Attributes = Mapping[str, int | float | str | bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpKind:
    """One row of the op table.

    The labels in a description are those of a typical use; the string stored on each op decides, so
    that one kind serves any rank.

    Attributes
    ----------
    linear : "joint" or tuple of int
        "joint": partial sums on all inputs give partial sums on all outputs. A tuple of input
        indexes: a partial sum on exactly one of them, the whole of every other input, does.
    reduction : "sum", "max" or None
        What joins an output's partial values when a label it lacks is split; None: such a label
        cannot be split.
    products : tuple of pairs of int
        The products inside the op that count as FLOPs, each a pair of operands (inputs, then
        outputs): a multiplication and an addition per point of the labels that either has.
    flops : callable or None
        FLOPs that no pair of operands tells, from the labels, the attributes and the size of every
        label (numbers or arrays of them).
    extra_outputs : tuple of str
        Names of the outputs after the first, which is named after the op itself.
    wide_outputs : tuple of int
        Outputs kept in at least float32 however narrow the inputs are.
    integer_outputs : tuple of int
        Outputs that are int32 whatever the inputs are.
    rate : Rate or None
        Rate of the outputs; None: that of the inputs.
    attributes : tuple of str
        Attributes that every op of the kind carries.
    state : tuple of str
        Tensors like the first input that the op keeps for itself from step to step.
    gathered : tuple of int
        Inputs of which only as much as the first output holds is read.
    reads_output : bool
        The first output is read before it is written (added to in place).
    differentiable : bool
        `millrace.models.gradients` has a rule for it.
    expansion_only : bool
        Occurs inside expansions of extra signatures only, never in a Graph.
    pitched : bool
        Its kernels take operands whose rows lie further apart than they are long.
    role : str
        What other ops may be fused into it as: `product` (they follow on what it has just
        multiplied), `sum` (they add to what is there what it has just added up), `norm` (they come
        before it, in its pass over a row), `norm_grad` (they follow in that pass), `channel_norm`
        (they follow in its pass over all elements); empty: nothing.
    joins : tuple of str
        The roles of ops into which ops of this kind may be fused; `millrace.planner.fusion` says
        when.
    fusible : bool
        It may be part of an actor that does several ops.
    actor : bool
        It becomes an actor; if not, a register, or a way to read one.
    updates : bool
        It is an optimizer's update of a variable, in place.
    moves : bool
        Its output holds the values of its first input: moved, copied or converted.
    routed : (int, int) or None
        It takes tokens to their experts or back: where, among inputs and outputs (outputs after
        inputs), the tokens in their experts' order stand, and where the choices of every token.
    routes : bool
        Its work is a router's, many launches where a framework writes it out.
    launched_together : bool
        Frameworks and the compiler do it for many tensors in one launch.
    fused_by_frameworks : bool
        Compilers and frameworks fuse it with its neighbours, so that part of its bytes do not
        travel. What the optimizer does, gathers, and boxing take their own kernels everywhere.
    """

    name: str
    description: str
    linear: Literal["joint"] | tuple[int, ...] = ()
    reduction: Literal["sum", "max"] | None = None
    products: tuple[tuple[int, int], ...] = ()
    flops: Callable[[str, Attributes, Mapping[str, Any]], Any] | None = None
    extra_outputs: tuple[str, ...] = ()
    wide_outputs: tuple[int, ...] = ()
    integer_outputs: tuple[int, ...] = ()
    rate: Rate | None = None
    attributes: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    gathered: tuple[int, ...] = ()
    reads_output: bool = False
    differentiable: bool = False
    expansion_only: bool = False
    pitched: bool = False
    role: str = ""
    joins: tuple[str, ...] = ()
    fusible: bool = True
    actor: bool = True
    updates: bool = False
    moves: bool = False
    routed: tuple[int, int] | None = None
    routes: bool = False
    launched_together: bool = False
    fused_by_frameworks: bool = False

    @property
    def multiplies(self) -> bool:
        """True if FLOPs are counted."""
        return bool(self.products) or self.flops is not None
