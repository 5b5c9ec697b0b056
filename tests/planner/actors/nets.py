"""Actor graphs of a line or two, for the tests of the protocol."""

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


def register(name, *, slots=1, initial=0):
    return Register(
        name=name, tensor=name, global_shape=(1,), sbp="B", shape=(1,), dtype="float32",
        slots=slots, initial=initial, slot_bytes=64,
    )  # fmt: skip


def actor(name, queues, inputs=(), outputs=(), *, firings=1, meeting=None):
    """Actor whose ports are register indexes, or pairs (register, hold)."""

    def port(item):
        return (
            Port(register=item[0], hold=item[1]) if isinstance(item, tuple) else Port(register=item)
        )

    return Actor(
        name=name, kind="op" if meeting is None else meeting.kind, queues=queues,
        inputs=tuple(map(port, inputs)), outputs=tuple(map(port, outputs)), firings=firings,
        meeting=meeting,
    )  # fmt: skip


def queue(name, order, leave=Leave.COMPLETED):
    return Queue(name=name, leave=leave, order=tuple(order))


def program(registers, actors, queues, *, stage=0):
    return Program(
        name=f"stage {stage}", stage=stage, ranks=(stage,), registers=tuple(registers),
        actors=tuple(actors), queues=tuple(queues),
    )  # fmt: skip


def graph(*programs):
    return ActorGraph(name="net", axes=(), programs=programs)


def chain(firings=4, slots=2):
    """A producer and a consumer on queues of their own, joined by one register."""
    return program(
        [register("x", slots=slots)],
        [actor("make", (0,), (), (0,), firings=firings), actor("use", (1,), (0,), firings=firings)],
        [queue("first", [0] * firings), queue("second", [1] * firings)],
    )


def end(kind, peer, key):
    return Meeting(key=key, kind=kind, peer=peer)
