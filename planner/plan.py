"""Plan: who computes what. The document that search writes and compile reads.

A plan is self-contained: the model as a specification from which the Graph is rebuilt, the cluster
as it was, and every decision. It holds no wall-clock figure.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any

import msgspec

from millrace.models.documents import decode_json
from millrace.models.graph import Graph, Op, Phase, to_json
from millrace.models.recompute import NONE, SUFFIX
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.errors import InfeasibleError, PlanError
from millrace.planner.mesh import Mesh
from millrace.planner.sbp import parse_nd_sbp
from millrace.planner.schedules import MICROBATCHES_MAX, SCHEDULES

SCHEMA_VERSION = 1
# Relative gap at which a search stops by default: finer than any cost is known.
MAX_GAP = 0.02
# Optimizer state lies on the devices, or in the memory of their nodes.
ON_DEVICES, OPTIMIZER = "none", "optimizer"
OFFLOADS = (ON_DEVICES, OPTIMIZER)
# With `full`, ops become one actor where one kernel can compute them (`millrace.planner.fusion`).
UNFUSED, FUSED = "none", "full"
FUSIONS = (UNFUSED, FUSED)
# A plan has at most so many samples of a step, stages and chunks.
COUNT_MAX = 2**24
# A step has at most so many tokens, a thousand times the usual: more FLOPs would not fit 64 bits.
TOKENS_MAX = 2**34
SEED_MAX = 2**63 - 1  # what a document holds
# Names of figures that are numbers end so.
NUMBERS = ("_s", "_max", "_per_gpu", "mfu", "_fraction")


class OpSignature(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The nd-SBP of each input and output of one op, as text: `(S(0), B)`.

    `expansion` names the extra signature that was taken, empty for one derived from labels.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    expansion: str = ""


class Variant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to run every block of a template: a signature per op, and what is recomputed.

    Keys of `signatures` are op names with the block's name cut off (`attn.q.matmul`); they cover
    every op of the block in the plan's graph: backward, update and the clones that `recompute`
    (none, selective or full, see `millrace.models.recompute`) adds included.
    """

    template: str
    signatures: dict[str, OpSignature]
    recompute: str = "none"


class BlockChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block and the index of the variant it runs as."""

    block: str
    variant: int


class Chunk(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A contiguous piece of the model on one stage; a stage holds `interleave` of them."""

    stage: int
    blocks: tuple[BlockChoice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualBlocks:
    """Blocks of one template and variant that follow one another; without a plan, variant 0."""

    template: str
    variant: int
    blocks: tuple[str, ...]

    def sampled_blocks(self, count: int) -> tuple[str, ...]:
        """The first blocks and the last one, at most `count` in all."""
        if count >= len(self.blocks):
            return self.blocks
        return (*self.blocks[: count - 1], self.blocks[-1])


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Proof of the search: seconds in the planner's own cost, and the plans that lost.

    `layers` says of each layer of the search what it did and proved, in counts that repeat.
    `simplicity_loss` is the share of the step that the fastest plan would save, which was given up
    for a simpler one.
    """

    objective_s: float
    bound_s: float
    gap: float
    candidates: int
    pruned: int
    alternatives: tuple[dict[str, Any], ...] = ()
    layers: tuple[dict[str, Any], ...] = ()
    simplicity_loss: float = 0.0


class Prediction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Figures that a simulator predicts of a plan: what `Plan.figures` holds, with types."""

    step_time_s: float
    tokens_per_s: float | None = None
    tflops_per_gpu: float | None = None
    mfu: float | msgspec.UnsetType | None = msgspec.UNSET  # None, where not stated, is written
    memory_bytes_max: int | None = None  # of any device
    memory_by_kind: list[dict[str, int]] = []  # of a device of every stage
    host_memory_bytes_max: int | None = None
    fidelity: str | None = None
    busy_fraction: float | None = None
    busy_by_stage: list[float] = []  # shares of the step in which a stage computes

    @property
    def figures(self) -> dict[str, Any]:
        """Figures as plans and `--json` hold them."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """Every decision about one training step.

    Stage s holds the ranks `s * mesh.devices … (s + 1) * mesh.devices - 1`. A step is
    `microbatches` microbatches of `global_batch / microbatches` samples. `chunks` are in model
    order; `millrace.planner.schedules.stage_of` says on which stage each lies. With `offload`
    optimizer the moments of every variable, and the variable itself where a step only reads it cast
    to 16 bits, lie in host memory and pass through the device once a step. With `fusion` full, ops
    that one kernel can compute are one actor.
    """

    schema_version: Annotated[int, msgspec.Meta(ge=SCHEMA_VERSION, le=SCHEMA_VERSION)] = (
        SCHEMA_VERSION
    )
    model: ModelSpec
    training: TrainingSpec
    cluster: Cluster
    global_batch: int
    microbatches: int
    mesh: Mesh
    stages: int
    schedule: str
    interleave: int
    variants: tuple[Variant, ...]
    chunks: tuple[Chunk, ...]
    pins: dict[str, str | int | bool] = {}
    memory_limit_bytes: int = 0
    seed: int = 0
    offload: str = ON_DEVICES
    fusion: str = UNFUSED
    evidence: Evidence | None = None
    figures: dict[str, Any] = {}  # a document of `Prediction`; code reads `prediction`

    @property
    def ranks(self) -> int:
        """Number of devices the plan uses."""
        return self.stages * self.mesh.devices

    @property
    def batch(self) -> int:
        """Samples of one microbatch over all ranks of a stage."""
        return self.global_batch // self.microbatches

    @cached_property
    def graph(self) -> Graph:
        """Training graph for microbatches of `batch` samples; made once.

        Its blocks recompute as their variants say.

        Raises
        ------
        ModelError
            The specification gives no graph, or a mode of the plan is not known.
        PlanError
            A block of the graph has no place in the plan, or several.
        """
        check_blocks(self, build_training(self.model, self.training, self.batch))
        selective = self.cluster.software.selective
        return build_training(
            self.model, self.training, self.batch, recompute_modes(self), selective
        )

    @property
    def prediction(self) -> Prediction | None:
        """Figures of the plan, None where it has no step time; `check_plan` has checked them."""
        fields = Prediction.__struct_fields__
        if not self.figures.get("step_time_s"):
            return None
        return Prediction(**{name: self.figures[name] for name in fields if name in self.figures})

    def digest(self) -> str:
        """Short hash of every decision; ties traces to their plan."""
        bare = msgspec.structs.replace(self, evidence=None, figures={})
        return hashlib.sha256(to_json(bare)).hexdigest()[:16]


def check_plan(plan: Plan) -> Plan:
    """The plan itself, once its numbers agree with one another.

    Raises
    ------
    PlanError
        Something is malformed: a size out of its range, an unknown schedule or variant, a batch
        that microbatches do not divide, figures that are no numbers.
    InfeasibleError
        The cluster has too few devices.
    """
    for fault in _faults(plan):
        raise PlanError(f"plan: {fault}")
    if plan.ranks > plan.cluster.devices:
        raise InfeasibleError(
            f"plan: {plan.stages} stages of {plan.mesh.devices} devices need {plan.ranks} devices, "
            f"`{plan.cluster.name}` has {plan.cluster.devices}"
        )
    return plan


def _faults(plan: Plan) -> Iterator[str]:
    for name in ("global_batch", "microbatches", "stages", "interleave"):
        most = MICROBATCHES_MAX if name == "microbatches" else COUNT_MAX
        if not 1 <= getattr(plan, name) <= most:
            yield f"`{name}` is {getattr(plan, name)}, expected 1 to {most:,}"
    if plan.global_batch * plan.model.seq_len > TOKENS_MAX:
        yield f"a step of {plan.global_batch * plan.model.seq_len} tokens; at most {TOKENS_MAX:,}"
    for axis in plan.mesh.axes:
        if axis.size < 1:
            yield f"mesh axis `{axis.name}` has size {axis.size}"
    if len(set(plan.mesh.names)) != len(plan.mesh.names):
        yield f"mesh axes {plan.mesh.names} are not all different"
    if plan.offload not in OFFLOADS:
        yield f"offload is `{plan.offload}`; one of {', '.join(OFFLOADS)}"
    if plan.fusion not in FUSIONS:
        yield f"fusion is `{plan.fusion}`; one of {', '.join(FUSIONS)}"
    if plan.schedule not in SCHEDULES:
        yield f"unknown schedule `{plan.schedule}`; one of {', '.join(SCHEDULES)}"
    if plan.global_batch % plan.microbatches:
        yield (
            f"`global_batch` {plan.global_batch} does not divide into {plan.microbatches} "
            f"`microbatches`"
        )
    for number, chunk in enumerate(plan.chunks):
        if not 0 <= chunk.stage < plan.stages:
            yield f"chunk {number} lies on stage {chunk.stage} of {plan.stages}"
        for choice in chunk.blocks:
            if not 0 <= choice.variant < len(plan.variants):
                yield f"block `{choice.block}` names variant {choice.variant}"
    if missing := sorted(set(range(plan.stages)) - {chunk.stage for chunk in plan.chunks}):
        yield f"stage {missing[0]} holds no chunk"
    if not _is_sizes(memory_by_kind := plan.figures.get("memory_by_kind", ())):
        yield (
            f"`figures.memory_by_kind` is {memory_by_kind!r:.60}, expected bytes by kind of every "
            f"stage"
        )
    if not _is_shares(busy := plan.figures.get("busy_by_stage", ())):
        yield f"`figures.busy_by_stage` is {busy!r:.60}, expected a share of a step of every stage"
    for name, value in plan.figures.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if name.endswith(NUMBERS) and value is not None and not (number and value >= 0):
            yield f"`figures.{name}` is {value!r}, expected a number of at least 0"


def _is_sizes(stages: Any) -> bool:
    return isinstance(stages, list | tuple) and all(
        isinstance(by_kind, dict)
        and all(type(size) in (int, float) and size >= 0 for size in by_kind.values())
        for by_kind in stages
    )


def _is_shares(stages: Any) -> bool:
    return isinstance(stages, list | tuple) and all(
        type(share) in (int, float) and 0 <= share <= 1 for share in stages
    )


def check_blocks(plan: Plan, graph: Graph) -> None:
    """Raise PlanError unless every block of the plan's graph has one place.

    Parameters
    ----------
    plan : Plan
        Its chunks say where blocks lie.
    graph : Graph
        Its training graph; recomputation makes no difference.

    Raises
    ------
    PlanError
        A block is placed twice or on no stage, or the graph has no such block; names it.
    """
    placed = [choice.block for chunk in plan.chunks for choice in chunk.blocks]
    if len(set(placed)) < len(placed):
        twice = next(block for position, block in enumerate(placed) if block in placed[:position])
        raise PlanError(f"plan: block `{twice}` is placed twice")
    if unknown := sorted(set(placed) - set(graph.blocks)):
        raise PlanError(f"plan: `{plan.model.name}` has no block `{unknown[0]}`")
    if missing := [block for block in graph.blocks if block not in placed]:
        raise PlanError(f"plan: block `{missing[0]}` is placed on no stage")


def block_runs(graph: Graph, chunk: Chunk | None = None) -> tuple[EqualBlocks, ...]:
    """Runs of equal blocks that a chunk of the graph consists of, or the whole graph.

    Parameters
    ----------
    graph : Graph
        Gives the template of every block.
    chunk : Chunk or None
        Blocks and their variants; None: all blocks of the graph, as variant 0.

    Returns
    -------
    tuple of EqualBlocks
        In model order; together all blocks, each once.
    """
    if chunk is None:
        chunk = Chunk(stage=0, blocks=tuple(BlockChoice(block=b, variant=0) for b in graph.blocks))
    rows = groupby(chunk.blocks, lambda choice: (graph.templates[choice.block], choice.variant))
    return tuple(
        EqualBlocks(template=template, variant=variant, blocks=tuple(c.block for c in choices))
        for (template, variant), choices in rows
    )


def signature_of(plan: Plan, variant: int, op: Op) -> OpSignature:
    """Signature of an op in a variant of its block.

    Parameters
    ----------
    plan : Plan
        Gives the variants and the number of mesh axes.
    variant : int
        Index in `plan.variants`.
    op : Op
        Op of a block; its name without the block's is looked up.

    Raises
    ------
    PlanError
        No signature fits the op: there is none, it has another number of operands or of mesh axes,
        or one of its texts is no nd-SBP.
    """
    signature = plan.variants[variant].signatures.get(op.name.removeprefix(f"{op.block}."))
    if signature is None:
        raise PlanError(f"plan: variant {variant} has no signature for op `{op.name}`")
    if len(signature.inputs) != len(op.inputs) or len(signature.outputs) != len(op.outputs):
        raise PlanError(
            f"plan: op `{op.name}` has {len(op.inputs)} inputs and {len(op.outputs)} outputs, its "
            f"signature {len(signature.inputs)} and {len(signature.outputs)}"
        )
    axes = len(plan.mesh.axes)
    for text in (*signature.inputs, *signature.outputs):
        if len(parse_nd_sbp(text)) != axes:
            raise PlanError(f"plan: op `{op.name}`: {text} on a mesh of {axes} axes")
    return signature


def recompute_modes(plan: Plan) -> dict[str, str]:
    """Mode of every block that recomputes: selective or full."""
    return {
        choice.block: plan.variants[choice.variant].recompute
        for chunk in plan.chunks
        for choice in chunk.blocks
        if plan.variants[choice.variant].recompute != NONE
    }


def recomputed(plan: Plan, modes: Mapping[str, str]) -> Plan:
    """Plan whose blocks recompute as `modes` say; all else, but its figures, stays.

    Parameters
    ----------
    plan : Plan
    modes : mapping of str to str
        Per block: none, selective or full; blocks that are not named keep their mode.

    Returns
    -------
    Plan
        Without evidence and figures, which spoke of another plan. A variant's clones take the
        signatures of their ops.

    Raises
    ------
    ModelError
        A block or a mode is not known.
    """
    wanted = recompute_modes(plan) | dict(modes)
    selective = plan.cluster.software.selective
    graph = build_training(plan.model, plan.training, plan.batch, wanted, selective)
    clones: dict[str, list[str]] = {}
    for op in graph.ops:
        if op.phase is Phase.RECOMPUTE:
            clones.setdefault(op.block, []).append(op.name.removeprefix(op.block + "."))
    variants: list[Variant] = []
    places: dict[tuple[int, str], int] = {}

    def chosen(choice: BlockChoice) -> BlockChoice:
        key = choice.variant, wanted.get(choice.block, NONE)
        if key not in places:
            places[key] = len(variants)
            variants.append(
                _with_clones(plan.variants[key[0]], key[1], clones.get(choice.block, []))
            )
        return msgspec.structs.replace(choice, variant=places[key])

    chunks = tuple(
        msgspec.structs.replace(chunk, blocks=tuple(map(chosen, chunk.blocks)))
        for chunk in plan.chunks
    )
    return msgspec.structs.replace(
        plan, variants=tuple(variants), chunks=chunks, evidence=None, figures={}
    )


def _with_clones(variant: Variant, mode: str, clones: list[str]) -> Variant:
    originals = {op: how for op, how in variant.signatures.items() if not op.endswith(SUFFIX)}
    signatures = originals | {clone: originals[clone.removesuffix(SUFFIX)] for clone in clones}
    return msgspec.structs.replace(variant, recompute=mode, signatures=signatures)


def read_plan(text: bytes) -> Plan:
    """Decode a plan; raises PlanError with the path of the offending key."""
    return decode_json(text, Plan, "not a plan", PlanError)
