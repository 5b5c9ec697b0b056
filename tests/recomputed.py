"""A plan with other blocks recomputing: the same signatures, clones laid out as their ops."""

from collections.abc import Mapping

from msgspec.structs import replace

from millrace.models.graph import Phase
from millrace.models.recompute import NONE, SUFFIX, with_recompute
from millrace.models.zoo.catalogue import build_training
from millrace.planner.plan import BlockChoice, Plan, Variant, recompute_modes


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
    graph = with_recompute(build_training(plan.model, plan.training, plan.batch), wanted)
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
        return replace(choice, variant=places[key])

    chunks = tuple(replace(chunk, blocks=tuple(map(chosen, chunk.blocks))) for chunk in plan.chunks)
    return replace(plan, variants=tuple(variants), chunks=chunks, evidence=None, figures={})


def _with_clones(variant: Variant, mode: str, clones: list[str]) -> Variant:
    originals = {op: how for op, how in variant.signatures.items() if not op.endswith(SUFFIX)}
    signatures = originals | {clone: originals[clone.removesuffix(SUFFIX)] for clone in clones}
    return replace(variant, recompute=mode, signatures=signatures)
