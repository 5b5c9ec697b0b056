"""Stage IR: a stage's actors and registers while the compiler still adds to them."""

from dataclasses import dataclass, field
from math import prod

from millrace.models.graph import ITEMSIZE, Phase
from millrace.planner.actors.graph import Actor, Meeting, Part, Port, Register
from millrace.planner.collectives import COLLECTIVES, LOCAL_BOXING
from millrace.planner.sbp import BROADCAST, NdSbp, format_nd_sbp, padded_shape

# Part and chunk: `part` is begin, F, R, B, W or update; F, R, B, W run once a microbatch and chunk.
# R, what is recomputed, runs among the actors of B, in their order.
Section = tuple[str, int]
PART_ORDER = {"begin": 0, "F": 1, "R": 2, "B": 3, "BW": 3, "W": 4, "update": 5}
SLOT_PARTS = {"F": ("F",), "B": ("R", "B"), "W": ("W",), "BW": ("R", "B", "W")}
PARTS = {
    Phase.FORWARD: "F",
    Phase.RECOMPUTE: "R",
    Phase.BACKWARD_INPUT: "B",
    Phase.BACKWARD_WEIGHT: "W",
}
PHASES = {
    "begin": Phase.BEGIN.value,
    **{part: phase.value for phase, part in PARTS.items()},
    "update": Phase.UPDATE.value,
}
ALIGNMENT = 64  # bytes; a cache line, and enough for the widest vector instructions
# Actors that make a tensor by moving what there is; a send makes none.
BOXING = frozenset((*LOCAL_BOXING, *COLLECTIVES)) - {"send"}

BEGIN: Section = ("begin", 0)
UPDATE: Section = ("update", 0)


@dataclass(slots=True, kw_only=True)
class ActorIR:
    """An actor before its queues are known: `section` of the compute queue, or a `lane`."""

    name: str
    kind: str
    section: Section
    firings: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    labels: str = ""
    attributes: dict[str, int | float | str | bool] = field(default_factory=dict)
    block: str = ""
    state: tuple[int, ...] = ()
    buffer: int | None = None
    in_place: bool = False
    meeting: Meeting | None = None
    lane: str = "compute"
    parts: tuple[Part, ...] = ()
    inner: tuple[Register, ...] = ()

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the ops that it computes."""
        return tuple(part.kind for part in self.parts) or (self.kind,)

    def finished(self, queues: tuple[int, ...]) -> Actor:
        """The actor as the document holds it."""
        return Actor(
            name=self.name,
            kind=self.kind,
            queues=queues,
            inputs=self.inputs,
            outputs=self.outputs,
            firings=self.firings,
            labels=self.labels,
            attributes=self.attributes,
            phase=PHASES[self.section[0]],
            block=self.block,
            state=self.state,
            buffer=self.buffer,
            in_place=self.in_place,
            meeting=self.meeting,
            parts=self.parts,
            inner=self.inner,
        )


@dataclass(slots=True)
class StageIR:
    """Actors and registers of one stage, in the order in which they were needed.

    `places`: registers that take the place of another, by waiting until that one is read.
    """

    sizes: tuple[int, ...]
    actors: list[ActorIR] = field(default_factory=list)
    registers: list[Register] = field(default_factory=list)
    producer: dict[int, int] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)

    @property
    def replicated(self) -> NdSbp:
        """B on every axis."""
        return (BROADCAST,) * len(self.sizes)

    def add_register(
        self,
        *,
        name: str,
        tensor: str,
        shape: tuple[int, ...],
        dtype: str,
        sbp: NdSbp,
        memory_kind: str,
        initial: int = 0,
    ) -> int:
        """Add a register of one slot for this stage's shard of a tensor; return its index."""
        local = padded_shape(shape, sbp, self.sizes)
        self.registers.append(
            Register(
                name=name,
                tensor=tensor,
                global_shape=shape,
                sbp=format_nd_sbp(sbp),
                shape=local,
                dtype=dtype,
                initial=initial,
                slot_bytes=-(-prod(local) * ITEMSIZE[dtype] // ALIGNMENT) * ALIGNMENT,
                memory_kind=memory_kind,
            )
        )
        return len(self.registers) - 1

    def add_actor(self, actor: ActorIR) -> int:
        """Add an actor; return its index."""
        self.actors.append(actor)
        for port in actor.outputs:
            self.producer[port.register] = len(self.actors) - 1
        return len(self.actors) - 1

    def block_of(self, register: int) -> str:
        """Block of the actor that makes what a register holds; empty where none does."""
        index = self.producer.get(register)
        return self.actors[index].block if index is not None else ""

    def made_forward(self, register: int) -> bool:
        """True if an actor of the forward pass makes what a register holds."""
        index = self.producer.get(register)
        return index is not None and self.actors[index].section[0] == "F"

    def needed_in(self, register: int, section: Section) -> None:
        """Let the local boxing behind `register` run early enough for `section`."""
        index = self.producer.get(register)
        while index is not None:
            actor = self.actors[index]
            if actor.kind not in BOXING:
                return
            moved = _early_enough(actor.section, section)
            if moved == actor.section:
                return
            actor.section = moved
            index = self.producer.get(actor.inputs[0].register) if actor.inputs else None


def _early_enough(planned: Section, wanted: Section) -> Section:
    """The last section that is before both; `planned` is for a reader earlier in the graph.

    Backwards go through the chunks from the last to the first, but a deferred weight gradient of
    one chunk comes before or after another chunk's backward, microbatch by microbatch.
    """
    backward = ("R", "B", "W")
    if planned[1] != wanted[1] and planned[0] in backward and wanted[0] in backward:
        return ("B", planned[1]) if planned[0] == "W" else planned
    return wanted if PART_ORDER[wanted[0]] < PART_ORDER[planned[0]] else planned
