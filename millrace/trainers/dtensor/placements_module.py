"""The module of a plan's placements, as PyTorch's users import it, and the record of `dtensor`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from millrace.models.graph import Graph, Op, Phase
from millrace.planner.errors import InfeasibleError
from millrace.planner.plan import Plan, signature_of
from millrace.planner.sbp import parse_nd_sbp
from millrace.trainers.dtensor.conversions import whole_mesh
from millrace.trainers.job import TrainingJob
from millrace.trainers.trainer import (
    HEADER,
    SettingsError,
    SettingsSource,
    Trainer,
    WrittenSettings,
)

FILE = "placements.py"
FUNCTIONS = Path(__file__).with_name("placements_functions.txt")
MARK = "placements of a plan for torch.distributed.tensor"


@dataclass(slots=True)
class BlockPlacements:
    """Texts of the nd-SBPs of a block, by names within it; shapes of whole tensors.

    `reads` has tensors that an op reads otherwise than they lie, by op and tensor.
    """

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)
    gathered: dict[str, str] = field(default_factory=dict)
    activations: dict[str, str] = field(default_factory=dict)
    gradients: dict[str, str] = field(default_factory=dict)
    reads: dict[tuple[str, str], str] = field(default_factory=dict)


def write_placements(plan: Plan) -> WrittenSettings:
    """Module with the device mesh of a plan, and the placements of one block of each kind.

    Parameters
    ----------
    plan : Plan
        Any, for whichever framework.
    """
    graph = plan.graph
    kinds = _kinds(plan, graph)
    blocks: dict[str, BlockPlacements] = {}
    for block, kind in kinds.items():
        if kind not in blocks:
            blocks[kind] = block_placements(plan, graph, block)
    sizes, names = whole_mesh(plan.mesh, plan.stages)
    stages = [
        [[choice.block for choice in chunk.blocks] for chunk in plan.chunks if chunk.stage == stage]
        for stage in range(plan.stages)
    ]
    title = f"{plan.model.name} on {plan.cluster.name}: {MARK}"
    text = f'''"""{title}."""

# {HEADER} {_words(plan)}

from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

# Axes from the outer to the inner; the last joins neighbouring devices.
MESH_SHAPE = {sizes!r}
MESH_NAMES = {names!r}
STAGES, SCHEDULE, MICROBATCHES = {plan.stages}, {plan.schedule!r}, {plan.microbatches}
STAGE_MESH_NAMES = {plan.mesh.names!r}
# Blocks of every chunk of every stage, in model order.
STAGE_BLOCKS = {_nested(stages)}
# Kind of every block: blocks of one kind lie alike.
KINDS = {_lines(kinds, repr)}
# Shapes of whole tensors, those of activations for one microbatch over all replicas.
SHAPES = {_tables({kind: block.shapes for kind, block in blocks.items()}, repr)}
# Weights between steps: as the optimizer updates them.
PARAMETERS = {_tables({kind: block.parameters for kind, block in blocks.items()}, _spelled)}
# Weights as a microbatch finds them, gathered where ZeRO splits them.
GATHERED = {_tables({kind: block.gathered for kind, block in blocks.items()}, _spelled)}
# Outputs of the ops of the forward pass.
ACTIVATIONS = {_tables({kind: block.activations for kind, block in blocks.items()}, _spelled)}
# Gradients of weights as they are summed over the microbatches.
GRADIENTS = {_tables({kind: block.gradients for kind, block in blocks.items()}, _spelled)}
# Tensors as an op of the forward pass, named first, reads them: where they lie otherwise, or are
# made in another block.
READS = {_tables({kind: block.reads for kind, block in blocks.items()}, _spelled)}


{FUNCTIONS.read_text("utf-8")}'''
    return WrittenSettings(files={FILE: text}, arguments=())


def _words(plan: Plan) -> str:
    words = {"cluster": plan.cluster.name, "framework": plan.cluster.software.name}
    return " ".join(f"{name}={word}" for name, word in words.items() if " " not in word)


def _kinds(plan: Plan, graph: Graph) -> dict[str, str]:
    """Kind of every block: its template, with the number of its variant where it has several."""
    chosen = {choice.block: choice.variant for chunk in plan.chunks for choice in chunk.blocks}
    variants: dict[str, set[int]] = {}
    for block, variant in chosen.items():
        variants.setdefault(graph.templates[block], set()).add(variant)
    return {
        block: template if len(variants[template]) == 1 else f"{template}:{chosen[block]}"
        for block in graph.blocks
        if (template := graph.templates[block])
    }


def block_placements(plan: Plan, graph: Graph, block: str) -> BlockPlacements:
    """Layouts of the tensors of a block.

    Parameters
    ----------
    plan : Plan
        Gives the variant of the block.
    graph : Graph
        Its training graph.
    block : str
        One of the graph's.
    """
    variant = next(
        choice.variant for chunk in plan.chunks for choice in chunk.blocks if choice.block == block
    )
    layouts, lies = BlockPlacements(), dict[str, str]()
    for op in graph.ops:
        if op.block != block:
            continue
        signature = signature_of(plan, variant, op)
        lies |= dict(zip(op.outputs, signature.outputs, strict=True))
        table = _table(layouts, op)
        if table is None:
            continue
        for output, text in zip(op.outputs, signature.outputs, strict=True):
            name = _local(output, block)
            if table is layouts.gradients and name not in layouts.parameters:
                continue
            table[name] = text
            layouts.shapes[name] = graph.tensors_by_name[output].shape
        if table is layouts.activations:
            for read, text in zip(op.inputs, signature.inputs, strict=True):
                if lies.get(read) != text:
                    layouts.reads[_local(op.name, block), _local(read, block)] = text
    return layouts


def _table(layouts: BlockPlacements, op: Op) -> dict[str, str] | None:
    """Table that the outputs of an op belong to; None of those that the module leaves out."""
    if op.kind == "variable":
        return layouts.parameters
    if op.phase is Phase.FORWARD:
        return layouts.gathered if op.kind == "repeat" else layouts.activations
    return layouts.gradients if op.kind == "accumulate" else None


def _local(name: str, block: str) -> str:
    """Name within a block, of a weight's copies that of the weight."""
    return name.removeprefix(f"{block}.").removesuffix(".accumulate").removesuffix(".repeat")


