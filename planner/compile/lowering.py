"""Lowering: placed ops become actors, and every change of SBP or stage becomes boxing actors.

A boxing is made once per (tensor, stage, target SBP) and shared by all its readers, as the search
charges it; a tensor is sent to another stage once, as suits its first reader there, and boxed on
from what arrived for the others. One exception: what is gathered from a parameter every microbatch
(ZeRO-3) is gathered anew for the backward pass, for holding it in between is what that choice
avoids. With `gathers_again` activations are too, as frameworks do under sequence parallelism.
"""

from typing import NamedTuple

from millrace.models.graph import ITEMSIZE, Graph, Phase, Rate
from millrace.models.labels import parse
from millrace.models.ops import state_of
from millrace.planner.actors.graph import Meeting, Port
from millrace.planner.boxing import BoxingStep, boxing_path, crossing, message_bytes
from millrace.planner.collectives import ALONE
from millrace.planner.compile.offload import HostState
from millrace.planner.compile.placement import PlacedOp
from millrace.planner.compile.rounds import lower_rounds
from millrace.planner.compile.stage_ir import BEGIN, PARTS, UPDATE, ActorIR, Section, StageIR
from millrace.planner.costs.bucket_sizes import state_tensors
from millrace.planner.costs.expert_routing import copies_of_tokens
from millrace.planner.errors import PlanError
from millrace.planner.mesh import Mesh
from millrace.planner.plan import ON_DEVICES, OpSignature
from millrace.planner.ring_attention import RING
from millrace.planner.sbp import (
    BROADCAST,
    PARTIAL_SUM,
    NdSbp,
    format_nd_sbp,
    local_size,
    parse_nd_sbp,
)
from millrace.planner.signatures import EXPANSIONS, sub_signatures


class PlacedTensor(NamedTuple):
    """A tensor as it lies on one stage: its register, and how often a version of it comes.

    `repeated`: the version of a step, to be read once a microbatch.
    """

    register: int
    rate: Rate
    repeated: bool = False


class TensorInfo(NamedTuple):
    """Facts of a tensor that boxing needs, in the graph or inside an expansion."""

    tensor: str
    shape: tuple[int, ...]
    dtype: str


