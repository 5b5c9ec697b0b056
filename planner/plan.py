"""Plan: who computes what. The document that search writes and compile reads.

A plan is self-contained: the model as a specification from which the Graph is rebuilt, the cluster
as it was, and every decision. It holds no wall-clock figure.
"""

import hashlib
from typing import Annotated, Any

import msgspec

from millrace.models.documents import decode_json
from millrace.models.graph import Graph, to_json
from millrace.models.recompute import NONE, with_recompute
from millrace.models.spec import ModelSpec, TrainingSpec
from millrace.models.zoo.catalogue import build_training
from millrace.planner.cluster import Cluster
from millrace.planner.errors import PlanError
from millrace.planner.mesh import Mesh

SCHEMA_VERSION = 1
# Relative gap at which a search stops by default: finer than any cost is known.
MAX_GAP = 0.02
# Where optimizer state lies: on the devices, or in the memory of their nodes.
ON_DEVICES, OPTIMIZER = "none", "optimizer"
OFFLOADS = (ON_DEVICES, OPTIMIZER)
# Whether ops become one actor where one kernel can compute them (`millrace.planner.fusion`).
UNFUSED, FUSED = "none", "full"
FUSIONS = (UNFUSED, FUSED)


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


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the search proved: seconds in the planner's own cost, and the plans that lost.

    `layers` says of each layer of the search what it did and proved, in counts that repeat.
    """

    objective_s: float
    bound_s: float
    gap: float
    candidates: int
    pruned: int
    alternatives: tuple[dict[str, Any], ...] = ()
    layers: tuple[dict[str, Any], ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every decision about one training step.

    Stage s holds the ranks `s * mesh.devices … (s + 1) * mesh.devices - 1`. A step is
    `microbatches` microbatches of `global_batch / microbatches` samples. `chunks` are in model
    order; chunk i lies on stage i mod stages for an interleaved schedule. With `offload` optimizer
    the moments of every variable, and the variable itself where a step only reads it cast to 16
    bits, lie in host memory and pass through the device once a step. With `fusion` full, ops that
    one kernel can compute are one actor.
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
    figures: dict[str, Any] = {}  # what the simulator said of it: step_time_s, memory_bytes_max, …

    @property
    def ranks(self) -> int:
        """Number of devices the plan uses."""
        return self.stages * self.mesh.devices

    @property
    def batch(self) -> int:
        """Samples of one microbatch over all ranks of a stage."""
        return self.global_batch // self.microbatches

    def digest(self) -> str:
        """Short hash of every decision; ties traces and checkpoints to their plan."""
        bare = msgspec.structs.replace(self, evidence=None, figures={})
        return hashlib.sha256(to_json(bare)).hexdigest()[:16]


def plan_graph(plan: Plan) -> Graph:
    """Return the training graph of a plan, its blocks recomputing as their variants say.

    It is written for microbatches of `plan.batch` samples.

    Raises
    ------
    ModelError
        The specification gives no graph, or a mode or a block of the plan is not known.
    """
    graph = build_training(plan.model, plan.training, plan.batch)
    modes = recompute_modes(plan)
    return with_recompute(graph, modes) if modes else graph


def recompute_modes(plan: Plan) -> dict[str, str]:
    """Return the mode of every block that recomputes: selective or full."""
    return {
        choice.block: plan.variants[choice.variant].recompute
        for chunk in plan.chunks
        for choice in chunk.blocks
        if plan.variants[choice.variant].recompute != NONE
    }


def read_plan(text: bytes) -> Plan:
    """Decode a plan; raises PlanError with the path of the offending key."""
    return decode_json(text, Plan, "not a plan", PlanError)
