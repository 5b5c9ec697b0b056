"""Actor graphs that `millrace profile` runs to time the driver, collectives and transfers.

Local actors of these graphs do nothing. Every meeting stands in a chain: its next firing begins
when the last has ended and an idle actor has passed on, as in a model whose layers wait for each
other.
"""

from millrace.planner.actors.graph import (
    Actor,
    ActorGraph,
    Leave,
    Meeting,
    Port,
    Program,
    Queue,
    Register,
)
from millrace.planner.collectives import BOXING
from millrace.planner.mesh import Axis

MESSAGE_BYTES = (2**12, 2**15, 2**18, 2**20, 2**22)
TURNS = {2**12: 24, 2**15: 24, 2**18: 16, 2**20: 10, 2**22: 8}
ITEM_BYTES = 4  # float32
COMPUTE, LANE, BACK_LANE, LAUNCH = range(4)


class _Chains:
    """Chains while they are added; all registers lie in two places, for nobody reads the values."""

    def __init__(self, place_bytes: int) -> None:
        self._place_bytes = place_bytes
        self._registers: list[Register] = []
        self._actors: list[Actor] = []
        self._orders: list[list[int]] = [[] for _ in range(4)]

    def register(self, shape: tuple[int, ...], sbp: str, *, place: int, initial: int = 0) -> int:
        """Add a register with this shard."""
        name = str(len(self._registers))
        self._registers.append(
            Register(
                name=name,
                tensor=name,
                global_shape=shape,
                sbp=sbp,
                shape=shape,
                dtype="float32",
                initial=initial,
                offset_bytes=place * self._place_bytes,
                slot_bytes=self._place_bytes,
            )
        )
        return len(self._registers) - 1

    def actor(
        self,
        queues: tuple[int, ...],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        *,
        firings: int,
        meeting: Meeting | None = None,
    ) -> int:
        """Add an actor."""
        self._actors.append(
            Actor(
                name=f"{len(self._actors)} {meeting.key if meeting else 'idle'}",
                kind=meeting.kind if meeting else "idle",
                queues=queues,
                inputs=tuple(Port(register=register) for register in inputs),
                outputs=tuple(Port(register=register) for register in outputs),
                firings=firings,
                meeting=meeting,
            )
        )
        return len(self._actors) - 1

    def transfer(self, kind: str, key: str, register: int, *, peer: int, size: int) -> int:
        """Add one end of a transfer of `size` bytes."""
        sends = kind == "send"
        return self.actor(
            (LANE if sends else BACK_LANE, LAUNCH),
            (register,) if sends else (),
            () if sends else (register,),
            firings=TURNS[size],
            meeting=Meeting(key=key, kind=kind, peer=peer, message_bytes=size),
        )

    def turns(self, *actors: int) -> None:
        """Let these actors take turns, in this order, until they have fired out."""
        for _ in range(self._actors[actors[0]].firings):
            for actor in actors:
                for queue in self._actors[actor].queues:
                    self._orders[queue].append(actor)

    def program(self, stage: int, ranks: tuple[int, ...]) -> Program:
        """Program of all chains."""
        names = ("compute", "lane", "lane back", "launch")
        return Program(
            name=f"stage {stage}",
            stage=stage,
            ranks=ranks,
            registers=tuple(self._registers),
            actors=tuple(self._actors),
            queues=tuple(
                Queue(
                    name=name,
                    leave=Leave.ISSUED if index == LAUNCH else Leave.COMPLETED,
                    order=tuple(self._orders[index]),
                )
                for index, name in enumerate(names)
            ),
        )


def ring_graph(actors: int) -> ActorGraph:
    """Graph of a ring of idle actors on one rank, each reading what the one before it wrote."""
    chains = _Chains(64)
    registers = [
        chains.register((1,), "()", place=0, initial=int(index == actors - 1))
        for index in range(actors)
    ]
    ring = [
        chains.actor((COMPUTE,), (registers[index - 1],), (registers[index],), firings=1)
        for index in range(actors)
    ]
    chains.turns(*ring)
    return ActorGraph(name="ring", axes=(), programs=(chains.program(0, (0,)),))