class Lowering:
    """Builder of every stage's draft from the placed ops of one plan."""

    def __init__(
        self,
        graph: Graph,
        mesh: Mesh,
        stages: int,
        microbatches: int,
        offload: str = ON_DEVICES,
        *,
        gathers_again: bool = False,
    ) -> None:
        self.tensors = graph.tensors_by_name
        self._in_buckets, self._copies = state_tensors(graph), copies_of_tokens(graph)
        self.mesh = mesh
        self.sizes = mesh.sizes
        self.microbatches = microbatches
        self.stages = [StageIR(mesh.sizes) for _ in range(stages)]
        self.replicated: NdSbp = (BROADCAST,) * len(mesh.axes)
        # `_homes` holds where each tensor is produced: stage → (SBP, value).
        self._homes: dict[str, dict[int, tuple[NdSbp, PlacedTensor]]] = {}
        # `_boxed` holds what boxing made: (stage, tensor, SBP, forward or backward) → value.
        self._boxed: dict[tuple[int, str, NdSbp, str], PlacedTensor] = {}
        # `_arrived` holds what another stage sent, and as which SBP: once per (stage, tensor).
        self._arrived: dict[tuple[int, str], tuple[NdSbp, PlacedTensor]] = {}
        self._variables: dict[tuple[int, str], int] = {}
        self._host = HostState(graph, offload)
        self._gathers_again = gathers_again

    def lower(self, placed: PlacedOp) -> None:
        """Add the actors of one op."""
        rule = _RULES.get(placed.op.kind, Lowering._compute)
        if placed.expansion:
            rule = Lowering._on_a_ring if placed.expansion == RING else Lowering._expanded
        rule(self, placed)

    # Rules, one per kind of op that is not simply one actor.

    def _variable(self, placed: PlacedOp) -> None:
        name, sbp = placed.op.outputs[0], placed.outputs[0]
        register = self._register(placed.stage, name, name, sbp, "parameter", initial=1)
        self._variables[placed.stage, name] = register
        self._record_home(placed.stage, name, sbp, PlacedTensor(register, Rate.STEP))

    def _repeat(self, placed: PlacedOp) -> None:
        value = self.materialize(
            placed.stage, placed.op.inputs[0], placed.inputs[0], BEGIN, Rate.STEP
        )
        repeated = PlacedTensor(value.register, Rate.STEP, repeated=True)
        self._record_home(placed.stage, placed.op.outputs[0], placed.inputs[0], repeated)

    def _state(self, placed: PlacedOp) -> tuple[int, ...]:
        """Add what an op keeps of a variable from step to step, in the variable's dtype."""
        op, variable = placed.op, str(placed.op.attributes.get("variable", ""))
        return tuple(
            self.stages[placed.stage].add_register(
                name=f"{variable}.{name}",
                tensor=f"{variable}.{name}",
                shape=self.tensors[variable].shape,
                dtype=self.tensors[variable].dtype,
                sbp=placed.outputs[0],
                memory_kind=self._host.kind,
                initial=1,
            )
            for name in state_of(op.kind, op.attributes)
        )

    def _update(self, placed: PlacedOp) -> None:
        op, stage = placed.op, placed.stage
        register = self._variables[stage, op.inputs[0]]
        state = self._state(placed)
        inputs = tuple(
            Port(register=self.materialize(stage, name, sbp, UPDATE, Rate.STEP).register)
            for name, sbp in zip(op.inputs[1:], placed.inputs[1:], strict=True)
        )
        self.stages[stage].add_actor(
            ActorIR(
                name=op.name,
                kind=op.kind,
                section=UPDATE,
                firings=1,
                inputs=inputs,
                outputs=(Port(register=register),),
                labels=op.labels,
                attributes=dict(op.attributes),
                block=op.block,
                state=state,
                buffer=self._host.updated(stage, self.stages[stage], (*state, register)),
                in_place=True,
            )
        )

    def _totals(self, placed: PlacedOp) -> None:
        """Add the sum of what the stage has, and one all_reduce over the world that joins them."""
        op, stage = placed.op, placed.stage
        draft = self.stages[stage]
        here = [name for name in op.inputs if stage in self._homes[name]]
        ports = [Port(register=self._homes[name][stage][1].register) for name in here]
        partial = (PARTIAL_SUM,) * len(self.mesh.axes)
        alone = self.mesh.devices * len(self.stages) == 1
        first = self._register(
            stage,
            op.outputs[0],
            f"{op.outputs[0]} here",
            self.replicated if alone else partial,
            "gradient",
        )
        draft.add_actor(
            ActorIR(
                name=op.name,
                kind=op.kind,
                section=UPDATE,
                firings=1,
                inputs=tuple(ports),
                outputs=(Port(register=first),),
                labels=", ".join([""] * len(ports)) + " -> z!",
                attributes={**op.attributes, "has_loss": op.inputs[0] in here},
                block=op.block,
            )
        )
        last = first
        if not alone:
            last = self._register(stage, op.outputs[0], op.outputs[0], self.replicated, "gradient")
            size = local_size(self.tensors[op.outputs[0]].shape, self.replicated, self.sizes)
            meeting = Meeting(
                key=op.name,
                kind="all_reduce",
                axes=self.mesh.names,
                world=True,
                reduction="sum",
                message_bytes=size * ITEMSIZE[self.tensors[op.outputs[0]].dtype],
            )
            draft.add_actor(
                ActorIR(
                    name=f"{op.name}: all_reduce",
                    kind="all_reduce",
                    section=UPDATE,
                    firings=1,
                    inputs=(Port(register=first),),
                    outputs=(Port(register=last),),
                    block=op.block,
                    meeting=meeting,
                    lane="world",
                )
            )
        self._record_home(stage, op.outputs[0], self.replicated, PlacedTensor(last, Rate.STEP))

    def _compute(self, placed: PlacedOp) -> None:
        op, stage = placed.op, placed.stage
        rates = [self.tensors[name].rate for name in op.outputs]
        gathers = op.kind == "accumulate"
        rate = Rate.MICROBATCH if gathers or Rate.MICROBATCH in rates else Rate.STEP
        section = self._section(placed, rate)
        hold = self.microbatches if gathers else 1
        ports = []
        for name, sbp in zip(op.inputs, placed.inputs, strict=True):
            value = self.materialize(stage, name, sbp, section, rate)
            ports.append(Port(register=value.register, hold=self._hold(value, rate)))
        outputs = []
        for name, sbp in zip(op.outputs, placed.outputs, strict=True):
            kind = (
                "activation"
                if rate is Rate.MICROBATCH and not gathers
                else ("parameter" if section == BEGIN else "gradient")
            )
            register = self._register(stage, name, name, sbp, kind)
            self._record_home(stage, name, sbp, PlacedTensor(register, self.tensors[name].rate))
            outputs.append(Port(register=register, hold=hold))
        state = self._state(placed)
        buffer = self._host.updated(stage, self.stages[stage], state) if state else None
        self.stages[stage].add_actor(
            ActorIR(
                name=op.name,
                kind=op.kind,
                section=section,
                firings=self.microbatches if rate is Rate.MICROBATCH else 1,
                inputs=tuple(ports),
                outputs=tuple(outputs),
                labels=op.labels,
                attributes=dict(op.attributes),
                block=op.block,
                state=state,
                buffer=buffer if state else self._from_host(placed),
            )
        )

    def _from_host(self, placed: PlacedOp) -> int | None:
        """Buffer of a cast that reads a variable where it is stored, if that is the host."""
        stage, name = placed.stage, placed.op.inputs[0] if placed.op.kind == "cast" else ""
        register = self._variables.get((stage, name))
        if register is None or self._homes[name][stage][0] != placed.inputs[0]:
            return None
        return self._host.read(stage, self.stages[stage], name, register)

    def _expanded(self, placed: PlacedOp) -> None:
        """Add the primitive ops of an extra signature one by one, with boxing in between."""
        op, stage = placed.op, placed.stage
        section = self._section(placed, Rate.MICROBATCH)
        dtype = self.tensors[op.outputs[0]].dtype
        names = {f"in{i}": name for i, name in enumerate(op.inputs)}
        names |= {f"out{i}": name for i, name in enumerate(op.outputs)}
        shapes = {f"in{i}": self.tensors[name].shape for i, name in enumerate(op.inputs)}
        sub_values: dict[str, tuple[NdSbp, PlacedTensor]] = {}
        signature = OpSignature(
            inputs=tuple(map(format_nd_sbp, placed.inputs)),
            outputs=tuple(map(format_nd_sbp, placed.outputs)),
            expansion=placed.expansion,
        )
        for inner, how in sub_signatures(op.kind, op.labels, signature):
            expression = parse(inner.labels)
            sizes = dict(EXPANSIONS[op.kind, placed.expansion].sizes)
            ports = []
            for name, text in zip(inner.inputs, how.inputs, strict=True):
                sbp = parse_nd_sbp(text)
                if name in names:
                    value = self.materialize(stage, names[name], sbp, section, Rate.MICROBATCH)
                else:
                    inside = TensorInfo(f"{op.name}.{name}", shapes[name], dtype)
                    value = self._box(stage, inside, *sub_values[name], sbp, section)
                ports.append(Port(register=value.register))
            for name, dims in zip(inner.inputs, expression.inputs, strict=True):
                sizes |= {dim[0]: n for dim, n in zip(dims, shapes[name], strict=True)}
            results = []
            for name, dims, text in zip(
                inner.outputs, expression.outputs, how.outputs, strict=True
            ):
                shapes[name] = tuple(sizes[dim[0]] for dim in dims)
                tensor = names.get(name, f"{op.name}.{name}")
                register = self.stages[stage].add_register(
                    name=tensor,
                    tensor=tensor,
                    shape=shapes[name],
                    dtype=dtype,
                    sbp=parse_nd_sbp(text),
                    memory_kind="activation",
                )
                sub_values[name] = (parse_nd_sbp(text), PlacedTensor(register, Rate.MICROBATCH))
                if name in names:
                    self._record_home(stage, tensor, *sub_values[name])
                results.append(Port(register=register))
            self.stages[stage].add_actor(
                ActorIR(
                    name=f"{op.name}.{inner.kind}",
                    kind=inner.kind,
                    section=section,
                    firings=self.microbatches,
                    inputs=tuple(ports),
                    outputs=tuple(results),
                    labels=inner.labels,
                    attributes=dict(op.attributes),
                    block=op.block,
                )
            )

    def _on_a_ring(self, placed: PlacedOp) -> None:
        """Add the rounds of an extra signature whose operands travel."""
        op, stage = placed.op, placed.stage
        section = self._section(placed, Rate.MICROBATCH)
        inputs = [
            self.materialize(stage, name, sbp, section, Rate.MICROBATCH).register
            for name, sbp in zip(op.inputs, placed.inputs, strict=True)
        ]
        draft, firings = self.stages[stage], self.microbatches
        outputs = lower_rounds(draft, placed, self.tensors, self.mesh, section, firings, inputs)
        for name, sbp, register in zip(op.outputs, placed.outputs, outputs, strict=True):
            self._record_home(stage, name, sbp, PlacedTensor(register, Rate.MICROBATCH))

    # Values: where a tensor is, and how it gets where it is needed.

    def materialize(
        self, stage: int, tensor: str, sbp: NdSbp, section: Section, rate: Rate
    ) -> PlacedTensor:
        """Value of `tensor` on `stage` as `sbp`; adds the boxing that it takes.

        Raises
        ------
        PlanError
            A value made once a microbatch is read once a step, or one is repeated across stages.
        """
        homes = self._homes[tensor]
        if stage in homes:
            source, value = homes[stage]
            if rate is Rate.STEP and value.rate is Rate.MICROBATCH:
                raise PlanError(f"`{tensor}` comes once a microbatch, but is read once a step")
            if source == sbp:
                self.stages[stage].needed_in(value.register, section)
                return value
        info = TensorInfo(tensor, self.tensors[tensor].shape, self.tensors[tensor].dtype)
        if stage in homes:
            return self._box(stage, info, source, value, sbp, section)
        home, (source, value) = next(iter(homes.items()))
        if value.repeated:
            raise PlanError(f"`{tensor}` is repeated on stage {home} but read on stage {stage}")
        if (stage, tensor) not in self._arrived:
            carried = crossing(source, sbp, self.sizes, info.shape).carried
            sent = self._box(home, info, source, value, carried, self._after(home, value))
            arrival = self._transfer(home, stage, tensor, carried, sent, section)
            self._arrived[stage, tensor] = carried, arrival
        carried, arrival = self._arrived[stage, tensor]
        return self._box(stage, info, carried, arrival, sbp, section)

    def _box(
        self,
        stage: int,
        info: TensorInfo,
        source: NdSbp,
        value: PlacedTensor,
        target: NdSbp,
        section: Section,
    ) -> PlacedTensor:
        """Take a value on one stage from one SBP to another."""
        draft, repeated = self.stages[stage], value.repeated
        gathers_anew = self._gathers_again and draft.made_forward(value.register)
        # Every step needs this, for it may be new, and what it boxes on planned for later.
        draft.needed_in(value.register, section)
        for step in boxing_path(source, target, self.sizes, info.shape):
            anew = repeated or (gathers_anew and step.kind == "all_gather")
            side = " again" if anew and section[0] in ("R", "B", "W") else ""
            key = (stage, info.tensor, step.after, side)
            if key not in self._boxed:
                self._boxed[key] = self._step(stage, info, step, value, section, side)
            value = self._boxed[key]
            draft.needed_in(value.register, section)
        return value

    def _step(
        self,
        stage: int,
        info: TensorInfo,
        step: BoxingStep,
        value: PlacedTensor,
        section: Section,
        side: str,
    ) -> PlacedTensor:
        """Add the actor of one boxing step."""
        draft = self.stages[stage]
        rate = Rate.MICROBATCH if value.repeated else value.rate
        before, after = format_nd_sbp(step.before), format_nd_sbp(step.after)
        name = f"{info.tensor}: {before} -> {after}{side}"
        kind = draft.registers[value.register].memory_kind
        register = draft.add_register(
            name=f"{info.tensor} {after}{side}",
            tensor=info.tensor,
            shape=info.shape,
            dtype=info.dtype,
            sbp=step.after,
            memory_kind="activation" if value.repeated else kind,
        )
        axes = tuple(self.mesh.names[axis] for axis in step.axes)
        meeting = None
        if step.kind not in ("slice", "pad"):
            meeting = Meeting(
                key=name,
                kind=step.kind,
                axes=axes,
                reduction=step.before[step.axes[0]].reduction,
                message_bytes=message_bytes(step, info.shape, ITEMSIZE[info.dtype], self.sizes),
                bucketed=info.tensor in self._in_buckets,
                copies=self._copies.get(info.tensor, ALONE) if step.kind == "all_to_all" else ALONE,
            )
        draft.add_actor(
            ActorIR(
                name=name,
                kind=step.kind,
                section=section,
                firings=self.microbatches if rate is Rate.MICROBATCH else 1,
                inputs=(Port(register=value.register, hold=self._hold(value, rate)),),
                outputs=(Port(register=register),),
                block=draft.block_of(value.register),
                meeting=meeting,
                lane="compute" if meeting is None else "+".join(axes),
            )
        )
        return PlacedTensor(register, rate)

    def _transfer(
        self, home: int, stage: int, tensor: str, sbp: NdSbp, value: PlacedTensor, section: Section
    ) -> PlacedTensor:
        """Send a value to another stage, each device to its counterpart."""
        shape, dtype = self.tensors[tensor].shape, self.tensors[tensor].dtype
        size = local_size(shape, sbp, self.sizes) * ITEMSIZE[dtype]
        firings = self.microbatches if value.rate is Rate.MICROBATCH else 1
        key = f"{tensor}: stage {home} -> stage {stage}"
        kind = self.stages[home].registers[value.register].memory_kind
        register = self._register(stage, tensor, f"{tensor} from stage {home}", sbp, kind)
        block = self.stages[home].block_of(value.register)
        self.stages[home].add_actor(
            ActorIR(
                name=f"{key}: send",
                kind="send",
                section=section,
                firings=firings,
                inputs=(Port(register=value.register),),
                outputs=(),
                block=block,
                meeting=Meeting(key=key, kind="send", peer=stage, message_bytes=size),
                lane=f"send to stage {stage}",
            )
        )
        self.stages[stage].add_actor(
            ActorIR(
                name=f"{key}: recv",
                kind="recv",
                section=section,
                firings=firings,
                inputs=(),
                outputs=(Port(register=register),),
                block=block,
                meeting=Meeting(key=key, kind="recv", peer=home, message_bytes=size),
                lane=f"recv from stage {home}",
            )
        )
        return PlacedTensor(register, value.rate)

    def _after(self, stage: int, value: PlacedTensor) -> Section:
        """Section in which a value can first be worked on where it was made."""
        draft = self.stages[stage]
        maker = draft.producer.get(value.register)
        # A variable is read as the step before left it, whoever updates it.
        if maker is None or draft.registers[value.register].initial:
            return BEGIN
        section = draft.actors[maker].section
        return UPDATE if value.rate is Rate.STEP and section != BEGIN else section

    def _record_home(self, stage: int, tensor: str, sbp: NdSbp, value: PlacedTensor) -> None:
        self._homes.setdefault(tensor, {})[stage] = (sbp, value)

    def _register(
        self, stage: int, tensor: str, name: str, sbp: NdSbp, kind: str, initial: int = 0
    ) -> int:
        logical = self.tensors[tensor]
        return self.stages[stage].add_register(
            name=name,
            tensor=tensor,
            shape=logical.shape,
            dtype=logical.dtype,
            sbp=sbp,
            memory_kind=kind,
            initial=initial,
        )

    def _hold(self, value: PlacedTensor, rate: Rate) -> int:
        return self.microbatches if rate is Rate.MICROBATCH and value.rate is Rate.STEP else 1

    def _section(self, placed: PlacedOp, rate: Rate) -> Section:
        if rate is Rate.MICROBATCH:
            return (PARTS[placed.op.phase], placed.chunk)
        return UPDATE if placed.op.phase is Phase.UPDATE else BEGIN


_RULES = {
    "variable": Lowering._variable,
    "repeat": Lowering._repeat,
    "adamw": Lowering._update,
    "sgd": Lowering._update,
    "muon": Lowering._update,
    "step_totals": Lowering._totals,
}