def _spelled(text: str) -> str:
    """Placements of an nd-SBP, as Python spells them."""
    words = [
        f"Shard({sbp.dim})"
        if sbp.is_split
        else f'Partial("{sbp.reduction}")'
        if sbp.is_partial
        else "Replicate()"
        for sbp in parse_nd_sbp(text)
    ]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


def _lines(table: Mapping[Any, Any], spelled: Callable[[Any], str], indent: str = "    ") -> str:
    rows = "".join(f"{indent}{name!r}: {spelled(value)},\n" for name, value in table.items())
    return f"{{\n{rows}{indent[4:]}}}"


def _tables(tables: Mapping[str, Mapping[Any, Any]], spelled: Callable[[Any], str]) -> str:
    return _lines(tables, lambda table: _lines(table, spelled, " " * 8))


def _nested(stages: list[list[list[str]]]) -> str:
    rows = "".join(f"    {chunks!r},\n" for chunks in stages)
    return f"[\n{rows}]"


def _refuse_job(_: TrainingJob) -> NoReturn:
    raise InfeasibleError("placements are those of a plan, of which a job does not say enough")


def _refuse_reading(source: SettingsSource) -> NoReturn:
    raise SettingsError(
        f"{' and '.join(source.files)} has placements of tensors, not a job: read the settings of "
        f"the trainer that it was exported beside"
    )


DTENSOR = Trainer(
    name="dtensor",
    frameworks=("any",),
    version="2.13",
    source="torch.distributed.tensor, placement_types.py of PyTorch 2.13, read 2026-11",
    recognizes=lambda source: MARK in source.text,
    write=_refuse_job,
    read=_refuse_reading,
    write_plan=write_placements,
)
