"""Conversions between Millrace's words of a layout and PyTorch's.

`S(d)` is `Shard(d)`, `B` is `Replicate()`, `P(sum)` and `P(max)` are `Partial("sum")` and
`Partial("max")`. Both apply the axes of a mesh from the outer to the inner, and both lay ranks out
row by row, so that shards are the same ones (torch.distributed.tensor of PyTorch 2.13).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.planner.errors import PlanError
from millrace.planner.mesh import Axis, Mesh
from millrace.planner.sbp import BROADCAST, NdSbp, Sbp, parse_nd_sbp, split

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

REDUCTIONS = ("sum", "max")
PIPELINE = "pp"  # the outer axis of the mesh of a plan with several stages


def placements(nd_sbp: NdSbp | str) -> "tuple[Placement, ...]":
    """Placements of an nd-SBP, one for each axis of the mesh.

    Parameters
    ----------
    nd_sbp : NdSbp or str
        An nd-SBP, or its text: `(S(0), B)`.

    Raises
    ------
    PlanError
        The text is no nd-SBP.

    Examples
    --------
    >>> placements("(S(0), P(sum))")
    (Shard(dim=0), Partial(sum))
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    sbps = parse_nd_sbp(nd_sbp) if isinstance(nd_sbp, str) else nd_sbp
    return tuple(
        Shard(sbp.dim)
        if sbp.is_split
        else Partial(sbp.reduction)
        if sbp.is_partial
        else Replicate()
        for sbp in sbps
    )


def nd_sbp(placements: "Sequence[Placement]", dims: int = 0) -> NdSbp:
    """The nd-SBP of placements.

    Parameters
    ----------
    placements : sequence of Placement
        One for each axis of the mesh.
    dims : int
        Dims of the tensor, for placements that count them from the last; 0: none does.

    Raises
    ------
    PlanError
        A placement has no SBP: a strided shard, or a partial value that is no sum or maximum.

    Examples
    --------
    >>> nd_sbp(placements("(S(0), B)"))
    (Sbp(kind='S', dim=0, reduction=''), Sbp(kind='B', dim=-1, reduction=''))
    """
    from torch.distributed.tensor import Partial, Replicate, Shard

    sbps = []
    for placement in placements:
        if type(placement) is Replicate:
            sbps.append(BROADCAST)
        elif type(placement) is Shard and placement.dim + dims * (placement.dim < 0) >= 0:
            sbps.append(split(placement.dim + dims * (placement.dim < 0)))
        elif type(placement) is Partial and placement.reduce_op in REDUCTIONS:
            sbps.append(Sbp("P", reduction=placement.reduce_op))
        else:
            raise PlanError(
                f"{placement} has no SBP: expected Replicate(), Shard(d) of a dim from 0, "
                f'Partial("sum") or Partial("max")'
            )
    return tuple(sbps)


def device_mesh(mesh: Mesh, device_type: str, stages: int = 1) -> "DeviceMesh":
    """PyTorch's device mesh of a plan's mesh; the process group is there already.

    Parameters
    ----------
    mesh : Mesh
        Of one stage.
    device_type : str
        cuda or cpu.
    stages : int
        With several the outer axis is `PIPELINE`.
    """
    from torch.distributed.device_mesh import init_device_mesh

    sizes, names = whole_mesh(mesh, stages)
    return init_device_mesh(device_type, sizes, mesh_dim_names=names)


def whole_mesh(mesh: Mesh, stages: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Sizes and names of the axes over all devices of a plan, outer first.

    Parameters
    ----------
    mesh : Mesh
        Of one stage.
    stages : int
        A stage is so many devices that follow one another.
    """
    if stages == 1:
        return mesh.sizes, mesh.names
    outer = next(name for name in (PIPELINE, "stages", "pp_stages") if name not in mesh.names)
    return (stages, *mesh.sizes), (outer, *mesh.names)


def mesh_of(mesh: "DeviceMesh") -> Mesh:
    """Mesh of PyTorch's device mesh.

    Parameters
    ----------
    mesh : DeviceMesh
        Its axes are named.

    Raises
    ------
    PlanError
        The axes have no names, or ranks do not follow one another row by row.
    """
    names, ranks = mesh.mesh_dim_names, mesh.mesh.flatten().tolist()
    if names is None:
        raise PlanError("the device mesh has no names: give mesh_dim_names")
    if ranks != list(range(ranks[0], ranks[0] + len(ranks))):
        raise PlanError(f"the ranks of the device mesh are {ranks}: expected them in order")
    sizes = tuple(mesh.mesh.shape)
    return Mesh(
        axes=tuple(Axis(name=name, size=size) for name, size in zip(names, sizes, strict=True))
    )