def group_graph(ranks: int, size: int) -> ActorGraph:
    """Graph of every collective between the first `size` of `ranks` ranks; the others do nothing.

    One group alone, because what groups cost each other is for the simulator to add.
    """
    chains = _Chains(place_bytes=2 * MESSAGE_BYTES[-1])
    for message_bytes in MESSAGE_BYTES:
        for kind in BOXING:
            meeting = Meeting(
                key=f"{kind} {message_bytes}",
                kind=kind,
                axes=("group",),
                message_bytes=message_bytes,
            )
            _add_collective(chains, meeting, size)
    return _graph("collectives", size, ranks, chains)


def _add_collective(chains: _Chains, meeting: Meeting, size: int) -> None:
    """Add an idle actor, a meeting and its registers, of shapes (rows, columns)."""
    columns = 8 * size
    rows = max(1, meeting.message_bytes // (ITEM_BYTES * columns * size)) * size
    large, small = (rows, columns), (rows // size, columns)
    turned = (rows * size, columns // size)
    sends, receives = {
        "all_reduce": ((large, "P(sum)"), (large, "B")),
        "all_gather": ((small, "S(0)"), (large, "B")),
        "reduce_scatter": ((large, "P(sum)"), (small, "S(0)")),
        "all_to_all": ((large, "S(0)"), (turned, "S(1)")),
    }[meeting.kind]
    firings = TURNS[meeting.message_bytes]
    send, receive = (
        chains.register(shape, sbp, place=place)
        for place, (shape, sbp) in enumerate((sends, receives))
    )
    idle = chains.actor((COMPUTE,), (), (send,), firings=firings)
    meets = chains.actor((LANE, LAUNCH), (send,), (receive,), firings=firings, meeting=meeting)
    chains.turns(idle, meets)


def pair_graph(ranks: int) -> ActorGraph:
    """Graph of messages there and back between the first two of `ranks` ranks."""
    near, far = (_Chains(place_bytes=MESSAGE_BYTES[-1]) for _ in range(2))
    for message_bytes in MESSAGE_BYTES:
        shape, firings = (message_bytes // ITEM_BYTES,), TURNS[message_bytes]

        sent, returned = f"there {message_bytes}", f"back {message_bytes}"
        there = near.register(shape, "B", place=0, initial=1)
        back = near.register(shape, "B", place=1)
        near.turns(
            near.transfer("send", sent, there, peer=1, size=message_bytes),
            near.transfer("recv", returned, back, peer=1, size=message_bytes),
            near.actor((COMPUTE,), (back,), (there,), firings=firings),
        )
        there = far.register(shape, "B", place=0)
        back = far.register(shape, "B", place=1)
        far.turns(
            far.transfer("recv", sent, there, peer=0, size=message_bytes),
            far.actor((COMPUTE,), (there,), (back,), firings=firings),
            far.transfer("send", returned, back, peer=0, size=message_bytes),
        )
    return _graph("transfers", 1, ranks, near, far)


def _graph(name: str, size: int, ranks: int, *chains: _Chains) -> ActorGraph:
    """Graph of a program of `size` ranks for each of `chains`, and an idle one for the others."""
    programs = [
        stage_chains.program(stage, tuple(range(stage * size, (stage + 1) * size)))
        for stage, stage_chains in enumerate(chains)
    ]
    if rest := tuple(range(len(chains) * size, ranks)):
        programs.append(_Chains(place_bytes=ITEM_BYTES).program(len(chains), rest))
    axes = (Axis(name="group", size=size),)
    return ActorGraph(name=name, axes=axes, programs=tuple(programs))


def group_sizes(ranks: int) -> tuple[int, ...]:
    """Sizes of the groups that a mesh of `ranks` ranks can have."""
    return tuple(size for size in range(2, ranks + 1) if ranks % size == 0)
