"""Pins: what a user fixes beforehand, as rules on signatures.

A pinned degree gives a mesh axis a role, and a role says which labels the axis may split: `dp` the
batch, `cp` the sequence, `tp` the labels of weights and heads. An axis without a role is free, but
what is pinned elsewhere is barred from it: with `dp` pinned no other axis splits the batch.
Experts share axes with the rest of the model: `RoledAxis.experts` says which are split over it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from millrace.models import model_counts
from millrace.models.graph import Graph, Op
from millrace.models.labels import BATCH, EXPERT, SEQUENCE, parse
from millrace.models.ops import kinds_where, op_kind
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.formatting import one_of
from millrace.planner.frameworks.capabilities import DEGREES, DISPATCHERS, LEVELS, MODES, ROUTINGS
from millrace.planner.frameworks.model_settings import parse_capacity
from millrace.planner.parallel_degrees import HYBRID
from millrace.planner.plan import FUSIONS, OFFLOADS
from millrace.planner.ring_attention import RING, RINGS
from millrace.planner.schedules import SCHEDULES
from millrace.planner.signatures import Allowed, AxisSignature

STORAGE = ("variable", "squared_sum", *kinds_where(lambda row: row.updates or row.state))
NORMS = tuple(
    f"{norm}{part}" for norm in model_counts.NORMS for part in ("", "_grad_input", "_grad_weight")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """Choices fixed by the user; None leaves one to the search.

    `micro_batch` counts the samples of one microbatch on one data-parallel replica. `ring` says
    whether keys and values travel round the context-parallel ranks, or are gathered. `mtp_layers`
    are the model's modules that predict further tokens, `capacity_factor` the places of an expert
    in multiples of an even share, or `dropless`; `routing` is how equally tokens choose experts.
    """

    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    etp: int | None = None
    micro_batch: int | None = None
    schedule: str | None = None
    interleave: int | None = None
    recompute: str | None = None
    zero: str | int | None = None
    sequence_parallel: bool | None = None
    offload: str | None = None
    ring: bool | None = None
    fusion: str | None = None
    dispatcher: str | None = None
    expert_overlap: bool | None = None
    mtp_layers: int | None = None
    capacity_factor: str | None = None
    routing: str | None = None

    @classmethod
    def of(cls, choices: Mapping[str, object]) -> "Pins":
        """Pins of a mapping by name, every value of its kind.

        Raises
        ------
        PlanError
            There is no such pin, or its value is of another kind.
        """
        kinds_by_pin = {field.name: str(field.type) for field in fields(cls)}
        for name, value in choices.items():
            if name not in kinds_by_pin:
                close = get_close_matches(str(name), kinds_by_pin, n=2)
                hint = (
                    f"did you mean {one_of(close)}?"
                    if close
                    else f"known: {', '.join(kinds_by_pin)}"
                )
                raise PlanError(f"there is no pin `{name}`; {hint}")
            kinds = kinds_by_pin[name].split(" | ")
            if type(value).__name__ not in (*kinds, "NoneType"):
                raise PlanError(f"pin `{name}` is {value!r}: expected {one_of(kinds[:-1])}")
        return cls(**choices)  # type: ignore[arg-type]

    @property
    def document(self) -> dict[str, str | int | bool]:
        """The pins that are set, as a Plan holds them."""
        value_by_pin = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in value_by_pin.items() if value is not None}

    def check(self) -> None:
        """Refuse what is malformed and what this version cannot do.

        Raises
        ------
        PlanError
            A degree or micro batch below one, or an unknown schedule, recompute, zero, offload or
            fusion.
        InfeasibleError
            Pins that contradict each other.
        """
        for name in (*DEGREES, "etp", "micro_batch", "interleave"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"--{name.replace('_', '-')} is {value}: expected at least 1")
        if self.schedule is not None and self.schedule not in SCHEDULES:
            raise PlanError(
                f"--schedule {self.schedule}: unknown; choose one of {', '.join(SCHEDULES)}"
            )
        if self.recompute not in (None, *MODES):
            raise PlanError(f"--recompute {self.recompute}: choose none, selective or full")
        if self.offload not in (None, *OFFLOADS):
            raise PlanError(f"--offload {self.offload}: choose {' or '.join(OFFLOADS)}")
        if self.fusion not in (None, *FUSIONS):
            raise PlanError(f"--fusion {self.fusion}: choose {' or '.join(FUSIONS)}")
        if self.dispatcher not in (None, *DISPATCHERS):
            raise PlanError(f"--dispatcher {self.dispatcher}: choose {one_of(list(DISPATCHERS))}")
        if self.routing not in (None, *ROUTINGS):
            raise PlanError(f"--routing {self.routing}: choose {one_of(list(ROUTINGS))}")
        if self.capacity_factor is not None:
            parse_capacity(self.capacity_factor)
        if str(self.zero) not in ("None", *LEVELS):
            raise PlanError(f"--zero {self.zero}: choose 0, 1, 2, 3 or 3-hybrid")
        if self.zero_level and self.dp == 1 and (self.cp or 1) == 1:
            raise InfeasibleError(
                f"--zero {self.zero} splits storage over data-parallel ranks, and --dp is 1: raise "
                f"--dp or leave --zero out"
            )
        if self.tp is not None and self.tp % (self.etp or 1):
            raise InfeasibleError(
                f"--etp {self.etp} splits experts over a part of the tensor-parallel ranks, and "
                f"--tp is {self.tp}: choose a divisor of {self.tp}"
            )
        if self.sequence_parallel and self.tp == 1:
            raise InfeasibleError(
                "--sequence-parallel splits the sequence over tensor-parallel ranks, and --tp is "
                "1: raise --tp or leave it out"
            )
        if self.ring and self.cp == 1:
            raise InfeasibleError(
                "--ring sends keys and values round the context-parallel ranks, and --cp is 1: "
                "raise --cp or leave --ring out"
            )
        if self.zero == HYBRID and self.dp is not None and len(_divisors_between(self.dp)) == 0:
            raise InfeasibleError(
                f"--zero {HYBRID} splits storage over a part of the data-parallel ranks, and --dp "
                f"{self.dp} has no part: choose a --dp of two factors, or --zero 3"
            )

    @property
    def settled_degrees(self) -> frozenset[str]:
        """Degrees that are pinned, or that other pins speak of, so that each must be known.

        The size of a microbatch and ZeRO are those of the data-parallel replicas, sequence and
        expert tensor parallelism are those of the tensor-parallel ones, rings are those of the
        context-parallel.
        """
        degrees = {name for name in ("dp", "tp", "cp") if getattr(self, name) is not None}
        if self.micro_batch is not None or self.zero is not None:
            degrees.add("dp")
        if self.sequence_parallel is not None or self.etp is not None:
            degrees.add("tp")
        if self.ep is not None and self.ep > 1:
            degrees.add("dp")
        return frozenset(degrees)

    def admits(self, degree: str, value: int) -> bool:
        """True if a settled degree may have this value."""
        pinned = getattr(self, degree)
        if pinned is not None and pinned != value:
            return False
        if degree == "dp" and self.zero == HYBRID:
            return bool(_divisors_between(value))
        if degree == "dp" and self.zero_level:
            return value > 1 or (self.cp or 1) > 1
        if degree == "cp" and self.ring:
            return value > 1
        if degree == "tp" and value % (self.etp or 1):
            return False
        return not (degree == "tp" and self.sequence_parallel and value == 1)

    @property
    def zero_level(self) -> int | None:
        """The pinned ZeRO stage as a number, of hybrid ZeRO that of the ranks that split."""
        if self.zero is None:
            return None
        return 3 if self.zero == HYBRID else int(self.zero)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoledAxis:
    """A mesh axis of a candidate; `role` is dp, cp, tp, or empty for a free one.

    `experts` says whether the expert label is split over it: always, never, or (None) as the
    search finds best. `copies`: what ZeRO splits over the other replicas is whole on these. `zero`
    and `sequence` are the level of ZeRO over the axis and whether norms split the sequence over it,
    for all blocks; None: as pins say.
    """

    role: str
    size: int
    experts: bool | None = None
    copies: bool = False
    zero: int | None = None
    sequence: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisRules:
    """Filters of signatures: what an op may do on each axis of a candidate.

    `must` narrows it further to what a pin asks for; an op that this leaves with nothing (a bias
    that does not divide) falls back to `may`.
    """

    axes: tuple[RoledAxis, ...]
    pins: Pins
    forced: frozenset[str]  # ops whose weight a pinned tp has to split
    required: Mapping[str, str]  # op to the label that it splits on the tp axes
    widened: bool = True  # gradients are added up in a wider dtype than they are made in

    def may(self, op: Op, axis: int, signature: AxisSignature) -> bool:
        """True if the role of the axis lets the op take this signature."""
        role, experts = self.axes[axis].role, self.axes[axis].experts
        if signature.expansion == RING and self.pins.ring is False:
            return False
        if EXPERT in parse(op.labels).splittable:
            if signature.label == EXPERT and experts is not False:
                return True
            if multiplies(op) and (experts or signature.label == EXPERT):
                return False
        if role == "dp":
            return self._follows(BATCH, op, signature) and self._may_store(axis, op, signature)
        if role == "cp":
            return self._follows(SEQUENCE, op, signature) and self._may_store(axis, op, signature)
        if role == "tp":
            return self._tensor(axis, op, signature)
        return self._free(op, signature)

    def must(self, op: Op, axis: int, signature: AxisSignature) -> bool:
        """True if `may`, and if pins of zero, sequence_parallel and single ops are obeyed."""
        if not self.may(op, axis, signature):
            return False
        role = self.axes[axis].role
        if role == "tp" and op.name in self.required:
            return signature.label == self.required[op.name]
        if role == "tp" and self._sequence_parallel(axis) and op.kind in NORMS:
            return signature.label == SEQUENCE
        if role == "cp" and self.pins.ring and op.kind in RINGS:
            return signature.expansion == RING
        if role == "dp" and self.axes[axis].experts and op_kind(op.kind).routed:
            return signature.label == BATCH  # tokens go to experts, not to every rank (all_to_all)
        if role in ("dp", "cp"):
            return self._zero(axis, op, signature)
        return True

    def _follows(self, label: str, op: Op, signature: AxisSignature) -> bool:
        """True if the op splits the axis's label, or lacks it and so does as it likes."""
        return signature.label == label if label in parse(op.labels).splittable else True

    def _sequence_parallel(self, axis: int) -> bool | None:
        """True if norms split the sequence over a tp axis, False if they do not, None: either."""
        sequence = self.axes[axis].sequence
        return self.pins.sequence_parallel if sequence is None else sequence

    def _tensor(self, axis: int, op: Op, signature: AxisSignature) -> bool:
        if signature.label == BATCH:
            return False
        if signature.label == SEQUENCE:
            return self._sequence_parallel(axis) is not False and not multiplies(op)
        return signature.label is not None if op.name in self.forced else True

    def _free(self, op: Op, signature: AxisSignature) -> bool:
        label, settled = signature.label, self.pins.settled_degrees
        if label == BATCH:
            return "dp" not in settled
        if label == SEQUENCE:
            return "cp" not in settled or not multiplies(op)
        return "tp" not in settled or label is None or not multiplies(op)

    def _level(self, axis: int, op: Op) -> int | None:
        """Level of ZeRO over an axis for an op that does not split its label; None: any."""
        role = self.axes[axis]
        label = BATCH if role.role == "dp" else SEQUENCE
        if label in parse(op.labels).splittable:
            return None
        level = self.pins.zero_level if role.zero is None else role.zero
        return 0 if role.copies else level

    def _may_store(self, axis: int, op: Op, signature: AxisSignature) -> bool:
        """False for splits of what ZeRO keeps whole: that always divides, so none falls back to it.

        Experts have ranks of their own, on which their storage is split as they are.
        """
        level = self._level(axis, op)
        if level is None or signature.label is None or EXPERT in parse(op.labels).splittable:
            return True
        if op.kind in STORAGE:
            return level >= 1
        if not op_kind(op.kind).actor:
            return level >= 3
        return level >= 2 or op.kind != "accumulate"

    def _zero(self, axis: int, op: Op, signature: AxisSignature) -> bool:
        """True if a pinned ZeRO lets storage do this; split experts have no copies on the axis."""
        level = self._level(axis, op)
        if self.axes[axis].experts and EXPERT in parse(op.labels).splittable:
            return signature.label == EXPERT if op.kind in (*STORAGE, "repeat") else True
        if level is None:
            return True
        split = signature.label is not None
        if op.kind in STORAGE and (op.trains or op.kind != "variable"):
            return split == (level >= 1)
        if not op_kind(op.kind).actor:  # a frozen one has no state to be split with
            return split == (level >= 3)
        if op.kind == "accumulate":
            # Added up after their sum over ranks, gradients make a device that works off its queue
            # in order wait for each such sum; in a wider dtype, more is sent after than before.
            late = self.widened or signature.outputs[0].is_partial
            return split if level >= 2 else not split and late
        return True


