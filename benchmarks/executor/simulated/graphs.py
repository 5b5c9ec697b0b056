"""Random actor graphs in which ranks meet in every way that there is."""

from typing import ClassVar

from millrace.planner.actors.graph import ActorGraph, Meeting
from tests.actor_graphs import ITEM_BYTES, Drawing

SIDE = 24  # of a square tensor: 2, 3, 4, 6 and 8 divide it


class MeetingDrawing(Drawing):
    """Random graph of two to eight ranks with meetings of every kind, some of them buckets."""

    shape = (SIDE, SIDE)
    ranks = 8
    sizes = (1, 2, 2, 3, 4, 6, 8)
    stages_max = 4
    actors = (6, 16)
    kinds: ClassVar[dict[str, tuple[tuple[str, str], ...]]] = {
        "S(0)": (("all_gather", "B"), ("all_to_all", "S(1)"), ("rotate", "S(0)")),
        "S(1)": (("all_gather", "B"), ("all_to_all", "S(0)"), ("rotate", "S(1)")),
        "P(sum)": (
            ("all_reduce", "B"),
            ("reduce_scatter", "S(0)"),
            ("reduce_scatter", "S(1)"),
        ),
    }

    def collective(self, stage_index: int, number: int) -> None:
        """Add a collective of one register, or of several as a bucket."""
        stage = self.stages[stage_index]
        eligible = [
            index
            for index, register in enumerate(stage.registers)
            if register.sbp in self.kinds and not register.initial
        ]
        if eligible and self.size > 1:
            first = self.random.choice(eligible)
            register = stage.registers[first]
            alike = [
                index
                for index, other in enumerate(stage.registers)
                if index != first
                and (other.sbp, other.per_step, other.initial)
                == (register.sbp, register.per_step, 0)
            ]
            more = self.random.sample(alike, min(len(alike), self.random.choice((0, 0, 1, 2))))
            kind, after = self.random.choice(self.kinds[register.sbp])
            meeting = Meeting(
                key=f"m{number}",
                kind=kind,
                axes=("dp",),
                reduction=self.random.choice(("sum", "max")),
                message_bytes=SIDE * SIDE * ITEM_BYTES,
                parts=1 + len(more),
            )
            outputs = [
                self.register(stage_index, after, register.per_step) for _ in range(1 + len(more))
            ]
            self.meet(stage_index, f"{kind} {number}", "dp", register.per_step, meeting)
            actor = stage.actors[-1]
            actor.inputs += [(index, 1) for index in (first, *more)]
            actor.outputs += [(index, 1) for index in outputs]

    def compute(self, stage_index: int, number: int) -> None:
        """Add a computation, at times of a tensor that is cut the other way."""
        before = len(self.stages[stage_index].registers)
        super().compute(stage_index, number)
        for register in self.stages[stage_index].registers[before:]:
            if register.sbp == "S(0)" and self.random.random() < 0.4:
                register.sbp = "S(1)"


def meeting_graph_of(seed: int) -> ActorGraph:
    """Live actor graph of two to eight ranks, the same for the same seed."""
    while True:
        graph = MeetingDrawing(seed).draw()
        if graph.ranks > 1:
            return graph
        seed += 1_000_003
