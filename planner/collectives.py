"""Collectives by kind: one record each, with all that does not follow from its name.

Whoever asks what a kind of collective does (which bytes arrive, whether it adds, whether state is
joined in it) asks its record. Its durations are in `millrace.planner.costs.collective_costs`, its
implementations in the transports of `millrace.executor`.
"""

from dataclasses import dataclass
from typing import NamedTuple


class TokenCopies(NamedTuple):
    """Number of copies of every token in a message, each for an expert of the token's choice.

    It is 0 where tokens do not go to experts. `narrow` says that the copies are rounded to 8 bits.
    Experts lie in `groups` of equal size, one behind the other, and a token chooses experts of its
    `kept_groups` best ones alone.
    """

    number: int = 0
    groups: int = 1
    kept_groups: int = 1
    narrow: bool = False


ALONE = TokenCopies()  # of what does not go to experts


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveKind:
    """A kind of collective, or of transfer between two ranks.

    Attributes
    ----------
    name : str
        As in `millrace.planner.actors.graph.Meeting`.
    boxing : bool
        It takes a tensor from one SBP to another; every member sends and receives.
    reduces : bool
        Values of the members are joined (added, or their maximum taken).
    gathers, scatters : bool
        What is sent, or received, is one dim's parts, a part of each member.
    received_before, received_after : int
        Of g members each receives, on a ring, so many times (g - 1) / g of the bytes that it holds
        before, or after.
    joins_buckets : bool
        Gradients and weights that it moves are joined in buckets.
    point_to_point : bool
        It has two ends, one that sends and one that receives.
    """

    name: str
    boxing: bool = False
    reduces: bool = False
    gathers: bool = False
    scatters: bool = False
    received_before: int = 0
    received_after: int = 0
    joins_buckets: bool = False
    point_to_point: bool = False

    @property
    def in_place(self) -> bool:
        """True if members may receive where they send: beyond `IN_PLACE_BYTES_MIN`."""
        return self.reduces and not self.scatters

    @property
    def half_of_all_reduce(self) -> bool:
        """True if a ring moves the message once, where an all_reduce moves it twice."""
        return self.gathers != self.scatters


ROTATE = "rotate"  # every member receives what the member before it has

# Below this each member may add up what all send for itself, and so must find it as it was.
IN_PLACE_BYTES_MIN = 2**16

COLLECTIVES: dict[str, CollectiveKind] = {
    kind.name: kind
    for kind in (
        CollectiveKind(
            name="all_reduce", boxing=True, reduces=True, received_before=2, joins_buckets=True
        ),
        CollectiveKind(
            name="all_gather", boxing=True, gathers=True, received_after=1, joins_buckets=True
        ),
        CollectiveKind(
            name="reduce_scatter",
            boxing=True,
            reduces=True,
            scatters=True,
            received_before=1,
            joins_buckets=True,
        ),
        CollectiveKind(
            name="all_to_all", boxing=True, gathers=True, scatters=True, received_before=1
        ),
        CollectiveKind(name=ROTATE),
        CollectiveKind(name="send", point_to_point=True),
        CollectiveKind(name="recv", point_to_point=True),
    )
}
BOXING = tuple(kind.name for kind in COLLECTIVES.values() if kind.boxing)
EXPERT_EXCHANGE = "all_to_all"  # takes tokens to their experts, and back
LOCAL_BOXING = ("slice", "pad")  # a change of SBP for which nothing travels