def splits_sequence(axes: Iterable[RoledAxis], pins: Pins) -> bool:
    """True if activations are split by tokens over an axis whose products read them whole."""
    return any(
        axis.role == "cp"
        or (
            axis.role == "tp"
            and bool(pins.sequence_parallel if axis.sequence is None else axis.sequence)
        )
        for axis in axes
    )


def _divisors_between(number: int) -> list[int]:
    """Divisors other than one and the number."""
    return [d for d in range(2, number) if number % d == 0]


def multiplies(op: Op) -> bool:
    """True if an op is one of those whose splits give an axis its role: no choice is."""
    row = op_kind(op.kind)
    product = bool(row.products) and not row.integer_outputs
    return product or op.kind in ("embedding", "embedding_grad")


def forced_ops(graph: Graph, op_names: Mapping[str, int]) -> frozenset[str]:
    """Representative ops that a pinned tp must split: products in blocks that repeat.

    Where no block repeats, those of every block.
    """
    products = {op.name: op for op in graph.ops if op.name in op_names and multiplies(op)}
    repeated = {name for name in products if op_names[name] > 1}
    return frozenset(repeated or products)


def filters(rules: AxisRules) -> tuple[Allowed, Allowed]:
    """The narrow filter and the one to fall back to."""
    return rules.must, rules.may
